//! Types that are stored in the layout of another type, which the kernels read
//! ([`super::stored_as`]): their integers, and their scales where these change too. The table in
//! `kernels/README.md` has the memory and the rounding of each.

use walla_types::{TensorType, e8m0_half};

use super::Tile;

/// Scales of MXFP4 from here on are stored as infinity: their numbers would exceed f32 in the
/// factor of the matrix ([`super::Scaling::found`]).
const EXPONENT_END: u8 = 244;

/// [`super::largest`] of MXFP4: the largest scale.
pub(super) fn largest_mxfp4(bytes: &[u8]) -> f32 {
    let exponents = bytes.chunks_exact(17).map(|block| block[0]);
    exponents.filter(|exponent| *exponent < EXPONENT_END).max().map_or(0.0, e8m0_half)
}

/// The integers of 32 indices, plus `excess`.
fn integers(ty: TensorType, packed: &[u8], excess: u8) -> [u8; 32] {
    let table = ty.table().unwrap_or(&[0; 16]);
    std::array::from_fn(|i| {
        let index = packed[i % 16] >> (i / 16 * 4) & 15;
        table[usize::from(index)].cast_unsigned().wrapping_add(excess)
    })
}

/// Two bits of number `i` of a block of Q2_K or Q3_K: in each half, byte `i` of 32 has numbers `i`,
/// `i + 32`, `i + 64` and `i + 96`.
fn pair_of_bits(packed: &[u8], i: usize) -> u8 {
    packed[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

impl Tile<'_> {
    /// A block of 32 signed bytes, plus 128, with the layout of Q8_0.
    fn put_bytes(&mut self, row: usize, block: usize, scale: f32, codes: &[u8; 32]) {
        let scale = half::f16::from_f32(scale * self.scaling.stored);
        self.put_scale(row, block, &scale.to_le_bytes());
        self.put_numbers(row, block, codes);
    }

    /// f16 scale, 16 bytes of indices.
    pub(super) fn put_iq4_nl_block(&mut self, row: usize, b: usize, block: &[u8]) {
        let codes = integers(TensorType::Iq4Nl, &block[2..], 128);
        self.put_bytes(row, b, half_at(block, 0), &codes);
    }

    /// f16 d, two bytes with the upper pairs of bits of 8 scales, four with their nibbles, 128 of
    /// indices. Scales are stored plus 32.
    pub(super) fn put_iq4_xs_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let upper = u16::from_le_bytes([block[2], block[3]]);
        for j in 0..8 {
            let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
            let scale = low | ((upper >> (2 * j) & 3) as u8) << 4;
            // Exact; rounded to f16 when it is stored.
            let scale = half_at(block, 0) * (f32::from(scale) - 32.0);
            let codes = integers(TensorType::Iq4Xs, &block[8 + 16 * j..], 128);
            self.put_bytes(row, 8 * s + j, scale, &codes);
        }
    }

    /// Exponent of the scale, 16 bytes of indices. The integers are doubled numbers of e2m1, at
    /// most 12, so that five bits hold them.
    pub(super) fn put_mxfp4_block(&mut self, row: usize, b: usize, block: &[u8]) {
        let scale = match block[0] {
            EXPONENT_END.. => f32::INFINITY,
            exponent => e8m0_half(exponent) * self.scaling.stored,
        };
        self.put_scale(row, b, &half::f16::from_f32(scale).to_le_bytes());
        self.put_codes(row, b, &integers(TensorType::Mxfp4, &block[1..], 16));
    }

    /// 32 bytes of third bits, 64 of pairs of bits, 12 of scales (low nibbles, then upper pairs of
    /// bits; stored plus 32), f16 d. The integers, minus 4, are integers of Q6_K, minus 32.
    pub(super) fn put_q3_k_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let (thirds, rest) = block.split_at(32);
        let (pairs, rest) = rest.split_at(64);
        let (packed, d) = rest.split_at(12);
        self.put_super(row, s, d);
        for j in 0..8 {
            let codes = std::array::from_fn(|i| {
                let third = thirds[i] >> j & 1;
                (pair_of_bits(pairs, 32 * j + i) | third << 2) + 28
            });
            let scale = |i: usize| {
                let low = packed[i % 8] >> (i / 8 * 4) & 15;
                let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
                // Excess 128, like the other stored integers.
                (low | high << 4) + (128 - 32)
            };
            self.put_scale(row, 8 * s + j, &[scale(2 * j), scale(2 * j + 1)]);
            self.put_codes(row, 8 * s + j, &codes);
        }
    }

    /// 16 bytes with a scale and a minimum in their nibbles, 64 of pairs of bits, f16 d, f16 dmin.
    /// No layout has a scale and a minimum for 16 numbers, so numbers are rounded to 8 bits.
    pub(super) fn put_q2_k_block(&mut self, row: usize, s: usize, block: &[u8]) {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for j in 0..8 {
            let numbers: [f32; 32] = std::array::from_fn(|i| {
                let at = 32 * j + i;
                let factors = block[at / 16];
                let scale = d * f32::from(factors & 15);
                let minimum = dmin * f32::from(factors >> 4);
                scale * f32::from(pair_of_bits(&block[16..80], at)) - minimum
            });
            self.put_rounded(row, 8 * s + j, &numbers);
        }
    }

    /// Rounds 32 numbers to signed bytes. The scale is rounded first, so that its rounding is no
    /// error of the numbers.
    fn put_rounded(&mut self, row: usize, block: usize, numbers: &[f32; 32]) {
        let most = numbers.iter().fold(0.0, |most: f32, number| most.max(number.abs()));
        let sum: f32 = numbers.iter().sum();
        let stored = self.scaling.stored;
        // A number that is not finite makes its block infinite or NaN.
        let scale = half::f16::from_f32(if sum.is_finite() { most / 127.0 * stored } else { sum });
        let inverse = match scale.to_f32() / stored {
            0.0 => 0.0,
            scale => 1.0 / scale,
        };
        let codes = numbers.map(|number| {
            let integer = (number * inverse).round_ties_even().clamp(-128.0, 127.0) as i8;
            integer.cast_unsigned() ^ 0x80
        });
        self.put_scale(row, block, &scale.to_le_bytes());
        self.put_numbers(row, block, &codes);
    }
}
