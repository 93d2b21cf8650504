use std::sync::Arc;

use loom::thread;

use crate::check;
use crate::snapshot::Snapshot;

/// If a reader reports numbers of one moment, they are; and each number is one that was written.
#[test]
fn a_snapshot_is_consistent() {
    check(|| {
        let snapshot = Arc::new(Snapshot::<2>::new());
        let writer = {
            let snapshot = Arc::clone(&snapshot);
            thread::spawn(move || {
                snapshot.store([1, 1]);
                snapshot.store([2, 2]);
            })
        };
        let mut last = 0;
        for _ in 0..2 {
            let (numbers, of_one_moment) = snapshot.look();
            assert!(numbers.iter().all(|number| *number <= 2));
            if of_one_moment {
                assert_eq!(numbers[0], numbers[1]);
                assert!(numbers[0] >= last, "time does not go back");
                last = numbers[0];
            }
        }
        writer.join().unwrap();
        assert_eq!(snapshot.load(), [2, 2]);
    });
}
