//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3" (SC 2011). Every device samples with it, keyed by (agent seed,
//! position), so that a random number depends on nothing else.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox4x32: four random words for a counter under a key.
#[must_use]
pub const fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let p0 = MULTIPLIERS[0] as u64 * counter[0] as u64;
        let p1 = MULTIPLIERS[1] as u64 * counter[2] as u64;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        round += 1;
    }
    counter
}

/// The upper 23 bits of a word as a number strictly between 0 and 1: `(bits + 0.5) / 2^23`.
///
/// 23 bits and the half fill the 24 bits of an f32's mantissa, so the result is exact and never
/// rounds up to 1.
#[must_use]
pub const fn unit_interval(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) / 8_388_608.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the paper's Random123 library.
    #[test]
    fn known_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_unit_interval_is_open() {
        assert!(unit_interval(0) > 0.0);
        assert!(unit_interval(u32::MAX) < 1.0);
    }
}
