//! Weight matrices in the layout that the kernels read: tiles of 16 rows, segments of 128 columns, each part of a block of 32
//! numbers in a plane of its own.
//!
//! ggml's blocks interleave scales and numbers at odd offsets (18, 34, 210 bytes), which no warp can load in whole 16-byte
//! pieces. Here every load of a warp is 512 bytes side by side, and what a lane gets is what the tensor cores want of it.
//! `kernels/weight.cuh` has the table of planes; nothing is rounded, so the numbers are exactly the file's.

use walla_types::TensorType;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns of a segment.
pub(crate) const SEGMENT: usize = 128;
/// Which of eight numbers each nibble of a word holds, so that a mask leaves two neighbours in its halves.
const NIBBLES: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Bytes of one tile in each plane: quants, high bits, scales, super-block scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileBytes {
    /// Columns, padded with zeros to whole segments.
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

/// Bytes of a block of 32 numbers in the planes of quants, high bits and scales, and of a super-block's scales.
fn block_bytes(ty: TensorType) -> Option<[usize; 4]> {
    Some(match ty {
        TensorType::F32 => [128, 0, 0, 0],
        TensorType::F16 | TensorType::BF16 => [64, 0, 0, 0],
        TensorType::Q8_0 => [32, 0, 2, 0],
        TensorType::Q4_0 => [16, 0, 2, 0],
        TensorType::Q4_1 => [16, 0, 4, 0],
        TensorType::Q5_0 => [16, 4, 2, 0],
        TensorType::Q5_1 => [16, 4, 4, 0],
        TensorType::Q4K => [16, 0, 2, 4],
        TensorType::Q5K => [16, 4, 2, 4],
        TensorType::Q6K => [16, 8, 2, 2],
        _ => return None,
    })
}

impl TileBytes {
    /// Sizes of a tile of rows of `cols` numbers; `None` for a type that walla has no kernels for or a row that is no whole number
    /// of blocks.
    pub(crate) fn of(ty: TensorType, cols: usize) -> Option<Self> {
        ty.row_bytes(cols)?;
        let cols = cols.next_multiple_of(SEGMENT);
        let [quants, high, scales, supers] = block_bytes(ty)?;
        let of_blocks = |bytes: usize| TILE_ROWS * cols / 32 * bytes;
        let supers = TILE_ROWS * cols.div_ceil(256) * supers;
        Some(Self { cols, planes: [of_blocks(quants), of_blocks(high), of_blocks(scales), supers] })
    }

    /// Bytes of a tile in all planes.
    pub(crate) fn total(&self) -> usize {
        self.planes.iter().sum()
    }
}

/// Where lane `t` of row `row` of a tile lies in segment `segment`, counted in lanes.
fn place(row: usize, segment: usize, t: usize) -> usize {
    segment * 64 + row / 8 * 32 + row % 8 * 4 + t
}

/// Where block `block` of row `row` of a tile has its scales, counted in blocks.
fn scale_place(row: usize, block: usize) -> usize {
    (block / 4 * TILE_ROWS + row) * 4 + block % 4
}

/// Numbers of a block that lane `t` owns, in its order.
fn owned(t: usize) -> [usize; 8] {
    std::array::from_fn(|i| i / 4 * 16 + 4 * t + i % 4)
}

/// The planes of one tile.
pub(crate) struct Tile<'a> {
    pub(crate) ty: TensorType,
    pub(crate) planes: [&'a mut [u8]; 4],
}

impl Tile<'_> {
    /// Repacks row `row` (0..16) of the tile. `bytes` has the type's bytes for the row, each plane those of [`TileBytes`]; what
    /// belongs to padding is left alone, so it must be zero.
    pub(crate) fn put_row(&mut self, row: usize, bytes: &[u8]) {
        let ty = self.ty;
        match ty {
            TensorType::Q8_0 => {
                for (b, block) in bytes.chunks_exact(34).enumerate() {
                    let codes: [u8; 32] = std::array::from_fn(|i| block[2 + i] ^ 0x80);
                    self.put(2, scale_place(row, b), &block[..2]);
                    self.put_numbers(row, b, &codes);
                }
            }
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q5_0 | TensorType::Q5_1 => {
                for (b, block) in bytes.chunks_exact(ty.block_bytes()).enumerate() {
                    self.put_block(row, b, block);
                }
            }
            TensorType::Q4K | TensorType::Q5K => {
                for (s, block) in bytes.chunks_exact(ty.block_bytes()).enumerate() {
                    self.put_k_block(row, s, block);
                }
            }
            TensorType::Q6K => {
                for (s, block) in bytes.chunks_exact(210).enumerate() {
                    self.put_q6_k_block(row, s, block);
                }
            }
            _ => {
                let mut numbers = [0; 128];
                let whole = 32 * ty.block_bytes();
                for (b, block) in bytes.chunks(whole).enumerate() {
                    numbers[block.len()..].fill(0);
                    numbers[..block.len()].copy_from_slice(block);
                    self.put_numbers(row, b, &numbers[..whole]);
                }
            }
        }
    }

    /// Copies an item of a plane whose items have the same size.
    fn put(&mut self, plane: usize, index: usize, bytes: &[u8]) {
        self.planes[plane][index * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Stores the 32 numbers of a block, as many bytes each: a lane's numbers lie in pieces of 16 bytes, and the pieces of 32 lanes
    /// side by side.
    fn put_numbers(&mut self, row: usize, block: usize, numbers: &[u8]) {
        let size = numbers.len() / 32;
        let pieces = 2 * size;
        for t in 0..4 {
            let place = place(row, block / 4, t);
            for half in 0..2 {
                let from = (half * 16 + 4 * t) * size;
                let offset = (block % 4 * 8 + half * 4) * size;
                let piece = place / 32 * pieces + offset / 16;
                let at = (piece * 32 + place % 32) * 16 + offset % 16;
                self.planes[0][at..at + 4 * size].copy_from_slice(&numbers[from..from + 4 * size]);
            }
        }
    }

    /// Stores a block of 32 numbers of four to six bits: a word of nibbles in each of four lanes, and their upper bits.
    fn put_codes(&mut self, row: usize, block: usize, codes: &[u8; 32]) {
        let j = block % 4;
        for t in 0..4 {
            let place = place(row, block / 4, t);
            let own = owned(t).map(|i| codes[i]);
            let nibbles =
                (0..8).fold(0_u32, |word, i| word | u32::from(own[NIBBLES[i]] & 15) << (4 * i));
            self.planes[0][place * 16 + 4 * j..][..4].copy_from_slice(&nibbles.to_le_bytes());
            // The upper bits of even numbers go to one half of the word, those of odd ones to the other.
            for half in 0..2 {
                let upper = |bits: u32| {
                    (0..4).fold(0, |byte, p| byte | (own[2 * p + half] >> 4) << (p as u32 * bits))
                };
                match self.ty {
                    TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
                        let byte = &mut self.planes[1][place * 4 + half * 2 + j / 2];
                        // Two blocks share a byte; the even one comes first.
                        *byte = if j.is_multiple_of(2) { upper(1) } else { *byte | upper(1) << 4 };
                    }
                    TensorType::Q6K => {
                        self.planes[1][place * 8 + j / 2 * 4 + half * 2 + j % 2] = upper(2);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Q4_0, Q4_1, Q5_0, Q5_1: scale (and minimum), (four bytes of fifth bits,) 16 bytes whose lower nibbles are the first 16
    /// numbers.
    fn put_block(&mut self, row: usize, b: usize, block: &[u8]) {
        let scale_bytes =
            if matches!(self.ty, TensorType::Q4_0 | TensorType::Q5_0) { 2 } else { 4 };
        let (scale, rest) = block.split_at(scale_bytes);
        let (fifths, nibbles) = rest.split_at(rest.len() - 16);
        let codes = std::array::from_fn(|i| {
            let fifth = fifths.get(i / 8).map_or(0, |byte| byte >> (i % 8) & 1);
            nibbles[i % 16] >> (i / 16 * 4) & 15 | fifth << 4
        });
        self.put(2, scale_place(row, b), scale);
        self.put_codes(row, b, &codes);
    }

    /// Q4_K and Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, (Q5_K: 32 bytes of fifth bits,) 128 bytes of
    /// nibbles. Of each 32 bytes of nibbles the lower halves are one sub-block of 32 numbers and the upper ones the next. Fifth
    /// bit `j` of byte `i` belongs to number `i` of sub-block `j`.
    fn put_k_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let (fifths, nibbles) = block[16..].split_at(block.len() - 16 - 128);
        self.put(3, s * TILE_ROWS + row, &block[..4]);
        for j in 0..8 {
            let codes = std::array::from_fn(|i| {
                let fifth = fifths.get(i).map_or(0, |byte| byte >> j & 1);
                nibbles[j / 2 * 32 + i] >> (j % 2 * 4) & 15 | fifth << 4
            });
            self.put(2, scale_place(row, 8 * s + j), &scale_and_minimum(&block[4..16], j));
            self.put_codes(row, 8 * s + j, &codes);
        }
    }

    /// Q6_K: 128 bytes of lower nibbles, 64 of upper bit pairs, 16 scales, f16 d. In each half (128 numbers: 64 and 32 bytes)
    /// quarter `j` (32 numbers) has its nibbles in bytes `32 * (j % 2)..`, below for the first two quarters and above for the
    /// last two, and its bit pairs at `2 * j` of the 32 bytes.
    fn put_q6_k_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let (low, rest) = block.split_at(128);
        let (pairs, rest) = rest.split_at(64);
        let (scales, d) = rest.split_at(16);
        self.put(3, s * TILE_ROWS + row, d);
        for quarter in 0..8 {
            let (half, j) = (quarter / 4, quarter % 4);
            let codes = std::array::from_fn(|i| {
                let nibble = low[64 * half + 32 * (j % 2) + i] >> (j / 2 * 4) & 15;
                nibble | (pairs[32 * half + i] >> (2 * j) & 3) << 4
            });
            let scales = &scales[2 * quarter..2 * quarter + 2];
            self.put(2, scale_place(row, 8 * s + quarter), scales);
            self.put_codes(row, 8 * s + quarter, &codes);
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

#[cfg(test)]
mod tests {
    use super::*;

    const COLS: usize = 512;
    const ROW: usize = 11;

    /// Row [`ROW`] of a tile, every byte different from its neighbours, and the tile's planes.
    fn repacked(ty: TensorType) -> (Vec<u8>, [Vec<u8>; 4]) {
        let bytes = ty.row_bytes(COLS).unwrap();
        let row: Vec<u8> = (0..bytes).map(|i| (i * 37 + i / 7 + 11) as u8).collect();
        let mut planes = TileBytes::of(ty, COLS).unwrap().planes.map(|bytes| vec![0; bytes]);
        let mut tile = Tile { ty, planes: planes.each_mut().map(Vec::as_mut_slice) };
        tile.put_row(ROW, &row);
        (row, planes)
    }

    /// Lane and place in its 32 numbers of number `i` of a row.
    fn lane_of(i: usize) -> (usize, usize) {
        let t = i % 16 / 4;
        let within = i % 128 / 32 * 8 + i % 32 / 16 * 4 + i % 4;
        (place(ROW, i / 128, t), within)
    }

    /// The integer of number `i` as a kernel finds it.
    fn code(ty: TensorType, planes: &[Vec<u8>; 4], i: usize) -> u8 {
        let (place, within) = lane_of(i);
        let nibble = NIBBLES.iter().position(|n| *n == within % 8).unwrap();
        let byte = planes[0][place * 16 + within / 8 * 4 + nibble / 2];
        let low = byte >> (nibble % 2 * 4) & 15;
        let bits = |bytes: usize| {
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(&planes[1][place * bytes..][..bytes]);
            u64::from_le_bytes(word)
        };
        match ty {
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
                low | ((bits(4) >> (within / 2 + 16 * (within % 2)) & 1) as u8) << 4
            }
            TensorType::Q6K => {
                let at = within / 16 * 32 + within % 16 / 2 * 2 + 16 * (within % 2);
                low | ((bits(8) >> at & 3) as u8) << 4
            }
            _ => low,
        }
    }

    #[test]
    fn nothing_is_lost_but_padding_is_added() {
        for ty in TensorType::ALL {
            let tile = TileBytes::of(ty, COLS).unwrap();
            let bytes = TILE_ROWS * ty.row_bytes(COLS).unwrap();
            // Q4_K and Q5_K unpack 6-bit scales to bytes: 16 for 12.
            let unpacked = matches!(ty, TensorType::Q4K | TensorType::Q5K);
            let more = if unpacked { TILE_ROWS * COLS / 256 * 4 } else { 0 };
            assert_eq!(tile.total(), bytes + more, "{ty}");
        }
        assert_eq!(TileBytes::of(TensorType::F16, 33).unwrap().cols, 128);
        assert_eq!(TileBytes::of(TensorType::Q4K, 128), None);
    }

    #[test]
    fn every_number_of_a_tile_has_a_place_of_its_own() {
        let lanes = (0..TILE_ROWS).flat_map(|row| (0..12).map(move |i| place(row, i / 4, i % 4)));
        let mut lanes: Vec<_> = lanes.collect();
        lanes.sort_unstable();
        assert!(lanes.iter().enumerate().all(|(i, lane)| i == *lane));
        let mut numbers: Vec<_> = (0..4).flat_map(owned).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().enumerate().all(|(i, number)| i == *number));
    }

    #[test]
    fn plain_numbers_lie_in_pieces_of_16_bytes() {
        for (ty, size) in [(TensorType::F16, 2), (TensorType::F32, 4), (TensorType::BF16, 2)] {
            let (row, [quants, ..]) = repacked(ty);
            for i in 0..COLS {
                let (place, within) = lane_of(i);
                let piece = place / 32 * 2 * size + within * size / 16;
                let at = (piece * 32 + place % 32) * 16 + within * size % 16;
                assert_eq!(quants[at..at + size], row[size * i..size * (i + 1)], "{ty}, {i}");
            }
        }
    }

    #[test]
    fn bytes_are_stored_in_excess_128() {
        let (row, [quants, _, scales, _]) = repacked(TensorType::Q8_0);
        for i in 0..COLS {
            let (place, within) = lane_of(i);
            let at = ((place / 32 * 2 + within / 16) * 32 + place % 32) * 16 + within % 16;
            let block = &row[i / 32 * 34..][..34];
            assert_eq!(quants[at], block[2 + i % 32] ^ 0x80);
            assert_eq!(scales[2 * scale_place(ROW, i / 32)..][..2], block[..2]);
        }
    }

    #[test]
    fn blocks_of_32_part_into_scales_and_numbers() {
        for ty in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q5_0, TensorType::Q5_1] {
            let (row, planes) = repacked(ty);
            for i in 0..COLS {
                let block = &row[i / 32 * ty.block_bytes()..][..ty.block_bytes()];
                let (fifths, nibbles) = block[..].split_at(block.len() - 16);
                let within = i % 32;
                let mut expected = nibbles[within % 16] >> (within / 16 * 4) & 15;
                if matches!(ty, TensorType::Q5_0 | TensorType::Q5_1) {
                    let fifths = &fifths[fifths.len() - 4..];
                    expected |= (fifths[within / 8] >> (within % 8) & 1) << 4;
                }
                assert_eq!(code(ty, &planes, i), expected, "{ty}, number {i}");
            }
        }
    }

    #[test]
    fn super_blocks_part_into_sub_blocks() {
        for ty in [TensorType::Q4K, TensorType::Q5K] {
            let (row, planes) = repacked(ty);
            for i in 0..COLS {
                let block = &row[i / 256 * ty.block_bytes()..][..ty.block_bytes()];
                let (sub, within) = (i % 256 / 32, i % 32);
                let scales = &planes[2][2 * scale_place(ROW, i / 32)..][..2];
                assert_eq!(scales, scale_and_minimum(&block[4..16], sub));
                assert_eq!(planes[3][(i / 256 * 16 + ROW) * 4..][..4], block[..4]);
                let nibbles = &block[block.len() - 128..];
                let mut expected = nibbles[sub / 2 * 32 + within] >> (sub % 2 * 4) & 15;
                if ty == TensorType::Q5K {
                    expected |= (block[16 + within] >> sub & 1) << 4;
                }
                assert_eq!(code(ty, &planes, i), expected, "{ty}, number {i}");
            }
        }
    }

    #[test]
    fn six_bit_super_blocks_part_too() {
        let (row, planes) = repacked(TensorType::Q6K);
        for i in 0..COLS {
            let block = &row[i / 256 * 210..][..210];
            let (half, j, within) = (i % 256 / 128, i / 32 % 4, i % 32);
            let scales = &planes[2][2 * scale_place(ROW, i / 32)..][..2];
            assert_eq!(scales, &block[192 + i % 256 / 32 * 2..][..2]);
            let low = block[64 * half + 32 * (j % 2) + within] >> (j / 2 * 4) & 15;
            let expected = low | (block[128 + 32 * half + within] >> (2 * j) & 3) << 4;
            assert_eq!(code(TensorType::Q6K, &planes, i), expected, "number {i}");
        }
    }
}
