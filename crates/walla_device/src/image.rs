//! Copies of cache contents in host memory, for files.

use crate::cache::{CacheDesc, CacheLayer, KvType};

/// Direction of a copy of a part of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// To a host buffer.
    FromCache,
    /// From a host buffer.
    ToCache,
}

/// A part of a cache that is copied between the device and a host buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePart<'a> {
    /// Keys and values of pages, in the order of [`CacheImage::parts`].
    Pages(&'a [u32]),
    /// State `index` of [`CacheImage::states`] of a sequence.
    State {
        /// The sequence.
        sequence: u32,
        /// Index of the state.
        index: u32,
    },
    /// Recent tokens of a sequence: `[MAX_PENALTY_WINDOW]` u32, by position modulo
    /// [`MAX_PENALTY_WINDOW`](walla_types::MAX_PENALTY_WINDOW).
    Recent {
        /// The sequence.
        sequence: u32,
    },
}

/// Type of the numbers of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageNumber {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    F16,
    /// Any number of bytes without invalid values.
    Bytes(u32),
}

impl ImageNumber {
    /// Bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Bytes(bytes) => bytes as usize,
        }
    }

    /// Whether all magnitudes are at most the number with these bits: neither larger, infinite nor
    /// NaN.
    #[must_use]
    pub fn are_within(self, bytes: &[u8], max_bits: u32) -> bool {
        // Without a branch for each number, so that the loops use vector instructions: a file of
        // some hundred megabytes is checked. Bits of magnitudes have the order of the magnitudes.
        match self {
            Self::F32 => bytes.chunks(4096).all(|part| {
                let bits = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7fff_ffff;
                !part.chunks_exact(4).fold(false, |bad, b| bad | (bits(b) > max_bits))
            }),
            Self::F16 => bytes.chunks(4096).all(|part| {
                let bits = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7fff;
                let max_bits = max_bits.min(0x7bff) as u16;
                !part.chunks_exact(2).fold(false, |bad, b| bad | (bits(b) > max_bits))
            }),
            Self::Bytes(_) => true,
        }
    }
}

/// 65,504, the largest f16 number: the limit of keys and values. Larger ones can lead to NaN in
/// later layers, whose keys and values would stay in pages for their next owners.
const MAX_KV: f32 = 65_504.0;

/// The limit of scales of 8-bit numbers, as bits of an f16 number: 515.5, which is below 65,504
/// divided by 127.
const SCALE_MAX_BITS: u32 = 0x6007;

/// The limit of recurrent states: 2^24. Squares of it, and sums of products with other numbers, are
/// far below the largest f32.
const MAX_STATE: f32 = 16_777_216.0;

/// Keys, values or scales of one layer in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImagePart {
    /// Heads.
    pub heads: u32,
    /// Numbers of a head's cell.
    pub numbers: u32,
    /// Their type.
    pub number: ImageNumber,
    /// `[heads, numbers, page_tokens]` instead of `[heads, page_tokens, numbers]`.
    pub cells_last: bool,
}

impl ImagePart {
    /// Bits of the largest magnitude that a file may have.
    const fn max_bits(&self) -> u32 {
        match self.number {
            ImageNumber::F16 if self.numbers == 1 => SCALE_MAX_BITS,
            ImageNumber::F16 => 0x7bff,
            _ => MAX_KV.to_bits(),
        }
    }
}

/// State of one recurrent layer of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageState {
    /// Its length.
    pub bytes: usize,
    /// Type of its numbers.
    pub number: ImageNumber,
}

impl ImageState {
    /// Whether all numbers of a state can be given to a device.
    #[must_use]
    pub fn is_valid(&self, bytes: &[u8]) -> bool {
        self.number.are_within(bytes, MAX_STATE.to_bits())
    }
}

/// Layout of cache contents in host memory.
///
/// An image of `n` pages has for each part the bytes of all `n` pages, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheImage {
    /// Name of the device's layout with its version. Images of other layouts are not compatible,
    /// also if the sizes are equal.
    pub layout: &'static str,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Parts of a page: layer by layer, keys, values, and the scales of both if there are any.
    pub parts: Vec<ImagePart>,
    /// States of a sequence, by recurrent layer.
    pub states: Vec<ImageState>,
}

impl CacheImage {
    /// The layout of a cache. `keys_last`: keys have their [cells last](ImagePart::cells_last).
    /// `state_bytes`: length of the state of a recurrent layer.
    #[must_use]
    pub fn new(
        layout: &'static str,
        desc: &CacheDesc,
        keys_last: bool,
        state_bytes: impl Fn(&CacheLayer) -> Option<usize>,
    ) -> Self {
        let number = match desc.kv_type {
            KvType::F32 => ImageNumber::F32,
            KvType::F16 => ImageNumber::F16,
            KvType::Q8 => ImageNumber::Bytes(1),
        };
        // The order of parts is the format of files: devices and readers rely on it.
        let (mut parts, mut states) = (Vec::new(), Vec::new());
        for layer in &desc.layers {
            if let CacheLayer::Kv { kv_heads: heads, head_dim: numbers, .. } = *layer {
                let part = |cells_last| ImagePart { heads, numbers, number, cells_last };
                parts.extend([part(keys_last), part(false)]);
                if desc.kv_type.scale_bytes() > 0 {
                    let (numbers, number) = (1, ImageNumber::F16);
                    parts.extend([ImagePart { heads, numbers, number, cells_last: false }; 2]);
                }
            } else {
                let state = |bytes| ImageState { bytes, number: ImageNumber::F32 };
                states.extend(state_bytes(layer).map(state));
            }
        }
        Self { layout, page_tokens: desc.page_tokens, parts, states }
    }

