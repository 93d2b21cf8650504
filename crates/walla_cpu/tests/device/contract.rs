//! The rules of the device contract other than numerics.

use std::time::{Duration, Instant};

use crate::support::{Harness, Row, SEQUENCES, Shape, greedy, whole};
use walla_cpu::{CpuBackend, CpuDevice, CpuOptions, Variant};
use walla_device::{
    Backend, BufferId, CacheCommand, CacheDesc, CacheLayer, Device, DeviceError, GraphId, KvType,
    MatrixDesc, MatrixUse, OpenOptions, StreamId, StreamPriority,
};
use walla_types::TensorType;

fn threads(count: u32) -> CpuOptions {
    CpuOptions { threads: Some(count), thread_cost_nanos: Some(0), ..CpuOptions::default() }
}

/// Serialises the tests that measure time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_buffer_in_flight_is_refused_and_then_free() {
    let _alone = alone();
    let mut harness = Harness::new(threads(2), Shape::small(TensorType::F16));
    let rows = whole(0, &[3; 40]);
    harness.run(&rows, &greedy());
    let started = Instant::now();
    let mut refused = false;
    // This thread may be descheduled until the copy is done: then again. Few launches, because an
    // emulated processor takes a second for some.
    while !refused {
        for _ in 0..20 {
            harness.device.launch(harness.stream, harness.graph).unwrap();
        }
        harness.enqueue(&rows, &greedy());
        loop {
            match harness.read_results() {
                Err(DeviceError::HostInFlight { .. }) => refused = true,
                Ok(_) => break,
                Err(other) => panic!("{other}"),
            }
            assert!(started.elapsed() < Duration::from_secs(120), "{refused}");
        }
        harness.device.synchronize().unwrap();
    }
    harness.device.synchronize().unwrap();
    assert!(harness.device.poll(harness.event).unwrap());
    harness.read_results().unwrap();
}

/// Processor time of this thread.
#[cfg(target_os = "linux")]
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

/// With as many threads as cores, a helper gets a core only if the owner leaves it. The time is
/// compared with that of an owner that polls. Other load affects both, but not equally, so the best
/// of ten attempts counts: an owner that polls in its wait has none.
#[cfg(target_os = "linux")]
#[test]
fn an_owner_that_waits_leaves_its_processor_to_the_helpers() {
    let _alone = alone();
    let mut harness = Harness::new(threads(2), Shape::small(TensorType::F16));
    let rows = whole(0, &[3; 40]);
    harness.run(&rows, &greedy());
    let mut all: Vec<[Duration; 2]> = Vec::new();
    while all.len() < 10 && all.last().is_none_or(|[polling, waiting]| *waiting >= *polling / 4) {
        all.push(processor_times(&mut harness, &rows));
    }
    assert!(all.iter().any(|[polling, waiting]| *waiting < *polling / 4), "{all:?}");
}

/// Processor time of this thread while it polls for results, and while it waits for them.
#[cfg(target_os = "linux")]
fn processor_times(harness: &mut Harness, rows: &[Row]) -> [Duration; 2] {
    let mut ran = [Duration::ZERO; 2];
    while ran[0] < Duration::from_millis(50) {
        for (polls, ran) in [true, false].into_iter().zip(&mut ran) {
            for _ in 0..100 {
                harness.device.launch(harness.stream, harness.graph).unwrap();
            }
            harness.enqueue(rows, &greedy());
            let start = processor_time();
            while polls && !harness.device.poll(harness.event).unwrap() {
                std::hint::spin_loop();
            }
            harness.device.synchronize_event(harness.event).unwrap();
            *ran += processor_time() - start;
            assert!(harness.device.poll(harness.event).unwrap());
            harness.read_results().unwrap();
        }
    }
    ran
}

#[test]
fn dropping_a_busy_device_takes_no_longer_than_an_op() {
    let _alone = alone();
    for count in 1..=3 {
        // The shortest times: on a busy machine any may be longer.
        let (mut step, mut end) = (Duration::MAX, Duration::MAX);
        for _ in 0..5 {
            let mut harness = Harness::new(threads(count), Shape::small(TensorType::Q4K));
            let rows = whole(1, &[7; 40]);
            let begun = Instant::now();
            harness.run(&rows, &greedy());
            step = step.min(begun.elapsed());
            // Enough work for a hundred times that duration.
            for _ in 0..100 {
                harness.device.launch(harness.stream, harness.graph).unwrap();
            }
            let begun = Instant::now();
            drop(harness);
            end = end.min(begun.elapsed());
        }
        assert!(end < step * 20 + Duration::from_millis(50), "{count} threads: {end:?}, {step:?}");
    }
}

