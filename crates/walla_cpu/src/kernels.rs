//! Dispatches to the kernels of a variant.
//!
//! A variant other than [`Variant::Scalar`] reaches this module only after [`Variant::score`] found
//! that this machine has the required instructions. Otherwise
//! [`CpuDevice::new`](crate::CpuDevice::new) refuses it.
//!
//! [`math`] is compiled separately for each x86 variant. AArch64 has all required instructions in
//! its baseline, so the plain copy is used.

use walla_types::{Activation, TensorType};

use crate::operands::{Input, Products, Scores, Values};
use crate::options::Variant;
use crate::quantize::{self, Group};
#[cfg(target_arch = "aarch64")]
use crate::simd::neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{attention, avx_vnni, avx2, avx512};
use crate::{math, scalar};

/// Calls the variant's kernel in a module of [`simd`](crate::simd), or the plain one.
macro_rules! dispatch {
    ($variant:expr, $kernel:ident ($($arg:expr),*), $plain:expr) => {
        dispatch!(
            @of $variant, avx512::$kernel, avx_vnni::$kernel, avx2::$kernel, ($($arg),*), $plain
        )
    };
    ($variant:expr, attention::$kernel:ident ($($arg:expr),*), $plain:expr) => {
        dispatch!(
            @of $variant, attention::avx512::$kernel, attention::avx2::$kernel,
            attention::avx2::$kernel, ($($arg),*), $plain
        )
    };
    (
        @of $variant:expr, $avx512:path, $avx_vnni:path, $avx2:path, ($($arg:expr),*), $plain:expr
    ) => {
        match $variant {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "instructions beyond the baseline")]
            // SAFETY: the machine has these instructions, else the variant was refused; see the
            // module.
            Variant::Avx512Vnni => unsafe { $avx512($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "instructions beyond the baseline")]
            // SAFETY: the machine has these instructions, else the variant was refused; see the
            // module.
            Variant::AvxVnni => unsafe { $avx_vnni($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "instructions beyond the baseline")]
            // SAFETY: the machine has these instructions, else the variant was refused; see the
            // module.
            Variant::Avx2Fma => unsafe { $avx2($($arg),*) },
            _ => $plain,
        }
    };
}

/// Products of a packed panel with the rows of `input`.
pub(crate) fn multiply(
    variant: Variant,
    ty: TensorType,
    panel: &[u8],
    input: Input<'_>,
    out: &mut Products,
) {
    #[cfg(target_arch = "aarch64")]
    if variant == Variant::Neon {
        #[expect(unsafe_code, reason = "instructions beyond the baseline")]
        // SAFETY: the machine has these instructions, else the variant was refused; see the module.
        return unsafe { neon::multiply(ty, panel, input, out) };
    }
    dispatch!(variant, multiply(ty, panel, input, out), unreachable!("{variant} has no panels"));
}

/// Rounds the rows of one block of activations, see [`round_block`](quantise::round_block).
pub(crate) fn round_activations(variant: Variant, x: &[f32], cols: usize, out: &mut [Group]) {
    #[cfg(target_arch = "aarch64")]
    if variant == Variant::Neon {
        #[expect(unsafe_code, reason = "instructions beyond the baseline")]
        // SAFETY: the machine has these instructions, else the variant was refused; see the module.
        return unsafe { neon::round_activations(x, cols, out) };
    }
    dispatch!(variant, round_activations(x, cols, out), quantize::round_block(x, cols, out));
}

/// `h[i] = activation(gate[i]) * up[i]`.
pub(crate) fn gate(
    variant: Variant,
    activation: Activation,
    gate: &[f32],
    up: &[f32],
    h: &mut [f32],
) {
    if variant == Variant::Neon {
        return math::gate(activation, gate, up, h);
    }
    dispatch!(
        variant,
        attention::gate(activation, gate, up, h),
        scalar::gate(activation, gate, up, h)
    );
}

/// `y[i] = x[i] * w[i] * rsqrt(mean(x^2) + eps)`.
pub(crate) fn rms_norm(variant: Variant, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    if variant == Variant::Neon {
        return math::rms_norm(x, weight, eps, y);
    }
    dispatch!(variant, attention::rms_norm(x, weight, eps, y), scalar::rms_norm(x, weight, eps, y));
}

/// Weights of a layer norm.
#[derive(Clone, Copy)]
pub(crate) struct Normed<'a> {
    pub weight: &'a [f32],
    pub bias: &'a [f32],
    pub eps: f32,
}

