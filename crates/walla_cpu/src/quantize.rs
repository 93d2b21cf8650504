//! Activations rounded to 8 bits in groups of 32, for integer dot products.

use std::ops::AddAssign;

use bytemuck::{Pod, Zeroable};

/// Numbers in a group.
pub(crate) const GROUP: usize = 32;

/// 32 activations: number `i` is `scale * q[i]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Group {
    /// Signed bytes `q`, four in a word, the first in the low byte.
    pub words: [i32; 8],
    /// The largest absolute value over 127; NaN if an activation is not finite, so that every
    /// product becomes NaN too.
    pub scale: f32,
    /// The bits of [`MAGIC`], minus `128 * sum(q)`: start of an integer sum over signed codes,
    /// which are multiplied plus 128. Not next to `words`: compilers combine loads of neighbours,
    /// and a broadcast from a register costs more than one from memory.
    pub start: i32,
    /// `scale * sum(q)`: factor of an offset or a minimum of the weights.
    pub sum: f32,
    /// The same sum over the first and the second 16 numbers.
    pub halves: [f32; 2],
}

const _: () = assert!(size_of::<Group>() == 52);

/// 1.5 * 2^23. For an integer `|i| < 2^22`, the bits of `MAGIC + i` are the bits of `MAGIC` plus
/// `i`. So an integer sum that starts with these bits is a float without a conversion.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// The bits of [`MAGIC`].
pub(crate) const MAGIC_BITS: i32 = MAGIC.to_bits().cast_signed();

/// Rounds one group to the nearest (ties to even).
#[inline(always)]
fn round_group(x: &[f32; GROUP]) -> Group {
    // As integers, the bits of absolute values have the order of the values, with infinity and then
    // NaN at the top.
    let bits = x.iter().fold(0, |max: u32, x| max.max(x.to_bits() & 0x7FFF_FFFF));
    if bits >= f32::INFINITY.to_bits() {
        let nan = f32::NAN;
        return Group { scale: nan, sum: nan, halves: [nan; 2], start: MAGIC_BITS, words: [0; 8] };
    }
    let largest = f32::from_bits(bits);
    // Below this the reciprocal overflows; such numbers count as zero.
    let inverse = if largest < 1e-36 { 0.0 } else { 127.0 / largest };
    let scale = if largest < 1e-36 { 0.0 } else { largest / 127.0 };
    let mut q = [0_i32; GROUP];
    for (q, x) in q.iter_mut().zip(x) {
        *q = round(x * inverse);
    }
    let mut low = [0; GROUP / 2];
    low.copy_from_slice(&q[..GROUP / 2]);
    let (low, all) = (fold(low), fold(q));
    let mut bytes = [0; GROUP];
    for (byte, q) in bytes.iter_mut().zip(q) {
        *byte = q as u8;
    }
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = i32::from_le_bytes(*bytes);
    }
    let sum = all as f32 * scale;
    let halves = [low as f32 * scale, (all - low) as f32 * scale];
    Group { words, scale, sum, halves, start: MAGIC_BITS - 128 * all }
}

/// The sum of a power of two of numbers: adds upper to lower halves until one number is left.
/// Compilers vectorise additions of whole halves.
#[inline(always)]
pub(crate) fn fold<T: Copy + AddAssign, const N: usize>(mut numbers: [T; N]) -> T {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            let upper = numbers[i + half];
            numbers[i] += upper;
        }
        half /= 2;
    }
    numbers[0]
}

/// To the nearest integer, ties to even, for `|x| <= 2^22`: adding 1.5 * 2^23 leaves the integer in
/// the mantissa's low bits.
#[inline(always)]
fn round(x: f32) -> i32 {
    (x + MAGIC).to_bits().cast_signed() - MAGIC_BITS
}

/// Rounds the rows of `x`, `[rows, cols]`, into `[cols / 32, rows]` groups. A kernel reads one
/// group of all rows at a time, so these are contiguous.
#[inline(always)]
pub(crate) fn round_block(x: &[f32], cols: usize, out: &mut [Group]) {
    let rows = x.len() / cols;
    for (r, x) in x.chunks_exact(cols).enumerate() {
        for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
            out[g * rows + r] = round_group(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_within_half_a_step() {
        let x: [f32; GROUP] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 3.0);
        let group = round_group(&x);
        let q: Vec<i8> =
            group.words.iter().flat_map(|word| word.to_le_bytes().map(u8::cast_signed)).collect();
        for (x, q) in x.iter().zip(&q) {
            assert!((x - f32::from(*q) * group.scale).abs() <= group.scale * 0.5001);
        }
        let sum = |q: &[i8]| q.iter().map(|q| i32::from(*q)).sum::<i32>() as f32 * group.scale;
        assert_eq!((group.sum, group.halves), (sum(&q), [sum(&q[..16]), sum(&q[16..])]));
        assert!(q.contains(&127) || q.contains(&-127));
    }

    #[test]
    fn non_finite_values_and_zeros_are_preserved() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; GROUP];
            x[9] = bad;
            assert!(round_group(&x).scale.is_nan());
        }
        let zeros = Group { start: MAGIC_BITS, ..Group::default() };
        assert_eq!(round_group(&[0.0; GROUP]), zeros);
        assert_eq!(round_group(&[1e-40; GROUP]), zeros);
    }
}
