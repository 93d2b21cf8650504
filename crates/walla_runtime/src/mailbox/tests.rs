use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;

use super::{Mailbox, TrySendError, WakerCell};

#[test]
fn items_come_out_in_order_and_a_full_mailbox_gives_the_payload_back() {
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
fn many_come_out_at_once_in_order_and_no_more_than_asked_for() {
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
fn capacities_are_powers_of_two_of_at_least_two() {
    for (asked, given) in [(0, 2), (1, 2), (2, 2), (3, 4), (1_000, 1_024)] {
        let mailbox = Mailbox::new(asked);
        let sent = (0..).take_while(|item| mailbox.try_send(*item).is_ok()).count();
        assert_eq!(sent, given, "asked for {asked}");
    }
}

#[test]
fn what_was_sent_before_the_close_is_received_and_later_sends_come_back() {
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
fn items_that_nobody_received_are_dropped_with_the_mailbox() {
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
fn a_refused_sender_is_told_once_when_there_is_room() {
    let mailbox = Mailbox::new(2);
    mailbox.try_send_or_want_room(1).unwrap();
    mailbox.try_send_or_want_room(2).unwrap();
    assert!(!mailbox.take_room_wanted());
    assert_eq!(mailbox.try_send_or_want_room(3), Err(TrySendError::Full(3)));
    assert_eq!(mailbox.try_recv(), Some(1));
    assert!(mailbox.take_room_wanted());
    assert!(!mailbox.take_room_wanted());
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

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counting_waker() -> (Arc<Woken>, Waker) {
    let woken = Arc::new(Woken::default());
    (Arc::clone(&woken), Waker::from(woken))
}

#[test]
fn a_registered_task_is_woken_once() {
    let cell = WakerCell::new();
    let (woken, waker) = counting_waker();
    cell.wake();
    cell.register(&waker);
    cell.register(&waker);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    cell.wake();
    cell.wake();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

#[test]
fn the_task_registered_last_is_woken_and_wakers_are_not_leaked() {
    let cell = WakerCell::new();
    let (first, first_waker) = counting_waker();
    let (second, second_waker) = counting_waker();
    cell.register(&first_waker);
    cell.register(&second_waker);
    drop((first_waker, second_waker));
    assert_eq!(Arc::strong_count(&first), 1);
    cell.wake();
    assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(Arc::strong_count(&second), 1);
}