    /// Bytes of a part of one page.
    #[must_use]
    pub fn part_bytes(&self, part: &ImagePart) -> usize {
        let cells = part.heads as usize * self.page_tokens as usize;
        cells * part.numbers as usize * part.number.bytes()
    }

    /// Bytes of one page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.parts.iter().map(|part| self.part_bytes(part)).sum()
    }

    /// Bytes of all states of a sequence.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.states.iter().map(|state| state.bytes).sum()
    }

    /// The parts of an image of `pages` pages, in order: ranges of bytes.
    fn ranges(&self, pages: usize) -> impl Iterator<Item = (&ImagePart, std::ops::Range<usize>)> {
        let mut start = 0;
        self.parts.iter().map(move |part| {
            let bytes = pages * self.part_bytes(part);
            start += bytes;
            (part, start - bytes..start)
        })
    }

    /// Zeroes the cells of the last of `pages` pages from `cells` on. They may hold tokens of other
    /// sequences.
    pub fn clear_cells(&self, image: &mut [u8], pages: usize, cells: u32) {
        let Some(last) = pages.checked_sub(1) else { return };
        let (page_tokens, cells) =
            (self.page_tokens as usize, cells.min(self.page_tokens) as usize);
        for (part, range) in self.ranges(pages) {
            let (page, number) = (self.part_bytes(part), part.number.bytes());
            let Some(bytes) = image.get_mut(range.start + last * page..range.end) else { return };
            // Bytes of one head, or of one number of a head, and of one cell in it.
            let cell = if part.cells_last { number } else { part.numbers as usize * number };
            for row in bytes.chunks_mut((page_tokens * cell).max(1)) {
                let used = (cells * cell).min(row.len());
                row[used..].fill(0);
            }
        }
    }

    /// Whether all numbers of an image of `pages` pages can be given to a device: finite and at
    /// most 65,504. Attention multiplies cells behind the last token by zero, also for later owners
    /// of a page.
    #[must_use]
    pub fn is_valid(&self, image: &[u8], pages: usize) -> bool {
        self.ranges(pages).all(|(part, range)| {
            let bytes = image.get(range);
            bytes.is_some_and(|bytes| part.number.are_within(bytes, part.max_bits()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> CacheImage {
        let part = |cells_last, number| ImagePart { heads: 2, numbers: 3, number, cells_last };
        let parts = vec![part(true, ImageNumber::F16), part(false, ImageNumber::F16)];
        CacheImage { layout: "test", page_tokens: 4, parts, states: Vec::new() }
    }

    #[test]
    fn cells_behind_the_last_token_are_cleared_in_every_part() {
        let image = image();
        let mut bytes = vec![1; 2 * image.page_bytes()];
        image.clear_cells(&mut bytes, 2, 1);
        let zeros = |part: &[u8]| part.iter().filter(|byte| **byte == 0).count();
        let page = image.page_bytes() / 2;
        assert_eq!([0, 1, 2, 3].map(|part| zeros(&bytes[part * page..][..page])), [0, 36, 0, 36]);
        // Keys: the first cell of each of the six rows stays. Values: the first cell of each head.
        assert_eq!(bytes[page..page + 8], [1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[3 * page..3 * page + 8], [1, 1, 1, 1, 1, 1, 0, 0]);
        let mut whole = vec![1; 2 * image.page_bytes()];
        image.clear_cells(&mut whole, 2, 4);
        assert_eq!(zeros(&whole), 0);
    }

    #[test]
    fn every_number_that_is_too_large_is_found() {
        let image = image();
        let bytes = vec![0x3c; 3 * image.page_bytes()];
        assert!(image.is_valid(&bytes, 3));
        assert!(!image.is_valid(&bytes, 4), "too short");
        for at in (0..bytes.len()).step_by(2) {
            for bits in [0x7c00_u16, 0xfc00, 0x7e01] {
                let mut bytes = bytes.clone();
                bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                assert!(!image.is_valid(&bytes, 3), "{at}");
            }
        }
        let f32 = ImageNumber::F32;
        let fits = |number: f32| f32.are_within(&number.to_le_bytes(), MAX_KV.to_bits());
        assert!(fits(-MAX_KV) && !fits(-65_505.0) && !fits(f32::NEG_INFINITY) && !fits(f32::NAN));
        let scale = ImagePart { heads: 1, numbers: 1, number: ImageNumber::F16, cells_last: false };
        let fits = |bits: u16| scale.number.are_within(&bits.to_le_bytes(), scale.max_bits());
        assert!(fits(0xe007) && !fits(0x6008));
    }
}
