//! Kernels for AArch64 with dot products of bytes (Cortex-A76 and later, so Raspberry Pi 5 and
//! Jetson Orin): as [`neon`], with one instruction for four products.

use std::arch::aarch64::*;
use std::arch::asm;

use walla_types::TensorType;

use super::neon::{
    self, dots_by_four, factors, multiply_add, multiply_each, set_floats, signed_codes, store,
    zeros,
};
use super::unpack::quantized_kernel;
use super::{Rows, block_of, by_type_and_rows, has_halves, is_signed, prefetch};
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::Group;

/// Products of one panel with the rows of `input`, 8 lanes at a time.
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    if ty.is_quantized() {
        multiply_quantized(ty, panel, input, out);
    } else {
        neon::multiply_floats(ty, panel, input, out);
    }
}

quantized_kernel!("neon,dotprod");

dots_by_four!("neon,dotprod");

/// `sum[i] + a[4 * i] * b[4 * i] + …` over four products of bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
#[expect(unsafe_code, reason = "Rust has no stable intrinsic for it yet")]
fn add_fours(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction only uses registers, and the feature is enabled.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
