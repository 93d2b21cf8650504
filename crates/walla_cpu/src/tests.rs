//! Tests of the files that package `walla_cpu_models` compiles with loom's primitives; these files
//! therefore contain no tests.

mod pool {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use crate::pool::{Places, Pool};
    use crate::work::ThreadCosts;

    /// Runs a job of a tile for each thread. With `waits_for`, the executor waits in its tile until
    /// this worker runs another one. Returns whether a helper ran one.
    fn job(pool: &Pool, nanos: u64, waits_for: Option<usize>) -> bool {
        let last = AtomicUsize::new(0);
        pool.tiles(&mut vec![0; pool.workers()], 1, (1, 1), nanos, &|worker, _| {
            let began = Instant::now();
            match waits_for {
                Some(wanted) if worker == wanted => last.store(worker, Ordering::Relaxed),
                Some(wanted) if worker == 0 => {
                    while last.load(Ordering::Relaxed) != wanted
                        && began.elapsed() < Duration::from_secs(5)
                    {
                        std::thread::yield_now();
                    }
                }
                _ => last.store(worker, Ordering::Relaxed),
            }
        });
        last.load(Ordering::Relaxed) != 0
    }

    /// Work of a job that wakes helpers, in nanoseconds.
    const LARGE: u64 = 50_000;
    /// Work after which a displaced helper is woken again.
    const ATTEMPT: u64 = 2_000_000;

    /// The system puts every thread on processor 0, where the executor runs. The other processor
    /// is free from some moment on.
    #[test]
    fn a_displaced_helper_takes_part_as_soon_as_a_processor_is_free() {
        thread_local!(static PROCESSOR: Cell<usize> = const { Cell::new(0) });
        static IS_FREE: AtomicBool = AtomicBool::new(false);
        let leave = |_| PROCESSOR.set(usize::from(IS_FREE.load(Ordering::Relaxed)));
        let places = Places { current: || Some(PROCESSOR.get()), leave };
        let costs = ThreadCosts::new(ThreadCosts::JOIN_NANOS);
        for busy_jobs in [0, 1, 10, 1000] {
            IS_FREE.store(false, Ordering::Relaxed);
            let pool = Pool::start_on(2, costs, places).unwrap();
            for _ in 0..busy_jobs {
                pool.wake(2, LARGE);
                assert!(!job(&pool, LARGE, None), "takes turns with the executor");
                pool.rest();
            }
            IS_FREE.store(true, Ordering::Relaxed);
            for _ in 0..ATTEMPT / LARGE {
                pool.wake(2, LARGE);
                job(&pool, LARGE, None);
                pool.rest();
            }
            pool.wake(2, LARGE);
            assert!(job(&pool, LARGE, Some(1)), "never tried again after {busy_jobs} jobs");
        }
    }

    /// Helper 1 shares the executor's processor, helper 2 has its own.
    #[test]
    fn a_displaced_helper_does_not_keep_others_asleep() {
        let current = || {
            let thread = std::thread::current();
            Some(if thread.name() == Some("walla-cpu-2") { 1 } else { 0 })
        };
        let places = Places { current, leave: |_| {} };
        let costs = ThreadCosts::new(ThreadCosts::JOIN_NANOS);
        let pool = Pool::start_on(3, costs, places).unwrap();
        for launch in 0..20 {
            pool.wake(3, 10 * LARGE);
            for number in 0..10 {
                assert!(job(&pool, LARGE, Some(2)), "job {number} of launch {launch}");
                // Longer than a helper spins.
                std::thread::sleep(Duration::from_micros(200));
            }
            pool.rest();
        }
    }

    #[test]
    fn every_element_belongs_to_exactly_one_tile() {
        for threads in 1..=4 {
            let pool = Pool::start(threads, ThreadCosts::new(0)).unwrap();
            pool.wake(threads, u64::MAX);
            for (rows, width, tile) in
                [(5, 7, (2, 3)), (1, 1, (4, 4)), (6, 4, (3, 2)), (0, 3, (1, 1))]
            {
                let mut array = vec![0_u32; rows * width];
                pool.tiles(&mut array, width, tile, 1, &|worker, tile| {
                    assert!(worker < threads);
                    for row in 0..tile.rows {
                        tile.row_mut(row).iter_mut().for_each(|x| *x += 1);
                    }
                });
                assert!(array.iter().all(|&x| x == 1), "{rows} {width} {tile:?}: {array:?}");
            }
        }
    }

