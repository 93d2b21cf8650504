//! A step allocates nothing on any thread. This binary has only one test, because the counter sees
//! every thread of the process.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use support::{DELTA, ExpertShape, Harness, Row, SEQUENCES, Shape, greedy};
use walla_cpu::CpuOptions;
use walla_device::{CacheCommand, DeltaShape, Device};
use walla_types::{ExpertScore, TensorType};

/// Counts allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe to write")]
// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller satisfies the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller satisfies the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn steps_allocate_nothing() {
    // In turn, because the counter is the process's.
    allocates_nothing(None, None);
    allocates_nothing(Some(DELTA), None);
    allocates_nothing(None, Some(32));
}

fn allocates_nothing(delta: Option<DeltaShape>, inputs: Option<usize>) {
    let mut harness = Harness::new(
        CpuOptions { threads: Some(3), thread_cost_nanos: Some(0), ..CpuOptions::default() },
        Shape {
            experts: Some(ExpertShape::of(5, 2, ExpertScore::Sigmoid)),
            delta,
            inputs,
            ..Shape::small(TensorType::Q8_0)
        },
    );
    let rows: Vec<Row> = (0..SEQUENCES).map(|s| Row(s, 0, 5, true)).collect();
    let mut sampling = greedy();
    (sampling.temperature, sampling.top_p, sampling.candidates) = (0.8, 0.9, 4);
    let step = |harness: &mut Harness, rows: &[Row]| {
        harness.enqueue(rows, &sampling);
        let clear = CacheCommand::ClearSequence { sequence: 0 };
        harness.device.run_cache_ops(harness.stream, harness.cache, &[clear]).unwrap();
        while !harness.device.poll(harness.event).unwrap() {
            std::thread::yield_now();
        }
        harness.device.synchronize().unwrap();
    };
    // A thread creates its handle when it first runs, on a busy machine after many steps.
    let (mut quiet, mut known) = (0, 0);
    for _ in 0..10_000 {
        step(&mut harness, &rows);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        quiet = if allocations == known { quiet + 1 } else { 0 };
        known = allocations;
        if quiet >= 50 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..50).for_each(|_| step(&mut harness, &rows));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
