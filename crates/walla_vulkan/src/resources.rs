//! Resources of a device, indexed by handle.

use std::ops::Range;

use walla_device::{
    BufferId, CacheDesc, CacheId, CacheLayer, DeviceError, EventId, HostId, MatrixId, MatrixUse,
    RopeId, VectorId,
};
use walla_types::RopePairs;

use crate::driver::Memory;
use crate::params::Address;
use crate::repack::{BLOCK, Kind, positions};

/// A repacked matrix.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) usage: MatrixUse,
    /// Of a quantised one with factors of blocks and scales of rows behind the words.
    pub(crate) weights: Memory,
}

impl Matrix {
    /// Addresses of the factors of blocks and of rows; zeros of a matrix of floats.
    pub(crate) fn factors(&self) -> [Address; 2] {
        if !self.kind.is_quantized() {
            return [0; 2];
        }
        let (rows, positions) = (self.rows as usize, positions(self.cols as usize / BLOCK));
        let blocks = self.weights.address() + (rows * positions * self.kind.words() * 4) as u64;
        [blocks, blocks + (rows * positions * 4) as u64]
    }
}

/// A vector of f32.
#[derive(Debug)]
pub(crate) struct Vector {
    pub(crate) memory: Memory,
    pub(crate) len: u32,
}

/// A rotary embedding.
#[derive(Debug)]
pub(crate) struct Rope {
    pub(crate) frequencies: Memory,
    pub(crate) pairs_count: u32,
    pub(crate) magnitude: f32,
    pub(crate) pairs: RopePairs,
}

/// A cache and its memory.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) desc: CacheDesc,
    /// Of each layer: keys, values and their scales, or a state.
    pub(crate) layers: Vec<Vec<Memory>>,
    pub(crate) last_sampled: Memory,
    pub(crate) recent: Memory,
    /// What operations of the cache read: see [`crate::cache::table`].
    pub(crate) table: Memory,
}

impl Cache {
    /// A layer and its memory.
    pub(crate) fn layer(&self, index: u32) -> Option<(&CacheLayer, &[Memory])> {
        let index = index as usize;
        Some((self.desc.layers.get(index)?, self.layers.get(index)?))
    }
}

/// Host memory and the ticket of the latest work that uses it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) memory: Memory,
    pub(crate) ticket: u64,
    /// Programs write it: result blocks and the tickets of the latest programs that do.
    pub(crate) is_mapped: bool,
    pub(crate) written: Vec<(Range<usize>, u64)>,
}

/// An event: the ticket of its latest record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Event {
    pub(crate) ticket: u64,
}

/// Tables of all resources.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) caches: Vec<Cache>,
    pub(crate) buffers: Vec<Memory>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) events: Vec<Event>,
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
    buffer buffers BufferId Memory;
    host hosts HostId Host;
    event events EventId Event;
}

/// The error for a handle that this device never issued.
pub(crate) fn unknown(id: &dyn std::fmt::Debug) -> DeviceError {
    DeviceError::Invalid(format!("{id:?} does not exist"))
}
