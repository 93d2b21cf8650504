use walla_types::{RopePairs, TensorType};

use crate::cache::{CacheCommand, CacheDesc};
use crate::counters::{DeviceCounters, GraphFallbacks};
use crate::error::DeviceError;
use crate::info::DeviceInfo;
use crate::op::Program;
use crate::weights::WeightSource;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);
    )*};
}

handles! {
    /// A weight matrix on a device.
    MatrixId
    /// A vector of f32 on a device.
    VectorId
    /// A rotation table on a device.
    RopeId
    /// A cache on a device.
    CacheId
    /// Plain bytes on a device.
    BufferId
    /// Plain bytes of the host that the device can copy from and to asynchronously (pinned memory),
    /// aligned to 64 bytes.
    HostId
    /// An ordered work queue.
    StreamId
    /// A completion mark.
    EventId
    /// A prepared program.
    GraphId
}

/// What a matrix is used for: devices choose its layout by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixUse {
    /// Rows are looked up (embedding).
    pub gather: bool,
    /// It is multiplied with.
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
    /// What it is used for.
    pub usage: MatrixUse,
}

/// Describes a rotation: pair `i` of a token at position `p` turns by `p * frequencies[i]` (rounded
/// to f32); sine and cosine are multiplied by `magnitude`; numbers from `2 * frequencies.len()` on
/// stay as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeDesc<'a> {
    /// Radians a token.
    pub frequencies: &'a [f32],
    /// Multiplies sine and cosine.
    pub magnitude: f32,
    /// Which numbers form a pair.
    pub pairs: RopePairs,
}

/// How urgent a stream's work is to other users of the device (a renderer).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamPriority {
    /// Yields to everybody: the default, since a frame on the screen comes first.
    #[default]
    Low,
    /// Before low streams: small copies that somebody waits for.
    High,
}

/// How a prepared program is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// One replay of a captured graph.
    Graph,
    /// Op by op, for the stated reason. Gives the same tokens.
    Eager(String),
}

/// A program that is ready to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its handle.
    pub graph: GraphId,
    /// How it is launched.
    pub mode: LaunchMode,
}

/// Memory that a device holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights, rotation tables.
    pub weight_bytes: u64,
    /// Caches.
    pub cache_bytes: u64,
    /// Activations, step and result blocks, logits.
    pub workspace_bytes: u64,
    /// Pinned host memory.
    pub host_bytes: u64,
}

/// How the end of a step is told whose results lie in [mapped](Device::create_mapped) memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Completes when the step's results can be read.
    pub event: EventId,
    /// The mapped memory that has the program's ring of result blocks.
    pub results: HostId,
    /// Which of them the step writes:
    /// [`StepHeader::ring_slot`](crate::step::StepHeader::ring_slot).
    pub ring_slot: u32,
    /// [`StepHeader::step`](crate::step::StepHeader::step).
    pub step: u64,
}

/// Something that runs programs asynchronously. See the [crate's rules](crate#rules).
///
/// Calls up to [`prepare`](Self::prepare) belong to loading: they may allocate and take long.
/// [`resize_cache`](Self::resize_cache) may as well, and comes between steps when a host wants it.
/// The others belong to play: they neither block nor allocate.
///
/// # Errors
/// Every call answers [`DeviceError::Lost`] once the device is lost, and [`DeviceError::Invalid`]
/// for handles and sizes that make no sense.
#[expect(clippy::missing_errors_doc, reason = "the trait's own section covers every call")]
pub trait Device: Send {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// Memory held now.
    fn memory(&self) -> MemoryUse;

    /// Driver calls so far, by kind: for diagnostics and tests. Reading them is free.
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Programs so far that are launched op by op although they could have been graphs, by reason.
    fn graph_fallbacks(&self) -> GraphFallbacks {
        GraphFallbacks::default()
    }

