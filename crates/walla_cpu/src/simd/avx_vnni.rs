//! Kernels for AVX2 with AVX-VNNI (Intel from Alder Lake, AMD from Zen 5): as [`avx2`], with one
//! instruction for four products. Codes are unsigned, as in the AVX-512 kernel.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_fmadd_ps as multiply_add, _mm256_mul_ps as multiply_each, _mm256_set1_ps as set_floats,
    _mm256_setzero_ps as zeros,
};

use walla_types::TensorType;

use super::avx2::{self, codes, factors, store};
use super::unpack::quantized_kernel;
use super::{Rows, block_of, by_type_and_rows, has_halves, is_signed, prefetch};
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::{Group, MAGIC, MAGIC_BITS};

/// Products of one panel with the rows of `input`: up to eight rows and 8 lanes at a time.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    if ty.is_quantized() {
        multiply_quantized(ty, panel, input, out);
    } else {
        avx2::multiply_floats(ty, panel, input, out);
    }
}

quantized_kernel!("avx2,fma,f16c,avxvnni");

/// Dot products of one group from a step on: over all eight steps, or four for sub-blocks of 16.
/// With few rows the chains are split, see the AVX-512 kernel.
///
/// Sums start with the bits of [`MAGIC`], so a subtraction converts them to floats. Sums over
/// codes of signed types start with the activations' part of the offset, so that they are sums over
/// signed numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dots<const TY: u32, const R: usize>(
    quants: &[u8],
    lanes: usize,
    x: &[Group; R],
    first: usize,
) -> [__m256; R] {
    let pieces = const { if R <= 2 { 2 } else { 1 } };
    let steps = if const { has_halves(TY) } { 4 } else { 8 };
    let mut dot = [[_mm256_setzero_si256(); 2]; R];
    for r in 0..R {
        let start = if const { is_signed(TY) } { x[r].start } else { MAGIC_BITS };
        dot[r][0] = _mm256_set1_epi32(start);
    }
    for step in first..first + steps {
        let codes = codes::<TY>(quants, lanes, step);
        for r in 0..R {
            let dot = &mut dot[r][step % pieces];
            *dot = _mm256_dpbusd_avx_epi32(*dot, codes, _mm256_set1_epi32(x[r].words[step]));
        }
    }
    let mut numbers = [_mm256_setzero_ps(); R];
    for r in 0..R {
        let [a, b] = dot[r];
        let sum = if pieces == 2 { _mm256_add_epi32(a, b) } else { a };
        numbers[r] = _mm256_sub_ps(_mm256_castsi256_ps(sum), _mm256_set1_ps(MAGIC));
    }
    numbers
}
