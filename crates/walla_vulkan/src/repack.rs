//! Weight matrices in the layout that the shaders read: `kernels/vulkan/weight.slang` has the table
//! of kinds.
//!
//! A block has 32 numbers of a row: some words of integers, and a word with two f16 factors in a
//! separate table. Rows are divided into segments. Factors are the file's times a power of two for
//! each row, so that the largest uses f16's upper range.

use half::f16;
use walla_types::TensorType;
use walla_types::blocks::{self, MAX_BLOCK_ELEMENTS};

/// Numbers of a block.
pub(crate) const BLOCK: usize = 32;
/// Segments of a row.
const SEGMENTS: usize = 8;

/// Places for the blocks of a row: equally many in each segment.
pub(crate) fn positions(blocks: usize) -> usize {
    blocks.next_multiple_of(SEGMENTS)
}

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

/// A block as integers and factors. Q4 and Q5: number = first * code + second. Q6: number =
/// 4 * code * first, for the last 16 numbers second; codes are signed, of six bits. Q8: number =
/// code * first; codes are signed.
struct Block {
    codes: [u8; BLOCK],
    factors: [f32; 2],
}

/// A repacked row.
pub(crate) struct Row<'a> {
    /// Of all positions, as in `kernels/vulkan/weight.slang`. Zeros before.
    pub(crate) words: &'a mut [u32],
    /// `[positions]`: two f16 numbers. Zeros before.
    pub(crate) factors: &'a mut [u32],
    /// File value = stored value times this.
    pub(crate) scale: &'a mut f32,
}

impl Row<'_> {
    /// Repacks a row of a quantised type, `bytes` as in the file.
    pub(crate) fn put(self, ty: TensorType, bytes: &[u8]) {
        let Some(kind) = Kind::of(ty) else { return };
        let mut found = Vec::with_capacity(self.factors.len());
        for block in bytes.chunks_exact(ty.block_bytes()) {
            blocks_of(ty, kind, block, &mut found);
        }
        let finite = |factor: &f32| factor.is_finite();
        let factors = found.iter().flat_map(|block| block.factors).filter(finite);
        let largest = factors.fold(0.0, |largest: f32, factor| largest.max(factor.abs()));
        let stored = power_for(largest);
        *self.scale = 1.0 / stored;
        let positions = self.factors.len();
        let of_segment = positions / SEGMENTS;
        let first = if kind == Kind::Q8 { 8 } else { 4 };
        let further = kind.words() - first;
        for (index, block) in found.iter().enumerate() {
            let position = index % of_segment * SEGMENTS + index / of_segment;
            self.factors[position] = rounded(kind, block, stored);
            let mut words = [0; BLOCK];
            put_codes(kind, &block.codes, &mut words[..kind.words()]);
            let at = first * position;
            self.words[at..at + first].copy_from_slice(&words[..first]);
            let at = first * positions + further * position;
            self.words[at..at + further].copy_from_slice(&words[first..first + further]);
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
fn blocks_of(ty: TensorType, kind: Kind, bytes: &[u8], out: &mut Vec<Block>) {
    if ty == TensorType::Q2K {
        // No kind has a scale and a minimum for 16 numbers.
        let mut numbers = [0.0; MAX_BLOCK_ELEMENTS];
        blocks::dequantize(ty, bytes, &mut numbers);
        out.extend(numbers.as_chunks::<BLOCK>().0.iter().map(rounded_to_bytes));
        return;
    }
    let block = blocks::take_apart(ty, bytes);
    let (d, m) = (block.d.to_f32(ty), block.m.to_f32());
    let scale = |sub: usize| d * f32::from(block.scales[sub]);
    let groups = block.codes.as_chunks::<BLOCK>().0.iter().take(ty.block_elements() / BLOCK);
    for (group, codes) in groups.enumerate() {
        let integers = |excess: i32| codes.map(|code| (blocks::integer(ty, code) + excess) as u8);
        out.push(match (kind, ty) {
            (Kind::Q6, _) => {
                let factors = [2 * group, 2 * group + 1].map(|sub| 0.25 * scale(sub));
                Block { codes: integers(64).map(|code| code & 63), factors }
            }
            (Kind::Q8, _) => Block { codes: integers(0), factors: [scale(group), 0.0] },
            (_, TensorType::Mxfp4) => {
                Block { codes: integers(16), factors: [scale(group), -16.0 * scale(group)] }
            }
            _ => {
                let minimum = match ty {
                    TensorType::Q4_0 | TensorType::Q5_0 => {
                        -f32::from(blocks::offset(ty)) * scale(group)
                    }
                    TensorType::Q4K | TensorType::Q5K => -m * f32::from(block.mins[group]),
                    _ => m,
                };
                Block { codes: *codes, factors: [scale(group), minimum] }
            }
        });
    }
}

/// Numbers as signed bytes with one scale.
fn rounded_to_bytes(numbers: &[f32; BLOCK]) -> Block {
    let largest = numbers.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
    let sum: f32 = numbers.iter().sum();
    // A number that is not finite makes its block infinite or NaN.
    let scale = if sum.is_finite() { largest / 127.0 } else { sum };
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let codes = numbers.map(|number| {
        ((number * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned()
    });
    Block { codes, factors: [scale, 0.0] }
}
