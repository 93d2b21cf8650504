//! The pool: each tile runs exactly once, on any thread, and no thread sleeps forever.
//!
//! Tiles are loom cells, which report unordered accesses by two threads. So the executor sees all
//! writes of the workers, and the next job's writes are ordered after them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::cell::Cell;

use crate::check;
use crate::pool::Pool;

/// Adds `job` to each of two tiles.
fn add(pool: &Pool, tiles: &mut [Cell<usize>; 2], job: usize) {
    pool.grid(tiles, 1, (1, 1), &|_, tile| {
        let cell = &tile.row_mut(0)[0];
        cell.set(cell.get() + job);
    });
}

fn tiles() -> [Cell<usize>; 2] {
    [Cell::new(0), Cell::new(0)]
}

/// The second job never overlaps the first one's work, and a sleeping helper is woken by a job or
/// by shutdown.
#[test]
fn jobs_are_finished_before_the_next_is_published() {
    check(|| {
        let pool = Pool::start(2).unwrap();
        let mut tiles = tiles();
        add(&pool, &mut tiles, 1);
        add(&pool, &mut tiles, 2);
        assert!(tiles.iter().all(|tile| tile.get() == 3));
    });
}

/// A helper's sleep condition differs during and between launches; neither loses a wake-up.
#[test]
fn no_wake_up_of_a_launch_is_lost() {
    check(|| {
        let pool = Pool::start(2).unwrap();
        let mut tiles = tiles();
        pool.set_busy(true);
        add(&pool, &mut tiles, 1);
        pool.set_busy(false);
        assert!(tiles.iter().all(|tile| tile.get() == 1));
    });
}

/// A panic in a tile reaches the caller after all tiles are done, and the helper survives and can
/// be joined.
#[test]
fn no_thread_waits_after_a_panic_in_a_tile() {
    check(|| {
        let pool = Pool::start(2).unwrap();
        let mut tiles = tiles();
        let run = || {
            pool.grid(&mut tiles, 1, (1, 1), &|_, tile| {
                tile.row_mut(0)[0].set(1);
                if tile.row == 0 {
                    resume_unwind(Box::new("a defect"));
                }
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert!(tiles.iter().all(|tile| tile.get() == 1));
    });
}
