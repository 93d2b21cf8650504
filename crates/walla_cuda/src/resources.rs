//! Resources of a device, indexed by handle.

use std::collections::VecDeque;
use std::ops::Range;

use walla_device::{
    BufferId, CacheDesc, CacheId, CacheLayer, DeviceError, EventId, HostId, MatrixId, MatrixUse,
    RopeId, StreamId, VectorId,
};
use walla_types::{RopePairs, TensorType};

use crate::driver::{ArenaId, DeviceMemory, Event, GraphExec, Launch, PinnedMemory, Stream};
use crate::params::{Address, WeightRef};
use crate::repack;
use crate::step_ring::StepRing;

/// A repacked matrix.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) rows: u32,
    /// Columns in the file; the records may be padded.
    pub(crate) cols: u32,
    pub(crate) usage: MatrixUse,
    pub(crate) weight: WeightRef,
    /// Allocation that holds the records.
    #[cfg(feature = "cupti")]
    pub(crate) memory: DeviceMemory,
}

/// A vector of f32.
#[derive(Debug)]
pub(crate) struct Vector {
    pub(crate) memory: DeviceMemory,
    pub(crate) len: u32,
}

/// A rotary embedding: its frequencies and how to apply them.
#[derive(Debug)]
pub(crate) struct Rope {
    pub(crate) frequencies: DeviceMemory,
    pub(crate) pairs_count: u32,
    pub(crate) magnitude: f32,
    pub(crate) pairs: RopePairs,
}

/// A cache and its memory.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) desc: CacheDesc,
    /// Blocks of each layer. Keys and values: `[pages, kv_heads, page_tokens, head_dim]` each, then
    /// the scales of 8-bit pages: `[pages, kv_heads, page_tokens]` each. Or states of sequences,
    /// f32: `[sequences, taps - 1, width]` of a convolution, `[sequences, numbers]` of DeltaNet
    /// (kernels/layer/delta_net.cu).
    pub(crate) layers: Vec<Vec<DeviceMemory>>,
    /// Arena of the layers, if memory behind their last pages can be unmapped.
    pub(crate) arena: Option<ArenaId>,
    /// Layer table that the cache kernels read.
    pub(crate) table: DeviceMemory,
    /// `[sequences]` u32.
    pub(crate) last_sampled: DeviceMemory,
    /// `[sequences, MAX_PENALTY_WINDOW]` u32.
    pub(crate) recent: DeviceMemory,
}

impl Cache {
    /// A layer and its blocks.
    pub(crate) fn layer(&self, index: u32) -> Option<(&CacheLayer, &[DeviceMemory])> {
        let index = index as usize;
        Some((self.desc.layers.get(index)?, self.layers.get(index)?))
    }
}

/// Addresses of the scales of a layer's keys and values; zeros without scales.
pub(crate) fn scales(blocks: &[DeviceMemory]) -> [Address; 2] {
    [2, 3].map(|block| blocks.get(block).map_or(0, DeviceMemory::address))
}

/// Waits that a stream remembers. Older ones are forgotten, which only costs a driver query.
const MAX_WAITS: usize = 64;

/// A stream and its progress: every call on it takes the next ticket.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) raw: Stream,
    pub(crate) enqueued: u64,
    pub(crate) completed: u64,
    /// Waits for events, in order. Once this stream has reached the first number, the other stream
    /// has reached the last.
    waits: VecDeque<(u64, StreamId, u64)>,
}

impl StreamState {
    pub(crate) fn new(raw: Stream) -> Self {
        Self { raw, enqueued: 0, completed: 0, waits: VecDeque::with_capacity(MAX_WAITS) }
    }
}

/// An event and its completion source.
#[derive(Debug)]
pub(crate) struct EventState {
    pub(crate) raw: Event,
    /// Stream and ticket of the latest record, or of the launch that it watches.
    pub(crate) recorded: Option<(StreamId, u64)>,
    /// The completion flag, if no record completes the event.
    pub(crate) word: Option<Word>,
}

/// A completion flag: a word of mapped memory that a program writes at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) host: HostId,
    pub(crate) offset: usize,
    /// Value of the completed word.
    pub(crate) value: u64,
    /// Polls that did not find the value.
    pub(crate) misses: u32,
}

/// A result block of mapped memory and the launch that wrote it last.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) range: Range<usize>,
    pub(crate) stream: StreamId,
    pub(crate) ticket: u64,
}

/// Pinned memory and the copies that may be in flight: at most one entry per stream.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) memory: PinnedMemory,
    pub(crate) copies: Vec<(StreamId, u64)>,
    /// Result blocks, if programs write this memory; `None` otherwise.
    pub(crate) written: Option<Vec<Written>>,
}

