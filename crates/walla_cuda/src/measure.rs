//! Measures memory bandwidth.

use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use walla_device::DeviceError;

#[cfg(feature = "cupti")]
use crate::driver::Event;
use crate::driver::{Context, Launch, Stream};
use crate::enqueue::enqueue;
use crate::kernels::Kernels;

/// Bytes to read: many times any L2 cache.
const BYTES: u64 = 1 << 30;

/// Launches of a round: some 2 ms on the fastest GPU, so that the host's part (10 us) is
/// negligible.
const LAUNCHES: usize = 8;

/// Rounds, some 50 ms, in which clocks rise. The best round counts, because other work on the
/// machine only adds time.
const ROUNDS: usize = 25;

const THREADS: u32 = 256;

/// Blocks that fully occupy a multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// As in `kernels/common/measure.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ReadParams {
    words: u64,
    sink: u64,
    count: u64,
}

const _: () = assert!(size_of::<ReadParams>() == 24);

/// A kernel that reads its own memory once: its cost is known.
#[derive(Debug)]
pub struct Read {
    launch: Launch,
    bytes: u64,
}

impl Read {
    /// Allocates the memory to read: `bytes`, rounded down to 16-byte words.
    pub(crate) fn prepare(
        context: &Context,
        kernels: &mut Kernels,
        stream: Stream,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        let function = kernels.get(context, "measure", "read_words", 0)?;
        let memory = context.allocate("a measurement", bytes as usize)?;
        let sink = context.allocate("a measurement", 4)?;
        // Not zeros: some GPUs read zeros faster.
        context.fill(stream, &memory, 0x5a)?;
        context.synchronize()?;
        let count = bytes / 16;
        let params = ReadParams { words: memory.address(), sink: sink.address(), count };
        let blocks = context.gpu().facts.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let launch = Launch::new(function, [blocks, 1, 1], THREADS, &params);
        Ok(Self { launch, bytes: 16 * count })
    }

    /// Bytes that one run reads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn enqueue(&self, context: &Context, stream: Stream) -> Result<(), DeviceError> {
        enqueue(context, stream, std::slice::from_ref(&self.launch))
    }
}

/// Bytes per second of a kernel that reads 1 GiB, or half of the memory left if that is less.
pub(crate) fn read_bytes_per_second(
    context: &Context,
    kernels: &mut Kernels,
    stream: Stream,
) -> Result<Option<f64>, DeviceError> {
    let bytes = BYTES.min(context.memory_left_bytes()? / 2);
    let read = Read::prepare(context, kernels, stream, bytes)?;
    let round = || {
        (0..LAUNCHES).try_for_each(|_| read.enqueue(context, stream))?;
        context.synchronize()
    };
    round()?;
    let mut best_seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        best_seconds = best_seconds.min(start.elapsed().as_secs_f64());
    }
    Ok(Some((read.bytes() * LAUNCHES as u64) as f64 / best_seconds))
}

/// Objects kept for the next measurement.
#[cfg(feature = "cupti")]
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Evicts the content of L2.
    pub flush: Option<Read>,
    /// Pairs of timing events.
    pub marks: Vec<(Event, Event)>,
}
