use half::{bf16, f16};
use walla_types::{TensorType, e8m0_half};

use super::pack::{pack, pack_q3};
use super::search;

/// Stores numbers as whole blocks of type `ty`.
///
/// `bytes` has the size of `numbers.len()` numbers, as [`TensorType::row_bytes`] counts them. Types
/// without a search (F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4) give the same bytes as ggml; K
/// types, IQ4_NL and IQ4_XS search for the scales with the smallest error. Numbers that are not
/// finite do not survive quantisation: they become arbitrary numbers or make their block NaN.
///
/// # Panics
/// If `numbers` is not a whole number of blocks, or `bytes` has another length.
///
/// # Examples
/// ```
/// use walla_doubles::quantize;
/// use walla_model::dequantize;
/// use walla_types::TensorType;
/// let (mut block, mut back) = ([0; 34], [0.0; 32]);
/// quantize(TensorType::Q8_0, &[0.5; 32], &mut block);
/// dequantize(TensorType::Q8_0, &block, &mut back);
/// assert!((back[0] - 0.5).abs() < 0.01);
/// ```
pub fn quantize(ty: TensorType, numbers: &[f32], bytes: &mut [u8]) {
    let takes = ty.row_bytes(numbers.len());
    assert_eq!(takes, Some(bytes.len()), "{} numbers of {ty}", numbers.len());
    match ty {
        TensorType::F32 => each(numbers, bytes, |[x]| x.to_le_bytes()),
        TensorType::F16 => each(numbers, bytes, |[x]| f16::from_f32(*x).to_le_bytes()),
        TensorType::BF16 => each(numbers, bytes, |[x]| bf16::from_f32(*x).to_le_bytes()),
        TensorType::Q8_0 => each(numbers, bytes, q8_0),
        TensorType::Q4_0 => each(numbers, bytes, q4_0),
        TensorType::Q4_1 => each(numbers, bytes, q4_1),
        TensorType::Q5_0 => each(numbers, bytes, q5_0),
        TensorType::Q5_1 => each(numbers, bytes, q5_1),
        TensorType::Q4K => each(numbers, bytes, q4_k),
        TensorType::Q5K => each(numbers, bytes, q5_k),
        TensorType::Q6K => each(numbers, bytes, q6_k),
        TensorType::Q2K => each(numbers, bytes, q2_k),
        TensorType::Q3K => each(numbers, bytes, q3_k),
        TensorType::Iq4Nl => each(numbers, bytes, iq4_nl),
        TensorType::Iq4Xs => each(numbers, bytes, iq4_xs),
        TensorType::Mxfp4 => each(numbers, bytes, mxfp4),
        other => unreachable!("{other} has no blocks"),
    }
}

/// Fills each block of `B` bytes from its `N` numbers.
fn each<const N: usize, const B: usize>(
    numbers: &[f32],
    bytes: &mut [u8],
    block: impl Fn(&[f32; N]) -> [u8; B],
) {
    let (numbers, _) = numbers.as_chunks::<N>();
    let (blocks, _) = bytes.as_chunks_mut::<B>();
    for (x, raw) in numbers.iter().zip(blocks) {
        *raw = block(x);
    }
}

fn half(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

/// `x` rounded to f16 and back.
fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// `1 / x`, or 0 for a block of zeros.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { x.recip() }
}

/// The number with the largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().copied().fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a })
}

fn range(x: &[f32]) -> (f32, f32) {
    let low = x.iter().copied().fold(f32::MAX, f32::min);
    (low, x.iter().copied().fold(-f32::MAX, f32::max))
}

/// Packs the low nibbles of 32 integers: number `i` with number `i + 16`.
fn nibbles(q: &[u8; 32]) -> [u8; 16] {
    core::array::from_fn(|i| (q[i] & 15) | (q[i + 16] << 4))
}

/// The fifth bits of 32 integers.
fn fifths(q: &[u8; 32]) -> [u8; 4] {
    let bits = q.iter().enumerate().map(|(i, &q)| u32::from(q >> 4 & 1) << i);
    bits.sum::<u32>().to_le_bytes()
}

