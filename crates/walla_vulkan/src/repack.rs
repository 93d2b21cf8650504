//! Weight matrices in the layout that the shaders read: `kernels/vulkan/weight.slang` has the table
//! of kinds.
//!
//! A block has 32 numbers of a row: some words of integers, and a word with two f16 factors, which
//! are stored in tables of their own. Factors are the file's times a power of two for each row, so
//! that the largest uses f16's upper range.

use half::f16;
use walla_types::{TensorType, e8m0_half};

/// Numbers of a block.
pub(crate) const BLOCK: usize = 32;

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Kind {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    Q8 = 3,
    Q4 = 4,
    Q5 = 5,
    Q6 = 6,
}

impl Kind {
    /// The kind that stores a type.
    pub(crate) fn of(ty: TensorType) -> Option<Self> {
        Some(match ty {
            TensorType::F32 => Self::F32,
            TensorType::F16 => Self::F16,
            TensorType::BF16 => Self::BF16,
            TensorType::Q8_0 | TensorType::Iq4Nl | TensorType::Iq4Xs | TensorType::Q2K => Self::Q8,
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => Self::Q4,
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K | TensorType::Mxfp4 => Self::Q5,
            TensorType::Q6K | TensorType::Q3K => Self::Q6,
            _ => return None,
        })
    }

    /// Whether numbers are integers with factors.
    pub(crate) fn is_quantized(self) -> bool {
        self > Self::BF16
    }

    /// Words of 32 numbers, without factors.
    pub(crate) fn words(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::Q8 => 8,
            Self::Q4 => 4,
            Self::Q5 => 5,
            Self::Q6 => 6,
        }
    }
}

/// A block as integers and factors. Q4 and Q5: number = first * code + second. Q6: codes minus 32
/// times the first factor, for the last 16 numbers the second. Q8: signed bytes times the first.
struct Block {
    codes: [u8; BLOCK],
    factors: [f32; 2],
}

/// A repacked row.
pub(crate) struct Row<'a> {
    /// `[blocks, words]`
    pub(crate) words: &'a mut [u32],
    /// `[blocks]`: two f16 numbers.
    pub(crate) factors: &'a mut [u32],
    /// File value = stored value times this.
    pub(crate) scale: &'a mut f32,
}

impl Row<'_> {
    /// Repacks a row of a quantised type, `bytes` as in the file.
    pub(crate) fn put(self, ty: TensorType, bytes: &[u8]) {
        let Some(kind) = Kind::of(ty) else { return };
        let mut blocks = Vec::with_capacity(self.factors.len());
        for block in bytes.chunks_exact(ty.block_bytes()) {
            blocks_of(ty, block, &mut blocks);
        }
        let finite = |factor: &f32| factor.is_finite();
        let factors = blocks.iter().flat_map(|block| block.factors).filter(finite);
        let largest = factors.fold(0.0, |largest: f32, factor| largest.max(factor.abs()));
        let stored = power_for(largest);
        *self.scale = 1.0 / stored;
        let outs = self.words.chunks_exact_mut(kind.words()).zip(self.factors.iter_mut());
        for (block, (words, factors)) in blocks.iter().zip(outs) {
            *factors = rounded(kind, block, stored);
            put_codes(kind, &block.codes, words);
        }
    }
}

/// A power of two whose product with a number is between 2^14 and 2^15.
fn power_for(largest: f32) -> f32 {
    let exponent = (largest.to_bits() >> 23).cast_signed();
    match exponent {
        0 => 1.0,
        _ => f32::from_bits(((14 + 127 - exponent).clamp(-126, 126) + 127).cast_unsigned() << 23),
    }
}

/// The factors as f16 numbers. A minimum compensates the rounding of its scale for the mean of the
/// block's integers.
fn rounded(kind: Kind, block: &Block, stored: f32) -> u32 {
    let [first, mut second] = block.factors.map(|factor| factor * stored);
    let scale = f16::from_f32(first);
    if matches!(kind, Kind::Q4 | Kind::Q5) && scale.is_finite() {
        let sum: f32 = block.codes.iter().map(|code| f32::from(*code)).sum();
        second += (first - scale.to_f32()) * (sum / BLOCK as f32);
    }
    u32::from(scale.to_bits()) | u32::from(f16::from_f32(second).to_bits()) << 16
}

fn word(bytes: impl Fn(usize) -> u8) -> u32 {
    u32::from_le_bytes(std::array::from_fn(bytes))
}

