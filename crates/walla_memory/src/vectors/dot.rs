//! Scalar product in f32 with a fixed order of additions.

/// Partial sums, the width of an AVX-512 register. Narrower registers hold several.
const LANES: usize = 16;

/// `sum of a[i] * b[i]`, rounded as f32 after each multiplication and each addition.
///
/// Component `i` is added to partial sum `i % 16`; the sums are then added in pairs. Each step is
/// one operation of IEEE 754 without contraction, so the result is equal on all processors.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (chunks_a, rest_a) = a.as_chunks::<LANES>();
    let (chunks_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in chunks_a.iter().zip(chunks_b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(rest_a).zip(rest_b) {
        *sum += a * b;
    }
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = sums.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        width /= 2;
    }
    let [sum, ..] = sums;
    // Turns -0 into 0, so that equal numbers are equal in the total order.
    sum + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, one addition at a time.
    fn naive(a: &[f32], b: &[f32]) -> f32 {
        let mut s = [0.0_f32; 16];
        for i in 0..a.len() {
            s[i % 16] += a[i] * b[i];
        }
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                s[i] += s[i + width];
            }
        }
        s[0] + 0.0
    }

    #[test]
    fn equals_the_definition_bit_by_bit() {
        for length in [0, 1, 15, 16, 17, 31, 384, 1_000] {
            let number = |i: usize, k: u32| ((i as u32 * k) % 1_009) as f32 / 504.0 - 1.0;
            let a: Vec<f32> = (0..length).map(|i| number(i, 7_919)).collect();
            let b: Vec<f32> = (0..length).map(|i| number(i, 104_729)).collect();
            assert_eq!(dot(&a, &b).to_bits(), naive(&a, &b).to_bits(), "{length}");
        }
        assert_eq!(dot(&[-0.0], &[1.0]).to_bits(), 0.0_f32.to_bits());
    }
}
