//! Packs 6-bit scales into 12 bytes; `walla_model/src/quant/unpack.rs` describes the layout.

/// 8 scales and 8 minimums of Q4_K and Q5_K, below 64.
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
    use half::f16;
    use walla_model::dequantize;
    use walla_types::TensorType;

    use super::*;

    const ONE: [u8; 2] = f16::ONE.to_le_bytes();

    /// Scales and minimums as the reader finds them: an integer `q` of a sub-block is
    /// `scale * q - minimum`.
    fn unpack(packed: &[u8; 12]) -> [(u8, u8); 8] {
        let numbers = |integers: u8| {
            let block = [&ONE[..], &ONE, packed, &[integers; 128]].concat();
            let mut numbers = [0.0; 256];
            dequantize(TensorType::Q4K, &block, &mut numbers);
            numbers
        };
        let (zeros, ones) = (numbers(0), numbers(0x11));
        core::array::from_fn(|i| {
            let (zero, one) = (zeros[32 * i], ones[32 * i]);
            ((one - zero) as u8, -zero as u8)
        })
    }

    /// Scales as the reader finds them: the numbers of a block whose integers are all 1.
    fn unpack_q3(packed: &[u8; 12]) -> [i8; 16] {
        let block = [&[0xff; 32][..], &[0b0101_0101; 64], packed, &ONE].concat();
        let mut numbers = [0.0; 256];
        dequantize(TensorType::Q3K, &block, &mut numbers);
        core::array::from_fn(|i| numbers[16 * i] as i8)
    }

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
        let unpacked = unpack(&pack(&scales, &minimums));
        for i in 0..8 {
            assert_eq!(unpacked[i], (scales[i], minimums[i]), "sub-block {i}");
        }
    }
}
