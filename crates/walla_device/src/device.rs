use walla_types::{CacheCommand, RopePairs, TensorType};

use crate::cache::CacheDesc;
use crate::counters::{DeviceCounters, GraphFallbacks};
use crate::error::DeviceError;
use crate::handles::{
    BufferId, CacheId, EventId, GraphId, HostId, MatrixId, RopeId, StreamId, VectorId,
};
use crate::image::{CacheImage, CachePart};
use crate::info::DeviceInfo;
use crate::op::{OpKind, Program};
use crate::weights::WeightSource;

/// Uses of a matrix. A device chooses the layout accordingly, and may keep a matrix that is only
/// gathered in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixUse {
    /// Rows are looked up (embedding).
    pub gather: bool,
    /// Matrix products.
    pub multiply: bool,
}

/// Describes a matrix `[rows, cols]`, row-major in blocks of its type, as a GGUF file stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixDesc<'a> {
    /// The tensor's name, for errors.
    pub name: &'a str,
    /// Output width.
    pub rows: u32,
    /// Input width: a multiple of the type's block.
    pub cols: u32,
    /// Stored type.
    pub ty: TensorType,
    /// Uses of the matrix.
    pub usage: MatrixUse,
}

/// Describes a rotary embedding. Pair `i` of a token at position `p` is rotated by `p *
/// frequencies[i]` (rounded to f32). Sine and cosine are multiplied by `magnitude`. Elements from
/// `2 * frequencies.len()` on are unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeDesc<'a> {
    /// Radians per token.
    pub frequencies: &'a [f32],
    /// Factor of sine and cosine.
    pub magnitude: f32,
    /// Which elements form a pair.
    pub pairs: RopePairs,
}

/// Priority of a stream's work relative to other users of the device (a renderer).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamPriority {
    /// Lower priority than other work. The default, because the displayed frame has priority.
    #[default]
    Low,
    /// Runs before low streams: for small copies that the host waits for.
    High,
}

/// How a prepared program is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// A replay of a captured graph.
    Graph,
    /// Op by op, for the given reason. Produces the same tokens.
    Eager(String),
}

/// A program that is ready to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its handle.
    pub graph: GraphId,
    /// Launch mode.
    pub mode: LaunchMode,
}

/// Memory allocated by a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights and RoPE tables, without tables in host memory.
    pub weight_bytes: u64,
    /// Caches.
    pub cache_bytes: u64,
    /// Activations, step and result blocks, logits.
    pub workspace_bytes: u64,
    /// Pinned host memory.
    pub host_bytes: u64,
    /// Part of `host_bytes`: matrices that are only gathered.
    pub host_table_bytes: u64,
}

/// Completion signal of a step whose results are in [mapped](Device::create_mapped) memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionFlag {
    /// Completes when the step's results can be read.
    pub event: EventId,
    /// The mapped memory with the program's ring of result blocks.
    pub results: HostId,
    /// The ring slot that the step writes:
    /// [`StepHeader::ring_slot`](crate::step::StepHeader::ring_slot).
    pub ring_slot: u32,
    /// [`StepHeader::step`](crate::step::StepHeader::step).
    pub step: u64,
}

/// Runs programs asynchronously. See the [crate's rules](crate#rules).
///
/// Calls up to [`prepare`](Self::prepare) are made while loading: they may allocate and take long.
/// [`resize_cache`](Self::resize_cache) may too; a host calls it between steps. All other calls are
/// made during play: they neither block nor allocate.
///
/// # Errors
/// Every call returns [`DeviceError::Lost`] once the device is lost, and [`DeviceError::Invalid`]
/// for invalid handles and sizes.
#[expect(clippy::missing_errors_doc, reason = "the trait's Errors section covers every call")]
pub trait Device: Send {
    /// Properties of the device.
    fn info(&self) -> &DeviceInfo;

    /// Memory allocated now.
    fn memory(&self) -> MemoryUse;

    /// Driver calls so far, by kind, for diagnostics and tests. Reading them is free.
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Programs that are launched op by op although they could have been graphs, by reason.
    fn graph_fallbacks(&self) -> GraphFallbacks {
        GraphFallbacks::default()
    }

    /// Whether the device runs ops of this kind. Otherwise [`prepare`](Self::prepare) refuses
    /// programs with them; callers that ask first do not load the weights in vain.
    fn runs(&self, _kind: OpKind) -> bool {
        true
    }

    /// Memory read bandwidth in bytes per second, measured now over at least 1 GiB (less if less is
    /// free), or `None` if the device cannot measure it. The memory read stays allocated until the
    /// device is dropped, so measure on a dedicated device: for benchmarks, never during play.
    fn read_bytes_per_second(&mut self) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// Copies a matrix to the device, in the layout of its kernels. Reads `source` in chunks, so
    /// that host memory is bounded for a matrix of any size.
    fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError>;

    /// Copies a vector to the device.
    fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError>;

