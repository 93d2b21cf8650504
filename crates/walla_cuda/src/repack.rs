//! Weight matrices in the layout that the kernels read: each part of a row in a plane of its own.
//!
//! ggml's blocks interleave scales and numbers at odd offsets (18, 34, 210 bytes), which no warp can load in whole 16-byte
//! pieces. Here a row's nibbles (or bytes, or numbers) lie side by side, and so do its scales. `kernels/weight.cuh` has the
//! table of planes; nothing is rounded, so the numbers are exactly the file's.

use walla_types::TensorType;

/// Bytes of one row in each plane: quants, high bits, scales, super-block scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowBytes {
    /// Columns, padded with zeros to a multiple of 32.
    pub(crate) cols: usize,
    pub(crate) planes: [usize; 4],
}

/// The code of a type in `kernels/weight.cuh`.
pub(crate) fn kind(ty: TensorType) -> Option<u32> {
    Some(match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::BF16 => 2,
        TensorType::Q8_0 => 3,
        TensorType::Q4_0 => 4,
        TensorType::Q4_1 => 5,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 7,
        TensorType::Q4K => 8,
        TensorType::Q5K => 9,
        TensorType::Q6K => 10,
        _ => return None,
    })
}

/// The name of a type in the names of kernels.
pub(crate) fn kernel_name(ty: TensorType) -> String {
    ty.name().to_lowercase()
}

impl RowBytes {
    /// Sizes of a row of `cols` numbers; `None` for a type that walla has no kernels for or a row that is no whole number of
    /// blocks.
    pub(crate) fn of(ty: TensorType, cols: usize) -> Option<Self> {
        ty.row_bytes(cols)?;
        let cols = cols.next_multiple_of(32);
        let (blocks, supers) = (cols / 32, cols / 256);
        let planes = match ty {
            TensorType::F32 => [4 * cols, 0, 0, 0],
            TensorType::F16 | TensorType::BF16 => [2 * cols, 0, 0, 0],
            TensorType::Q8_0 => [cols, 0, 2 * blocks, 0],
            TensorType::Q4_0 => [cols / 2, 0, 2 * blocks, 0],
            TensorType::Q4_1 => [cols / 2, 0, 4 * blocks, 0],
            TensorType::Q5_0 => [cols / 2, 4 * blocks, 2 * blocks, 0],
            TensorType::Q5_1 => [cols / 2, 4 * blocks, 4 * blocks, 0],
            TensorType::Q4K => [cols / 2, 0, 2 * blocks, 4 * supers],
            TensorType::Q5K => [cols / 2, 4 * blocks, 2 * blocks, 4 * supers],
            TensorType::Q6K => [cols / 2, 8 * blocks, 2 * blocks, 2 * supers],
            _ => return None,
        };
        Some(Self { cols, planes })
    }

    /// Bytes of a row in all planes.
    pub(crate) fn total(&self) -> usize {
        self.planes.iter().sum()
    }
}

/// Repacks one row. `row` has the type's bytes for the row, each plane its [`RowBytes`]; the planes of padding are left alone,
/// so they must be zero.
pub(crate) fn repack_row(ty: TensorType, row: &[u8], planes: [&mut [u8]; 4]) {
    let [quants, high, scales, supers] = planes;
    match ty {
        TensorType::Q8_0 => {
            for (b, block) in row.chunks_exact(34).enumerate() {
                put(scales, 2 * b, &block[..2]);
                put(quants, 32 * b, &block[2..]);
            }
        }
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q5_0 | TensorType::Q5_1 => {
            let scale = if matches!(ty, TensorType::Q4_0 | TensorType::Q5_0) { 2 } else { 4 };
            for (b, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
                let (scale_bytes, rest) = block.split_at(scale);
                let (high_bytes, nibbles) = rest.split_at(rest.len() - 16);
                put(scales, scale * b, scale_bytes);
                put(high, 4 * b, high_bytes);
                put(quants, 16 * b, nibbles);
            }
        }
        TensorType::Q4K | TensorType::Q5K => {
            for (s, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
                k_block(block, s, [&mut *quants, &mut *high, &mut *scales, &mut *supers]);
            }
        }
        TensorType::Q6K => {
            for (s, block) in row.chunks_exact(210).enumerate() {
                q6_k_block(block, s, [&mut *quants, &mut *high, &mut *scales, &mut *supers]);
            }
        }
        _ => put(quants, 0, row),
    }
}