fn q8_0(x: &[f32; 32]) -> [u8; 34] {
    let scale = extreme(x).abs() / 127.0;
    let inverse = inverse(scale);
    let mut raw = [0; 34];
    raw[..2].copy_from_slice(&half(scale));
    for (q, x) in raw[2..].iter_mut().zip(x) {
        *q = (x * inverse).round() as i8 as u8;
    }
    raw
}

/// Integers of a grid whose lowest step is the extreme: `round(x / scale) + offset`, at most `2 *
/// offset - 1`.
fn around(x: &[f32; 32], offset: u8) -> (f32, [u8; 32]) {
    let scale = extreme(x) / -f32::from(offset);
    let inverse = inverse(scale);
    (scale, x.map(|x| ((x * inverse + f32::from(offset) + 0.5) as u8).min(2 * offset - 1)))
}

/// Integers of a grid from the lowest number to the highest: `round((x - lowest) / scale)`.
fn between(x: &[f32; 32], steps: u8) -> (f32, f32, [u8; 32]) {
    let (low, high) = range(x);
    let scale = (high - low) / f32::from(steps);
    let inverse = inverse(scale);
    (scale, low, x.map(|x| (((x - low) * inverse + 0.5) as u8).min(steps)))
}

fn q4_0(x: &[f32; 32]) -> [u8; 18] {
    let (scale, q) = around(x, 8);
    let mut raw = [0; 18];
    raw[..2].copy_from_slice(&half(scale));
    raw[2..].copy_from_slice(&nibbles(&q));
    raw
}

fn q4_1(x: &[f32; 32]) -> [u8; 20] {
    let (scale, low, q) = between(x, 15);
    let mut raw = [0; 20];
    raw[..2].copy_from_slice(&half(scale));
    raw[2..4].copy_from_slice(&half(low));
    raw[4..].copy_from_slice(&nibbles(&q));
    raw
}

fn q5_0(x: &[f32; 32]) -> [u8; 22] {
    let (scale, q) = around(x, 16);
    let mut raw = [0; 22];
    raw[..2].copy_from_slice(&half(scale));
    raw[2..6].copy_from_slice(&fifths(&q));
    raw[6..].copy_from_slice(&nibbles(&q));
    raw
}

fn q5_1(x: &[f32; 32]) -> [u8; 24] {
    let (scale, low, q) = between(x, 31);
    let mut raw = [0; 24];
    raw[..2].copy_from_slice(&half(scale));
    raw[2..4].copy_from_slice(&half(low));
    raw[4..8].copy_from_slice(&fifths(&q));
    raw[8..].copy_from_slice(&nibbles(&q));
    raw
}

/// The first 16 bytes of Q4_K and Q5_K, and the integers of all sub-blocks, for grids of `steps`
/// steps.
fn sub_blocks(x: &[f32; 256], steps: u8, spread: f32) -> ([u8; 16], [u8; 256]) {
    let (parts, _) = x.as_chunks::<32>();
    let found: [_; 8] =
        core::array::from_fn(|i| search::with_minimum(&parts[i], f32::from(steps), spread));
    let scale = rounded(found.iter().map(|f| f.0).fold(0.0, f32::max) / 63.0);
    let minimum = rounded(found.iter().map(|f| f.1).fold(0.0, f32::max) / 63.0);
    let six_bits = |x: f32, unit: f32| (x * inverse(unit)).round_ties_even().clamp(0.0, 63.0) as u8;
    let scales = found.map(|(own, _)| six_bits(own, scale));
    let minimums = found.map(|(_, own)| six_bits(own, minimum));
    let mut head = [0; 16];
    head[..2].copy_from_slice(&half(scale));
    head[2..4].copy_from_slice(&half(minimum));
    head[4..].copy_from_slice(&pack(&scales, &minimums));
    // Again, with the rounded scales.
    let mut q = [0; 256];
    for (i, (part, q)) in parts.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let inverse = inverse(scale * f32::from(scales[i]));
        let minimum = minimum * f32::from(minimums[i]);
        let integer = |x: f32| ((x + minimum) * inverse).round_ties_even().clamp(0.0, steps.into());
        *q = part.map(|x| integer(x) as u8);
    }
    (head, q)
}

