//! Between `f32` and the stored forms of weights: the block formats of ggml.

mod dequantise;

pub use dequantise::dequantise;

/// Scale and minimum of sub-block `index` (0..8) of Q4_K and Q5_K: 6 bits each, packed into 12 bytes.
///
/// The first four of both lie in the low 6 bits of bytes 0..4 and 4..8; of the last four, the low 4 bits lie in the
/// nibbles of bytes 8..12 and the high 2 bits on top of bytes 0..4 and 4..8.
const fn scale_and_minimum(packed: &[u8; 12], index: usize) -> (u8, u8) {
    if index < 4 {
        return (packed[index] & 63, packed[index + 4] & 63);
    }
    let nibbles = packed[index + 4];
    let scale = (nibbles & 15) | (packed[index - 4] >> 6 << 4);
    let minimum = (nibbles >> 4) | (packed[index] >> 6 << 4);
    (scale, minimum)
}
