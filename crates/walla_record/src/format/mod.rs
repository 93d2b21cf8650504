//! The format of a recording.
//!
//! ```text
//! file    = "walla rec" version:u16-le chunk*
//! chunk   = deflated:u32-le inflated:u32-le checksum:u64-le deflate(record*)
//! record  = tick | engine | pause | end | command | event
//! ```
//!
//! A chunk has at most one second of the session. Records in a chunk refer to earlier chunks (ids
//! and times are differences), never to later ones. The checksum is FNV-1a of the number of the
//! chunk, both lengths and the compressed bytes. A record begins with a byte that names its kind.

mod command;
mod event;
mod failure;
mod ids;
mod record;
mod spec;
mod wire;

use walla_types::{FNV1A, fnv1a};

pub(crate) use self::ids::{Ids, Numbers};
pub(crate) use self::record::{Clock, Got, Raw, get_record, put_record};
pub use self::wire::Defect;
pub(crate) use self::wire::{Reader, Writer};

/// First bytes of a recording.
pub(crate) const MAGIC: &[u8; 9] = b"walla rec";

/// Version of the format.
pub(crate) const VERSION: u16 = 3;

/// Bytes before a chunk's compressed data.
pub(crate) const CHUNK_HEAD_BYTES: usize = 16;

/// Maximum bytes of the records of a chunk.
pub(crate) const MAX_CHUNK_BYTES: usize = 16 << 20;

/// Maximum bytes of a record.
pub(crate) const MAX_RECORD_BYTES: usize = 8 << 20;

/// 64-bit FNV-1a over the head and the data of a chunk.
pub(crate) fn checksum(chunk: u32, lengths: [u32; 2], data: &[u8]) -> u64 {
    let head = [chunk, lengths[0], lengths[1]].map(u32::to_le_bytes);
    fnv1a(fnv1a(FNV1A, head.as_flattened()), data)
}

/// The head of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHead {
    pub deflated: u32,
    pub inflated: u32,
    pub checksum: u64,
}

impl ChunkHead {
    pub fn to_bytes(self) -> [u8; CHUNK_HEAD_BYTES] {
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        let (lengths, checksum) = bytes.split_at_mut(8);
        let (deflated, inflated) = lengths.split_at_mut(4);
        deflated.copy_from_slice(&self.deflated.to_le_bytes());
        inflated.copy_from_slice(&self.inflated.to_le_bytes());
        checksum.copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; CHUNK_HEAD_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, checksum @ ..] = bytes;
        Self {
            deflated: u32::from_le_bytes([a, b, c, d]),
            inflated: u32::from_le_bytes([e, f, g, h]),
            checksum: u64::from_le_bytes(checksum),
        }
    }
}
