//! Compares times from profiling records with times from events, on a kernel of known cost.

use walla_cuda::CudaBackend;
use walla_cuda::timing::{Method, TimingOptions};
use walla_device::{Device, OpenOptions, StreamPriority};
use walla_reference_test::gpu_test;

/// Bytes read by one run: several times any L2 cache, some 120 us on an H200.
const BYTES: u64 = 512 << 20;

#[gpu_test]
fn records_events_and_replays_agree_on_a_kernel_of_known_cost() {
    let backend = CudaBackend::from_env();
    let mut device = backend.open_gpu("cuda:0", &OpenOptions::default()).unwrap();
    let stream = device.create_stream(StreamPriority::Low).unwrap();
    // Two buffers in alternation, so that a replay finds neither in the cache.
    let reads = [device.prepare_read(BYTES).unwrap(), device.prepare_read(BYTES).unwrap()];
    let mut time = |method, cold| {
        let options = TimingOptions { method, cold, ..TimingOptions::default() };
        let work = &mut |device: &mut walla_cuda::CudaDevice, stream, run: u32| {
            device.enqueue_read(stream, &reads[run as usize % 2])
        };
        device.time(stream, options, work).unwrap()
    };
    let records = time(Method::Cupti, true);
    let events = time(Method::Events, true);
    let replays = time(Method::GraphReplay { copies: 8 }, false);
    let gigabytes_per_second = |micros: f64| BYTES as f64 / micros / 1e3;
    for (what, timing) in [("records", &records), ("events", &events), ("replays", &replays)] {
        let micros = timing.median_micros();
        println!("{what}: {micros:.2} us, {:.0} GB/s", gigabytes_per_second(micros));
    }
    let close = |a: f64, b: f64, share: f64| (a - b).abs() <= share * b;
    // Events include some microseconds of a launch; the kernels of a replay follow each other more
    // closely.
    assert!(close(replays.median_micros(), events.median_micros(), 0.08));
    if let Some(why) = &records.fallback {
        println!("no records: {why}");
        assert_eq!(records.method, Method::Events);
        return;
    }
    assert!(close(records.median_micros(), events.median_micros(), 0.08));
    assert!(records.runs.iter().all(|run| run.pieces.len() == 1));
    assert_eq!(records.runs[0].pieces[0].name, "read_words");
    assert_eq!(records.runs.len(), records.span_micros.len());
}

#[gpu_test]
fn runs_of_changing_kernels_are_refused() {
    let backend = CudaBackend::from_env();
    let mut device = backend.open_gpu("cuda:0", &OpenOptions::default()).unwrap();
    let stream = device.create_stream(StreamPriority::Low).unwrap();
    let read = device.prepare_read(1 << 20).unwrap();
    let options = TimingOptions { dry_ms: 0.1, measured_ms: 1.0, ..TimingOptions::default() };
    let timing = device.time(stream, options, &mut |device, stream, run| {
        // One kernel in the first run, two in the second.
        (0..1 + run % 2).try_for_each(|_| device.enqueue_read(stream, &read))
    });
    match timing {
        Ok(timing) => assert_eq!(timing.method, Method::Events, "no library: nobody can tell"),
        Err(error) => assert!(error.to_string().contains("other kernels"), "{error}"),
    }
}
