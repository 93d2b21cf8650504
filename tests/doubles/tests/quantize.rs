//! Quantised numbers are as accurate as their type allows.

use proptest::prelude::*;
use walla_doubles::quantize;
use walla_model::dequantize;
use walla_types::TensorType;

/// Numbers like weights: sums of twelve uniform numbers, so approximately normal with a standard
/// deviation of 1.
fn weights(count: usize, mut seed: u64) -> Vec<f32> {
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn there_and_back(ty: TensorType, numbers: &[f32]) -> Vec<f32> {
    let mut stored = vec![0; ty.row_bytes(numbers.len()).unwrap()];
    let mut back = vec![f32::NAN; numbers.len()];
    quantize(ty, numbers, &mut stored);
    dequantize(ty, &stored, &mut back);
    back
}

/// Root of the mean squared error over the root mean square.
fn relative_error(ty: TensorType, numbers: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let back = there_and_back(ty, numbers);
    let error: f64 = numbers.iter().zip(&back).map(|(a, b)| square(a - b)).sum();
    (error / numbers.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

#[test]
fn every_type_quantizes_normal_weights_as_accurately_as_ggml() {
    // The measured error of ggml's quantisers on normal numbers (K types without importance
    // weights), plus 2 %. Types from Q2_K on: the measured error of this quantiser, plus 2 %.
    let limits = [
        (TensorType::F32, 0.0),
        (TensorType::F16, 0.000_22),
        (TensorType::BF16, 0.001_70),
        (TensorType::Q8_0, 0.005_5),
        (TensorType::Q4_0, 0.088),
        (TensorType::Q4_1, 0.080),
        (TensorType::Q5_0, 0.044),
        (TensorType::Q5_1, 0.039),
        (TensorType::Q4K, 0.073),
        (TensorType::Q5K, 0.037),
        (TensorType::Q6K, 0.018_2),
        (TensorType::Q2K, 0.279),
        (TensorType::Q3K, 0.155),
        (TensorType::Iq4Nl, 0.077_2),
        (TensorType::Iq4Xs, 0.077_8),
        (TensorType::Mxfp4, 0.118),
    ];
    assert_eq!(limits.map(|(ty, _)| ty), TensorType::ALL);
    for (ty, limit) in limits {
        for scale in [1.0, 0.02, 300.0] {
            let numbers: Vec<f32> = weights(256 * 64, 7).iter().map(|x| x * scale).collect();
            let error = relative_error(ty, &numbers);
            assert!(error <= limit, "{ty} at {scale}: {error} > {limit}");
            assert!(error >= limit * 0.5, "{ty} at {scale}: {error} is suspiciously good");
        }
    }
}

#[test]
fn zeros_are_exact_and_constants_nearly_exact() {
    for ty in TensorType::ALL {
        assert_eq!(there_and_back(ty, &[0.0; 256]), [0.0; 256], "{ty}");
        // The largest number of MXFP4 is 6 times a power of two: 1000 becomes 768.
        let limit = if ty == TensorType::Mxfp4 { 0.25 } else { 0.005 };
        for constant in [0.25, -0.25, 1000.0] {
            for back in there_and_back(ty, &[constant; 256]) {
                assert!((back / constant - 1.0).abs() < limit, "{ty}: {back} is not {constant}");
            }
        }
    }
}

#[test]
fn an_outlier_in_a_block_is_preserved() {
    for ty in TensorType::ALL {
        for outlier in [100.0, -100.0] {
            let mut numbers = weights(256, 3);
            numbers[77] = outlier;
            let back = there_and_back(ty, &numbers);
            assert!((back[77] / outlier - 1.0).abs() < 0.05, "{ty}: {}", back[77]);
        }
    }
}

#[test]
#[should_panic(expected = "100 numbers of Q8_0")]
fn a_partial_block_panics() {
    quantize(TensorType::Q8_0, &[0.0; 100], &mut [0; 106]);
}

fn any_type() -> impl Strategy<Value = TensorType> {
    prop::sample::select(TensorType::ALL.to_vec())
}

proptest! {
    /// No numbers cause a panic; finite numbers that fit an f16 stay finite.
    #[test]
    fn any_bits_can_be_quantized(
        ty in any_type(),
        bits in prop::collection::vec(any::<u32>(), 256),
    ) {
        let numbers: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
        there_and_back(ty, &numbers);
        let tame: Vec<f32> = numbers
            .iter()
            .map(|x| if x.is_finite() { x.clamp(-60_000.0, 60_000.0) } else { 1.0 })
            .collect();
        prop_assert!(there_and_back(ty, &tame).iter().all(|x| x.is_finite()));
    }
}
