//! Blocks of quantised numbers as GGUF files store them (layouts of ggml's `ggml-common.h`),
//! unpacked into unsigned codes and scales. The block formats are defined here only.

use crate::{TensorType, e8m0_half};
use half::{bf16, f16};

/// Maximum number of elements in a block.
pub const MAX_BLOCK_ELEMENTS: usize = 256;
/// Maximum number of sub-blocks with separate scales in a block.
pub const MAX_SUBS: usize = 16;

/// An unpacked block. Number `i` of the block is `scale * integer(code[i]) + minimum`, where `scale
/// = d * scales[sub]` and `minimum = m * mins[sub]` for the sub-block of `i`, and [`integer`]
/// subtracts an offset or looks up a table.
#[derive(Clone, Debug)]
pub struct Block {
    /// Codes in the order of the numbers.
    pub codes: [u8; MAX_BLOCK_ELEMENTS],
    /// Scale of the block: an f16, or for MXFP4 a power of two.
    pub d: Scale,
    /// Minimum of the block. It is added; types with an 8-bit `mins` store it to be subtracted.
    pub m: f16,
    /// Scales of the sub-blocks; 1 if the type has no such scales.
    pub scales: [i8; MAX_SUBS],
    /// Minima of the sub-blocks, to be subtracted; 0 if the type has no such minima.
    pub mins: [u8; MAX_SUBS],
}

/// A block's scale in its stored form: the bits of an f16, or an exponent (E8M0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The bits, or the exponent.
    pub bits: u16,
}

impl Scale {
    fn at(bytes: &[u8], at: usize) -> Self {
        Self { bits: u16::from_le_bytes([bytes[at], bytes[at + 1]]) }
    }

    /// The factor of the integers of `ty`.
    #[must_use]
    pub fn to_f32(self, ty: TensorType) -> f32 {
        match ty {
            TensorType::Mxfp4 => e8m0_half(self.bits as u8),
            _ => f16::from_bits(self.bits).to_f32(),
        }
    }
}

impl Block {
    /// A block of zeros.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            codes: [0; MAX_BLOCK_ELEMENTS],
            d: Scale { bits: 0 },
            m: f16::ZERO,
            scales: [1; MAX_SUBS],
            mins: [0; MAX_SUBS],
        }
    }
}

/// Offset that is subtracted from the codes of a type; 0 for types with a table.
#[must_use]
pub const fn offset(ty: TensorType) -> u8 {
    match ty {
        TensorType::Q8_0 => 128,
        TensorType::Q3K => 4,
        TensorType::Q4_0 => 8,
        TensorType::Q5_0 => 16,
        TensorType::Q6K => 32,
        _ => 0,
    }
}

/// The integer of a code.
#[must_use]
pub fn integer(ty: TensorType, code: u8) -> i32 {
    match ty.table() {
        Some(table) => i32::from(table[usize::from(code & 15)]),
        None => i32::from(code) - i32::from(offset(ty)),
    }
}

/// Whether kernels multiply the signed integers themselves, so that there is no minimum. Codes of
/// other types are multiplied as they are, and their offset is part of a minimum.
#[must_use]
pub const fn is_signed(ty: TensorType) -> bool {
    matches!(ty, TensorType::Q8_0) || ty.table().is_some()
}

/// Numbers in a sub-block.
#[must_use]
pub const fn sub_elements(ty: TensorType) -> usize {
    if matches!(ty, TensorType::Q2K | TensorType::Q3K | TensorType::Q6K) { 16 } else { 32 }
}

/// Sub-blocks in a group of 32 numbers.
#[must_use]
pub const fn subs_of_group(ty: TensorType) -> usize {
    32 / sub_elements(ty)
}

fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Stores low nibbles in the first half of `codes` and high nibbles in the second half.
fn nibbles(packed: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(packed.len());
    for ((byte, low), high) in packed.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Scale and minimum `j` of the 12 bytes in which Q4_K and Q5_K pack 8 of each, 6 bits wide.
fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let high = |byte: u8| (byte >> 6) << 4;
        (packed[j + 4] & 15 | high(packed[j - 4]), packed[j + 4] >> 4 | high(packed[j]))
    }
}

/// Unpacks one block of a quantised type.
///
/// # Panics
/// If `bytes` is shorter than a block, or the type is not quantised. The caller checks both.
#[must_use]
pub fn take_apart(ty: TensorType, bytes: &[u8]) -> Block {
    let mut block = Block::empty();
    match ty {
        TensorType::Q8_0 => {
            block.d = Scale::at(bytes, 0);
            for (code, byte) in block.codes.iter_mut().zip(&bytes[2..34]) {
                *code = byte ^ 0x80;
            }
        }
        TensorType::Q4_0 => {
            block.d = Scale::at(bytes, 0);
            nibbles(&bytes[2..18], &mut block.codes[..32]);
        }
        TensorType::Q4_1 => {
            (block.d, block.m) = (Scale::at(bytes, 0), half_at(bytes, 2));
            nibbles(&bytes[4..20], &mut block.codes[..32]);
        }
        TensorType::Q5_0 => {
            block.d = Scale::at(bytes, 0);
            nibbles(&bytes[6..22], &mut block.codes[..32]);
            fifth_bits(&bytes[2..6], &mut block.codes[..32]);
        }
        TensorType::Q5_1 => {
            (block.d, block.m) = (Scale::at(bytes, 0), half_at(bytes, 2));
            nibbles(&bytes[8..24], &mut block.codes[..32]);
            fifth_bits(&bytes[4..8], &mut block.codes[..32]);
        }
        TensorType::Q4K => {
            header_k(bytes, &mut block);
            for (packed, codes) in bytes[16..144].chunks(32).zip(block.codes.chunks_mut(64)) {
                nibbles(packed, codes);
            }
        }
        TensorType::Q5K => {
            header_k(bytes, &mut block);
            for (packed, codes) in bytes[48..176].chunks(32).zip(block.codes.chunks_mut(64)) {
                nibbles(packed, codes);
            }
            for (i, code) in block.codes.iter_mut().enumerate() {
                *code |= (bytes[16 + i % 32] >> (i / 32) & 1) << 4;
            }
        }
        TensorType::Q6K => sixes(bytes, &mut block),
        TensorType::Q2K => twos(bytes, &mut block),
        TensorType::Q3K => threes(bytes, &mut block),
        TensorType::Iq4Nl => {
            block.d = Scale::at(bytes, 0);
            nibbles(&bytes[2..18], &mut block.codes[..32]);
        }
        TensorType::Iq4Xs => fours(bytes, &mut block),
        TensorType::Mxfp4 => {
            block.d = Scale { bits: u16::from(bytes[0]) };
            nibbles(&bytes[1..17], &mut block.codes[..32]);
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
            unreachable!("{ty} has no blocks")
        }
    }
    block
}

fn fifth_bits(packed: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (packed[i / 8] >> (i % 8) & 1) << 4;
    }
}

fn header_k(bytes: &[u8], block: &mut Block) {
    (block.d, block.m) = (Scale::at(bytes, 0), half_at(bytes, 2));
    for j in 0..8 {
        let (scale, min) = scale_min(&bytes[4..16], j);
        block.scales[j] = scale.cast_signed();
        block.mins[j] = min;
    }
}

/// Q6_K: two halves of 128 numbers; in each, 64 bytes of nibbles and 32 bytes of upper bit pairs.
fn sixes(bytes: &[u8], block: &mut Block) {
    for (half, codes) in block.codes.chunks_mut(128).enumerate() {
        let low = &bytes[half * 64..][..64];
        let high = &bytes[128 + half * 32..][..32];
        for (i, code) in codes.iter_mut().enumerate() {
            let (quarter, l) = (i / 32, i % 32);
            let nibble = low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
            *code = nibble | (high[l] >> (2 * quarter) & 3) << 4;
        }
    }
    for (scale, byte) in block.scales.iter_mut().zip(&bytes[192..208]) {
        *scale = byte.cast_signed();
    }
    block.d = Scale::at(bytes, 208);
}