    /// More threads than cores, so that some threads are descheduled at any point.
    #[test]
    fn thousands_of_jobs_lose_no_tile() {
        let pool = Pool::start(5, ThreadCosts::new(0)).unwrap();
        let mut array = vec![0_u64; 24];
        for job in 0..20_000_u64 {
            match job % 64 {
                0 => pool.wake(1 + job as usize / 64 % 5, u64::MAX),
                48 => pool.rest(),
                _ => {}
            }
            let tiles = 1 + job as usize % 24;
            pool.tiles(&mut array[..tiles], 1, (1, 1), job % 2, &|_, tile| {
                tile.row_mut(0)[0] += job;
            });
        }
        let wanted = |i: u64| (0..20_000).filter(|job| job % 24 >= i).sum::<u64>();
        assert!(array.iter().zip(0..).all(|(x, i)| *x == wanted(i)), "{array:?}");
    }

    /// The executor sleeps while it waits for a helper that holds a tile.
    #[test]
    fn jobs_end_when_helpers_are_late() {
        let pool = Pool::start(4, ThreadCosts::new(0)).unwrap();
        let mut array = vec![0_u32; 16];
        for job in 0..50 {
            pool.wake(4, u64::MAX);
            pool.tiles(&mut array, 1, (1, 1), 1, &|worker, tile| {
                std::thread::sleep(Duration::from_micros(300 * worker as u64));
                tile.row_mut(0)[0] += 1;
            });
            assert!(array.iter().all(|&x| x == job + 1), "{job}: {array:?}");
            if job % 3 == 0 {
                pool.rest();
            }
        }
    }

    /// Tiles cover an array for every estimate of its work and every number of threads.
    #[test]
    fn every_choice_covers_the_array() {
        for threads in 1..=4 {
            let pool = Pool::start(threads, ThreadCosts::new(300)).unwrap();
            for (rows, width, tile) in [(37, 4, (1, 4)), (3, 130, (3, 16)), (0, 3, (1, 3))] {
                let mut array = vec![0_u32; rows * width];
                for work in (0..24).map(|power| 1 << power) {
                    pool.wake(threads, u64::MAX);
                    pool.grid(&mut array, width, tile, work, &|_, tile| {
                        for row in 0..tile.rows {
                            tile.row_mut(row).iter_mut().for_each(|x| *x += 1);
                        }
                    });
                }
                assert!(array.iter().all(|&x| x == 24), "{threads} {rows} {width}: {array:?}");
            }
        }
    }

    #[test]
    fn a_panic_in_a_tile_reaches_the_caller() {
        let pool = Pool::start(3, ThreadCosts::new(0)).unwrap();
        pool.wake(3, u64::MAX);
        let run = || pool.tiles(&mut [0; 8], 1, (1, 1), 1, &|_, tile| assert!(tile.row != 5));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }

    #[test]
    #[should_panic(expected = "row 2 of a tile of 2 rows")]
    fn a_tile_accesses_only_its_rows() {
        Pool::start(1, ThreadCosts::new(0)).unwrap().tiles(
            &mut [0; 8],
            2,
            (2, 2),
            1,
            &|_, tile| tile.row_mut(2)[0] = 1,
        );
    }
}

mod retry {
    use crate::retry::{Balance, Retry, Verdict};

