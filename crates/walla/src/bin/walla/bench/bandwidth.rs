//! Memory bandwidth of a device, which gives the lower bound of a step's time.

use std::time::Instant;

use walla_device::Device;

use crate::Failure;
use crate::args::DeviceArgs;

/// Opens the device only for this measurement, so that closing it frees all its memory.
pub fn measure(device: &DeviceArgs) -> Result<f64, Failure> {
    let registry = walla_runtime::default_registry();
    of(&mut *registry.open(&device.device, &device.open_options())?)
}

/// Bytes per second of an open device.
pub fn of(device: &mut dyn Device) -> Result<f64, Failure> {
    let threads = device.info().threads;
    Ok(match device.read_bytes_per_second()? {
        Some(measured) => measured,
        None => of_threads(threads),
    })
}

/// Read bandwidth of `threads` threads in bytes per second: the best of five passes over a buffer
/// larger than any cache.
fn of_threads(threads: u32) -> f64 {
    const WORDS_PER_THREAD: usize = 16 << 20;
    let buffers: Vec<Vec<u64>> =
        (0..threads.max(1)).map(|seed| vec![u64::from(seed); WORDS_PER_THREAD]).collect();
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(move || std::hint::black_box(sum(buffer)));
            }
        });
        (buffers.len() * WORDS_PER_THREAD * size_of::<u64>()) as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, &word| sum ^ word)
}
