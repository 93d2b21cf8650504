//! Kernels for AVX2 with AVX-VNNI (Intel from Alder Lake, AMD from Zen 5): as [`avx2`], with one
//! instruction for four products. Codes are unsigned, as in the AVX-512 kernel.

use std::arch::x86_64::*;

use walla_types::TensorType;

use super::avx2::{self, Rows, add, codes, factors, prefetch, quantised_kernel, store};
use super::by_type_and_rows;
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantise::{GROUP, Group, round_block};

/// Products of one panel with the rows of `input`: four rows and 8 lanes at a time.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    if !ty.is_quantised() {
        return avx2::multiply(ty, panel, input, out);
    }
    let (cols, rows) = (input.cols, input.rows());
    for first in (0..rows).step_by(4) {
        let count = (rows - first).min(4);
        for lanes in 0..2 {
            let x = Rows { groups: input.groups, all: rows, first };
            by_type_and_rows!(
                quantised,
                [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K],
                ty,
                count,
                4,
                (panel, lanes, cols, x, &mut out[first..])
            );
        }
    }
}

/// Rounds the rows of one block of activations.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) fn round_activations(x: &[f32], cols: usize, out: &mut [Group]) {
    round_block(x, cols, out);
}

quantised_kernel!("avx2,fma,f16c,avxvnni", false);

/// Dot products of one group from a step on: over all eight steps, or four for Q6_K. With few rows
/// the chains are split, see the AVX-512 kernel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dots<const TY: u32, const R: usize>(
    quants: &[u8],
    lanes: usize,
    x: &[Group; R],
    first: usize,
) -> [__m256i; R] {
    let pieces = const { if R <= 2 { 2 } else { 1 } };
    let steps = if TY == code(TensorType::Q6K) { 4 } else { 8 };
    let mut dot = [[_mm256_setzero_si256(); 2]; R];
    for step in first..first + steps {
        let codes = codes::<TY>(quants, lanes, step);
        for r in 0..R {
            let dot = &mut dot[r][step % pieces];
            *dot = _mm256_dpbusd_avx_epi32(*dot, codes, _mm256_set1_epi32(x[r].words[step]));
        }
    }
    let mut sums = [_mm256_setzero_si256(); R];
    for r in 0..R {
        let [a, b] = dot[r];
        sums[r] = if pieces == 2 { _mm256_add_epi32(a, b) } else { a };
    }
    sums
}
