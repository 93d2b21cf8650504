//! Packed 6-bit scales in 12 bytes: 8 scales and 8 minimums of Q4_K and Q5_K, or 16 scales of Q3_K.
//!
//! Q4_K and Q5_K: the first four scales are in the low 6 bits of bytes 0..4, the first four
//! minimums in the low 6 bits of bytes 4..8. For the last four, the low 4 bits are in the nibbles
//! of bytes 8..12, and the high 2 bits are in the top bits of bytes 0..4 and 4..8.
//!
//! Q3_K: the low 4 bits of scales `i` and `i + 8` are in the nibbles of byte `i`, below 8. The high
//! 2 bits of scales `i`, `i + 4`, `i + 8` and `i + 12` are in byte `8 + i`, below 4. A scale is
//! stored plus 32.

/// Scale and minimum of sub-block `index`, below 8.
pub(super) const fn unpack(packed: &[u8; 12], index: usize) -> (u8, u8) {
    if index < 4 {
        return (packed[index] & 63, packed[index + 4] & 63);
    }
    let nibbles = packed[index + 4];
    let scale = (nibbles & 15) | (packed[index - 4] >> 6 << 4);
    let minimum = (nibbles >> 4) | (packed[index] >> 6 << 4);
    (scale, minimum)
}

/// The inverse of [`unpack`]; scales and minimums are below 64.
pub(crate) fn pack(scales: &[u8; 8], minimums: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | (scales[i + 4] >> 4 << 6);
        packed[i + 4] = minimums[i] | (minimums[i + 4] >> 4 << 6);
        packed[i + 8] = (scales[i + 4] & 15) | (minimums[i + 4] << 4);
    }
    packed
}

/// The 16 scales of Q3_K, in `-32..32`.
pub(super) fn unpack_q3(packed: &[u8]) -> [i8; 16] {
    core::array::from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The inverse of [`unpack_q3`].
pub(crate) fn pack_q3(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (i, scale) in scales.iter().enumerate() {
        let stored = (scale + 32) as u8;
        packed[i % 8] |= (stored & 15) << (i / 8 * 4);
        packed[8 + i % 4] |= (stored >> 4) << (i / 4 * 2);
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_inverts_packing_of_sixteen_scales() {
        let scales: [i8; 16] = core::array::from_fn(|i| (i * 37 % 64) as i8 - 32);
        assert_eq!(unpack_q3(&pack_q3(&scales)), scales);
        assert_eq!(unpack_q3(&pack_q3(&[-32; 16])), [-32; 16]);
        assert_eq!(unpack_q3(&pack_q3(&[31; 16])), [31; 16]);
    }

    #[test]
    fn unpacking_inverts_packing() {
        let scales = [0, 1, 31, 63, 62, 17, 40, 8];
        let minimums = [63, 0, 5, 32, 1, 60, 16, 47];
        let packed = pack(&scales, &minimums);
        for i in 0..8 {
            assert_eq!(unpack(&packed, i), (scales[i], minimums[i]), "sub-block {i}");
        }
    }
}