#[test]
fn a_full_queue_is_an_error_and_clears() {
    let _alone = alone();
    let mut harness = Harness::new(threads(1), Shape::small(TensorType::Q4K));
    let row = whole(1, &[7]);
    let before = harness.run(&row, &greedy());
    let mut pushed = 0;
    let error = loop {
        match harness.device.launch(harness.stream, harness.graph) {
            Ok(()) => pushed += 1,
            Err(error) => break error,
        }
        assert!(pushed < 10_000, "a queue without bound");
    };
    assert!(matches!(error, DeviceError::Failed { call: "launch", .. }), "{error}");
    harness.device.synchronize().unwrap();
    let clear = CacheCommand::ClearSequence { sequence: 1 };
    harness.device.run_cache_ops(harness.stream, harness.cache, &[clear]).unwrap();
    assert_eq!(harness.run(&row, &greedy()), before, "there is room again, and nothing is amiss");
}

#[test]
fn streams_and_events_complete_in_order() {
    let mut harness = Harness::new(threads(2), Shape::small(TensorType::F16));
    let device = &mut harness.device;
    let copies = device.create_stream(StreamPriority::High).unwrap();
    let (a, b) = (device.create_event().unwrap(), device.create_event().unwrap());
    assert!(device.poll(a).unwrap(), "complete until it is recorded");
    device.launch(harness.stream, harness.graph).unwrap();
    device.record(harness.stream, a).unwrap();
    device.wait(copies, a).unwrap();
    device.record(copies, b).unwrap();
    let started = Instant::now();
    while !device.poll(b).unwrap() {
        assert!(started.elapsed() < Duration::from_secs(60));
    }
    assert!(device.poll(a).unwrap());
}

