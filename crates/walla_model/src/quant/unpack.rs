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

/// The 16 scales of Q3_K, in `-32..32`.
pub(super) fn unpack_q3(packed: &[u8]) -> [i8; 16] {
    core::array::from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}
