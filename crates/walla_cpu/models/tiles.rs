//! The pool: each tile runs exactly once, on any thread, and no thread sleeps forever.
//!
//! Tiles are loom cells, which report unordered accesses by two threads. So the executor sees all
//! writes of the workers, and the next job's writes are ordered after them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::cell::Cell;

use crate::check;
use crate::pool::{Places, Pool};
use crate::work::ThreadCosts;

/// Work of a job that wakes sleeping helpers.
const LARGE: u64 = 2;

/// Adds `job` to each of two tiles.
fn add(pool: &Pool, tiles: &mut [Cell<usize>; 2], job: usize, work: u64) {
    pool.tiles(tiles, 1, (1, 1), work, &|_, tile| {
        let cell = &tile.row_mut(0)[0];
        cell.set(cell.get() + job);
    });
}

fn tiles() -> [Cell<usize>; 2] {
    [Cell::new(0), Cell::new(0)]
}

fn start() -> Pool {
    Pool::start(2, ThreadCosts).unwrap()
}

/// The second job never overlaps the first one's work, and a sleeping helper is woken by a job or
/// by shutdown.
#[test]
fn jobs_are_finished_before_the_next_is_published() {
    check(|| {
        let pool = start();
        let mut tiles = tiles();
        pool.wake(2, u64::MAX);
        add(&pool, &mut tiles, 1, LARGE);
        add(&pool, &mut tiles, 2, LARGE);
        assert!(tiles.iter().all(|tile| tile.get() == 3));
    });
}

/// A job that wakes no helper does not wait for one either.
#[test]
fn small_jobs_end_without_helpers() {
    check(|| {
        let pool = start();
        let mut tiles = tiles();
        pool.wake(2, u64::MAX);
        add(&pool, &mut tiles, 1, 0);
        add(&pool, &mut tiles, 2, 0);
        assert!(tiles.iter().all(|tile| tile.get() == 3));
    });
}

/// A helper sleeps for different reasons during and between launches; neither loses a wake-up.
#[test]
fn no_wake_up_of_a_launch_is_lost() {
    check(|| {
        let pool = start();
        let mut tiles = tiles();
        pool.wake(2, u64::MAX);
        pool.rest();
        pool.wake(2, u64::MAX);
        add(&pool, &mut tiles, 1, LARGE);
        pool.rest();
        assert!(tiles.iter().all(|tile| tile.get() == 1));
    });
}

/// A helper on the executor's processor sleeps, and the executor does its work.
#[test]
fn jobs_end_if_no_processor_is_free() {
    check(|| {
        let one = Places { current: || Some(0), leave: |_| {} };
        let pool = Pool::start_on(2, ThreadCosts, one).unwrap();
        let mut tiles = tiles();
        pool.wake(2, u64::MAX);
        add(&pool, &mut tiles, 1, LARGE);
        pool.rest();
        pool.wake(2, u64::MAX);
        add(&pool, &mut tiles, 2, u64::MAX);
        assert!(tiles.iter().all(|tile| tile.get() == 3));
    });
}

/// A panic in a tile reaches the caller after all tiles are done, and the helper survives and can
/// be joined.
#[test]
fn no_thread_waits_after_a_panic_in_a_tile() {
    check(|| {
        let pool = start();
        let mut tiles = tiles();
        pool.wake(2, u64::MAX);
        let run = || {
            pool.tiles(&mut tiles, 1, (1, 1), LARGE, &|_, tile| {
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
