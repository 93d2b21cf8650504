//! Numeric kernels in plain Rust that the compiler vectorises wherever they are inlined: each SIMD
//! variant compiles its copy.

use walla_types::Activation;

use crate::cache::STRIP;
use crate::kernels::{DeltaInput, Normed};
use crate::quantize::fold;
pub(crate) use crate::quantize::round_block as round_activations;

/// Partial sums of a reduction.
const LANES: usize = 16;

/// `e^x` to about 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and a polynomial for `e^r`: the method and the
/// coefficients of Cephes' `expf` (Stephen Moshier).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// 1.5 * 2^23: a sum with it is rounded to an integer, which its low bits hold.
    const MAGIC: f32 = 12_582_912.0;
    let bounded = x.clamp(-87.3, 88.7);
    let shifted = bounded.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, bounded));
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 5e-1);
    p = (p * r).mul_add(r, r) + 1.0;
    // `p * 2^n`: `n` is added to the exponent. The bounds keep the result a normal number.
    let y = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    let y = if x < -87.3 { 0.0 } else { y };
    if x <= 88.7 { y } else { x * f32::INFINITY }
}

/// The largest number; NaNs are ignored.
#[inline(always)]
pub(crate) fn max(values: &[f32]) -> f32 {
    let mut all = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for chunk in chunks {
        for lane in 0..LANES {
            all[lane] = larger(all[lane], chunk[lane]);
        }
    }
    let rest = rest.iter().copied().fold(f32::NEG_INFINITY, larger);
    all.into_iter().fold(rest, larger)
}

/// Replaces scores by `exp(scale * score - max)` and returns their sum: number `i` is added to
/// partial sum `i % 16`.
#[inline(always)]
pub(crate) fn softmax_weights(scores: &mut [f32], scale: f32) -> f32 {
    scores.iter_mut().for_each(|score| *score *= scale);
    let top = max(scores);
    let mut sums = [0.0; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - top);
            sums[lane] += chunk[lane];
        }
    }
    for (sum, score) in sums.iter_mut().zip(rest) {
        *score = exp(*score - top);
        *sum += *score;
    }
    fold(sums)
}

/// `sum(exp(value - top))`, in f32 within blocks of 1024 and in f64 between them.
#[inline(always)]
pub(crate) fn sum_exp(values: &[f32], top: f32) -> f64 {
    let mut total = 0.0;
    for block in values.chunks(1024) {
        total += f64::from(sum_of(block, |value| exp(value - top)));
    }
    total
}

/// `h[i] = activation(gate[i]) * up[i]`.
#[inline(always)]
pub(crate) fn gate(activation: Activation, gate: &[f32], up: &[f32], h: &mut [f32]) {
    let all = h.iter_mut().zip(gate).zip(up);
    match activation {
        Activation::Silu => {
            for ((h, g), u) in all {
                *h = g / (1.0 + exp(-g)) * u;
            }
        }
        Activation::GeluTanh => {
            for ((h, g), u) in all {
                // 0.5 (1 + tanh(z)) = 1 / (1 + e^-2z)
                let z = 0.797_884_6 * (g + 0.044_715 * g * g * g);
                *h = g / (1.0 + exp(-2.0 * z)) * u;
            }
        }
        Activation::Sigmoid => {
            for ((h, g), u) in all {
                *h = u / (1.0 + exp(-g));
            }
        }
    }
}

/// `y[i] = x[i] * w[i] * rsqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] = chunk[lane].mul_add(chunk[lane], sums[lane]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum = x.mul_add(*x, *sum);
    }
    let scale = 1.0 / (fold(sums) / x.len() as f32 + eps).sqrt();
    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * w;
    }
}

