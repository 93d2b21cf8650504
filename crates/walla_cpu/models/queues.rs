//! Parking and the ring.

use loom::thread;

use crate::check;
use crate::parker::{park_in_until, park_until};
use crate::ring::Ring;
use crate::sync::{Arc, AtomicBool, Ordering, Parker};

#[test]
fn no_wake_up_of_a_parker_is_lost() {
    check(|| {
        let parker = Parker::new();
        let is_ready = Arc::new(AtomicBool::new(false));
        let waker = thread::spawn({
            let (is_ready, unparker) = (Arc::clone(&is_ready), parker.unparker().clone());
            move || {
                // The parker orders the store.
                is_ready.store(true, Ordering::Relaxed);
                unparker.unpark();
            }
        });
        park_in_until(&parker, || is_ready.load(Ordering::Relaxed));
        waker.join().unwrap();
    });
}

#[test]
fn no_wake_up_of_a_thread_is_lost() {
    check(|| {
        let is_ready = Arc::new(AtomicBool::new(false));
        let sleeper = thread::spawn({
            let is_ready = Arc::clone(&is_ready);
            move || park_until(|| is_ready.load(Ordering::Relaxed))
        });
        is_ready.store(true, Ordering::Relaxed);
        sleeper.thread().unpark();
        sleeper.join().unwrap();
    });
}

#[test]
fn slots_are_never_contended_and_order_is_kept() {
    check(|| {
        let ring = Arc::new(Ring::new(1));
        let consumer = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                let mut got = Vec::new();
                while got.len() < 2 {
                    match ring.pop() {
                        Some(entry) => got.push(entry),
                        None => thread::yield_now(),
                    }
                }
                assert_eq!(got, [1, 2]);
            }
        });
        for entry in [1, 2] {
            while ring.push(entry).is_err() {
                thread::yield_now();
            }
        }
        consumer.join().unwrap();
    });
}
