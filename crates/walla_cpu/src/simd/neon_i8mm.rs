//! Kernels for AArch64 with products of 8-bit matrices (Armv8.6: Neoverse V1, Cortex-A510 and
//! later, Apple M2): as [`neon_dot`], with one instruction for the 32 products of two weight rows,
//! eight columns and two activation rows.

use std::arch::aarch64::*;
use std::arch::asm;

use walla_types::TensorType;

use super::neon::{
    self, factors, multiply_add, multiply_each, set_floats, signed_codes, store, zeros,
};
use super::unpack::quantized_kernel;
use super::{Rows, block_of, by_type_and_rows, has_halves, is_signed, neon_dot, prefetch};
use crate::operands::{Input, PANEL, Products, ROWS};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::Group;

/// Products of one panel with the rows of `input`, 8 lanes at a time.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    if ty.is_quantized() {
        multiply_quantized(ty, panel, input, out);
    } else {
        neon::multiply_floats(ty, panel, input, out);
    }
}

quantized_kernel!("neon,dotprod,i8mm");

/// Dot products of one group from a step on: over all eight steps, or four for sub-blocks of 16.
///
/// An odd last row is multiplied with itself, for half of the instruction's use. A single row needs
/// as many dot products, and no permutations, so these are used for it.
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn dots<const TY: u32, const R: usize>(
    quants: &[u8],
    lanes: usize,
    x: &[Group; R],
    first: usize,
) -> [float32x4x2_t; R] {
    if R == 1 {
        return neon_dot::dots::<TY, R>(quants, lanes, x, first);
    }
    let steps = if const { has_halves(TY) } { 4 } else { 8 };
    // Products of two activation rows with two weight rows each: `[weight row][activation row]`.
    let mut dot = [[vdupq_n_s32(0); 4]; ROWS / 2];
    for step in (first..first + steps).step_by(2) {
        let four = signed_codes::<TY>(quants, lanes, step);
        let next = signed_codes::<TY>(quants, lanes, step + 1);
        let weights = [
            zip_first(four[0], next[0]),
            zip_second(four[0], next[0]),
            zip_first(four[1], next[1]),
            zip_second(four[1], next[1]),
        ];
        for p in 0..R.div_ceil(2) {
            let (even, odd) = (&x[2 * p], &x[(2 * p + 1).min(R - 1)]);
            let x = vcombine_s32(words(even, step), words(odd, step));
            for i in 0..4 {
                dot[p][i] = add_eights(dot[p][i], weights[i], vreinterpretq_s8_s32(x));
            }
        }
    }
    let mut numbers = [zeros(); R];
    for r in 0..R {
        let [a, b, c, d] = dot[r / 2];
        let (low, high) = if r % 2 == 0 {
            (vuzp1q_s32(a, b), vuzp1q_s32(c, d))
        } else {
            (vuzp2q_s32(a, b), vuzp2q_s32(c, d))
        };
        numbers[r] = float32x4x2_t(vcvtq_f32_s32(low), vcvtq_f32_s32(high));
    }
    numbers
}

/// Columns of two steps, of weight rows 0 and 1.
#[inline]
#[target_feature(enable = "neon")]
fn zip_first(step: int8x16_t, next: int8x16_t) -> int8x16_t {
    vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(step), vreinterpretq_s32_s8(next)))
}

/// Columns of two steps, of weight rows 2 and 3.
#[inline]
#[target_feature(enable = "neon")]
fn zip_second(step: int8x16_t, next: int8x16_t) -> int8x16_t {
    vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(step), vreinterpretq_s32_s8(next)))
}

/// Activations of a step and the next.
#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "loads take pointers")]
fn words(x: &Group, step: usize) -> int32x2_t {
    let two = &x.words[step..step + 2];
    // SAFETY: `two` is two words.
    unsafe { vld1_s32(two.as_ptr()) }
}

/// `sum[i][j] + a[i][0] * b[j][0] + …` over eight products of bytes, for two rows `i` and two `j`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
#[expect(unsafe_code, reason = "Rust has no stable intrinsic for it yet")]
fn add_eights(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction only uses registers, and the feature is enabled.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
