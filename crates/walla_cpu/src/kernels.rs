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
use crate::quantize::Group;
#[cfg(target_arch = "x86_64")]
use crate::simd::{attention, avx_vnni, avx2, avx512};
#[cfg(target_arch = "aarch64")]
use crate::simd::{attention, neon, neon_dot, neon_i8mm};
use crate::{math, scalar};

/// Calls the variant's kernel in a module of [`simd`](crate::simd), or the plain one.
macro_rules! dispatch {
    ($variant:expr, $kernel:ident $args:tt, $plain:expr) => {
        dispatch!(
            @of $variant,
            [
                "x86_64" Avx512Vnni avx512::$kernel,
                "x86_64" AvxVnni avx_vnni::$kernel,
                "x86_64" Avx2Fma avx2::$kernel,
                "aarch64" NeonI8mm neon_i8mm::$kernel,
                "aarch64" NeonDot neon_dot::$kernel,
                "aarch64" Neon neon::$kernel
            ],
            $args, $plain
        )
    };
    ($variant:expr, attention::$kernel:ident $args:tt, $plain:expr) => {
        dispatch!(
            @of $variant,
            [
                "x86_64" Avx512Vnni attention::avx512::$kernel,
                "x86_64" AvxVnni attention::avx2::$kernel,
                "x86_64" Avx2Fma attention::avx2::$kernel,
                "aarch64" NeonI8mm attention::neon::$kernel,
                "aarch64" NeonDot attention::neon::$kernel,
                "aarch64" Neon attention::neon::$kernel
            ],
            $args, $plain
        )
    };
    (@of $variant:expr, [$($arch:literal $name:ident $path:path),+], $args:tt, $plain:expr) => {
        match $variant {
            $(
                #[cfg(target_arch = $arch)]
                #[expect(unsafe_code, reason = "instructions beyond the baseline")]
                // SAFETY: the machine has these instructions, else the variant was refused; see the
                // module.
                Variant::$name => unsafe { $path $args },
            )+
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
    dispatch!(variant, multiply(ty, panel, input, out), unreachable!("{variant} has no panels"));
}

/// Defines kernels that [`math`] has for all SIMD variants, and [`scalar`] for the oracle.
macro_rules! math_kernels {
    ($($(#[$doc:meta])* fn $kernel:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $kernel(variant: Variant, $($arg: $ty),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $result)? {
                math::$kernel($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $result)? {
                math::$kernel($($arg),*)
            }

            // On x86-64 it would be compiled without a fused multiply-add.
            #[cfg(not(target_arch = "x86_64"))]
            if variant != Variant::Scalar {
                return math::$kernel($($arg),*);
            }
            dispatch!(
                @of variant,
                ["x86_64" Avx512Vnni avx512, "x86_64" AvxVnni avx2, "x86_64" Avx2Fma avx2],
                ($($arg),*), scalar::$kernel($($arg),*)
            )
        }
    )*};
}

math_kernels! {
    /// Rounds the rows of one block of activations, see
    /// [`round_block`](crate::quantize::round_block).
    fn round_activations(x: &[f32], cols: usize, out: &mut [Group]);

    /// `h[i] = activation(gate[i]) * up[i]`.
    fn gate(activation: Activation, gate: &[f32], up: &[f32], h: &mut [f32]);

    /// `y[i] = x[i] * w[i] * rsqrt(mean(x^2) + eps)`.
    fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]);

    /// `x[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * weight[i] + bias[i]`.
    fn layer_norm(x: &mut [f32], norm: Normed<'_>);

    /// `x[i] = x[i] / 2 * (1 + erf(x[i] / sqrt(2)))`.
    fn gelu(x: &mut [f32]);

    /// `x[i] = x[i] * sigmoid(x[i])`.
    fn silu(x: &mut [f32]);

    /// `x[i] = cap * tanh(x[i] / cap)`.
    fn soft_cap(x: &mut [f32], cap: f32);

    /// `M = decay M; M += key (strength (values - M^T key))^T; out = M^T query` for a strip of the
    /// state, `[head_dim, STRIP]`.
    fn delta_rule(state: &mut [f32], input: &DeltaInput<'_>, out: &mut [f32]);

    /// The largest number; NaNs are ignored.
    fn max(values: &[f32]) -> f32;

    /// `sum(exp(value - top))`.
    fn sum_exp(values: &[f32], top: f32) -> f64;

    /// Replaces scores by `exp(scale * score - max)` and returns their sum.
    fn softmax_weights(scores: &mut [f32], scale: f32) -> f32;
}

/// Weights of a layer norm.
#[derive(Clone, Copy)]
pub(crate) struct Normed<'a> {
    pub weight: &'a [f32],
    pub bias: &'a [f32],
    pub eps: f32,
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

impl Scores<'_> {
    /// `out[q][c] = sum_d queries[q][d] * keys[d][c]`.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(unused_variables, reason = "no kernels")
    )]
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
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(unused_variables, reason = "no kernels")
    )]
    pub(crate) fn add(&self, variant: Variant, out: &mut [f32]) {
        dispatch!(variant, attention::values(self, out), unreachable_attention(variant));
    }
}