    /// Bytes a second that the device reads its own memory with, measured now over at least 1 GiB
    /// (less where less is free), or `None` where it cannot measure. The memory read stays
    /// allocated until the device is dropped, so measure on a device of its own: for benchmarks,
    /// never in play.
    fn read_bytes_per_second(&mut self) -> Result<Option<f64>, DeviceError> {
        Ok(None)
    }

    /// Copies a matrix to the device, in the layout of its kernels. Reads `source` in pieces, so
    /// that host memory stays bounded for a matrix of any size.
    fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError>;

    /// Copies a vector to the device.
    fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError>;

    /// Copies a rotation table to the device.
    fn load_rope(&mut self, desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError>;

    /// Allocates a cache.
    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError>;

    /// Keeps memory behind the first `pages` pages of a cache alone, where the device can: it gives
    /// back what it can of the rest, and what comes back later holds zeros.
    /// [`memory`](Self::memory) tells what is held. Addresses stay, so programs stay valid; the
    /// caller sees to it that nothing enqueued later touches other pages. May wait for everything
    /// enqueued before, so not a matter of every frame. Default: memory stays as it is.
    /// [`OutOfMemory`](DeviceError::OutOfMemory) if what is to come back is taken: then nothing has
    /// come back.
    fn resize_cache(&mut self, _cache: CacheId, _pages: u32) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Allocates zeroed device memory.
    fn create_buffer(&mut self, what: &str, bytes: usize) -> Result<BufferId, DeviceError>;

    /// Allocates zeroed host memory that copies can run on asynchronously.
    fn create_host(&mut self, what: &str, bytes: usize) -> Result<HostId, DeviceError>;

    /// Allocates zeroed host memory that programs write to as they go, under both names: for a
    /// program's [`results`](crate::Program::results) and nothing else. `None` where the device has
    /// no such thing; then results are copied.
    fn create_mapped(
        &mut self,
        what: &str,
        bytes: usize,
    ) -> Result<Option<(BufferId, HostId)>, DeviceError> {
        let _ = (what, bytes);
        Ok(None)
    }

    /// Makes a stream.
    fn create_stream(&mut self, priority: StreamPriority) -> Result<StreamId, DeviceError>;

    /// Makes an event. It counts as complete until it is first recorded.
    fn create_event(&mut self) -> Result<EventId, DeviceError>;

    /// Makes programs ready to launch: checks them, allocates one workspace that they share,
    /// captures graphs. Prepare all programs of a model in one call: each call allocates a
    /// workspace of its own. Launches of programs that were prepared together must not overlap, and
    /// uploads of their step block must be ordered among them; one stream for both sees to that.
    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError>;

    /// Lets `write` fill `bytes` bytes of a host buffer.
    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Lets `read` see `bytes` bytes of a host buffer.
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
    /// A copy to the step block of a prepared program may be left to the next launch of a program
    /// that has that block: until then the host buffer stays as it is, and nobody but programs
    /// reads the block.
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

    /// Enqueues one run of a prepared program over the step block as it is when the stream gets
    /// there.
    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError>;

    /// Enqueues a program whose results lie in mapped memory. `watch.event` completes, without a
    /// record, when the step's result block can be read there; [`wait`](Self::wait) does not take
    /// it. What was enqueued on the stream before is complete by then.
    fn launch_watched(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &Watch,
    ) -> Result<(), DeviceError> {
        let _ = (stream, graph);
        Err(DeviceError::Invalid(format!("{watch:?} without mapped memory")))
    }

    /// Enqueues upkeep of a cache, in order.
    fn maintain(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError>;

    /// Enqueues a mark: the event completes when everything before it on the stream has.
    fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Makes later work on the stream wait for the event's latest record.
    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Whether the event's latest record has completed. Never blocks.
    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError>;

    /// Blocks until all enqueued work is done: for loading, tests and benchmarks, never in play.
    fn synchronise(&mut self) -> Result<(), DeviceError>;
}
