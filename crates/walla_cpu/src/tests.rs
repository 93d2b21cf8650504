//! Tests of the files that package `walla_cpu_models` compiles with loom's primitives; these files
//! therefore contain no tests.

mod pool {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use crate::pool::Pool;
    use crate::work::ThreadCosts;

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
        Pool::inline().tiles(&mut [0; 8], 2, (2, 2), 1, &|_, tile| tile.row_mut(2)[0] = 1);
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
            let pool =
                if inline { Pool::inline() } else { Pool::start(2, ThreadCosts::new(0)).unwrap() };
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
