//! Weight matrices in the layout that the kernels read: half tiles of 8 rows, segments of 128
//! columns, one record for each half tile and segment.
//!
//! ggml's blocks interleave scales and numbers at odd offsets (18, 34, 210 bytes), which no warp
//! can load in whole 16-byte words. A record instead stores everything that a warp needs of 8 rows
//! and 128 columns contiguously. One bulk copy loads it, and each lane's part is in the order of
//! the tensor cores' operands. `kernels/gemm/weight.cuh` has the table of a record's parts. Numbers
//! are the file's times a power of two per matrix ([`Scaling`]), which keeps all their bits within
//! the range of f16.

use walla_types::TensorType;

mod convert;

/// Rows of a tile: two consecutive records.
pub(crate) const TILE_ROWS: usize = 16;
/// Rows of a record.
const RECORD_ROWS: usize = 8;
/// Columns of a segment.
pub(crate) const SEGMENT: usize = 128;
/// Number stored in each of the eight nibbles of a word. One mask extracts two adjacent numbers
/// into the halves of the word.
const NIBBLES: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The parts of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Quants,
    High,
    Scales,
    Supers,
}

/// Memory layout of a matrix: `[tiles, 2, segments]` records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Segments of a row; columns are padded with zeros.
    pub(crate) segments: usize,
    /// Bytes of each part of a record.
    parts: [usize; 4],
}

/// The storage type of a type. Q4_K and Q5_K are stored as Q4_1 and Q5_1, with their scales and
/// minimums converted; BF16 is stored as F16. The others are described in [`convert`].
fn stored_as(ty: TensorType) -> TensorType {
    match ty {
        TensorType::BF16 => TensorType::F16,
        TensorType::Q4K => TensorType::Q4_1,
        TensorType::Q5K => TensorType::Q5_1,
        TensorType::Q3K => TensorType::Q6K,
        TensorType::Q2K | TensorType::Iq4Nl | TensorType::Iq4Xs => TensorType::Q8_0,
        TensorType::Mxfp4 => TensorType::Q5_0,
        ty => ty,
    }
}

/// The code of a type in `kernels/gemm/weight.cuh`.
pub(crate) fn kind(ty: TensorType) -> Option<u32> {
    Some(match stored_as(ty) {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q8_0 => 2,
        TensorType::Q4_0 => 3,
        TensorType::Q4_1 => 4,
        TensorType::Q5_0 => 5,
        TensorType::Q5_1 => 6,
        TensorType::Q6K => 7,
        _ => return None,
    })
}

/// The name of a type in kernel names.
pub(crate) fn kernel_name(ty: TensorType) -> String {
    stored_as(ty).name().to_lowercase()
}

/// Bytes of a row's 128 numbers in each part: quants, high bits, scales, and the scales of the
/// enclosing super-block.
fn row_parts(ty: TensorType) -> Option<[usize; 4]> {
    Some(match stored_as(ty) {
        TensorType::F32 => [512, 0, 0, 0],
        TensorType::F16 => [256, 0, 0, 0],
        TensorType::Q8_0 => [128, 0, 8, 0],
        TensorType::Q4_0 => [64, 0, 8, 0],
        TensorType::Q4_1 => [64, 0, 16, 0],
        TensorType::Q5_0 => [64, 16, 8, 0],
        TensorType::Q5_1 => [64, 16, 16, 0],
        TensorType::Q6K => [64, 32, 8, 2],
        _ => return None,
    })
}

impl Layout {
    /// The layout of rows of `cols` numbers. `None` for a type without kernels, or for a row that
    /// is not a whole number of blocks.
    pub(crate) fn of(ty: TensorType, cols: usize) -> Option<Self> {
        ty.row_bytes(cols)?;
        let parts = row_parts(ty)?.map(|bytes| RECORD_ROWS * bytes);
        Some(Self { segments: cols.div_ceil(SEGMENT), parts })
    }

