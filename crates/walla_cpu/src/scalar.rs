//! Plain Rust kernels, the oracle for all others. Each sums in one fixed order. Exponentials and
//! the like are the crate `libm`'s: C libraries differ in the last bits.

use walla_types::{Activation, RopePairs};

use crate::cache::STRIP;
use crate::kernels::{DeltaInput, Normed};
use crate::quantize::fold;
pub(crate) use crate::quantize::round_block as round_activations;

/// Partial sums of a dot product: they let a compiler use vector registers without a change of the
/// order.
const LANES: usize = 16;

/// `sum(a[i] * b[i])`: number `i` is added to partial sum `i % 16`, then halves are added pairwise.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += a * b;
    }
    fold(sums)
}

/// `y[i] = x[i] * w[i] * rsqrt(mean(x^2) + eps)`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let mean = dot(x, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * w;
    }
}

/// [`rms_norm`] in place.
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean = dot(x, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

/// See [`kernels::layer_norm`](crate::kernels::layer_norm): in f64.
pub(crate) fn layer_norm(x: &mut [f32], norm: Normed<'_>) {
    let count = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + f64::from(norm.eps)).sqrt();
    for ((x, w), b) in x.iter_mut().zip(norm.weight).zip(norm.bias) {
        *x = ((f64::from(*x) - mean) * scale * f64::from(*w) + f64::from(*b)) as f32;
    }
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`, in f64.
pub(crate) fn gelu(x: &mut [f32]) {
    for x in x {
        let exact = f64::from(*x);
        *x = (exact / 2.0 * (1.0 + erf(exact * std::f64::consts::FRAC_1_SQRT_2))) as f32;
    }
}

/// The error function by its series of positive terms, 7.6.2 of the Digital Library of Mathematical
/// Functions: `2 / sqrt(pi) e^-z^2 sum 2^n z^(2n + 1) / (1 3 5 ... (2n + 1))`.
fn erf(z: f64) -> f64 {
    // 1 - erf(6) is 2e-17.
    if z.is_nan() || z.abs() >= 6.0 {
        return if z.is_nan() { z } else { z.signum() };
    }
    let (mut term, mut sum, mut odd) = (z, z, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * z * z / odd;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * libm::exp(-z * z) * sum
}

/// Rotates the pairs of one head: `rotations` are `[cos, sin]` of each pair.
pub(crate) fn rotate(head: &mut [f32], rotations: &[[f32; 2]], pairs: RopePairs) {
    match pairs {
        RopePairs::Interleaved => {
            for (pair, [cos, sin]) in head.as_chunks_mut::<2>().0.iter_mut().zip(rotations) {
                let [a, b] = *pair;
                *pair = [a * cos - b * sin, a * sin + b * cos];
            }
        }
        RopePairs::Halves => {
            let (low, high) = head.split_at_mut(rotations.len());
            for ((low, high), [cos, sin]) in low.iter_mut().zip(high).zip(rotations) {
                let (a, b) = (*low, *high);
                (*low, *high) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
}

/// The activation function.
pub(crate) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + libm::expf(-x)),
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f32 = 0.797_884_6;
            0.5 * x * (1.0 + libm::tanhf(SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
        }
        Activation::Sigmoid => 1.0 / (1.0 + libm::expf(-x)),
    }
}

/// `h[i] = activation(gate[i]) * up[i]`.
pub(crate) fn gate(activation: Activation, gate: &[f32], up: &[f32], h: &mut [f32]) {
    for ((h, g), u) in h.iter_mut().zip(gate).zip(up) {
        *h = activate(activation, *g) * u;
    }
}

/// The delta rule on a strip of the state, see [`kernels::delta_rule`](crate::kernels::delta_rule).
pub(crate) fn delta_rule(state: &mut [f32], input: &DeltaInput<'_>, out: &mut [f32]) {
    let mut change = [0.0; STRIP];
    for (row, key) in state.chunks(STRIP).zip(input.key) {
        add_scaled(&mut change, *key, row);
    }
    for (change, value) in change.iter_mut().zip(input.values) {
        *change = input.strength * (value - input.decay * *change);
    }
    out.fill(0.0);
    for ((row, key), query) in state.chunks_mut(STRIP).zip(input.key).zip(input.query) {
        row.iter_mut().for_each(|number| *number *= input.decay);
        add_scaled(row, *key, &change);
        add_scaled(out, *query, row);
    }
}

/// `y[i] += x[i]`.
pub(crate) fn add(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// `y[i] += a * x[i]`.
pub(crate) fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// See [`kernels::silu`](crate::kernels::silu).
pub(crate) fn silu(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = activate(Activation::Silu, *x));
}

/// See [`kernels::soft_cap`](crate::kernels::soft_cap).
pub(crate) fn soft_cap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * libm::tanhf(*x / cap));
}

/// See [`kernels::max`](crate::kernels::max).
pub(crate) fn max(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    values.iter().copied().fold(f32::NEG_INFINITY, larger)
}

/// See [`kernels::sum_exp`](crate::kernels::sum_exp).
pub(crate) fn sum_exp(values: &[f32], top: f32) -> f64 {
    values.iter().map(|value| f64::from(libm::expf(value - top))).sum()
}

/// Replaces scores by `exp(scale * score - max)` and returns their sum, added in the order of
/// [`dot`].
pub(crate) fn softmax_weights(scores: &mut [f32], scale: f32) -> f32 {
    scores.iter_mut().for_each(|score| *score *= scale);
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for chunk in scores.chunks_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = libm::expf(*score - max);
            *sum += *score;
        }
    }
    fold(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let word = |i| walla_device::philox4x32([i, 0, 0, 0], [seed, 0])[0];
        (0..count as u32).map(|i| walla_device::unit_interval(word(i)) * 4.0 - 2.0).collect()
    }

    #[test]
    fn dot_is_near_the_exact_sum_at_every_length() {
        for len in [0, 1, 15, 16, 17, 31, 64, 577] {
            let (a, b) = (numbers(len, 1), numbers(len, 2));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-4, "{len}");
        }
    }

    #[test]
    fn the_norm_has_unit_mean_square() {
        let x = numbers(100, 3);
        let mut y = vec![0.0; 100];
        rms_norm(&x, &[1.0; 100], 0.0, &mut y);
        let mean: f32 = y.iter().map(|y| y * y).sum::<f32>() / 100.0;
        assert!((mean - 1.0).abs() < 1e-5, "{mean}");
        let mut z = x.clone();
        rms_norm_in_place(&mut z, &[1.0; 100], 0.0);
        assert_eq!(y, z);
    }

    #[test]
    fn rotations_preserve_norms_and_unrotated_dimensions() {
        let (sin, cos) = 0.3_f32.sin_cos();
        for pairs in [RopePairs::Interleaved, RopePairs::Halves] {
            let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            rotate(&mut head, &[[cos, sin], [1.0, 0.0]], pairs);
            assert_eq!(head[4..], [5.0, 6.0]);
            let squares: f32 = head.iter().map(|x| x * x).sum();
            assert!((squares - 91.0).abs() < 1e-4);
        }
        let mut head = [1.0, 0.0];
        rotate(&mut head, &[[cos, sin]], RopePairs::Halves);
        assert_eq!(head, [cos, sin]);
    }

    #[test]
    fn activations_at_known_points() {
        assert_eq!(activate(Activation::Silu, 0.0), 0.0);
        assert!((activate(Activation::Silu, 1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((activate(Activation::GeluTanh, 1.0) - 0.841_192).abs() < 1e-6);
    }

    #[test]
    fn gelu_at_known_points() {
        // x Phi(x), from tables of the normal distribution.
        let mut x = [0.0, 1.0, -1.0, 2.0, -3.0, 9.0, -9.0];
        gelu(&mut x);
        let wanted = [0.0, 0.841_344_7, -0.158_655_26, 1.954_499_7, -0.004_049_694, 9.0, 0.0];
        assert!(x.iter().zip(wanted).all(|(x, wanted)| (x - wanted).abs() < 2e-7), "{x:?}");
    }

    #[test]
    fn the_layer_norm_has_mean_zero_and_variance_one() {
        let mut x = numbers(100, 4);
        layer_norm(&mut x, Normed { weight: &[2.0; 100], bias: &[1.0; 100], eps: 0.0 });
        let mean: f32 = x.iter().sum::<f32>() / 100.0;
        let variance: f32 = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 100.0;
        assert!((mean - 1.0).abs() < 1e-5 && (variance - 4.0).abs() < 1e-4, "{mean} {variance}");
    }

    #[test]
    fn softmax_handles_large_scores() {
        let mut scores = [1000.0, 1000.0, f32::NEG_INFINITY];
        assert_eq!(softmax_weights(&mut scores, 1.0), 2.0);
        assert_eq!(scores, [1.0, 1.0, 0.0]);
    }
}
