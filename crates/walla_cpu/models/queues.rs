//! The parker (`Parker`) and the ring.

use loom::thread;

use crate::check;
use crate::parker::Parker;
use crate::ring::Ring;
use crate::sync::{Arc, AtomicBool, Ordering};

#[test]
fn no_wake_up_is_lost() {
    check(|| {
        let shared = Arc::new((Parker::new(), AtomicBool::new(false)));
        let waker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.1.store(true, Ordering::Release);
                shared.0.wake();
            }
        });
        shared.0.sleep_until(|| shared.1.load(Ordering::Acquire));
        waker.join().unwrap();
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
