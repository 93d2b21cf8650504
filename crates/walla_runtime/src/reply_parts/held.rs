use std::ops::Range;

use walla_model::chat::MAX_MARKER_BYTES;

/// Maximum number of held bytes: white space at the beginning of a reply, and a marker.
const MAX_BYTES: usize = 64;

const _: () = assert!(MAX_MARKER_BYTES < MAX_BYTES);

/// Bytes that are held back, with the number of tokens that end behind each byte.
#[derive(Debug)]
pub(super) struct Held {
    bytes: [u8; MAX_BYTES],
    len: usize,
    /// Tokens that end behind the first `index` bytes.
    ends: [u32; MAX_BYTES + 1],
}

impl Held {
    pub fn new() -> Self {
        Self { bytes: [0; MAX_BYTES], len: 0, ends: [0; MAX_BYTES + 1] }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn is_full(&self) -> bool {
        self.len == MAX_BYTES
    }

    /// Holds one more byte. The caller releases bytes before the buffer is full.
    pub fn push(&mut self, byte: u8) {
        debug_assert!(!self.is_full(), "markers are shorter");
        if let Some(free) = self.bytes.get_mut(self.len) {
            *free = byte;
            self.len += 1;
        }
    }

    /// Records that `tokens` tokens end behind the last byte.
    pub fn end_tokens(&mut self, tokens: u32) {
        self.ends[self.len] += tokens;
    }

    /// The first position in `from + 1..=to` at which tokens end, or `to`, with the number of
    /// tokens that end there.
    pub fn end_behind(&self, from: usize, to: usize) -> Option<(usize, u32)> {
        let mut places = from + 1..=to;
        places.find(|&at| self.ends[at] > 0 || at == to).map(|at| (at, self.ends[at]))
    }

    /// A copy of `range`, at the beginning of the array.
    pub fn copied(&self, range: Range<usize>) -> [u8; MAX_BYTES] {
        let mut copy = [0; MAX_BYTES];
        copy[..range.len()].copy_from_slice(&self.bytes[range]);
        copy
    }

    /// Drops the first `count` bytes.
    pub fn remove_first(&mut self, count: usize) {
        self.bytes.copy_within(count..self.len, 0);
        self.ends.copy_within(count + 1..=self.len, 1);
        self.len -= count;
        self.ends[self.len + 1..].fill(0);
    }

    /// Drops all bytes. Returns the number of tokens that end in them.
    pub fn clear(&mut self) -> u32 {
        let tokens = self.ends.iter().sum();
        self.len = 0;
        self.ends.fill(0);
        tokens
    }
}