#[test]
fn unknown_handles_and_wrong_sizes_are_named() {
    let mut harness = Harness::new(threads(1), Shape::small(TensorType::F16));
    let stream = harness.stream;
    let device = &mut harness.device;
    let host = device.create_host("h", 64).unwrap();
    let buffer = device.create_buffer("b", 32).unwrap();
    let invalid = |outcome: Result<(), DeviceError>, words: &str| match outcome {
        Err(DeviceError::Invalid(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("{other:?} instead of {words}"),
    };
    invalid(device.upload(stream, host, buffer, 33), "bytes 0 + 33 of buffer");
    invalid(device.upload(stream, host, BufferId(99), 1), "buffer 99");
    invalid(device.upload(StreamId(9), host, buffer, 1), "stream 9");
    invalid(device.download(stream, (buffer, 1), (host, 0), 32), "bytes 1 + 32 of buffer");
    invalid(device.download(stream, (buffer, 0), (host, usize::MAX), 2), "host buffer");
    invalid(device.launch(stream, GraphId(7)), "graph 7");
    invalid(device.write_host(host, 60, 5, &mut |_| ()), "bytes 60 + 5");
    let outside = CacheCommand::CopyPage { from: 0, to: 9999 };
    invalid(device.run_cache_ops(stream, harness.cache, &[outside]), "CopyPage");
    let usage = MatrixUse { gather: false, multiply: true };
    let desc = MatrixDesc { name: "blk.0", rows: 2, cols: 33, ty: TensorType::Q8_0, usage };
    invalid(device.load_matrix(&desc, &[0_u8; 68]).map(drop), "blk.0");
    invalid(
        device.load_matrix(&MatrixDesc { cols: 32, ..desc }, &[0_u8; 67]).map(drop),
        "67 bytes",
    );
}

/// A step block refers to a page that does not exist: nothing is computed, the next call returns
/// the error, the results belong to no step, and the device survives.
#[test]
fn an_invalid_step_block_is_one_error_without_other_effects() {
    for inline in [false, true] {
        let options = CpuOptions { inline, ..threads(2) };
        let mut harness = Harness::new(options, Shape::small(TensorType::F16));
        let good = [Row(0, 0, 3, true)];
        let before = harness.run(&good, &greedy());
        for bad in [Row(0, 0, 70, true), Row(0, 999, 3, true), Row(SEQUENCES, 0, 3, true)] {
            harness.enqueue(&[bad], &greedy());
            let error = harness.device.synchronize().unwrap_err();
            assert!(matches!(error, DeviceError::Invalid(_)), "{error}");
            harness.device.synchronize().unwrap();
            assert!(harness.device.poll(harness.event).unwrap(), "what is behind it goes on");
            assert_eq!(harness.read_results().unwrap(), u64::MAX, "not those of the step before");
        }
        let clear = CacheCommand::ClearSequence { sequence: 0 };
        harness.device.run_cache_ops(harness.stream, harness.cache, &[clear]).unwrap();
        assert_eq!(harness.run(&good, &greedy()), before);
    }
}

/// An output must match its row. With another sequence's recent tokens or an out-of-range position,
/// nothing is sampled.
#[test]
fn an_output_of_another_place_than_its_row_is_refused() {
    let mut harness = Harness::new(threads(1), Shape::small(TensorType::F16));
    let row = [Row(0, 0, 3, true)];
    let before = harness.run(&row, &greedy());
    for (sequence, position) in [(1, 0), (SEQUENCES, 0), (0, 1), (0, u32::MAX)] {
        harness.enqueue_with(&row, &greedy(), &|view| {
            (view.outputs[0].sequence, view.outputs[0].position) = (sequence, position);
        });
        let error = harness.device.synchronize().unwrap_err();
        let said = matches!(&error, DeviceError::Invalid(words) if words.contains("its row has"));
        assert!(said, "{error}");
    }
    let clear = CacheCommand::ClearSequence { sequence: 0 };
    harness.device.run_cache_ops(harness.stream, harness.cache, &[clear]).unwrap();
    assert_eq!(harness.run(&row, &greedy()), before);
}

/// Only a copy in flight makes a buffer busy, not a visitor that panicked.
#[test]
fn a_panicking_visitor_leaves_the_buffer_free() {
    let mut device = CpuDevice::new(threads(1)).unwrap();
    let host = device.create_host("h", 64).unwrap();
    let visit = std::panic::AssertUnwindSafe(|| {
        device.write_host(host, 0, 64, &mut |bytes| {
            bytes[0] = 7;
            panic!("a visitor's own affair");
        })
    });
    assert!(std::panic::catch_unwind(visit).is_err());
    let mut seen = 0;
    device.read_host(host, 0, 64, &mut |bytes| seen = bytes[0]).unwrap();
    assert_eq!(seen, 7);
}

#[test]
fn memory_is_counted_and_capped() {
    let harness = Harness::new(threads(1), Shape::small(TensorType::F16));
    let memory = harness.device.memory();
    assert!(memory.weight_bytes > 0 && memory.cache_bytes > 0);
    assert!(memory.workspace_bytes > 0 && memory.host_bytes > 0);
    let options =
        OpenOptions { threads: Some(1), max_memory_bytes: Some(1 << 20), ..OpenOptions::default() };
    let mut device = CpuBackend::default().open("cpu", &options).unwrap();
    device.create_buffer("half", 1 << 19).unwrap();
    let error = device.create_buffer("more", (1 << 19) + 1).unwrap_err();
    let expected = DeviceError::OutOfMemory {
        what: "more".to_owned(),
        wanted_bytes: (1 << 19) + 1,
        free_bytes: 1 << 19,
    };
    assert_eq!(error, expected);
    let cache = CacheDesc {
        layers: vec![CacheLayer::Kv { kv_heads: 8, head_dim: 128, rope: None }],
        pages: u32::MAX,
        page_tokens: 1 << 20,
        max_sequences: 1,
        kv_type: KvType::F16,
    };
    assert!(matches!(device.create_cache(&cache), Err(DeviceError::OutOfMemory { .. })));
    assert_eq!(device.memory().cache_bytes, 0);
}

#[test]
fn a_variant_that_cannot_run_here_is_refused() {
    for &variant in Variant::ALL {
        let options = CpuOptions { variant: Some(variant), ..threads(1) };
        let opened = CpuDevice::new(options);
        assert_eq!(opened.is_ok(), variant.score().is_some(), "{variant}");
    }
}
