use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Notify;
use loom::thread;

use crate::check;
use crate::queue::{Mailbox, TrySendError};
use crate::waker::WakerCell;

/// Two senders, two receivers, two slots: each item is received once, and the remaining items are
/// in the mailbox at the end.
#[test]
fn each_item_once_with_two_pollers() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        mailbox.try_send(1).unwrap();
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.try_recv())
            })
            .collect();
        let sent_second = mailbox.try_send(2).is_ok();
        let mut seen: Vec<i32> =
            receivers.into_iter().filter_map(|receiver| receiver.join().unwrap()).collect();
        seen.extend(core::iter::from_fn(|| mailbox.try_recv()));
        seen.sort_unstable();
        assert!(sent_second, "two slots have room for two items");
        assert_eq!(seen, [1, 2]);
    });
}

/// Senders race for the last slots: a refused send returns its own payload, all other items arrive,
/// in the order of each sender.
#[test]
fn a_full_mailbox_gives_the_payload_back() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        let send = |from: i32, mailbox: Arc<Mailbox<Box<i32>>>| {
            (from..from + 2)
                .filter(|item| match mailbox.try_send(Box::new(*item)) {
                    Ok(()) => true,
                    Err(refused) if refused.is_full() => {
                        assert_eq!(*refused.into_inner(), *item);
                        false
                    }
                    Err(_) => panic!("nobody closed it"),
                })
                .collect::<Vec<_>>()
        };
        let other = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || send(20, mailbox))
        };
        let mut sent = send(10, Arc::clone(&mailbox));
        sent.extend(other.join().unwrap());
        assert_eq!(sent.len(), 2, "two slots, nobody receives");
        let received: Vec<i32> = core::iter::from_fn(|| mailbox.try_recv()).map(|i| *i).collect();
        let of = |all: &[i32], tens: i32| {
            all.iter().copied().filter(|i| i / 10 == tens).collect::<Vec<_>>()
        };
        assert_eq!(of(&received, 1), of(&sent, 1));
        assert_eq!(of(&received, 2), of(&sent, 2));
    });
}

/// One receiver takes all available items at once, another one by one: each item is received once,
/// and each receiver gets its items in order.
#[test]
fn each_item_once_when_many_are_taken_at_once() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        mailbox.try_send(0).unwrap();
        let single = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.try_recv())
        };
        let sender = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || (1..3).take_while(|i| mailbox.try_send(*i).is_ok()).count())
        };
        let mut many = Vec::new();
        let count = mailbox.recv_many(2, &mut many);
        assert_eq!(count, many.len());
        let alone = single.join().unwrap();
        let sent = 1 + sender.join().unwrap();
        mailbox.recv_many(2, &mut many);
        assert!(many.is_sorted(), "{many:?}");
        many.extend(alone);
        many.sort_unstable();
        assert_eq!(many, (0..sent).collect::<Vec<_>>());
    });
}

/// Slots are reused while a sender and a receiver run: `turn` distinguishes the laps.
#[test]
fn slots_turn_over() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        let sender = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || (0..3).take_while(|i| mailbox.try_send(*i).is_ok()).count())
        };
        let mut received: Vec<usize> = (0..2).filter_map(|_| mailbox.try_recv()).collect();
        let sent = sender.join().unwrap();
        received.extend(core::iter::from_fn(|| mailbox.try_recv()));
        assert_eq!(received, (0..sent).collect::<Vec<_>>());
    });
}

/// A send that races with the close either arrives before the mailbox is drained, or is refused.
#[test]
fn close_loses_nothing() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        let senders: Vec<_> = [1, 2]
            .into_iter()
            .map(|item| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || match mailbox.try_send(item) {
                    Ok(()) => Some(item),
                    Err(TrySendError::Closed(back)) => {
                        assert_eq!(back, item);
                        None
                    }
                    Err(TrySendError::Full(_)) => panic!("there is room for both"),
                })
            })
            .collect();
        mailbox.close();
        let mut received = Vec::new();
        while !mailbox.is_drained() {
            match mailbox.try_recv() {
                Some(item) => received.push(item),
                None => thread::yield_now(), // A sender owns a slot and is about to fill it.
            }
        }
        let mut sent: Vec<i32> =
            senders.into_iter().filter_map(|sender| sender.join().unwrap()).collect();
        sent.sort_unstable();
        received.sort_unstable();
        assert_eq!(received, sent);
        assert_eq!(mailbox.try_send(3), Err(TrySendError::Closed(3)));
    });
}

/// The device thread's part of rule 7: a thread that parks after a check finds every item.
#[test]
fn a_parked_receiver_misses_nothing() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        let receiver = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                let mut sum = 0;
                while sum < 3 {
                    match mailbox.try_recv() {
                        Some(item) => sum += item,
                        None => thread::park(),
                    }
                }
            })
        };
        let other = {
            let (mailbox, receiver) = (Arc::clone(&mailbox), receiver.thread().clone());
            thread::spawn(move || {
                mailbox.try_send(1).unwrap();
                receiver.unpark();
            })
        };
        mailbox.try_send(2).unwrap();
        receiver.thread().unpark();
        other.join().unwrap();
        receiver.join().unwrap(); // Loom reports a deadlock if a wake-up was lost.
    });
}

/// Rule 6: a refused sender that parks is woken by the receiver that frees a slot.
#[test]
fn a_refused_sender_misses_no_room() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        mailbox.try_send(1).unwrap();
        mailbox.try_send(2).unwrap();
        let sender = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                while mailbox.try_send_or_want_room(3).is_err() {
                    thread::park();
                }
            })
        };
        assert_eq!(mailbox.try_recv(), Some(1));
        if mailbox.take_room_wanted() {
            sender.thread().unpark();
        }
        sender.join().unwrap();
    });
}

struct Task(Notify);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// The asynchronous part of rule 7, with two threads that send and wake.
#[test]
fn a_registered_task_misses_nothing() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(2));
        let cell = Arc::new(WakerCell::new());
        let senders: Vec<_> = [1, 2]
            .into_iter()
            .map(|item| {
                let (mailbox, cell) = (Arc::clone(&mailbox), Arc::clone(&cell));
                thread::spawn(move || {
                    mailbox.try_send(item).unwrap();
                    cell.wake();
                })
            })
            .collect();
        let task = Arc::new(Task(Notify::new()));
        let waker = Waker::from(Arc::clone(&task));
        let mut sum = 0;
        while sum < 3 {
            cell.register(&waker);
            match mailbox.try_recv() {
                Some(item) => sum += item,
                None => {
                    task.0.wait();
                    // As in an executor: the spurious wake-ups of a collision repeat until it ends.
                    thread::yield_now();
                }
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// Registrations that collide: both tasks check again or are woken; no waker is used twice or
/// leaked.
#[test]
fn colliding_registrations_never_hang() {
    check(|| {
        let cell = Arc::new(WakerCell::new());
        let mailbox = Arc::new(Mailbox::new(2));
        let waking = {
            let (mailbox, cell) = (Arc::clone(&mailbox), Arc::clone(&cell));
            thread::spawn(move || {
                mailbox.try_send(()).unwrap();
                cell.wake();
            })
        };
        let registering = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                let task = Arc::new(Task(Notify::new()));
                let waker = Waker::from(Arc::clone(&task));
                cell.register(&waker);
            })
        };
        waking.join().unwrap();
        registering.join().unwrap();
        let task = Arc::new(Task(Notify::new()));
        cell.register(&Waker::from(Arc::clone(&task)));
        assert_eq!(mailbox.try_recv(), Some(()));
        cell.wake();
        task.0.wait();
    });
}
