//! Kernels for AArch64: 8 weight rows in two registers, so that the kernels for AVX2 are used. Each
//! output number is the result of the same operations in the same order as there, so its bits are
//! the same.
//!
//! Tested in an emulator; **not yet run** on hardware.

use std::arch::aarch64::vst1q_f32_x2 as store_floats;
use std::arch::aarch64::*;

use walla_types::TensorType;

use super::unpack::{float_kernel, quantized_kernel, unpacking_kernels};
use super::{Rows, block_of, by_type_and_rows, has_halves, is_signed, prefetch, rows_of, table};
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::Group;

unpacking_kernels!("neon", 8, uint32x4x2_t, float32x4x2_t, load_8, load_16);

/// Products of one panel with the rows of `input`, 8 lanes at a time.
#[target_feature(enable = "neon")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    if ty.is_quantized() {
        multiply_quantized(ty, panel, input, out);
    } else {
        multiply_floats(ty, panel, input, out);
    }
}

float_kernel!("neon");
quantized_kernel!("neon");

/// Generates `dots`, which calls the `add_fours` of the enclosing module.
macro_rules! dots_by_four {
    ($features:literal) => {
        /// Dot products of one group from a step on: over all eight steps, or four for sub-blocks
        /// of 16.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn dots<const TY: u32, const R: usize>(
            quants: &[u8],
            lanes: usize,
            x: &[Group; R],
            first: usize,
        ) -> [float32x4x2_t; R] {
            let steps = if const { has_halves(TY) } { 4 } else { 8 };
            let mut dot = [[vdupq_n_s32(0); 2]; R];
            for step in first..first + steps {
                let [low, high] = signed_codes::<TY>(quants, lanes, step);
                for r in 0..R {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(x[r].words[step]));
                    dot[r] = [add_fours(dot[r][0], low, x), add_fours(dot[r][1], high, x)];
                }
            }
            let mut numbers = [zeros(); R];
            for r in 0..R {
                numbers[r] = float32x4x2_t(vcvtq_f32_s32(dot[r][0]), vcvtq_f32_s32(dot[r][1]));
            }
            numbers
        }
    };
}
pub(super) use dots_by_four;

dots_by_four!("neon");

/// `sum[i] + a[4 * i] * b[4 * i] + …` over four products of bytes. Two of them fit in 16 bits:
/// 2 * 128 * 127 = 32512.
#[inline]
#[target_feature(enable = "neon")]
fn add_fours(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    let high = vmull_high_s8(a, b);
    vpadalq_s16(sum, vpaddq_s16(low, high))
}

/// Codes of four columns of each of 8 rows, as signed bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn signed_codes<const TY: u32>(
    quants: &[u8],
    lanes: usize,
    step: usize,
) -> [int8x16_t; 2] {
    let offset = vdupq_n_u8(if const { is_signed(TY) } { 128 } else { 0 });
    let codes = codes::<TY>(quants, lanes, step);
    [
        vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(codes.0), offset)),
        vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(codes.1), offset)),
    ]
}

/// Defines operations on pairs of registers by the operation on one.
macro_rules! pairs {
    ($(fn $name:ident $(<const $n:ident>)? ($($arg:ident: $ty:ty),+) -> $pair:ident = $each:expr;)+)
    => {$(
        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn $name $(<const $n: i32>)? ($($arg: $ty),+) -> $pair {
            let first = {
                $(let $arg = $arg.0;)+
                $each
            };
            $(let $arg = $arg.1;)+
            $pair(first, $each)
        }
    )+};
}