/// Two bits of each of 256 codes: in each half, 32 bytes whose pairs belong to its four quarters.
fn bit_pairs(packed: &[u8], codes: &mut [u8; MAX_BLOCK_ELEMENTS]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = packed[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    }
}

/// Q2_K: scales and minima in the nibbles of 16 bytes, codes, scale, minimum.
fn twos(bytes: &[u8], block: &mut Block) {
    for ((scale, min), byte) in block.scales.iter_mut().zip(&mut block.mins).zip(&bytes[..16]) {
        (*scale, *min) = ((byte & 15).cast_signed(), byte >> 4);
    }
    bit_pairs(&bytes[16..80], &mut block.codes);
    (block.d, block.m) = (Scale::at(bytes, 80), half_at(bytes, 82));
}

/// Q3_K: third bits, codes, 12 bytes of scales (low nibbles, then upper pairs of bits; stored plus
/// 32), scale.
fn threes(bytes: &[u8], block: &mut Block) {
    bit_pairs(&bytes[32..96], &mut block.codes);
    for (i, code) in block.codes.iter_mut().enumerate() {
        *code |= (bytes[i % 32] >> (i / 32) & 1) << 2;
    }
    let packed = &bytes[96..108];
    for (i, scale) in block.scales.iter_mut().enumerate() {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        *scale = (low | high << 4).cast_signed() - 32;
    }
    block.d = Scale::at(bytes, 108);
}

/// IQ4_XS: scale, upper pairs of bits and low nibbles of 8 scales (stored plus 32), codes.
fn fours(bytes: &[u8], block: &mut Block) {
    block.d = Scale::at(bytes, 0);
    let upper = u16::from_le_bytes([bytes[2], bytes[3]]);
    for (j, scale) in block.scales[..8].iter_mut().enumerate() {
        let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
        let high = (upper >> (2 * j) & 3) as u8;
        *scale = (low | high << 4).cast_signed() - 32;
    }
    for (packed, codes) in bytes[8..136].chunks(16).zip(block.codes.chunks_mut(32)) {
        nibbles(packed, codes);
    }
}

/// Dequantises a whole row (or any whole blocks), exactly as ggml does: multiply, then add, in f32.
///
/// # Panics
/// If `bytes` are not the blocks of `out`. The caller checks this.
#[inline]
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    match ty {
        TensorType::F32 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*b);
            }
        }
        TensorType::F16 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f16::from_le_bytes(*b).to_f32();
            }
        }
        TensorType::BF16 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = bf16::from_le_bytes(*b).to_f32();
            }
        }
        _ => {
            let blocks = bytes.chunks_exact(ty.block_bytes());
            for (bytes, out) in blocks.zip(out.chunks_mut(ty.block_elements())) {
                put_together(ty, &take_apart(ty, bytes), out);
            }
        }
    }
}

/// Dequantises one block.
///
/// # Panics
/// If `out` is longer than a block.
pub fn put_together(ty: TensorType, block: &Block, out: &mut [f32]) {
    let (d, m) = (block.d.to_f32(ty), block.m.to_f32());
    let adds_minimum = matches!(ty, TensorType::Q4_1 | TensorType::Q5_1);
    for (sub, out) in out.chunks_mut(sub_elements(ty)).enumerate() {
        let scale = d * f32::from(block.scales[sub]);
        let minimum = if adds_minimum { m } else { -(m * f32::from(block.mins[sub])) };
        let codes = &block.codes[sub * sub_elements(ty)..];
        for (out, code) in out.iter_mut().zip(codes) {
            *out = scale * integer(ty, *code) as f32 + minimum;
        }
    }
}