    /// Work after which a helper is woken again at the latest.
    const MOST: u64 = 2_000_000;

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % bound
        }
    }

    /// After every history, a helper is woken again within a bounded amount of work.
    #[test]
    fn no_history_gives_a_helper_up() {
        let mut random = Random(1);
        for _ in 0..10_000 {
            let mut retry = Retry::of_displaced();
            for _ in 0..random.below(50) {
                match random.below(4) {
                    0 => retry.succeeded(),
                    1 => retry.advance(1 << random.below(40)),
                    _ => retry.failed(),
                }
                assert!(retry.is_due_within(MOST + 1), "{retry:?}");
                let mut after = retry;
                after.advance(MOST);
                assert!(after.is_due(), "{retry:?}");
            }
        }
    }

    /// On a machine that stays busy, attempts become rare; where a processor was busy only for a
    /// moment, the first attempts follow soon.
    #[test]
    fn attempts_are_soon_at_first_and_rare_if_they_fail() {
        const JOB: u64 = 25_000;
        let mut retry = Retry::of_displaced();
        let mut attempts = Vec::new();
        for job in 0..4_000 {
            if retry.is_due_within(JOB) {
                attempts.push(job * JOB);
                retry.failed();
            } else {
                retry.advance(JOB);
            }
        }
        assert!(attempts[1] <= 200_000, "{attempts:?}");
        assert!(attempts.len() as u64 <= 4_000 * JOB / MOST + 5, "{attempts:?}");
        retry.succeeded();
        assert!(retry.is_due());
    }

    /// Time in milliseconds of two seconds of work in jobs of this many microseconds, with a helper
    /// that runs for `on` microseconds and then, with a tile, not for `off` microseconds.
    fn simulate(job: u64, on: u64, off: u64) -> (u64, u64) {
        const TILES: u64 = 16;
        let (mut balance, mut late) = (Balance::default(), Retry::of_late());
        let (mut now, mut alone) = (0, 0);
        for _ in 0..2_000_000 / job {
            if !late.is_due_within(1_000 * job) {
                late.advance(1_000 * job);
                now += job;
                alone += 1;
                continue;
            }
            late.advance(1_000 * job);
            let phase = now % (on + off);
            let (mine, waited) = if phase + job / 2 < on {
                (TILES / 2, job / TILES / 2)
            } else if phase < on {
                // It is descheduled during this job.
                (TILES - 1, (on + off - phase).saturating_sub(job))
            } else {
                (TILES, 0)
            };
            now += job * mine / TILES + waited;
            match balance.add(1_000 * job * (TILES - mine) / TILES, 1_000 * waited) {
                Verdict::Open => {}
                Verdict::Save => late.succeeded(),
                Verdict::Cost => late.failed(),
            }
        }
        (now / 1_000, alone)
    }

    #[test]
    fn helpers_on_busy_processors_cost_little() {
        for job in [20, 80, 300, 2_000] {
            for (on, off) in [(100, 3_000), (1_000, 3_000), (1_000, 10_000), (3_000, 4_000)] {
                let (millis, alone) = simulate(job, on, off);
                assert!(millis < 2_300, "{job} {on} {off}: {millis} ms, {alone} jobs alone");
            }
        }
    }

    /// A rare pause, as of an interrupt or of a virtual machine's host, changes nothing.
    #[test]
    fn helpers_on_free_processors_are_used_by_all_jobs() {
        for job in [20, 80, 300, 2_000] {
            for (on, off) in [(10_000_000, 1), (20_000, 1_000), (100_000, 2_500)] {
                let (millis, alone) = simulate(job, on, off);
                assert_eq!(alone, 0, "{job} {on} {off}");
                assert!(millis < 1_300, "{job} {on} {off}: {millis} ms");
            }
        }
    }
}

mod ring {
    use std::sync::Arc;
    use std::thread;

    use crate::ring::Ring;

    #[test]
    fn a_full_ring_returns_the_entry() {
        let ring = Ring::new(2);
        assert_eq!((ring.push(1), ring.push(2), ring.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((ring.pop(), ring.free()), (Some(1), 1));
        assert_eq!(
            (ring.push(4), ring.pop(), ring.pop(), ring.pop()),
            (Ok(()), Some(2), Some(4), None)
        );
    }

    #[test]
    fn entries_are_received_in_order() {
        let ring = Arc::new(Ring::new(3));
        let consumer = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                for wanted in 0..10_000 {
                    let got = loop {
                        if let Some(got) = ring.pop() {
                            break got;
                        }
                        thread::yield_now();
                    };
                    assert_eq!(got, wanted);
                }
            }
        });
        for entry in 0..10_000 {
            while ring.push(entry).is_err() {
                thread::yield_now();
            }
        }
        consumer.join().unwrap();
    }
}

mod executor {
    use walla_device::DeviceError;

    use crate::command::Command;
    use crate::executor::Executor;
    use crate::machine::Machine;
    use crate::options::Variant;
    use crate::pool::Pool;
    use crate::work::ThreadCosts;

    /// A command that no caller can create represents an internal defect: it must cost the device,
    /// not the process.
    #[test]
    fn a_panic_loses_only_the_device() {
        for inline in [false, true] {
            let pool = if inline {
                Pool::start(1, ThreadCosts::new(0)).unwrap()
            } else {
                Pool::start(2, ThreadCosts::new(0)).unwrap()
            };
            let machine = Machine::new(Variant::Scalar, pool);
            let mut executor = Executor::start(machine, (!inline).then_some(4)).unwrap();
            let pushed = executor.push("launch", Command::Launch { graph: 7 });
            assert_eq!(pushed.is_err(), inline, "only an inline call can know yet");
            executor.drain();
            for _ in 0..2 {
                let error = executor.push("upload", Command::Launch { graph: 7 }).unwrap_err();
                let DeviceError::Lost { call: "upload", reason } = error else {
                    panic!("{error} instead of a lost device");
                };
                assert!(reason.contains("out of bounds"), "{reason}");
                executor.drain();
            }
        }
    }
}
