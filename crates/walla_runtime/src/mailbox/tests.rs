use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Mailbox, TrySendError};

#[test]
fn a_full_mailbox_returns_the_payload() {
    let mailbox = Mailbox::new(4);
    for lap in 0..3 {
        assert_eq!(mailbox.try_recv(), None, "lap {lap}");
        for item in 0..4 {
            mailbox.try_send(format!("{lap}.{item}")).unwrap();
        }
        assert_eq!(mailbox.try_send("kept".to_owned()), Err(TrySendError::Full("kept".to_owned())));
        for item in 0..4 {
            assert_eq!(mailbox.try_recv(), Some(format!("{lap}.{item}")));
        }
    }
}

#[test]
fn many_items_are_received_in_order_up_to_a_limit() {
    let mailbox = Mailbox::new(4);
    let mut out = vec![-1];
    assert_eq!(mailbox.recv_many(3, &mut out), 0);
    for lap in 0..3 {
        for item in 0..4 {
            mailbox.try_send(4 * lap + item).unwrap();
        }
        assert_eq!(mailbox.recv_many(0, &mut out), 0, "lap {lap}");
        assert_eq!(mailbox.recv_many(3, &mut out), 3, "lap {lap}");
        assert_eq!(mailbox.recv_many(usize::MAX, &mut out), 1, "lap {lap}");
    }
    assert_eq!(out, (-1..12).collect::<Vec<_>>());
}

#[test]
fn capacities_are_exact_and_at_least_one() {
    for (wanted, given) in [(0, 1), (1, 1), (2, 2), (3, 3), (1_000, 1_000)] {
        let mailbox = Mailbox::new(wanted);
        let sent = (0..).take_while(|item| mailbox.try_send(*item).is_ok()).count();
        assert_eq!(sent, given, "{wanted} wanted");
    }
}

#[test]
fn items_before_a_close_are_received_and_later_ones_returned() {
    let mailbox = Mailbox::new(4);
    mailbox.try_send(1).unwrap();
    mailbox.try_send(2).unwrap();
    assert!(!mailbox.is_drained());
    mailbox.close();
    assert_eq!(mailbox.try_send(3), Err(TrySendError::Closed(3)));
    assert!(!mailbox.is_drained());
    assert_eq!(
        (mailbox.try_recv(), mailbox.try_recv(), mailbox.try_recv()),
        (Some(1), Some(2), None)
    );
    assert!(mailbox.is_drained());
    mailbox.close();
    assert_eq!(mailbox.try_send(4), Err(TrySendError::Closed(4)));
}

#[test]
fn unreceived_items_are_dropped_with_the_mailbox() {
    let item = Arc::new(());
    let mailbox = Mailbox::new(4);
    for _ in 0..3 {
        mailbox.try_send(Arc::clone(&item)).unwrap();
    }
    drop(mailbox.try_recv());
    assert_eq!(Arc::strong_count(&item), 3);
    drop(mailbox);
    assert_eq!(Arc::strong_count(&item), 1);
}

#[test]
fn a_refused_sender_is_notified_once() {
    let mailbox = Mailbox::new(2);
    mailbox.try_send_or_want_retry(1).unwrap();
    mailbox.try_send_or_want_retry(2).unwrap();
    assert!(!mailbox.take_retry_wanted());
    assert_eq!(mailbox.try_send_or_want_retry(3), Err(TrySendError::Full(3)));
    assert_eq!(mailbox.try_recv(), Some(1));
    assert!(mailbox.take_retry_wanted());
    assert!(!mailbox.take_retry_wanted());
}

#[test]
fn many_senders_and_receivers_see_each_item_once() {
    const SENDERS: usize = 3;
    const RECEIVERS: usize = 3;
    const ITEMS: usize = if cfg!(miri) { 30 } else { 20_000 };
    let mailbox = Mailbox::new(8);
    let seen: Vec<AtomicUsize> = (0..SENDERS * ITEMS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let mailbox = &mailbox;
                scope.spawn(move || {
                    for item in 0..ITEMS {
                        let mut kept = sender * ITEMS + item;
                        while let Err(TrySendError::Full(back)) = mailbox.try_send(kept) {
                            kept = back;
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for most in 1..=RECEIVERS {
            let (mailbox, seen) = (&mailbox, &seen);
            scope.spawn(move || {
                let mut received = Vec::with_capacity(most);
                while !mailbox.is_drained() {
                    if mailbox.recv_many(most, &mut received) == 0 {
                        thread::yield_now();
                    }
                    for item in received.drain(..) {
                        seen[item].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        mailbox.close();
    });
    assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

/// A send that succeeds is received, whenever the mailbox is closed; all others return their item.
#[test]
fn no_item_is_lost_by_a_close() {
    const SENDERS: u64 = 3;
    for round in 0..if cfg!(miri) { 3 } else { 200 } {
        let mailbox = Mailbox::new(if round % 2 == 0 { 4 } else { 64 });
        let (sent, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..SENDERS {
                scope.spawn(|| {
                    loop {
                        match mailbox.try_send(()) {
                            Ok(()) => drop(sent.fetch_add(1, Ordering::Relaxed)),
                            Err(TrySendError::Full(())) => thread::yield_now(),
                            Err(TrySendError::Closed(())) => break,
                        }
                    }
                });
            }
            scope.spawn(|| {
                while !mailbox.is_drained() {
                    match mailbox.try_recv() {
                        Some(()) => drop(received.fetch_add(1, Ordering::Relaxed)),
                        None => thread::yield_now(),
                    }
                }
            });
            for _ in 0..round % 50 {
                thread::yield_now();
            }
            mailbox.close();
        });
        assert_eq!(sent.into_inner(), received.into_inner(), "round {round}");
        assert_eq!(mailbox.try_recv(), None);
    }
}

/// A sender that waits for a notification after each refusal gets all of its items through.
#[test]
fn no_notification_is_lost() {
    const ITEMS: usize = if cfg!(miri) { 30 } else { 50_000 };
    let mailbox = Mailbox::new(2);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for item in 0..ITEMS {
                while mailbox.try_send_or_want_retry(item).is_err() {
                    // Unparked by the receiver; a timeout would hide a lost notification.
                    thread::park();
                }
            }
        });
        let sender = sender.thread().clone();
        let mut next = 0;
        while next < ITEMS {
            match mailbox.try_recv() {
                Some(item) => {
                    assert_eq!(item, next);
                    next += 1;
                    if mailbox.take_retry_wanted() {
                        sender.unpark();
                    }
                }
                None => thread::yield_now(),
            }
        }
    });
}
