//! What the memory gives, measured.

use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use walla_device::DeviceError;

use crate::driver::{Context, Launch, Stream};
use crate::kernels::Kernels;
use crate::lower::enqueue;

/// Bytes that are read: many times any second cache.
const BYTES: u64 = 1 << 30;

/// Launches of a round: some 2 ms on the fastest card, beside which the host's part (10 us) does not show.
const LAUNCHES: usize = 8;

/// Rounds: the best counts, because other work on the machine only ever adds time.
const ROUNDS: usize = 5;

const THREADS: u32 = 256;

/// Blocks that keep a multiprocessor full.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// As `kernels/measure.cu` has it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ReadParams {
    words: u64,
    sink: u64,
    count: u64,
}

const _: () = assert!(size_of::<ReadParams>() == 24);

/// Bytes a second of a kernel that reads 1 GiB, or less where less is free.
pub(crate) fn read_bytes_per_second(
    context: &Context,
    kernels: &mut Kernels,
    stream: Stream,
) -> Result<Option<f64>, DeviceError> {
    let function = kernels.get(context, "measure", "read_words", 0)?;
    let bytes = BYTES.min(context.memory_left_bytes()? / 2);
    let memory = context.allocate("the measurement of bandwidth", bytes as usize)?;
    let sink = context.allocate("the measurement of bandwidth", 4)?;
    // Not zeros: some chips move those faster.
    context.fill(stream, &memory, 0x5a)?;
    let params = ReadParams { words: memory.address(), sink: sink.address(), count: bytes / 16 };
    let blocks = context.gpu().facts.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    let launch = Launch::new(function, [blocks, 1, 1], THREADS, &params);
    let launches = vec![launch; LAUNCHES];
    enqueue(context, stream, &launches)?;
    context.synchronise()?;
    let mut best_seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        enqueue(context, stream, &launches)?;
        context.synchronise()?;
        best_seconds = best_seconds.min(start.elapsed().as_secs_f64());
    }
    Ok(Some((bytes / 16 * 16 * LAUNCHES as u64) as f64 / best_seconds))
}