/// A program ready to launch.
#[derive(Debug)]
pub(crate) struct ProgramState {
    pub(crate) launches: Vec<Launch>,
    /// Bytes of a result block.
    pub(crate) result_bytes: usize,
    /// `None`: launched one by one.
    pub(crate) graph: Option<GraphExec>,
    /// Index of the step ring that delivers its step block.
    pub(crate) step_ring: usize,
}

/// Tables of all resources, indexed by handle.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) caches: Vec<Cache>,
    pub(crate) buffers: Vec<DeviceMemory>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) streams: Vec<StreamState>,
    pub(crate) events: Vec<EventState>,
    pub(crate) programs: Vec<ProgramState>,
    pub(crate) step_ring: Vec<StepRing>,
}

macro_rules! lookups {
    ($($get:ident $field:ident $id:ident $item:ty;)*) => {$(
        impl Resources {
            /// The item of a handle.
            pub(crate) fn $get(&self, id: $id) -> Result<&$item, DeviceError> {
                self.$field.get(id.0 as usize).ok_or_else(|| unknown(&id))
            }
        }
    )*};
}

lookups! {
    matrix matrices MatrixId Matrix;
    vector vectors VectorId Vector;
    rope ropes RopeId Rope;
    cache caches CacheId Cache;
    buffer buffers BufferId DeviceMemory;
    host hosts HostId Host;
    stream streams StreamId StreamState;
    event events EventId EventState;
}

impl Resources {
    /// Index of the ring of a step block.
    pub(crate) fn step_ring_of(&self, block: BufferId) -> Option<usize> {
        self.step_ring.iter().position(|step_ring| step_ring.id == block)
    }

    /// Whether some matrix multiplication reads weights stored in the format of a type.
    pub(crate) fn has_products_of(&self, ty: TensorType) -> bool {
        let is_its =
            |matrix: &Matrix| matrix.usage.multiply && repack::kind(matrix.ty) == repack::kind(ty);
        self.matrices.iter().any(is_its)
    }

    /// Takes the next ticket of a stream.
    pub(crate) fn ticket(&mut self, id: StreamId) -> Result<(Stream, u64), DeviceError> {
        let stream = self.streams.get_mut(id.0 as usize).ok_or_else(|| unknown(&id))?;
        stream.enqueued += 1;
        Ok((stream.raw, stream.enqueued))
    }

    /// Whether a stream is known to have reached a ticket.
    pub(crate) fn has_reached(&self, id: StreamId, ticket: u64) -> bool {
        self.stream(id).is_ok_and(|stream| stream.completed >= ticket)
    }

    /// Records that a stream has reached at least this ticket, and so have the streams that it
    /// waited for before.
    pub(crate) fn reached(&mut self, id: StreamId, ticket: u64) {
        let Some(stream) = self.streams.get_mut(id.0 as usize) else { return };
        stream.completed = stream.completed.max(ticket);
        // Every wait leaves its queue once, so this ends.
        while let Some(stream) = self.streams.get_mut(id.0 as usize)
            && stream.waits.front().is_some_and(|(at, ..)| *at <= stream.completed)
            && let Some((_, other, other_ticket)) = stream.waits.pop_front()
        {
            self.reached(other, other_ticket);
        }
    }

    /// Records that a stream waits for the latest record of an event.
    pub(crate) fn wait_enqueued(&mut self, id: StreamId, ticket: u64, event: EventId) {
        let recorded = self.events.get(event.0 as usize).and_then(|event| event.recorded);
        let stream = self.streams.get_mut(id.0 as usize);
        if let (Some((other, other_ticket)), Some(stream)) = (recorded, stream)
// Work of one stream is ordered without waits.
            && other != id
        {
            if stream.waits.len() == MAX_WAITS {
                stream.waits.pop_front();
            }
            stream.waits.push_back((ticket, other, other_ticket));
        }
    }

    /// Whether a buffer is mapped host memory that programs write.
    pub(crate) fn is_mapped(&self, buffer: &DeviceMemory) -> bool {
        let mut mapped = self.hosts.iter().filter(|host| host.written.is_some());
        mapped.any(|host| host.memory.address() == buffer.address())
    }

    /// Records a copy from or to a host buffer.
    pub(crate) fn copy_enqueued(&mut self, host: HostId, stream: StreamId, ticket: u64) {
        if let Some(host) = self.hosts.get_mut(host.0 as usize) {
            // The latest ticket of a stream covers its earlier ones, so the list stays short.
            host.copies.retain(|(other, _)| *other != stream);
            host.copies.push((stream, ticket));
        }
    }
}

/// The error for a handle that this device never issued.
pub(crate) fn unknown(id: &dyn std::fmt::Debug) -> DeviceError {
    DeviceError::Invalid(format!("{id:?} does not exist"))
}