fn put(plane: &mut [u8], offset: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        plane[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// 32 numbers below 16 as 16 bytes: number `i` below, number `i + 16` above.
fn nibbles(number: impl Fn(usize) -> u8) -> [u8; 16] {
    std::array::from_fn(|i| number(i) | number(i + 16) << 4)
}

/// Q4_K and Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, (Q5_K: 32 bytes of fifth bits,) 128 bytes of nibbles.
/// Of each 32 bytes of nibbles the lower halves are one sub-block of 32 numbers and the upper ones the next. Fifth bit `j` of
/// byte `i` belongs to number `i` of sub-block `j`.
fn k_block(block: &[u8], s: usize, [quants, high, scales, supers]: [&mut [u8]; 4]) {
    let packed = &block[4..16];
    let (fifths, codes) = block[16..].split_at(block.len() - 16 - 128);
    put(supers, 4 * s, &block[..4]);
    for j in 0..8 {
        let sub = 8 * s + j;
        let bytes = &codes[32 * (j / 2)..32 * (j / 2) + 32];
        put(quants, 16 * sub, &nibbles(|i| bytes[i] >> (4 * (j % 2)) & 15));
        put(scales, 2 * sub, &scale_and_minimum(packed, j));
        if !fifths.is_empty() {
            let bits = (0..32).fold(0_u32, |bits, i| bits | u32::from(fifths[i] >> j & 1) << i);
            put(high, 4 * sub, &bits.to_le_bytes());
        }
    }
}

/// The 6-bit scale and minimum of sub-block `j`: the first four lie in the lower six bits of bytes `j` and `j + 4`, the last
/// four in the nibbles of bytes `j + 4`, with their upper two bits in the upper bits of the first eight bytes.
fn scale_and_minimum(packed: &[u8], j: usize) -> [u8; 2] {
    if j < 4 {
        return [packed[j] & 63, packed[j + 4] & 63];
    }
    let low = packed[j + 4];
    [low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4]
}

/// Q6_K: 128 bytes of lower nibbles, 64 of upper bit pairs, 16 scales, f16 d. In each half (128 numbers: 64 and 32 bytes)
/// quarter `j` (32 numbers) has its nibbles in bytes `32 * (j % 2)..`, below for the first two quarters and above for the
/// last two, and its bit pairs at `2 * j` of the 32 bytes.
fn q6_k_block(block: &[u8], s: usize, [quants, high, scales, supers]: [&mut [u8]; 4]) {
    let (low, rest) = block.split_at(128);
    let (pairs, rest) = rest.split_at(64);
    let (scale, d) = rest.split_at(16);
    put(supers, 2 * s, d);
    put(scales, 16 * s, scale);
    for quarter in 0..8 {
        let (half, j) = (quarter / 4, quarter % 4);
        let sub = 8 * s + quarter;
        let bytes = &low[64 * half + 32 * (j % 2)..];
        put(quants, 16 * sub, &nibbles(|i| bytes[i] >> (4 * (j / 2)) & 15));
        let pair = |i: usize| u32::from(pairs[32 * half + i] >> (2 * j) & 3);
        for (word, first) in [0, 16].into_iter().enumerate() {
            let bits = (0..16).fold(0_u32, |bits, i| bits | pair(first + i) << (2 * i));
            put(high, 8 * sub + 4 * word, &bits.to_le_bytes());
        }
    }
}
