//! Copies and events: conclusions that the owner may draw from a completed event.

use loom::thread;

use crate::check;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::transfer::{Completed, Host};

/// An event that is recorded behind a copy completes after it: the owner reads the new bytes, and
/// never finds the lock taken.
#[test]
fn a_completed_event_frees_the_bytes_of_its_copy() {
    check(|| {
        let host = Arc::new(Host::new(0));
        let event = Arc::new(Completed::default());
        host.begin(1);
        let executor = thread::spawn({
            let (host, event) = (Arc::clone(&host), Arc::clone(&event));
            move || {
                host.copy(|bytes| *bytes = 7);
                event.complete(1);
            }
        });
        if event.has(1) {
            let mut seen = 0;
            assert!(host.visit(|bytes| seen = *bytes), "the copy is done");
            assert_eq!(seen, 7);
        }
        executor.join().unwrap();
    });
}

/// Without a look at the event: either the copy is in flight, or its effects are visible, also
/// those outside the host memory (an upload writes a buffer of the device).
#[test]
fn bytes_are_free_only_after_all_copies() {
    check(|| {
        let host = Arc::new(Host::new(0));
        let written = Arc::new(AtomicU64::new(0));
        host.begin(2);
        let executor = thread::spawn({
            let (host, written) = (Arc::clone(&host), Arc::clone(&written));
            move || {
                for copy in 1..=2 {
                    host.copy(|bytes| *bytes = copy);
                    // The next copy's effects follow.
                    written.store(copy, Ordering::Relaxed);
                }
            }
        });
        let mut seen = None;
        if host.visit(|bytes| seen = Some(*bytes)) {
            assert_eq!(seen, Some(2), "both copies are done");
            assert!(written.load(Ordering::Relaxed) >= 1, "what was before the last copy");
        } else {
            assert_eq!(seen, None);
        }
        executor.join().unwrap();
    });
}

/// A later record completes an event that was recorded before it, and never the other way round.
#[test]
fn events_complete_in_the_order_of_their_records() {
    check(|| {
        let [first, second] = [(); 2].map(|()| Arc::new(Completed::default()));
        let executor = thread::spawn({
            let [first, second] = [Arc::clone(&first), Arc::clone(&second)];
            move || {
                first.complete(1);
                second.complete(2);
                first.complete(3);
            }
        });
        if second.has(2) {
            assert!(first.has(1), "recorded before");
        }
        if first.has(3) {
            assert!(first.has(1) && second.has(2), "all are done");
        }
        executor.join().unwrap();
    });
}