fn q4_k(x: &[f32; 256]) -> [u8; 144] {
    let (head, q) = sub_blocks(x, 15, 1.0);
    let mut raw = [0; 144];
    raw[..16].copy_from_slice(&head);
    for (q, raw) in q.as_chunks::<64>().0.iter().zip(raw[16..].as_chunks_mut::<32>().0) {
        *raw = core::array::from_fn(|i| q[i] | (q[i + 32] << 4));
    }
    raw
}

fn q5_k(x: &[f32; 256]) -> [u8; 176] {
    let (head, q) = sub_blocks(x, 31, 0.5);
    let mut raw = [0; 176];
    raw[..16].copy_from_slice(&head);
    for (sub_block, q) in q.as_chunks::<32>().0.iter().enumerate() {
        for (i, q) in q.iter().enumerate() {
            raw[16 + i] |= (q >> 4) << sub_block;
            raw[48 + 32 * (sub_block / 2) + i] |= (q & 15) << (4 * (sub_block % 2));
        }
    }
    raw
}

fn q6_k(x: &[f32; 256]) -> [u8; 210] {
    let (parts, _) = x.as_chunks::<16>();
    let found: [f32; 16] = core::array::from_fn(|i| search::symmetric(&parts[i], 32.0));
    // The extreme becomes -128, which has the larger magnitude.
    let scale = rounded(extreme(&found) / -128.0);
    let units = found.map(|own| (own * inverse(scale)).round_ties_even() as i8);
    let mut q = [0; 256];
    for (i, (part, q)) in parts.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        let inverse = inverse(scale * f32::from(units[i]));
        *q = part.map(|x| ((x * inverse).round_ties_even().clamp(-32.0, 31.0) + 32.0) as u8);
    }
    let mut raw = [0; 210];
    for (i, q) in q.into_iter().enumerate() {
        let (part, quarter, i) = (i / 128, i / 32 % 4, i % 32);
        raw[64 * part + 32 * (quarter % 2) + i] |= (q & 15) << (4 * (quarter / 2));
        raw[128 + 32 * part + i] |= (q >> 4) << (2 * quarter);
    }
    raw[192..208].copy_from_slice(&units.map(|unit| unit as u8));
    raw[208..].copy_from_slice(&half(scale));
    raw
}

/// Adds a two-bit integer to a block of Q2_K or Q3_K: number `i`.
fn put_pair_of_bits(raw: &mut [u8], i: usize, q: u8) {
    raw[i / 128 * 32 + i % 32] |= (q & 3) << (i % 128 / 32 * 2);
}

fn q2_k(x: &[f32; 256]) -> [u8; 84] {
    let (parts, _) = x.as_chunks::<16>();
    let found: [_; 16] = core::array::from_fn(|i| search::with_minimum(&parts[i], 3.0, 0.5));
    let scale = rounded(found.iter().map(|f| f.0).fold(0.0, f32::max) / 15.0);
    let minimum = rounded(found.iter().map(|f| f.1).fold(0.0, f32::max) / 15.0);
    let mut raw = [0; 84];
    for (i, (part, found)) in parts.iter().zip(found).enumerate() {
        let four_bits = |x: f32, unit: f32| (x * inverse(unit)).round_ties_even().clamp(0.0, 15.0);
        let (s, m) = (four_bits(found.0, scale), four_bits(found.1, minimum));
        raw[i] = s as u8 | (m as u8) << 4;
        let (inverse, minimum) = (inverse(scale * s), minimum * m);
        for (j, x) in part.iter().enumerate() {
            let q = ((x + minimum) * inverse).round_ties_even().clamp(0.0, 3.0) as u8;
            put_pair_of_bits(&mut raw[16..80], 16 * i + j, q);
        }
    }
    raw[80..82].copy_from_slice(&half(scale));
    raw[82..].copy_from_slice(&half(minimum));
    raw
}

