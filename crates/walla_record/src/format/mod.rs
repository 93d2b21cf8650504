//! The format of a recording.
//!
//! ```text
//! file    = "walla rec" version:u16-le chunk*
//! chunk   = deflated:u32-le inflated:u32-le checksum:u64-le deflate(record*)
//! record  = a value of Item, as wire.rs writes it
//! ```
//!
//! A chunk has at most one second of the session. Times in a chunk are differences to earlier
//! records. The checksum is FNV-1a of the number of the chunk, both lengths and the compressed
//! bytes.
//!
//! The order of the variants of an enum and of the fields of a struct is a part of the format. It
//! includes the types of commands and events in other crates. `tests/record/golden.rs` reads a
//! stored recording: if a change breaks it, [`VERSION`] goes up by one.

mod record;
mod wire;

use walla_types::{FNV1A, fnv1a};

pub(crate) use self::record::{Clock, Item, Last, get_record, put_record};
pub use self::wire::Defect;
pub(crate) use self::wire::Reader;

/// First bytes of a recording.
pub(crate) const MAGIC: &[u8; 9] = b"walla rec";

/// Version of the format.
pub(crate) const VERSION: u16 = 5;

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

/// Lengths and checksum of a chunk's head.
pub(crate) fn chunk_head(bytes: [u8; CHUNK_HEAD_BYTES]) -> ([u32; 2], u64) {
    let [a, b, c, d, e, f, g, h, checksum @ ..] = bytes;
    let lengths = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
    (lengths, u64::from_le_bytes(checksum))
}