    /// Bytes of a record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.parts.iter().sum()
    }

    /// Bytes of a tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        2 * self.segments * self.record_bytes()
    }

    /// Offset in a tile of byte `at` of a part, for row `row` and segment `segment`.
    fn place(&self, part: Part, row: usize, segment: usize, at: usize) -> usize {
        let record = row / RECORD_ROWS * self.segments + segment;
        let before: usize = self.parts[..part as usize].iter().sum();
        record * self.record_bytes() + before + at
    }
}

/// Indices of the numbers in a block that lane `t` owns, in lane order.
fn owned(t: usize) -> [usize; 8] {
    std::array::from_fn(|i| i / 4 * 16 + 4 * t + i % 4)
}

/// Lane of a record (0..32) that holds lane `t` (0..4) of a row.
fn lane(row: usize, t: usize) -> usize {
    row % RECORD_ROWS * 4 + t
}

/// Powers of two between a matrix's numbers and their stored values.
///
/// BF16 numbers become f16, multiplied so that the largest is just below f16's limit. Numbers up to
/// 2^29 below the largest keep all 8 bits. Smaller ones lose bits below 2^-24 of f16: 2^-40 of the
/// largest, which is negligible next to the rounding of f32 sums.
///
/// Scales of quantised numbers are multiplied in the same way. Kernels read integers as f16 values
/// that are 2^-24 times the integer (`kernels/gemm/dequantize.cuh`). Scales at f16's upper end are
/// therefore needed for products with full f16 precision. Minimums are not multiplied with such
/// integers. They are scaled down by [`MINIMUM_FACTOR`], so that minimums up to 16 times as large
/// as scales still fit in f16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scaling {
    /// Stored value = file value * `stored`.
    stored: f32,
    /// File value = value that kernels compute * `found`.
    pub(crate) found: f32,
}

/// Factor on stored minimums relative to scales.
const MINIMUM_FACTOR: f32 = 0.0625;
/// Value of the f16 whose bits are the integer 1.
const INTEGER_UNIT: f32 = 1.0 / 16_777_216.0;

impl Scaling {
    /// Scaling of a matrix whose largest number or scale ([`largest`]) is known. The largest is
    /// stored between 2^14 and 2^15; a zero matrix is unchanged.
    pub(crate) fn of(ty: TensorType, largest: f32) -> Self {
        let exponent = (largest.to_bits() >> 23).cast_signed();
        // 2^14 has exponent 14 + 127. The result's exponent must fit in f32.
        let stored = match exponent {
            0 => 1.0,
            _ => power_of_two((14 + 127 - exponent).min(126)),
        };
        let unit = if ty.is_quantized() { INTEGER_UNIT } else { 1.0 };
        Self { stored, found: 1.0 / (stored * unit) }
    }
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent + 127).cast_unsigned() << 23)
}

/// Whether a type is stored scaled: F32 and F16 are stored unchanged.
pub(crate) fn is_scaled(ty: TensorType) -> bool {
    ty.is_quantized() || ty == TensorType::BF16
}

/// The largest finite magnitude that [`Scaling`] must represent, in some rows of a matrix: of BF16
/// numbers, or of scales and minimums (times [`MINIMUM_FACTOR`]). 0 for types that are not
/// [scaled](is_scaled).
pub(crate) fn largest(ty: TensorType, bytes: &[u8]) -> f32 {
    if !is_scaled(ty) {
        return 0.0;
    }
    // Offsets of the f16 factors in a block, and the largest integer multiplier of the scales
    // derived from them.
    let (at, times): (&[usize], f32) = match ty {
        TensorType::BF16 => {
            let magnitude = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7fff;
            let finite = bytes.chunks_exact(2).map(magnitude).filter(|bits| *bits < 0x7f80);
            return half::bf16::from_bits(finite.max().unwrap_or_default()).to_f32();
        }
        TensorType::Q4_1 | TensorType::Q5_1 => (&[0, 2], 1.0),
        TensorType::Q4K | TensorType::Q5K => (&[0, 2], 63.0),
        TensorType::Q6K => (&[208], 128.0),
        TensorType::Q3K => (&[108], 32.0),
        TensorType::Iq4Xs => (&[0], 32.0),
        TensorType::Q2K => (&[80, 82], 1.0),
        TensorType::Mxfp4 => return convert::largest_mxfp4(bytes),
        _ => (&[0], 1.0),
    };
    // The bit patterns of f16 magnitudes are ordered like the magnitudes.
    let mut most = [0_u16; 2];
    for block in bytes.chunks_exact(ty.block_bytes()) {
        for (most, at) in most.iter_mut().zip(at) {
            let bits = u16::from_le_bytes([block[*at], block[at + 1]]) & 0x7fff;
            if bits < 0x7c00 {
                *most = bits.max(*most);
            }
        }
    }
    let [scale, minimum] = most.map(|bits| half::f16::from_bits(bits).to_f32());
    if ty == TensorType::Q2K {
        // Bound of a number, in steps of 8 bits.
        return (45.0 * scale + 15.0 * minimum) / 127.0;
    }
    times * scale.max(minimum * MINIMUM_FACTOR)
}