/// Stores the integers of a block.
fn put_codes(kind: Kind, codes: &[u8; BLOCK], words: &mut [u32]) {
    if kind == Kind::Q8 {
        for (j, out) in words.iter_mut().enumerate() {
            *out = word(|b| codes[4 * j + b]);
        }
        return;
    }
    for (j, out) in words.iter_mut().take(4).enumerate() {
        *out = word(|b| codes[4 * j + b] & 15 | (codes[16 + 4 * j + b] & 15) << 4);
    }
    // The upper bits of number 4 j + b: bits 8 b + (bits * j) and more.
    let bits = if kind == Kind::Q6 { 2 } else { 1 };
    for (w, out) in words.iter_mut().skip(4).enumerate() {
        let of_word = 8 / bits;
        *out = word(|b| {
            let upper = |j: usize| codes[4 * (w * of_word + j) + b] >> 4;
            (0..of_word).fold(0, |byte, j| byte | upper(j) << (bits * j))
        });
    }
}

/// The blocks of one block of a file's type.
fn blocks_of(ty: TensorType, bytes: &[u8], out: &mut Vec<Block>) {
    match ty {
        TensorType::Q8_0 => {
            let codes = std::array::from_fn(|i| bytes[2 + i]);
            out.push(Block { codes, factors: [half_at(bytes, 0), 0.0] });
        }
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q5_0 | TensorType::Q5_1 => {
            out.push(legacy_block(ty, bytes));
        }
        TensorType::Q4K | TensorType::Q5K => k_blocks(bytes, out),
        TensorType::Q6K => q6_k_blocks(bytes, out),
        TensorType::Q3K => q3_k_blocks(bytes, out),
        TensorType::Q2K => q2_k_blocks(bytes, out),
        TensorType::Iq4Nl => {
            out.push(Block {
                codes: integers(ty, &bytes[2..], 0),
                factors: [half_at(bytes, 0), 0.0],
            });
        }
        TensorType::Iq4Xs => iq4_xs_blocks(bytes, out),
        TensorType::Mxfp4 => {
            let scale = e8m0_half(bytes[0]);
            let codes = integers(ty, &bytes[1..], 16);
            out.push(Block { codes, factors: [scale, -16.0 * scale] });
        }
        _ => {}
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The integers of 32 indices, plus `excess`.
fn integers(ty: TensorType, packed: &[u8], excess: u8) -> [u8; BLOCK] {
    let table = ty.table().unwrap_or(&[0; 16]);
    std::array::from_fn(|i| {
        let index = packed[i % 16] >> (i / 16 * 4) & 15;
        table[usize::from(index)].cast_unsigned().wrapping_add(excess)
    })
}

/// Q4_0, Q4_1, Q5_0, Q5_1: scale (and minimum), (four bytes of fifth bits,) 16 bytes whose lower
/// nibbles are the first 16 numbers.
fn legacy_block(ty: TensorType, bytes: &[u8]) -> Block {
    let has_minimum = matches!(ty, TensorType::Q4_1 | TensorType::Q5_1);
    let rest = &bytes[if has_minimum { 4 } else { 2 }..];
    let (fifths, nibbles) = rest.split_at(rest.len() - 16);
    let codes = std::array::from_fn(|i| {
        let fifth = fifths.get(i / 8).map_or(0, |byte| byte >> (i % 8) & 1);
        nibbles[i % 16] >> (i / 16 * 4) & 15 | fifth << 4
    });
    let scale = half_at(bytes, 0);
    let minimum = match ty {
        TensorType::Q4_0 => -8.0 * scale,
        TensorType::Q5_0 => -16.0 * scale,
        _ => half_at(bytes, 2),
    };
    Block { codes, factors: [scale, minimum] }
}

/// Q4_K and Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, (Q5_K: 32 bytes of fifth
/// bits,) 128 bytes of nibbles. Of each 32 bytes of nibbles, the lower halves are one sub-block of
/// 32 numbers and the upper halves the next. Fifth bit `j` of byte `i` belongs to number `i` of
/// sub-block `j`.
fn k_blocks(bytes: &[u8], out: &mut Vec<Block>) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    let (fifths, nibbles) = bytes[16..].split_at(bytes.len() - 16 - 128);
    for j in 0..8 {
        let codes = std::array::from_fn(|i| {
            let fifth = fifths.get(i).map_or(0, |byte| byte >> j & 1);
            nibbles[j / 2 * 32 + i] >> (j % 2 * 4) & 15 | fifth << 4
        });
        let [scale, minimum] = scale_and_minimum(&bytes[4..16], j);
        out.push(Block { codes, factors: [d * f32::from(scale), -dmin * f32::from(minimum)] });
    }
}

/// The 6-bit scale and minimum of sub-block `j`. The first four are the lower six bits of bytes `j`
/// and `j + 4`. The last four are the nibbles of bytes `j + 4`, with their upper two bits in the
/// upper bits of the first eight bytes.
fn scale_and_minimum(packed: &[u8], j: usize) -> [u8; 2] {
    if j < 4 {
        return [packed[j] & 63, packed[j + 4] & 63];
    }
    let low = packed[j + 4];
    [low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4]
}

/// Q6_K: 128 bytes of lower nibbles, 64 of upper bit pairs, 16 scales, f16 d. In each half (128
/// numbers: 64 and 32 bytes), quarter `j` (32 numbers) has its nibbles in bytes `32 * (j % 2)..`:
/// lower nibbles for the first two quarters, upper nibbles for the last two. Its bit pairs are at
/// bit `2 * j` of the 32 bytes.
fn q6_k_blocks(bytes: &[u8], out: &mut Vec<Block>) {
    let (low, rest) = bytes.split_at(128);
    let (pairs, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    for quarter in 0..8 {
        let (half, j) = (quarter / 4, quarter % 4);
        let codes = std::array::from_fn(|i| {
            let nibble = low[64 * half + 32 * (j % 2) + i] >> (j / 2 * 4) & 15;
            nibble | (pairs[32 * half + i] >> (2 * j) & 3) << 4
        });
        let scale = |i: usize| half_at(d, 0) * f32::from(scales[i].cast_signed());
        out.push(Block { codes, factors: [scale(2 * quarter), scale(2 * quarter + 1)] });
    }
}

/// Two bits of number `i` of a block of Q2_K or Q3_K: in each half, byte `i` of 32 has numbers `i`,
/// `i + 32`, `i + 64` and `i + 96`.
fn pair_of_bits(packed: &[u8], i: usize) -> u8 {
    packed[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Q3_K: 32 bytes of third bits, 64 of pairs of bits, 12 of scales (low nibbles, then upper pairs
/// of bits; stored plus 32), f16 d. The integers, minus 4, are integers of Q6_K, minus 32.
fn q3_k_blocks(bytes: &[u8], out: &mut Vec<Block>) {
    let (thirds, rest) = bytes.split_at(32);
    let (pairs, rest) = rest.split_at(64);
    let (packed, d) = rest.split_at(12);
    for j in 0..8 {
        let codes = std::array::from_fn(|i| {
            let third = thirds[i] >> j & 1;
            (pair_of_bits(pairs, 32 * j + i) | third << 2) + 28
        });
        let scale = |i: usize| {
            let low = packed[i % 8] >> (i / 8 * 4) & 15;
            let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
            half_at(d, 0) * (f32::from(low | high << 4) - 32.0)
        };
        out.push(Block { codes, factors: [scale(2 * j), scale(2 * j + 1)] });
    }
}

/// Q2_K: 16 bytes with a scale and a minimum in their nibbles, 64 of pairs of bits, f16 d, f16
/// dmin. No kind has a scale and a minimum for 16 numbers, so numbers are rounded to 8 bits.
fn q2_k_blocks(bytes: &[u8], out: &mut Vec<Block>) {
    let (d, dmin) = (half_at(bytes, 80), half_at(bytes, 82));
    for j in 0..8 {
        let numbers: [f32; BLOCK] = std::array::from_fn(|i| {
            let at = BLOCK * j + i;
            let factors = bytes[at / 16];
            let scale = d * f32::from(factors & 15);
            let minimum = dmin * f32::from(factors >> 4);
            scale * f32::from(pair_of_bits(&bytes[16..80], at)) - minimum
        });
        let largest = numbers.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
        let sum: f32 = numbers.iter().sum();
        // A number that is not finite makes its block infinite or NaN.
        let scale = if sum.is_finite() { largest / 127.0 } else { sum };
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let codes = numbers.map(|number| {
            ((number * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned()
        });
        out.push(Block { codes, factors: [scale, 0.0] });
    }
}

/// IQ4_XS: f16 d, two bytes with the upper pairs of bits of 8 scales, four with their nibbles, 128
/// of indices. Scales are stored plus 32.
fn iq4_xs_blocks(bytes: &[u8], out: &mut Vec<Block>) {
    let upper = u16::from_le_bytes([bytes[2], bytes[3]]);
    for j in 0..8 {
        let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
        let scale = low | ((upper >> (2 * j) & 3) as u8) << 4;
        let scale = half_at(bytes, 0) * (f32::from(scale) - 32.0);
        let codes = integers(TensorType::Iq4Xs, &bytes[8 + 16 * j..], 0);
        out.push(Block { codes, factors: [scale, 0.0] });
    }
}