/// See [`kernels::layer_norm`](crate::kernels::layer_norm).
#[inline(always)]
pub(crate) fn layer_norm(x: &mut [f32], norm: Normed<'_>) {
    let count = x.len() as f32;
    let mean = sum_of(x, |x| x) / count;
    let variance = sum_of(x, |x| (x - mean) * (x - mean)) / count;
    let scale = 1.0 / (variance + norm.eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(norm.weight).zip(norm.bias) {
        *x = ((*x - mean) * scale).mul_add(*w, *b);
    }
}

/// The sum of a function of each number: number `i` is added to partial sum `i % 16`.
#[inline(always)]
fn sum_of(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += of(chunk[lane]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += of(*x);
    }
    fold(sums)
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`, with an absolute error of about `2e-7 * |x|`.
///
/// The rational approximation of `erf` is 7.1.26 of Abramowitz and Stegun (Hastings).
#[inline(always)]
pub(crate) fn gelu(x: &mut [f32]) {
    for x in x {
        let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
        let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
        let mut p = 1.061_405_4_f32;
        p = p.mul_add(t, -1.453_152);
        p = p.mul_add(t, 1.421_413_8);
        p = p.mul_add(t, -0.284_496_74);
        p = p.mul_add(t, 0.254_829_6);
        // The tail `1 - erf(z)`, halved: the factor of a negative number.
        let tail = 0.5 * p * t * exp(-z * z);
        *x *= if *x < 0.0 { tail } else { 1.0 - tail };
    }
}

/// `x[i] = x[i] * sigmoid(x[i])`.
#[inline(always)]
pub(crate) fn silu(x: &mut [f32]) {
    for x in x {
        *x /= 1.0 + exp(-*x);
    }
}

/// `x[i] = cap * tanh(x[i] / cap)`, with an absolute error of about `2e-7 * cap`.
#[inline(always)]
pub(crate) fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        // tanh(z) = 1 - 2 / (1 + e^2z)
        *x = cap * (1.0 - 2.0 / (1.0 + exp(2.0 * (*x / cap))));
    }
}

/// The delta rule on a strip of the state, see [`kernels::delta_rule`](crate::kernels::delta_rule).
/// Row `i` of the state is added to partial sum `i % 4`.
#[inline(always)]
pub(crate) fn delta_rule(state: &mut [f32], input: &DeltaInput<'_>, out: &mut [f32]) {
    const CHAINS: usize = 4;
    let (rows, _) = state.as_chunks_mut::<STRIP>();
    let (quads, _) = rows.as_chunks_mut::<CHAINS>();
    let (keys, _) = input.key.as_chunks::<CHAINS>();
    let (queries, _) = input.query.as_chunks::<CHAINS>();
    let (Some(values), Some(out)) = (input.values.as_array::<STRIP>(), out.as_mut_array::<STRIP>())
    else {
        return;
    };
    let mut sums = [[0.0_f32; STRIP]; CHAINS];
    for (rows, keys) in quads.iter().zip(keys) {
        for chain in 0..CHAINS {
            for lane in 0..STRIP {
                sums[chain][lane] = rows[chain][lane].mul_add(keys[chain], sums[chain][lane]);
            }
        }
    }
    let mut change = [0.0_f32; STRIP];
    for lane in 0..STRIP {
        let known = (sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane]);
        change[lane] = input.strength * known.mul_add(-input.decay, values[lane]);
    }
    let mut sums = [[0.0_f32; STRIP]; CHAINS];
    for ((rows, keys), queries) in quads.iter_mut().zip(keys).zip(queries) {
        // A loop for each of the operations: the compiler does not vectorise one for all of them.
        for chain in 0..CHAINS {
            let (row, sum) = (&mut rows[chain], &mut sums[chain]);
            let mut new = [0.0_f32; STRIP];
            for lane in 0..STRIP {
                new[lane] = row[lane] * input.decay;
            }
            for lane in 0..STRIP {
                new[lane] = change[lane].mul_add(keys[chain], new[lane]);
            }
            for lane in 0..STRIP {
                sum[lane] = new[lane].mul_add(queries[chain], sum[lane]);
            }
            *row = new;
        }
    }
    for lane in 0..STRIP {
        out[lane] = (sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar;

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0 + 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.4e-7, "{worst}");
        assert_eq!((exp(0.0), exp(-200.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert_eq!((exp(200.0), exp(f32::INFINITY)), (f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn vector_activations_match_the_scalar_ones() {
        let x: Vec<f32> = (-400..400).map(|i| i as f32 / 20.0).collect();
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::Sigmoid] {
            let mut got = vec![0.0; x.len()];
            gate(activation, &x, &vec![1.0; x.len()], &mut got);
            for (x, got) in x.iter().zip(got) {
                let wanted = scalar::activate(activation, *x);
                assert!(
                    (got - wanted).abs() <= 2e-6 * wanted.abs().max(0.1),
                    "{activation:?} {x}: {got} {wanted}"
                );
            }
        }
    }

    #[test]
    fn gelu_and_layer_norms_match_the_scalar_ones() {
        let x: Vec<f32> = (-4000..4000).map(|i| i as f32 / 500.0).collect();
        let (mut fast, mut exact) = (x.clone(), x.clone());
        gelu(&mut fast);
        scalar::gelu(&mut exact);
        for ((x, fast), exact) in x.iter().zip(&fast).zip(&exact) {
            assert!((fast - exact).abs() <= 3e-7 * x.abs(), "{x}: {fast} {exact}");
        }
        let mut ends = [0.0, -0.0, f32::INFINITY, -30.0, f32::NAN];
        gelu(&mut ends);
        assert!(ends[..4] == [0.0, 0.0, f32::INFINITY, 0.0] && ends[4].is_nan(), "{ends:?}");
        for len in [1, 15, 16, 33, 384] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 40.0) / 9.0).collect();
            let weight: Vec<f32> = (0..len).map(|i| 1.0 + i as f32 / 50.0).collect();
            let norm = Normed { weight: &weight, bias: &x, eps: 1e-5 };
            let (mut fast, mut exact) = (x.clone(), x.clone());
            layer_norm(&mut fast, norm);
            scalar::layer_norm(&mut exact, norm);
            assert!(fast.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-4), "{len}");
        }
    }

    #[test]
    fn soft_caps_match_f64() {
        let x: Vec<f32> = (-4000..4000).map(|i| i as f32 / 10.0).collect();
        for cap in [0.5, 10.0, 30.0] {
            let mut got = x.clone();
            soft_cap(&mut got, cap);
            for (x, got) in x.iter().zip(got) {
                let wanted = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                assert!(
                    (f64::from(got) - wanted).abs() < 3e-7 * f64::from(cap),
                    "{cap} {x}: {got}"
                );
            }
        }
        let mut ends = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
        soft_cap(&mut ends, 30.0);
        assert!(ends[..2] == [-30.0, 30.0] && ends[2].is_nan());
    }

    #[test]
    fn vector_reductions_match_the_scalar_ones() {
        for len in [1, 15, 16, 33, 1000, 3000] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 9.0).collect();
            let exact: f64 = x.iter().map(|x| f64::from(x - 3.0).exp()).sum();
            assert!((sum_exp(&x, 3.0) / exact - 1.0).abs() < 1e-5);
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let (mut a, mut b) = (x.clone(), x.clone());
            let wanted = scalar::softmax_weights(&mut a, 0.5);
            let got = softmax_weights(&mut b, 0.5);
            assert!((wanted / got - 1.0).abs() < 1e-5);
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
            let weight = vec![0.5; len];
            scalar::rms_norm(&x, &weight, 1e-5, &mut a);
            rms_norm(&x, &weight, 1e-5, &mut b);
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }
}
