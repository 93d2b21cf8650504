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

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of a type with every byte different from its neighbours, and its planes.
    fn repacked(ty: TensorType, cols: usize) -> (Vec<u8>, [Vec<u8>; 4]) {
        let bytes = ty.row_bytes(cols).unwrap();
        let row: Vec<u8> = (0..bytes).map(|i| (i * 37 + i / 7 + 11) as u8).collect();
        let mut planes = RowBytes::of(ty, cols).unwrap().planes.map(|bytes| vec![0; bytes]);
        repack_row(ty, &row, planes.each_mut().map(Vec::as_mut_slice));
        (row, planes)
    }

    #[test]
    fn nothing_is_lost_but_padding_is_added() {
        for ty in TensorType::ALL {
            let layout = RowBytes::of(ty, 512).unwrap();
            let bytes = ty.row_bytes(512).unwrap();
            // K types unpack 6-bit scales to bytes: 16 for 12, in Q4_K and Q5_K.
            let unpacked = if matches!(ty, TensorType::Q4K | TensorType::Q5K) { 2 * 4 } else { 0 };
            assert_eq!(layout.total(), bytes + unpacked, "{ty}");
        }
        assert_eq!(RowBytes::of(TensorType::F16, 33).unwrap().cols, 64);
        assert_eq!(RowBytes::of(TensorType::Q4K, 128), None);
    }

    #[test]
    fn blocks_of_32_part_into_scales_and_numbers() {
        let (row, [quants, _, scales, _]) = repacked(TensorType::Q8_0, 64);
        assert_eq!(scales, [row[0], row[1], row[34], row[35]]);
        assert_eq!((&quants[..32], &quants[32..]), (&row[2..34], &row[36..68]));
        let (row, [quants, high, scales, _]) = repacked(TensorType::Q5_1, 64);
        assert_eq!(scales[4..], row[24..28]);
        assert_eq!(high[4..], row[28..32]);
        assert_eq!(quants[16..], row[32..48]);
    }

    /// Number `i` of a super-block straight from ggml's layout, in parts: quant, scale, minimum.
    fn k_number(ty: TensorType, row: &[u8], i: usize) -> (u8, u8, u8) {
        let (sub, within) = (i / 32, i % 32);
        let [scale, minimum] = scale_and_minimum(&row[4..16], sub);
        let fifths = if ty == TensorType::Q5K { 32 } else { 0 };
        let code = row[16 + fifths + 32 * (sub / 2) + within];
        let low = if sub % 2 == 0 { code & 15 } else { code >> 4 };
        let high = if fifths > 0 { row[16 + within] >> sub & 1 } else { 0 };
        (low | high << 4, scale, minimum)
    }

    #[test]
    fn super_blocks_part_into_sub_blocks() {
        for ty in [TensorType::Q4K, TensorType::Q5K] {
            let (row, [quants, high, scales, supers]) = repacked(ty, 256);
            assert_eq!(supers, row[..4]);
            for i in 0..256 {
                let (sub, within) = (i / 32, i % 32);
                let byte = quants[16 * sub + within % 16];
                let mut number = if within < 16 { byte & 15 } else { byte >> 4 };
                if !high.is_empty() {
                    number |= (high[4 * sub + within / 8] >> (within % 8) & 1) << 4;
                }
                let found = (number, scales[2 * sub], scales[2 * sub + 1]);
                assert_eq!(found, k_number(ty, &row, i), "{ty}, number {i}");
            }
        }
    }

    #[test]
    fn six_bit_super_blocks_part_too() {
        let (row, [quants, high, scales, supers]) = repacked(TensorType::Q6K, 256);
        assert_eq!(supers, row[208..]);
        assert_eq!(scales, row[192..208]);
        for i in 0..256 {
            let (half, j, within) = (i / 128, i / 32 % 4, i % 32);
            let code = row[64 * half + 32 * (j % 2) + within];
            let low = if j < 2 { code & 15 } else { code >> 4 };
            let expected = low | (row[128 + 32 * half + within] >> (2 * j) & 3) << 4;
            let sub = i / 32;
            let byte = quants[16 * sub + within % 16];
            let nibble = if within < 16 { byte & 15 } else { byte >> 4 };
            let pair = high[8 * sub + within / 4] >> (2 * (within % 4)) & 3;
            assert_eq!(nibble | pair << 4, expected, "number {i}");
        }
    }
}
