//! Kernels for AVX2 with FMA and F16C: 8 weight rows in the lanes of a register; the two halves of
//! a panel are computed sequentially.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm_cvtsi32_si128 as distance, _mm256_add_ps as add_each, _mm256_and_si256 as and,
    _mm256_broadcastsi128_si256 as broadcast, _mm256_castsi256_ps as as_floats,
    _mm256_cvtepi8_epi32 as from_signed_bytes, _mm256_cvtepi32_ps as to_floats,
    _mm256_cvtepu8_epi32 as from_bytes, _mm256_cvtepu16_epi32 as from_halves,
    _mm256_cvtph_ps as halves_to_floats, _mm256_fmadd_ps as multiply_add,
    _mm256_loadu_si256 as load_integers, _mm256_mul_ps as multiply_each, _mm256_or_si256 as or,
    _mm256_set1_epi8 as set_bytes, _mm256_set1_epi32 as set_words, _mm256_set1_ps as set_floats,
    _mm256_setzero_ps as zeros, _mm256_shuffle_epi8 as shuffle,
    _mm256_sll_epi32 as shift_words_left, _mm256_slli_epi32 as shift_left,
    _mm256_srl_epi32 as shift_words_right, _mm256_srli_epi32 as shift_right,
    _mm256_storeu_ps as store_floats, _mm256_sub_ps as subtract,
};

use walla_types::TensorType;

use super::unpack::{float_kernel, quantized_kernel, unpacking_kernels};
use super::{Rows, block_of, by_type_and_rows, has_halves, is_signed, prefetch, rows_of, table};
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::Group;

unpacking_kernels!("avx2,fma,f16c", 8, __m256i, __m256, load_8, load_16);

/// Products of one panel with the rows of `input`, 8 lanes at a time, because there are 16
/// registers.
///
/// With eight rows a weight register is unpacked once for eight integer sums, and the sums of the
/// floats are in memory between groups: one load and one store for a group's 32 products.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    if ty.is_quantized() {
        multiply_quantized(ty, panel, input, out);
    } else {
        multiply_floats(ty, panel, input, out);
    }
}

float_kernel!("avx2,fma,f16c");
quantized_kernel!("avx2,fma,f16c");

/// Dot products of one group from a step on: over all eight steps, or four for sub-blocks of 16.
///
/// The instruction that multiplies bytes adds pairs into 16 bits, with saturation at 32767. So
/// pairs are summed in 16 bits as long as they fit: eight steps of nibbles (8 * 2 * 15 * 127 =
/// 30480), four of five-bit codes (31496), two of six-bit codes (32004). Signed integers are passed
/// as absolute value and sign: one step of bytes (2 * 128 * 127 = 32512), eight of MXFP4 (8 * 2 *
/// 12 * 127 = 24384).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots<const TY: u32, const R: usize>(
    quants: &[u8],
    lanes: usize,
    x: &[Group; R],
    first: usize,
) -> [__m256; R] {
    let ones = _mm256_set1_epi16(1);
    let (steps, run) = match of_code(TY) {
        TensorType::Q8_0 | TensorType::Iq4Nl | TensorType::Iq4Xs => (8, 1),
        TensorType::Q6K => (4, 2),
        TensorType::Q2K | TensorType::Q3K => (4, 4),
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => (8, 4),
        _ => (8, 8),
    };
    let mut dot = [_mm256_setzero_si256(); R];
    for begin in (first..first + steps).step_by(run) {
        let mut pairs = [_mm256_setzero_si256(); R];
        for step in begin..begin + run {
            let codes = codes::<TY>(quants, lanes, step);
            for r in 0..R {
                let x = _mm256_set1_epi32(x[r].words[step]);
                let products = products::<TY>(codes, x);
                pairs[r] =
                    if step == begin { products } else { _mm256_add_epi16(pairs[r], products) };
            }
        }
        for r in 0..R {
            let fours = _mm256_madd_epi16(pairs[r], ones);
            dot[r] = if begin == first { fours } else { _mm256_add_epi32(dot[r], fours) };
        }
    }
    let mut numbers = [_mm256_setzero_ps(); R];
    for r in 0..R {
        numbers[r] = _mm256_cvtepi32_ps(dot[r]);
    }
    numbers
}

/// Sums of two products of bytes each, in 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products<const TY: u32>(codes: __m256i, x: __m256i) -> __m256i {
    if const { !is_signed(TY) } {
        return _mm256_maddubs_epi16(codes, x);
    }
    let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
}

/// Powers of two of 8 E8M0 exponents, halved, see the AVX-512 kernel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn powers(exponents: __m128i) -> __m256 {
    let exponents = _mm256_cvtepu8_epi32(exponents);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), exponents);
    let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponents);
    _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, is_small))
}

#[inline]
#[expect(unsafe_code, reason = "loads take pointers")]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let part = &bytes[at..at + 16];
    // SAFETY: `part` is 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
}

#[inline]
#[expect(unsafe_code, reason = "loads take pointers")]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_8(bytes: &[u8], at: usize) -> __m128i {
    let part = &bytes[at..at + 8];
    // SAFETY: `part` is 8 bytes; the load needs no alignment.
    unsafe { _mm_loadl_epi64(part.as_ptr().cast()) }
}
