//! The packed 6-bit scales and minimums of Q4_K and Q5_K: 8 sub-blocks in 12 bytes.
//!
//! The first four scales are in the low 6 bits of bytes 0..4, the first four minimums in the low 6
//! bits of bytes 4..8. For the last four, the low 4 bits are in the nibbles of bytes 8..12, and the
//! high 2 bits are in the top bits of bytes 0..4 and 4..8.

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

#[cfg(test)]
mod tests {
    use super::*;

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