fn q3_k(x: &[f32; 256]) -> [u8; 110] {
    let (parts, _) = x.as_chunks::<16>();
    let found: [f32; 16] = core::array::from_fn(|i| search::symmetric(&parts[i], 4.0));
    let (scale, units) = six_bit_scales(&found);
    let mut raw = [0; 110];
    for (i, part) in parts.iter().enumerate() {
        let inverse = inverse(scale * f32::from(units[i]));
        for (j, x) in part.iter().enumerate() {
            let q = ((x * inverse).round_ties_even().clamp(-4.0, 3.0) + 4.0) as u8;
            let at = 16 * i + j;
            put_pair_of_bits(&mut raw[32..96], at, q);
            raw[at % 32] |= (q >> 2) << (at / 32);
        }
    }
    raw[96..108].copy_from_slice(&pack_q3(&units));
    raw[108..].copy_from_slice(&half(scale));
    raw
}

/// Scales of sub-blocks as a scale and integers in `-32..32`.
fn six_bit_scales<const N: usize>(found: &[f32; N]) -> (f32, [i8; N]) {
    // The extreme becomes -32, which has the larger magnitude.
    let scale = rounded(extreme(found) / -32.0);
    let inverse = inverse(scale);
    (scale, found.map(|own| (own * inverse).round_ties_even().clamp(-32.0, 31.0) as i8))
}

/// The nearest index for each of 32 numbers, packed as [`nibbles`].
fn indices(x: &[f32; 32], table: &[i8; 16], inverse: f32) -> [u8; 16] {
    nibbles(&x.map(|x| search::nearest(table, x * inverse)))
}

fn table(ty: TensorType) -> &'static [i8; 16] {
    ty.table().unwrap_or(&[0; 16])
}

fn iq4_nl(x: &[f32; 32]) -> [u8; 18] {
    let table = table(TensorType::Iq4Nl);
    let scale = rounded(search::indexed(x, table));
    let mut raw = [0; 18];
    raw[..2].copy_from_slice(&half(scale));
    raw[2..].copy_from_slice(&indices(x, table, inverse(scale)));
    raw
}

fn iq4_xs(x: &[f32; 256]) -> [u8; 136] {
    let table = table(TensorType::Iq4Xs);
    let (parts, _) = x.as_chunks::<32>();
    let found: [f32; 8] = core::array::from_fn(|i| search::indexed(&parts[i], table));
    let (scale, units) = six_bit_scales(&found);
    let mut raw = [0; 136];
    raw[..2].copy_from_slice(&half(scale));
    for (i, part) in parts.iter().enumerate() {
        let stored = (units[i] + 32) as u8;
        raw[2 + i / 4] |= (stored >> 4) << (i % 4 * 2);
        raw[4 + i / 2] |= (stored & 15) << (i % 2 * 4);
        let indices = indices(part, table, inverse(scale * f32::from(units[i])));
        raw[8 + 16 * i..][..16].copy_from_slice(&indices);
    }
    raw
}

/// The scale is the power of two for which the extreme is between 4 and 8, the binade of the
/// largest number, 6.
fn mxfp4(x: &[f32; 32]) -> [u8; 17] {
    // Exponent of the extreme plus 127; 0 for subnormal numbers, which become zeros.
    let exponent = (extreme(x).to_bits() >> 23 & 255) as u8;
    let mut raw = [0; 17];
    raw[0] = exponent.saturating_sub(2);
    let table = table(TensorType::Mxfp4);
    let unit = f64::from(e8m0_half(raw[0]));
    // In f64, because 1 / unit may exceed f32.
    let q = x.map(|x| search::nearest(table, (f64::from(x) / unit) as f32));
    raw[1..].copy_from_slice(&nibbles(&q));
    raw
}