pairs! {
    fn add_each(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vaddq_f32(a, b);
    fn subtract(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vsubq_f32(a, b);
    fn multiply_each(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vmulq_f32(a, b);
    fn multiply_add(a: float32x4x2_t, b: float32x4x2_t, sum: float32x4x2_t) -> float32x4x2_t =
        vfmaq_f32(sum, a, b);
    fn and(a: uint32x4x2_t, b: uint32x4x2_t) -> uint32x4x2_t = vandq_u32(a, b);
    fn or(a: uint32x4x2_t, b: uint32x4x2_t) -> uint32x4x2_t = vorrq_u32(a, b);
    fn shift_left<const N>(words: uint32x4x2_t) -> uint32x4x2_t = vshlq_n_u32::<N>(words);
    fn shift_right<const N>(words: uint32x4x2_t) -> uint32x4x2_t = vshrq_n_u32::<N>(words);
    fn shift_words_left(words: uint32x4x2_t, by: int32x4x2_t) -> uint32x4x2_t =
        vshlq_u32(words, by);
    fn shift_words_right(words: uint32x4x2_t, by: int32x4x2_t) -> uint32x4x2_t =
        vshlq_u32(words, vnegq_s32(by));
    fn as_floats(bits: uint32x4x2_t) -> float32x4x2_t = vreinterpretq_f32_u32(bits);
    fn to_floats(numbers: uint32x4x2_t) -> float32x4x2_t =
        vcvtq_f32_s32(vreinterpretq_s32_u32(numbers));
    fn shuffle(table: uint8x16x2_t, at: uint32x4x2_t) -> uint32x4x2_t =
        vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(at)));
    fn power(exponents: uint32x4x2_t) -> float32x4x2_t = vreinterpretq_f32_u32(vbslq_u32(
        vcltq_u32(exponents, vdupq_n_u32(2)),
        vshlq_u32(vdupq_n_u32(1 << 21), vreinterpretq_s32_u32(exponents)),
        vshlq_n_u32::<23>(vsubq_u32(exponents, vdupq_n_u32(1)))
    ));
}

/// Defines pairs of registers with one number in all lanes.
macro_rules! repeated {
    ($(fn $name:ident($value:ident: $ty:ty) -> $pair:ident = $register:expr;)+) => {$(
        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn $name($value: $ty) -> $pair {
            let register = $register;
            $pair(register, register)
        }
    )+};
}

repeated! {
    fn set_floats(value: f32) -> float32x4x2_t = vdupq_n_f32(value);
    fn set_words(value: u32) -> uint32x4x2_t = vdupq_n_u32(value);
    fn set_bytes(value: u8) -> uint32x4x2_t = vreinterpretq_u32_u8(vdupq_n_u8(value));
    fn distance(bits: i32) -> int32x4x2_t = vdupq_n_s32(bits);
    fn broadcast(halves: uint16x8_t) -> uint8x16x2_t = vreinterpretq_u8_u16(halves);
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn zeros() -> float32x4x2_t {
    set_floats(0.0)
}

#[inline]
#[target_feature(enable = "neon")]
fn from_halves(halves: uint16x8_t) -> uint32x4x2_t {
    uint32x4x2_t(vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves))
}

#[inline]
#[target_feature(enable = "neon")]
fn from_bytes(bytes: uint8x8_t) -> uint32x4x2_t {
    from_halves(vmovl_u8(bytes))
}

#[inline]
#[target_feature(enable = "neon")]
fn from_signed_bytes(bytes: uint8x8_t) -> uint32x4x2_t {
    let halves = vmovl_s8(vreinterpret_s8_u8(bytes));
    uint32x4x2_t(
        vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(halves))),
        vreinterpretq_u32_s32(vmovl_high_s16(halves)),
    )
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn halves_to_floats(bits: uint16x8_t) -> float32x4x2_t {
    let halves = vreinterpretq_f16_u16(bits);
    float32x4x2_t(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
}

/// Powers of two of 8 E8M0 exponents, halved, see the AVX-512 kernel.
#[inline]
#[target_feature(enable = "neon")]
fn powers(exponents: uint8x8_t) -> float32x4x2_t {
    power(from_bytes(exponents))
}

#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "loads take pointers")]
fn load_8(bytes: &[u8], at: usize) -> uint8x8_t {
    let part = &bytes[at..at + 8];
    // SAFETY: `part` is 8 bytes.
    unsafe { vld1_u8(part.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "loads take pointers")]
fn load_16(bytes: &[u8], at: usize) -> uint16x8_t {
    let part = &bytes[at..at + 16];
    // SAFETY: `part` is 16 bytes; a load of bytes needs no alignment.
    vreinterpretq_u16_u8(unsafe { vld1q_u8(part.as_ptr()) })
}

/// # Safety
/// `bytes` points to 32 bytes.
#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "loads take pointers")]
unsafe fn load_integers(bytes: *const u8) -> uint32x4x2_t {
    // SAFETY: there are 32 bytes; a load of bytes needs no alignment.
    let both = unsafe { vld1q_u8_x2(bytes) };
    uint32x4x2_t(vreinterpretq_u32_u8(both.0), vreinterpretq_u32_u8(both.1))
}
