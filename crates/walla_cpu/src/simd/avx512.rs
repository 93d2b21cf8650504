//! Kernels for AVX-512 with VNNI: 16 weight rows in the lanes of a register.

use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm_cvtsi32_si128 as distance, _mm512_add_ps as add_each, _mm512_and_si512 as and,
    _mm512_broadcast_i32x4 as broadcast, _mm512_castsi512_ps as as_floats,
    _mm512_cvtepi8_epi32 as from_signed_bytes, _mm512_cvtepi32_ps as to_floats,
    _mm512_cvtepu8_epi32 as from_bytes, _mm512_cvtepu16_epi32 as from_halves,
    _mm512_cvtph_ps as halves_to_floats, _mm512_fmadd_ps as multiply_add,
    _mm512_loadu_si512 as load_integers, _mm512_mul_ps as multiply_each, _mm512_or_si512 as or,
    _mm512_set1_epi8 as set_bytes, _mm512_set1_epi32 as set_words, _mm512_set1_ps as set_floats,
    _mm512_setzero_ps as zeros, _mm512_shuffle_epi8 as shuffle,
    _mm512_sll_epi32 as shift_words_left, _mm512_slli_epi32 as shift_left,
    _mm512_srl_epi32 as shift_words_right, _mm512_srli_epi32 as shift_right,
    _mm512_storeu_ps as store_floats, _mm512_sub_ps as subtract,
};

use walla_types::TensorType;

use super::unpack::unpacking_kernels;
use super::{by_type_and_rows, has_halves, is_signed, prefetch, rows_of, table};
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::{Group, MAGIC, MAGIC_BITS};

unpacking_kernels!(
    "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c",
    16,
    __m512i,
    __m512,
    load_16,
    load_32
);

/// Products of one panel with the rows of `input`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    let rows = input.rows();
    if ty.is_quantized() {
        by_type_and_rows!(
            quantized,
            [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K, Q2K, Q3K, Iq4Nl, Iq4Xs, Mxfp4],
            ty,
            rows,
            8,
            (panel, input.cols, input.groups, out)
        );
    } else {
        by_type_and_rows!(
            floats,
            [F32, F16, BF16],
            ty,
            rows,
            8,
            (panel, 0, input.cols, input.values, out)
        );
    }
}

/// Integer dot products group by group. Each weight byte is multiplied once per activation row. A
/// weight register is unpacked once for all rows; activations are broadcast from memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn quantized<const TY: u32, const R: usize>(
    panel: &[u8],
    cols: usize,
    x: &[Group],
    out: &mut Products,
) {
    let format = const { Format::of(of_code(TY)) };
    let layout = Layout::new(of_code(TY), cols);
    let (side, quants) = panel.split_at(layout.quants_at);
    let share = const { Format::of(of_code(TY)).group_bytes() };
    let (x, _) = x.as_chunks::<R>();
    let mut acc = [_mm512_setzero_ps(); R];
    for (block, x) in x.chunks_exact(format.groups).enumerate() {
        let side = &side[block * format.side..(block + 1) * format.side];
        for (g, x) in x.iter().enumerate() {
            let group = block * format.groups + g;
            let quants = &quants[group * format.quants..(group + 1) * format.quants];
            prefetch(panel, group * share, share);
            if const { has_halves(TY) } {
                let (scale, minimum) = factors::<TY>(side, 0, 2 * g);
                let dot = dots::<TY, R>(quants, x, 0);
                for r in 0..R {
                    acc[r] = add(acc[r], scale, dot[r], x[r].scale, minimum, x[r].halves[0]);
                }
                let (scale, minimum) = factors::<TY>(side, 0, 2 * g + 1);
                let dot = dots::<TY, R>(quants, x, 4);
                for r in 0..R {
                    acc[r] = add(acc[r], scale, dot[r], x[r].scale, minimum, x[r].halves[1]);
                }
            } else {
                let (scale, minimum) = factors::<TY>(side, 0, g);
                let dot = dots::<TY, R>(quants, x, 0);
                for r in 0..R {
                    acc[r] = if const { is_signed(TY) } {
                        scaled(acc[r], scale, dot[r], x[r].scale)
                    } else {
                        add(acc[r], scale, dot[r], x[r].scale, minimum, x[r].sum)
                    };
                }
            }
        }
    }
    for r in 0..R {
        store(&mut out[r], 0, acc[r]);
    }
}

