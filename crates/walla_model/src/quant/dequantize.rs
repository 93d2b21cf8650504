use half::{bf16, f16};
use walla_types::{TensorType, e8m0_half};

use super::unpack::{unpack, unpack_q3};

/// Converts whole blocks of stored numbers to `f32`.
///
/// `bytes` holds `out.len()` numbers of type `ty`, as [`TensorType::row_bytes`] counts them. The
/// results equal ggml's bit for bit: each is a product of `f32`, followed by a sum for types with
/// minimums.
///
/// # Panics
/// If `out` is not a whole number of blocks, or `bytes` has another length.
///
/// # Examples
/// ```
/// use walla_model::dequantize;
/// use walla_types::TensorType;
/// let mut out = [0.0];
/// dequantize(TensorType::BF16, &[0x80, 0x3f], &mut out);
/// assert_eq!(out, [1.0]);
/// ```
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(ty.row_bytes(out.len()), Some(bytes.len()), "{} numbers of {ty}", out.len());
    match ty {
        TensorType::F32 => each(bytes, out, |raw: &[u8; 4], [y]| *y = f32::from_le_bytes(*raw)),
        TensorType::F16 => each(bytes, out, |raw: &[u8; 2], [y]| *y = half(*raw)),
        TensorType::BF16 => {
            each(bytes, out, |raw: &[u8; 2], [y]| *y = bf16::from_le_bytes(*raw).to_f32());
        }
        TensorType::Q8_0 => each(bytes, out, q8_0),
        TensorType::Q4_0 => each(bytes, out, q4_0),
        TensorType::Q4_1 => each(bytes, out, q4_1),
        TensorType::Q5_0 => each(bytes, out, q5_0),
        TensorType::Q5_1 => each(bytes, out, q5_1),
        TensorType::Q4K => each(bytes, out, q4_k),
        TensorType::Q5K => each(bytes, out, q5_k),
        TensorType::Q6K => each(bytes, out, q6_k),
        TensorType::Q2K => each(bytes, out, q2_k),
        TensorType::Q3K => each(bytes, out, q3_k),
        TensorType::Iq4Nl => each(bytes, out, iq4_nl),
        TensorType::Iq4Xs => each(bytes, out, iq4_xs),
        TensorType::Mxfp4 => each(bytes, out, mxfp4),
        other => unreachable!("{other} has no blocks"),
    }
}

/// Calls `block` for each block of `B` bytes and its `N` numbers.
fn each<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (numbers, _) = out.as_chunks_mut::<N>();
    for (raw, y) in blocks.iter().zip(numbers) {
        block(raw, y);
    }
}

fn half(raw: [u8; 2]) -> f32 {
    f16::from_le_bytes(raw).to_f32()
}

/// `scale: f16, q: [i8; 32]`.
fn q8_0(raw: &[u8; 34], y: &mut [f32; 32]) {
    let scale = half([raw[0], raw[1]]);
    for (y, &q) in y.iter_mut().zip(&raw[2..]) {
        *y = scale * f32::from(q as i8);
    }
}

/// `scale: f16, q: [u4; 32]`: low nibbles are the first half.
fn q4_0(raw: &[u8; 18], y: &mut [f32; 32]) {
    let scale = half([raw[0], raw[1]]);
    for (i, &q) in raw[2..].iter().enumerate() {
        y[i] = f32::from((q & 15) as i8 - 8) * scale;
        y[i + 16] = f32::from((q >> 4) as i8 - 8) * scale;
    }
}

/// `scale: f16, minimum: f16, q: [u4; 32]`.
fn q4_1(raw: &[u8; 20], y: &mut [f32; 32]) {
    let (scale, minimum) = (half([raw[0], raw[1]]), half([raw[2], raw[3]]));
    for (i, &q) in raw[4..].iter().enumerate() {
        y[i] = f32::from(q & 15) * scale + minimum;
        y[i + 16] = f32::from(q >> 4) * scale + minimum;
    }
}