    /// Copies a RoPE table to the device.
    fn load_rope(&mut self, desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError>;

    /// Allocates a cache.
    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError>;

    /// Keeps physical memory for the first `pages` pages of a cache only, if the device can. It
    /// releases as much of the rest as possible; pages that are mapped again later contain zeros.
    /// [`memory`](Self::memory) returns the memory held. Addresses do not change, so programs stay
    /// valid. The caller ensures that work enqueued later does not access other pages. May wait for
    /// all enqueued work, so do not call it every frame. Default: memory is unchanged.
    /// Returns [`OutOfMemory`](DeviceError::OutOfMemory) if memory for growth is not available;
    /// nothing is mapped then.
    fn resize_cache(&mut self, _cache: CacheId, _pages: u32) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Allocates zeroed device memory.
    fn create_buffer(&mut self, what: &str, bytes: usize) -> Result<BufferId, DeviceError>;

    /// Allocates zeroed host memory for asynchronous copies.
    fn create_host(&mut self, what: &str, bytes: usize) -> Result<HostId, DeviceError>;

    /// Allocates zeroed host memory that programs write to directly, with a device and a host
    /// handle. Only for a program's [`results`](crate::Program::results). `None` if the device does
    /// not support it; results are then copied.
    fn create_mapped(
        &mut self,
        what: &str,
        bytes: usize,
    ) -> Result<Option<(BufferId, HostId)>, DeviceError> {
        let _ = (what, bytes);
        Ok(None)
    }

    /// Creates a stream.
    fn create_stream(&mut self, priority: StreamPriority) -> Result<StreamId, DeviceError>;

    /// Creates an event. It counts as complete until it is first recorded.
    fn create_event(&mut self) -> Result<EventId, DeviceError>;

    /// Prepares programs for launch: validates them, allocates one shared workspace, captures
    /// graphs. Prepare all programs of a model in one call, because each call allocates a separate
    /// workspace. Launches of programs that were prepared together must not overlap, and uploads of
    /// their step block must be ordered among them; using one stream for both guarantees that.
    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError>;

    /// Calls `write` with `bytes` bytes of a host buffer to fill.
    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Calls `read` with `bytes` bytes of a host buffer.
    fn read_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError>;

    /// Enqueues a copy of `bytes` bytes from the start of a host buffer to the start of a device
    /// buffer.
    ///
    /// A copy to the step block of a prepared program may be deferred to the next launch of a
    /// program with that block. Until then the host buffer must not change, and only programs read
    /// the block.
    fn upload(
        &mut self,
        stream: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError>;

    /// Enqueues a copy of `bytes` bytes from a device buffer to a host buffer.
    fn download(
        &mut self,
        stream: StreamId,
        from: (BufferId, usize),
        to: (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError>;

    /// Enqueues one run of a prepared program. It reads the step block when the stream reaches it.
    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError>;

    /// Enqueues a program whose results are in mapped memory. `watch.event` completes, without a
    /// record, when the step's result block can be read there; [`wait`](Self::wait) does not accept
    /// it. Earlier work on the stream is complete by then.
    fn launch_with_flag(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &CompletionFlag,
    ) -> Result<(), DeviceError> {
        let _ = (stream, graph);
        Err(DeviceError::Invalid(format!("{watch:?} without mapped memory")))
    }

    /// Enqueues cache operations, in order.
    fn run_cache_ops(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError>;

    /// Layout of the contents of a cache in host memory. `None` if the device cannot copy them.
    fn cache_image(&self, _cache: CacheId) -> Option<CacheImage> {
        None
    }

    /// Enqueues a copy of a part of a cache to a host buffer. Unlike other work it may be divided:
    /// after an error that is not [`Lost`](DeviceError::Lost), bytes of the buffer may have
    /// changed.
    fn read_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        to: (HostId, usize),
    ) -> Result<(), DeviceError> {
        let _ = (stream, cache, to);
        Err(DeviceError::Invalid(format!("{part:?} of a device without images")))
    }

    /// Enqueues a copy of a host buffer to a part of a cache. The caller checks that all numbers
    /// are [valid](CacheImage::is_valid), and tokens are below the vocabulary. After an error
    /// that is not [`Lost`](DeviceError::Lost) the part is undefined.
    fn write_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        from: (HostId, usize),
    ) -> Result<(), DeviceError> {
        let _ = (stream, cache, from);
        Err(DeviceError::Invalid(format!("{part:?} of a device without images")))
    }

    /// Enqueues a record: the event completes when all earlier work on the stream has.
    fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Makes later work on the stream wait for the event's latest record.
    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Whether the event's latest record has completed. Never blocks.
    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError>;

    /// Blocks until the event's latest record has completed: for tools, tests and benchmarks, never
    /// during play. The default polls; a device that shares the processor with its owner parks the
    /// calling thread instead.
    fn synchronize_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        while !self.poll(event)? {
            // Not a spin: the device may need this processor.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Blocks until all enqueued work is complete: for loading, tests and benchmarks, never during
    /// play.
    fn synchronize(&mut self) -> Result<(), DeviceError>;
}