/// `acc + scale * (scale_x * dot) + minimum * sum_x`, fused from left to right.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn add(
    acc: __m512,
    scale: __m512,
    dot: __m512i,
    scale_x: f32,
    minimum: __m512,
    sum_x: f32,
) -> __m512 {
    let acc = scaled(acc, scale, dot, scale_x);
    _mm512_fmadd_ps(minimum, _mm512_set1_ps(sum_x), acc)
}

/// `acc + scale * (scale_x * dot)`, fused; `dot` starts with the bits of [`MAGIC`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn scaled(acc: __m512, scale: __m512, dot: __m512i, scale_x: f32) -> __m512 {
    let dot = _mm512_sub_ps(_mm512_castsi512_ps(dot), _mm512_set1_ps(MAGIC));
    let product = _mm512_mul_ps(dot, _mm512_set1_ps(scale_x));
    _mm512_fmadd_ps(scale, product, acc)
}

/// Dot products of one group from a step on: over all eight steps, or four for sub-blocks of 16.
///
/// An addition has a latency of five cycles. With few rows there are few chains, so each chain is
/// split into pieces, which are added at the end. Integer sums are exact in any order. Their start
/// is that of the AVX-VNNI kernel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn dots<const TY: u32, const R: usize>(
    quants: &[u8],
    x: &[Group; R],
    first: usize,
) -> [__m512i; R] {
    let pieces = const {
        if R == 1 {
            4
        } else if R <= 4 {
            2
        } else {
            1
        }
    };
    let mut dot = [[_mm512_setzero_si512(); 4]; R];
    for r in 0..R {
        let start = if const { is_signed(TY) } { x[r].start } else { MAGIC_BITS };
        dot[r][0] = _mm512_set1_epi32(start);
    }
    let steps = if const { has_halves(TY) } { 4 } else { 8 };
    for step in first..first + steps {
        let codes = codes::<TY>(quants, 0, step);
        for r in 0..R {
            let dot = &mut dot[r][step % pieces];
            *dot = _mm512_dpbusd_epi32(*dot, codes, _mm512_set1_epi32(x[r].words[step]));
        }
    }
    let mut sums = [_mm512_setzero_si512(); R];
    for r in 0..R {
        sums[r] = match pieces {
            1 => dot[r][0],
            2 => _mm512_add_epi32(dot[r][0], dot[r][1]),
            _ => _mm512_add_epi32(
                _mm512_add_epi32(dot[r][0], dot[r][1]),
                _mm512_add_epi32(dot[r][2], dot[r][3]),
            ),
        };
    }
    sums
}

/// Powers of two of 16 E8M0 exponents, halved: exponent `e` is the float with the exponent bits
/// `e - 1`, or subnormal for 0 and 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn powers(exponents: __m128i) -> __m512 {
    let exponents = _mm512_cvtepu8_epi32(exponents);
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
    let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), exponents);
    let is_small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, normal, subnormal))
}

#[inline]
#[expect(unsafe_code, reason = "loads take pointers")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load_32(bytes: &[u8], at: usize) -> __m256i {
    let part = &bytes[at..at + 32];
    // SAFETY: `part` is 32 bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(part.as_ptr().cast()) }
}

#[inline]
#[expect(unsafe_code, reason = "loads take pointers")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let part = &bytes[at..at + 16];
    // SAFETY: `part` is 16 bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
}