/// Numbers `i` and `i + 16` of 32 five-bit numbers: nibbles from `low`, the fifth bits from `high`.
fn fives(low: u8, high: u32, i: usize) -> (u8, u8) {
    let fifth = |bit: usize| ((high >> bit & 1) as u8) << 4;
    ((low & 15) | fifth(i), (low >> 4) | fifth(i + 16))
}

/// `scale: f16, fifth bits: u32, q: [u4; 32]`.
fn q5_0(raw: &[u8; 22], y: &mut [f32; 32]) {
    let scale = half([raw[0], raw[1]]);
    let high = u32::from_le_bytes([raw[2], raw[3], raw[4], raw[5]]);
    for (i, &low) in raw[6..].iter().enumerate() {
        let (a, b) = fives(low, high, i);
        y[i] = f32::from(a as i8 - 16) * scale;
        y[i + 16] = f32::from(b as i8 - 16) * scale;
    }
}

/// `scale: f16, minimum: f16, fifth bits: u32, q: [u4; 32]`.
fn q5_1(raw: &[u8; 24], y: &mut [f32; 32]) {
    let (scale, minimum) = (half([raw[0], raw[1]]), half([raw[2], raw[3]]));
    let high = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
    for (i, &low) in raw[8..].iter().enumerate() {
        let (a, b) = fives(low, high, i);
        y[i] = f32::from(a) * scale + minimum;
        y[i + 16] = f32::from(b) * scale + minimum;
    }
}

/// Scales and minimums of the 8 sub-blocks of Q4_K and Q5_K, from the first 16 bytes of the block:
/// `scale: f16, minimum: f16, packed: [u8; 12]`.
fn sub_blocks(raw: &[u8]) -> [(f32, f32); 8] {
    let (scale, minimum) = (half([raw[0], raw[1]]), half([raw[2], raw[3]]));
    let mut packed = [0; 12];
    packed.copy_from_slice(&raw[4..16]);
    core::array::from_fn(|i| {
        let (s, m) = unpack(&packed, i);
        (scale * f32::from(s), minimum * f32::from(m))
    })
}

/// `scale, minimum, packed: [u8; 12], q: [u4; 256]`: each 32 bytes hold two sub-blocks, low nibbles
/// first.
fn q4_k(raw: &[u8; 144], y: &mut [f32; 256]) {
    let sub_blocks = sub_blocks(raw);
    for (pair, q) in raw[16..].as_chunks::<32>().0.iter().enumerate() {
        let [(low_scale, low_min), (high_scale, high_min)] =
            [sub_blocks[2 * pair], sub_blocks[2 * pair + 1]];
        for (i, &q) in q.iter().enumerate() {
            y[64 * pair + i] = low_scale * f32::from(q & 15) - low_min;
            y[64 * pair + 32 + i] = high_scale * f32::from(q >> 4) - high_min;
        }
    }
}