/// One tile to be copied to the device.
pub(crate) struct Tile<'a> {
    pub(crate) ty: TensorType,
    pub(crate) layout: &'a Layout,
    pub(crate) scaling: Scaling,
    /// [`Layout::tile_bytes`].
    pub(crate) bytes: &'a mut [u8],
}

impl Tile<'_> {
    /// Repacks row `row` (0..16) of the tile. `bytes` holds the row as in the file. Padding is not
    /// written, so it must be zero.
    pub(crate) fn put_row(&mut self, row: usize, bytes: &[u8]) {
        let ty = self.ty;
        match ty {
            TensorType::Q8_0 => {
                for (b, block) in bytes.chunks_exact(34).enumerate() {
                    let codes: [u8; 32] = std::array::from_fn(|i| block[2 + i] ^ 0x80);
                    let scale = self.factors(&block[..2]);
                    self.put_scale(row, b, &scale[..2]);
                    self.put_numbers(row, b, &codes);
                }
            }
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q5_0 | TensorType::Q5_1 => {
                self.put_blocks(row, bytes.chunks_exact(ty.block_bytes()), Self::put_block);
            }
            TensorType::Q4K | TensorType::Q5K => {
                self.put_blocks(row, bytes.chunks_exact(ty.block_bytes()), Self::put_k_block);
            }
            TensorType::Q6K => self.put_blocks(row, bytes.chunks_exact(210), Self::put_q6_k_block),
            TensorType::Q2K => self.put_blocks(row, bytes.chunks_exact(84), Self::put_q2_k_block),
            TensorType::Q3K => self.put_blocks(row, bytes.chunks_exact(110), Self::put_q3_k_block),
            TensorType::Iq4Nl => {
                self.put_blocks(row, bytes.chunks_exact(18), Self::put_iq4_nl_block);
            }
            TensorType::Iq4Xs => {
                self.put_blocks(row, bytes.chunks_exact(136), Self::put_iq4_xs_block);
            }
            TensorType::Mxfp4 => {
                self.put_blocks(row, bytes.chunks_exact(17), Self::put_mxfp4_block);
            }
            TensorType::BF16 => {
                for (b, block) in bytes.chunks(64).enumerate() {
                    let mut numbers = [0; 64];
                    for (to, from) in numbers.chunks_exact_mut(2).zip(block.chunks_exact(2)) {
                        let number = half::bf16::from_le_bytes([from[0], from[1]]).to_f32();
                        to.copy_from_slice(
                            &half::f16::from_f32(number * self.scaling.stored).to_le_bytes(),
                        );
                    }
                    self.put_numbers(row, b, &numbers);
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

    /// A scale, or a scale and a minimum, in stored form.
    fn factors(&self, bytes: &[u8]) -> [u8; 4] {
        let mut factors = [0; 4];
        let times = [self.scaling.stored, self.scaling.stored * MINIMUM_FACTOR];
        for ((to, from), times) in factors.chunks_exact_mut(2).zip(bytes.chunks_exact(2)).zip(times)
        {
            let factor = half::f16::from_le_bytes([from[0], from[1]]).to_f32();
            to.copy_from_slice(&half::f16::from_f32(factor * times).to_le_bytes());
        }
        factors
    }

    /// Scale and minimum of a sub-block, as f16 values instead of products of an f16 (`d`, `dmin`)
    /// and an integer. The minimum compensates the rounding of the scale, for the mean of the
    /// block's integers.
    fn factors_of_super(&self, d: &[u8], [scale, minimum]: [u8; 2], codes: &[u8; 32]) -> [u8; 4] {
        let f16 = |at: usize| half::f16::from_le_bytes([d[at], d[at + 1]]).to_f32();
        // Both products are exact.
        let exact = f16(0) * f32::from(scale) * self.scaling.stored;
        let minimum = f16(2) * f32::from(minimum) * self.scaling.stored;
        let scale = half::f16::from_f32(exact);
        let mean = codes.iter().map(|code| f32::from(*code)).sum::<f32>() / codes.len() as f32;
        let lost = if scale.is_finite() { (exact - scale.to_f32()) * mean } else { 0.0 };
        let added = half::f16::from_f32((lost - minimum) * MINIMUM_FACTOR);
        let ([a, b], [c, d]) = (scale.to_le_bytes(), added.to_le_bytes());
        [a, b, c, d]
    }

    /// Writes bytes to a record: byte `at` of a part, for row `row` and segment `segment`.
    fn put(&mut self, part: Part, row: usize, segment: usize, at: usize, bytes: &[u8]) {
        let place = self.layout.place(part, row, segment, at);
        self.bytes[place..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Stores the scales of block `block` of a row. The scales of a record's four blocks of a row
    /// are contiguous.
    fn put_scale(&mut self, row: usize, block: usize, scale: &[u8]) {
        let at = (row % RECORD_ROWS * 4 + block % 4) * scale.len();
        self.put(Part::Scales, row, block / 4, at, scale);
    }

    /// Stores the scales of super-block `s` with both of its segments.
    fn put_super(&mut self, row: usize, s: usize, scales: &[u8]) {
        let factors = self.factors(scales);
        let scales = &factors[..scales.len()];
        for segment in 2 * s..2 * s + 2 {
            self.put(Part::Supers, row, segment, row % RECORD_ROWS * scales.len(), scales);
        }
    }

    /// Stores the 32 numbers of a block, all of the same byte size. A lane's numbers form 16-byte
    /// pieces; the pieces of 32 lanes are contiguous.
    fn put_numbers(&mut self, row: usize, block: usize, numbers: &[u8]) {
        let size = numbers.len() / 32;
        for t in 0..4 {
            for half in 0..2 {
                let from = (half * 16 + 4 * t) * size;
                let offset = (block % 4 * 8 + half * 4) * size;
                let at = (offset / 16 * 32 + lane(row, t)) * 16 + offset % 16;
                self.put(Part::Quants, row, block / 4, at, &numbers[from..from + 4 * size]);
            }
        }
    }

    /// Stores a block of 32 numbers of four to six bits: a word of nibbles in each of four lanes,
    /// and their upper bits.
    fn put_codes(&mut self, row: usize, block: usize, codes: &[u8; 32]) {
        let (segment, j) = (block / 4, block % 4);
        for t in 0..4 {
            let lane = lane(row, t);
            let own = owned(t).map(|i| codes[i]);
            let nibbles =
                (0..8).fold(0_u32, |word, i| word | u32::from(own[NIBBLES[i]] & 15) << (4 * i));
            self.put(Part::Quants, row, segment, lane * 16 + 4 * j, &nibbles.to_le_bytes());
            // The upper bits of even numbers are stored in one half of the word, the upper bits of
            // odd numbers in the other. The bits of every second pair are four bits higher
            // (`high_place` in weight.cuh).
            for half in 0..2 {
                let upper = |bits: usize| {
                    (0..4).fold(0, |byte, p| {
                        byte | (own[2 * p + half] >> 4) << (p % 2 * 4 + p / 2 * bits)
                    })
                };
                match stored_as(self.ty) {
                    TensorType::Q5_0 | TensorType::Q5_1 => {
                        let at = lane * 4 + half * 2 + j / 2;
                        let place = self.layout.place(Part::High, row, segment, at);
                        let byte = &mut self.bytes[place];
                        // Two blocks share a byte; the even block is written first.
                        *byte = if j.is_multiple_of(2) { upper(1) } else { *byte | upper(1) << 2 };
                    }
                    TensorType::Q6K => {
                        let at = lane * 8 + j / 2 * 4 + half * 2 + j % 2;
                        self.put(Part::High, row, segment, at, &[upper(2)]);
                    }
                    _ => {}
                }
            }
        }
    }

    fn put_blocks<'b>(
        &mut self,
        row: usize,
        blocks: impl Iterator<Item = &'b [u8]>,
        put: impl Fn(&mut Self, usize, usize, &[u8]),
    ) {
        blocks.enumerate().for_each(|(index, block)| put(self, row, index, block));
    }

    /// Q4_0, Q4_1, Q5_0, Q5_1: scale (and minimum), (four bytes of fifth bits,) 16 bytes whose
    /// lower nibbles are the first 16 numbers.
    fn put_block(&mut self, row: usize, b: usize, block: &[u8]) {
        let scale_bytes =
            if matches!(self.ty, TensorType::Q4_0 | TensorType::Q5_0) { 2 } else { 4 };
        let (scale, rest) = block.split_at(scale_bytes);
        let (fifths, nibbles) = rest.split_at(rest.len() - 16);
        let codes = std::array::from_fn(|i| {
            let fifth = fifths.get(i / 8).map_or(0, |byte| byte >> (i % 8) & 1);
            nibbles[i % 16] >> (i / 16 * 4) & 15 | fifth << 4
        });
        let factors = self.factors(scale);
        self.put_scale(row, b, &factors[..scale_bytes]);
        self.put_codes(row, b, &codes);
    }

    /// Q4_K and Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, (Q5_K: 32 bytes of
    /// fifth bits,) 128 bytes of nibbles. Of each 32 bytes of nibbles, the lower halves are one
    /// sub-block of 32 numbers and the upper halves the next. Fifth bit `j` of byte `i` belongs to
    /// number `i` of sub-block `j`.
    fn put_k_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let (fifths, nibbles) = block[16..].split_at(block.len() - 16 - 128);
        for j in 0..8 {
            let codes = std::array::from_fn(|i| {
                let fifth = fifths.get(i).map_or(0, |byte| byte >> j & 1);
                nibbles[j / 2 * 32 + i] >> (j % 2 * 4) & 15 | fifth << 4
            });
            let integers = scale_and_minimum(&block[4..16], j);
            let factors = self.factors_of_super(&block[..4], integers, &codes);
            self.put_scale(row, 8 * s + j, &factors);
            self.put_codes(row, 8 * s + j, &codes);
        }
    }

    /// Q6_K: 128 bytes of lower nibbles, 64 of upper bit pairs, 16 scales, f16 d. In each half (128
    /// numbers: 64 and 32 bytes), quarter `j` (32 numbers) has its nibbles in bytes `32 * (j %
    /// 2)..`: lower nibbles for the first two quarters, upper nibbles for the last two. Its bit
    /// pairs are at bit `2 * j` of the 32 bytes.
    fn put_q6_k_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let (low, rest) = block.split_at(128);
        let (pairs, rest) = rest.split_at(64);
        let (scales, d) = rest.split_at(16);
        self.put_super(row, s, d);
        for quarter in 0..8 {
            let (half, j) = (quarter / 4, quarter % 4);
            let codes = std::array::from_fn(|i| {
                let nibble = low[64 * half + 32 * (j % 2) + i] >> (j / 2 * 4) & 15;
                nibble | (pairs[32 * half + i] >> (2 * j) & 3) << 4
            });
            // Excess 128, like the other stored integers.
            let two = [scales[2 * quarter] ^ 0x80, scales[2 * quarter + 1] ^ 0x80];
            self.put_scale(row, 8 * s + quarter, &two);
            self.put_codes(row, 8 * s + quarter, &codes);
        }
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

#[cfg(test)]
mod tests;
