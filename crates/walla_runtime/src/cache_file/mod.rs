//! Files with the cache of one agent.
//!
//! A file has the tokens of a sequence, with their keys and values as the device stores them, and
//! the states of recurrent layers behind the last token. All numbers are little endian.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic `WALLAKV` and a zero |
//! | 4 | version |
//! | 4 | length of the header, with its checksum |
//! | 8 | length of the file |
//! | 8 | digest of the model |
//! | 8 | hash of the rotation factors, which can depend on the context |
//! | 4 | tokens |
//! | 4 | tokens per page |
//! | 8 | bytes of a page |
//! | 8 | bytes of all states |
//! | 4 | pages per chunk |
//! | 4 | type of keys and values |
//! | 4, n | architecture: length and UTF-8 |
//! | 4, n | layout of the device: length and UTF-8 |
//! | 4 | CRC-32 of the header |
//! | 4 tokens | token ids |
//! | | pages: chunks of whole pages; in a chunk the parts follow each other, each of all pages |
//! | | states |
//! | 4 | CRC-32 of everything behind the header |
//!
//! A reader checks the header first, and the length of the file, so that no length of a damaged
//! file leads to an allocation. CRC-32 detects every single changed byte; it finds accidents, not
//! attacks.

mod error;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::ops::Range;

use walla_device::{CacheImage, KvType};
use walla_types::TokenId;

pub use self::error::KvFileError;
pub(crate) use self::read::{read_bytes, read_file};
pub(crate) use self::write::{to_bytes, write_file};

const MAGIC: &[u8; 8] = b"WALLAKV\0";

/// Version of the format, and of the meaning of its contents.
const VERSION: u32 = 1;

/// Bytes of a header without its names.
const FIXED_BYTES: usize = 76;

/// Maximum bytes of a header.
const MAX_HEADER_BYTES: usize = 1024;

/// Everything that the contents of a file depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// [`KeptGguf::digest`](walla_model::gguf::KeptGguf::digest).
    pub model: u64,
    /// Hash of the rotation factors.
    pub rotation: u64,
    /// Name of the architecture.
    pub architecture: String,
    pub kv_type: KvType,
    pub image: CacheImage,
    pub vocab: u32,
    /// Maximum tokens of a sequence.
    pub context_tokens: u32,
    /// Maximum pages of a chunk.
    pub chunk_pages: u32,
}

/// Contents of a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub tokens: Vec<TokenId>,
    pub chunk_pages: u32,
    /// Token ids, pages, states.
    pub body: Vec<u8>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

/// Types of keys and values, with their codes in a file and their names.
const KV_TYPES: [(KvType, u32, &str); 3] =
    [(KvType::F32, 0, "F32"), (KvType::F16, 1, "F16"), (KvType::Q8, 2, "Q8")];

fn code(kv_type: KvType) -> u32 {
    let known = KV_TYPES.into_iter().find(|(known, ..)| *known == kv_type);
    known.map_or(u32::MAX, |(_, code, _)| code)
}

fn name_of(code: u32) -> &'static str {
    let known = KV_TYPES.into_iter().find(|(_, known, _)| *known == code);
    known.map_or("of another version", |(.., name)| name)
}

impl Binding {
    /// Number of pages of `tokens` tokens.
    pub fn pages(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.image.page_tokens.max(1) as usize)
    }

    /// Bytes of a body; `None` on overflow.
    pub fn body_bytes(&self, tokens: usize) -> Option<usize> {
        let pages = self.pages(tokens).checked_mul(self.image.page_bytes())?;
        tokens.checked_mul(4)?.checked_add(pages)?.checked_add(self.image.state_bytes())
    }
}

impl Contents {
    /// Contents without pages and states, which are appended in order.
    ///
    /// # Errors
    /// The missing bytes, if there is no memory for all of them.
    pub fn new(tokens: &[TokenId], binding: &Binding) -> Result<Self, usize> {
        let bytes = binding.body_bytes(tokens.len()).unwrap_or(usize::MAX);
        let mut body = Vec::new();
        body.try_reserve_exact(bytes).map_err(|_| bytes)?;
        tokens.iter().for_each(|token| body.extend_from_slice(&token.0.to_le_bytes()));
        Ok(Self { tokens: tokens.to_vec(), chunk_pages: binding.chunk_pages.max(1), body })
    }

    /// Number of chunks.
    pub fn chunks(&self, binding: &Binding) -> usize {
        binding.pages(self.tokens.len()).div_ceil(self.chunk_pages as usize)
    }

    /// Pages of a chunk, as indices in the sequence.
    pub fn chunk(&self, binding: &Binding, chunk: usize) -> Range<usize> {
        let first = chunk * self.chunk_pages as usize;
        first..(first + self.chunk_pages as usize).min(binding.pages(self.tokens.len()))
    }

    /// Place of a chunk in the body.
    pub fn chunk_bytes(&self, binding: &Binding, chunk: usize) -> Range<usize> {
        let pages = self.chunk(binding, chunk);
        let (start, page) = (4 * self.tokens.len(), binding.image.page_bytes());
        start + pages.start * page..start + pages.end * page
    }

    /// Place of a state in the body.
    pub fn state_bytes(&self, binding: &Binding, index: usize) -> Range<usize> {
        let pages = binding.pages(self.tokens.len()) * binding.image.page_bytes();
        let mut states = binding.image.states.iter();
        let before: usize = states.by_ref().take(index).map(|state| state.bytes).sum();
        let start = 4 * self.tokens.len() + pages + before;
        start..start + states.next().map_or(0, |state| state.bytes)
    }

    /// Whether all numbers can be given to a device.
    fn is_valid(&self, binding: &Binding) -> bool {
        let part = |range: Range<usize>| self.body.get(range).unwrap_or_default();
        let chunks = (0..self.chunks(binding)).all(|chunk| {
            let pages = self.chunk(binding, chunk).len();
            binding.image.is_valid(part(self.chunk_bytes(binding, chunk)), pages)
        });
        let states = binding.image.states.iter().enumerate();
        chunks
            && states
                .into_iter()
                .all(|(index, state)| state.is_valid(part(self.state_bytes(binding, index))))
    }

    /// Zeroes the cells behind the last token, which may hold tokens of other sequences.
    fn clear_unused(&mut self, binding: &Binding) {
        let page_tokens = binding.image.page_tokens.max(1);
        let cells = self.tokens.len() as u32 % page_tokens;
        let Some(last) = self.chunks(binding).checked_sub(1).filter(|_| cells > 0) else { return };
        let (pages, bytes) = (self.chunk(binding, last).len(), self.chunk_bytes(binding, last));
        if let Some(image) = self.body.get_mut(bytes) {
            binding.image.clear_cells(image, pages, cells);
        }
    }
}