/// `scale, minimum, packed: [u8; 12], fifth bits: [u8; 32], q: [u4; 256]`: bit `b` of `fifth[i]`
/// belongs to number `i` of sub-block `b`.
fn q5_k(raw: &[u8; 176], y: &mut [f32; 256]) {
    let sub_blocks = sub_blocks(raw);
    let fifth = &raw[16..48];
    for (pair, q) in raw[48..].as_chunks::<32>().0.iter().enumerate() {
        let [(low_scale, low_min), (high_scale, high_min)] =
            [sub_blocks[2 * pair], sub_blocks[2 * pair + 1]];
        for (i, &q) in q.iter().enumerate() {
            let bit = |b: usize| (fifth[i] >> b & 1) << 4;
            y[64 * pair + i] = low_scale * f32::from((q & 15) | bit(2 * pair)) - low_min;
            y[64 * pair + 32 + i] = high_scale * f32::from((q >> 4) | bit(2 * pair + 1)) - high_min;
        }
    }
}

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], scale: f16`. In each half, byte `i` of the
/// 32 bytes of `high` has the upper bits of numbers `i`, `i + 32`, `i + 64` and `i + 96`, whose low
/// nibbles are in bytes `i` and `i + 32` of `low`.
fn q6_k(raw: &[u8; 210], y: &mut [f32; 256]) {
    let scale = half([raw[208], raw[209]]);
    for part in 0..2 {
        let (low, high) = (&raw[64 * part..][..64], &raw[128 + 32 * part..][..32]);
        let scales = &raw[192 + 8 * part..][..8];
        let y = &mut y[128 * part..][..128];
        for i in 0..32 {
            let nibbles = [low[i] & 15, low[i + 32] & 15, low[i] >> 4, low[i + 32] >> 4];
            for (quarter, nibble) in nibbles.into_iter().enumerate() {
                let q = (nibble | (high[i] >> (2 * quarter) & 3) << 4) as i8 - 32;
                let sub_scale = f32::from(scales[2 * quarter + i / 16] as i8);
                y[32 * quarter + i] = scale * sub_scale * f32::from(q);
            }
        }
    }
}

/// Two-bit integer `i` of a block of Q2_K or Q3_K: in each half, byte `i` of 32 has numbers `i`, `i
/// + 32`, `i + 64` and `i + 96`.
const fn pair_of_bits(q: &[u8], i: usize) -> u8 {
    q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// `[scale: u4, minimum: u4; 16], q: [u2; 256], scale: f16, minimum: f16`: scales in the low
/// nibbles.
fn q2_k(raw: &[u8; 84], y: &mut [f32; 256]) {
    let (scale, minimum) = (half([raw[80], raw[81]]), half([raw[82], raw[83]]));
    for (sub_block, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let sub_scale = scale * f32::from(raw[sub_block] & 15);
        let sub_minimum = minimum * f32::from(raw[sub_block] >> 4);
        for (i, y) in y.iter_mut().enumerate() {
            let q = pair_of_bits(&raw[16..80], 16 * sub_block + i);
            *y = sub_scale * f32::from(q) - sub_minimum;
        }
    }
}

/// `third bits: [u8; 32], q: [u2; 256], packed: [u8; 12], scale: f16`: bit `b` of third bits byte
/// `i` belongs to number `32 b + i`.
fn q3_k(raw: &[u8; 110], y: &mut [f32; 256]) {
    let scale = half([raw[108], raw[109]]);
    let scales = unpack_q3(&raw[96..108]);
    for (i, y) in y.iter_mut().enumerate() {
        let third = raw[i % 32] >> (i / 32) & 1;
        let q = (pair_of_bits(&raw[32..96], i) | third << 2) as i8 - 4;
        *y = scale * f32::from(scales[i / 16]) * f32::from(q);
    }
}

/// Numbers of 32 indices: low nibbles are the first half.
fn indexed(ty: TensorType, scale: f32, indices: &[u8], y: &mut [f32]) {
    let Some(table) = ty.table() else { return };
    for (i, &index) in indices.iter().enumerate() {
        y[i] = scale * f32::from(table[usize::from(index & 15)]);
        y[i + 16] = scale * f32::from(table[usize::from(index >> 4)]);
    }
}

/// `scale: f16, index: [u4; 32]`.
fn iq4_nl(raw: &[u8; 18], y: &mut [f32; 32]) {
    indexed(TensorType::Iq4Nl, half([raw[0], raw[1]]), &raw[2..], y);
}

/// `scale: f16, upper bits of scales: [u2; 8], lower bits of scales: [u4; 8], index: [u4; 256]`.
fn iq4_xs(raw: &[u8; 136], y: &mut [f32; 256]) {
    let scale = half([raw[0], raw[1]]);
    let upper = u16::from_le_bytes([raw[2], raw[3]]);
    for (i, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = raw[4 + i / 2] >> (i % 2 * 4) & 15;
        let high = (upper >> (2 * i) & 3) as u8;
        let sub_scale = scale * f32::from((low | high << 4) as i8 - 32);
        indexed(TensorType::Iq4Xs, sub_scale, &raw[8 + 16 * i..][..16], y);
    }
}

/// `scale: e8m0, index: [u4; 32]`.
fn mxfp4(raw: &[u8; 17], y: &mut [f32; 32]) {
    indexed(TensorType::Mxfp4, e8m0_half(raw[0]), &raw[1..], y);
}