/// `x[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * weight[i] + bias[i]`.
pub(crate) fn layer_norm(variant: Variant, x: &mut [f32], norm: Normed<'_>) {
    if variant == Variant::Neon {
        return math::layer_norm(x, norm);
    }
    dispatch!(variant, attention::layer_norm(x, norm), scalar::layer_norm(x, norm));
}

/// `x[i] = x[i] / 2 * (1 + erf(x[i] / sqrt(2)))`.
pub(crate) fn gelu(variant: Variant, x: &mut [f32]) {
    if variant == Variant::Neon {
        return math::gelu(x);
    }
    dispatch!(variant, attention::gelu(x), scalar::gelu(x));
}

/// `x[i] = x[i] * sigmoid(x[i])`.
pub(crate) fn silu(variant: Variant, x: &mut [f32]) {
    if variant == Variant::Neon {
        return math::silu(x);
    }
    let plain =
        |x: &mut [f32]| x.iter_mut().for_each(|x| *x = scalar::activate(Activation::Silu, *x));
    dispatch!(variant, attention::silu(x), plain(x));
}

/// `x[i] = cap * tanh(x[i] / cap)`.
pub(crate) fn soft_cap(variant: Variant, x: &mut [f32], cap: f32) {
    if variant == Variant::Neon {
        return math::soft_cap(x, cap);
    }
    let plain = |x: &mut [f32]| x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
    dispatch!(variant, attention::soft_cap(x, cap), plain(x));
}

/// The current row of one head, for the delta rule.
pub(crate) struct DeltaInput<'a> {
    /// `[head_dim]`, normalised and scaled.
    pub query: &'a [f32],
    /// `[head_dim]`, normalised.
    pub key: &'a [f32],
    /// `[STRIP]`: the values of the strip's columns.
    pub values: &'a [f32],
    /// Factor of the state.
    pub decay: f32,
    /// Strength of the correction.
    pub strength: f32,
}

/// `M = decay M; M += key (strength (values - M^T key))^T; out = M^T query` for a strip of the
/// state, `[head_dim, STRIP]`.
pub(crate) fn delta_rule(
    variant: Variant,
    state: &mut [f32],
    input: &DeltaInput<'_>,
    out: &mut [f32],
) {
    if variant == Variant::Neon {
        return math::delta_rule(state, input, out);
    }
    dispatch!(
        variant,
        attention::delta_rule(state, input, out),
        scalar::delta_rule(state, input, out)
    );
}

/// The largest number; NaNs are ignored.
pub(crate) fn max(variant: Variant, values: &[f32]) -> f32 {
    if variant == Variant::Neon {
        return math::max(values);
    }
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let plain = || values.iter().copied().fold(f32::NEG_INFINITY, larger);
    dispatch!(variant, attention::max(values), plain())
}

/// `sum(exp(value - top))`.
pub(crate) fn sum_exp(variant: Variant, values: &[f32], top: f32) -> f64 {
    if variant == Variant::Neon {
        return math::sum_exp(values, top);
    }
    let plain = || values.iter().map(|value| f64::from((value - top).exp())).sum();
    dispatch!(variant, attention::sum_exp(values, top), plain())
}

/// Replaces scores by `exp(scale * score - max)` and returns their sum.
pub(crate) fn softmax_weights(variant: Variant, scores: &mut [f32], scale: f32) -> f32 {
    if variant == Variant::Neon {
        return math::softmax_weights(scores, scale);
    }
    dispatch!(variant, attention::softmax_weights(scores, scale), {
        scores.iter_mut().for_each(|score| *score *= scale);
        scalar::softmax_weights(scores)
    })
}

impl Scores<'_> {
    /// `out[q][c] = sum_d queries[q][d] * keys[d][c]`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "no kernels"))]
    pub(crate) fn compute(&self, variant: Variant, out: &mut [f32]) {
        dispatch!(variant, attention::scores(self, out), unreachable_attention(variant));
    }
}

/// Variants without SIMD attention kernels do not reach this: they compute attention in plain Rust.
fn unreachable_attention(variant: Variant) {
    unreachable!("{variant} has an attention of its own");
}

impl Values<'_> {
    /// `out[q][d] += sum_c weights[q][c] * values[c][d]`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "no kernels"))]
    pub(crate) fn add(&self, variant: Variant, out: &mut [f32]) {
        dispatch!(variant, attention::values(self, out), unreachable_attention(variant));
    }
}
