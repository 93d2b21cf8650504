//! Marks: no change is overlooked.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::check;
use crate::mark::Mark;

/// A host changes something and then touches the mark; another thread touches the mark and then
/// looks. `host` returns whether it wakes the other thread, which otherwise has to see the change.
fn the_host_wakes_or_the_change_is_seen(is_set: bool, host: fn(&Mark) -> bool, look: fn(&Mark)) {
    check(move || {
        let (mark, changes) = (Arc::new(Mark::new(is_set)), Arc::new(AtomicU64::new(0)));
        let host = thread::spawn({
            let (mark, changes) = (Arc::clone(&mark), Arc::clone(&changes));
            move || {
                changes.store(1, Ordering::Relaxed);
                host(&mark)
            }
        });
        look(&mark);
        let seen = changes.load(Ordering::Relaxed);
        let wakes = host.join().unwrap();
        assert!(wakes || seen == 1);
    });
}

/// A host that finds the mark set need not wake the other thread.
#[test]
fn a_change_behind_a_set_mark_is_seen() {
    the_host_wakes_or_the_change_is_seen(
        true,
        |mark| !mark.set(),
        |mark| {
            mark.take();
        },
    );
}

/// The other way round: a thread marks that it sleeps and looks again; a host takes the mark after
/// a change.
#[test]
fn no_sleeper_is_left_alone() {
    the_host_wakes_or_the_change_is_seen(false, Mark::take, |mark| {
        mark.set();
    });
}

/// Marks of two hosts are one: the thread that takes it sees both changes.
#[test]
fn a_mark_brings_the_changes_of_all_hosts() {
    check(|| {
        let (mark, changes) = (Arc::new(Mark::new(false)), Arc::new(AtomicU64::new(0)));
        let hosts = [1, 2].map(|part| {
            let (mark, changes) = (Arc::clone(&mark), Arc::clone(&changes));
            thread::spawn(move || {
                changes.fetch_add(part, Ordering::Relaxed);
                mark.set()
            })
        });
        let mut seen = 0;
        for _ in 0..2 {
            if mark.take() {
                seen = changes.load(Ordering::Relaxed);
            }
        }
        for host in hosts {
            host.join().unwrap();
        }
        if mark.take() {
            seen = changes.load(Ordering::Relaxed);
        }
        assert_eq!(seen, 3);
    });
}
