//! Picks the kernels of a variant.
//!
//! A variant other than [`Variant::Scalar`] reaches this module only after [`Variant::score`] found the instructions that it needs
//! on this machine: [`CpuDevice::new`](crate::CpuDevice::new) refuses it otherwise.

use walla_types::TensorType;

use crate::matrix::{Input, Products};
use crate::options::Variant;
use crate::quantise::{self, Group};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};

/// Calls the variant's kernel, or the plain one.
macro_rules! dispatch {
    ($variant:expr, $kernel:ident ($($arg:expr),*), $plain:expr) => {
        match $variant {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "instructions beyond the baseline")]
            // SAFETY: the variant was refused unless the machine has them, see the module.
            Variant::Avx512Vnni => unsafe { avx512::$kernel($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "instructions beyond the baseline")]
            // SAFETY: the variant was refused unless the machine has them, see the module.
            Variant::Avx2Fma => unsafe { avx2::$kernel($($arg),*) },
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

/// Rounds the rows of one block of activations, see [`round_block`](quantise::round_block).
pub(crate) fn round_activations(variant: Variant, x: &[f32], cols: usize, out: &mut [Group]) {
    dispatch!(variant, round_activations(x, cols, out), quantise::round_block(x, cols, out));
}
