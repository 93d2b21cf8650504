//! Kernels for AArch64: 4 weight rows in the lanes of a register; the quarters of a panel are
//! computed sequentially.
//!
//! This module compiles but was **not yet run** on hardware. Unquantised matrices and attention use
//! plain Rust.

use std::arch::aarch64::*;

use walla_types::{TensorType, e8m0_half};

use super::{Rows, by_type_and_rows, has_halves, is_signed, table};
use crate::operands::{Input, PANEL, Products};
use crate::panels::{Format, Layout, code, of_code};
use crate::quantize::GROUP;

/// Products of one panel of a quantised type with the rows of `input`: four rows and 4 lanes at a
/// time.
#[target_feature(enable = "neon")]
pub(crate) fn multiply(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
    let (cols, rows) = (input.cols, input.rows());
    for first in (0..rows).step_by(4) {
        let count = (rows - first).min(4);
        for lanes in 0..4 {
            let x = Rows { groups: input.groups, all: rows, first };
            by_type_and_rows!(
                quantized,
                [Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K, Q2K, Q3K, Iq4Nl, Iq4Xs, Mxfp4],
                ty,
                count,
                4,
                (panel, lanes, cols, x, &mut out[first..])
            );
        }
    }
}

/// Integer dot products group by group, as in the AVX2 kernel.
#[inline]
#[target_feature(enable = "neon")]
fn quantized<const TY: u32, const R: usize>(
    panel: &[u8],
    lanes: usize,
    cols: usize,
    x: Rows<'_>,
    out: &mut [[f32; PANEL]],
) {
    let format = const { Format::of(of_code(TY)) };
    let layout = Layout::new(of_code(TY), cols);
    let (side, quants) = panel.split_at(layout.quants_at);
    let mut acc = [vdupq_n_f32(0.0); R];
    for (group, quants) in quants.chunks_exact(format.quants).take(cols / GROUP).enumerate() {
        let (block, g) = (group / format.groups, group % format.groups);
        let side = &side[block * format.side..(block + 1) * format.side];
        let Some(x) = x.groups[group * x.all + x.first..].first_chunk::<R>() else { return };
        let parts = const { if has_halves(TY) { 2 } else { 1 } };
        for part in 0..parts {
            let (scale, minimum) = factors::<TY>(side, lanes, parts * g + part);
            let steps = 8 / parts;
            let mut dot = [vdupq_n_s32(0); R];
            for step in part * steps..(part + 1) * steps {
                let codes = codes::<TY>(quants, lanes, step);
                for r in 0..R {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(x[r].words[step]));
                    dot[r] = vaddq_s32(dot[r], fours(codes, x));
                }
            }
            for r in 0..R {
                let sum = if parts == 2 { x[r].halves[part] } else { x[r].sum };
                let product = vmulq_n_f32(vcvtq_f32_s32(dot[r]), x[r].scale);
                acc[r] = vfmaq_f32(acc[r], scale, product);
                if const { !is_signed(TY) } {
                    acc[r] = vfmaq_f32(acc[r], minimum, vdupq_n_f32(sum));
                }
            }
        }
    }
    for r in 0..R {
        store(&mut out[r][4 * lanes..4 * lanes + 4], acc[r]);
    }
}

/// Sums of four products of bytes, as the dot product instruction computes them. Rust has no stable
/// intrinsic for it yet.
#[inline]
#[target_feature(enable = "neon")]
fn fours(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    let high = vmull_high_s8(a, b);
    vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))
}

/// Codes of four columns of each of 4 rows, as signed bytes.
#[inline]
#[target_feature(enable = "neon")]
fn codes<const TY: u32>(quants: &[u8], lanes: usize, step: usize) -> int8x16_t {
    let at = lanes * 16;
    let ty = of_code(TY);
    if matches!(ty, TensorType::Q8_0) {
        return vreinterpretq_s8_u8(veorq_u8(load(quants, step * 64 + at), vdupq_n_u8(0x80)));
    }
    let shift = |bits: uint8x16_t, left: i8| vshlq_u8(bits, vdupq_n_s8(left));
    if matches!(ty, TensorType::Q2K | TensorType::Q3K) {
        let pair = shift(load(quants, step / 4 * 64 + at), -2 * (step % 4) as i8);
        let low = vandq_u8(pair, vdupq_n_u8(3));
        if matches!(ty, TensorType::Q2K) {
            return vreinterpretq_s8_u8(low);
        }
        let bit = vandq_u8(shift(load(quants, 128 + at), 2 - step as i8), vdupq_n_u8(4));
        return vreinterpretq_s8_u8(vorrq_u8(low, bit));
    }
    let both = load(quants, step % 4 * 64 + at);
    let low = if step < 4 { vandq_u8(both, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(both) };
    let codes = match ty {
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
            let bit = shift(load(quants, 256 + at), 4 - step as i8);
            vorrq_u8(low, vandq_u8(bit, vdupq_n_u8(0x10)))
        }
        TensorType::Q6K => {
            let pair = load(quants, 256 + step / 4 * 64 + at);
            let pair = shift(pair, 4 - 2 * (step % 4) as i8);
            vorrq_u8(low, vandq_u8(pair, vdupq_n_u8(0x30)))
        }
        TensorType::Iq4Nl | TensorType::Iq4Xs | TensorType::Mxfp4 => {
            let table = const { table::<0>(TY) };
            vqtbl1q_u8(load(&table, 0), low)
        }
        _ => low,
    };
    vreinterpretq_s8_u8(codes)
}

/// Scale and minimum (including the codes' offset) of a sub-block.
#[inline]
#[target_feature(enable = "neon")]
fn factors<const TY: u32>(side: &[u8], lanes: usize, sub: usize) -> (float32x4_t, float32x4_t) {
    let ty = of_code(TY);
    let half = |at: usize| {
        let number = |i: usize| half::f16::from_le_bytes([side[at + 2 * i], side[at + 2 * i + 1]]);
        four(std::array::from_fn(|i| number(4 * lanes + i).to_f32()))
    };
    let bytes = |at: usize| -> [u8; 4] { std::array::from_fn(|i| side[at + 4 * lanes + i]) };
    if matches!(ty, TensorType::Mxfp4) {
        return (four(bytes(0).map(e8m0_half)), vdupq_n_f32(0.0));
    }
    let d = half(0);
    match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => (d, half(32)),
        TensorType::Q4K | TensorType::Q5K => {
            let scale = vmulq_f32(d, four(bytes(64 + 16 * sub).map(f32::from)));
            let min = vmulq_f32(half(32), four(bytes(192 + 16 * sub).map(f32::from)));
            (scale, vnegq_f32(min))
        }
        TensorType::Q2K => {
            let both = bytes(64 + 16 * sub);
            let scale = vmulq_f32(d, four(both.map(|both| f32::from(both & 15))));
            let min = vmulq_f32(half(32), four(both.map(|both| f32::from(both >> 4))));
            (scale, vnegq_f32(min))
        }
        TensorType::Q3K | TensorType::Q6K | TensorType::Iq4Xs => {
            let scales = bytes(32 + 16 * sub).map(|scale| f32::from(scale.cast_signed()));
            let scale = vmulq_f32(d, four(scales));
            (scale, vmulq_n_f32(scale, -f32::from(walla_types::blocks::offset(ty))))
        }
        _ => (d, vmulq_n_f32(d, -f32::from(walla_types::blocks::offset(ty)))),
    }
}

#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "loads take pointers")]
fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    let part = &bytes[at..at + 16];
    // SAFETY: `part` is 16 bytes; the load needs no alignment.
    unsafe { vld1q_u8(part.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "loads take pointers")]
fn four(numbers: [f32; 4]) -> float32x4_t {
    // SAFETY: four numbers are read from an array of four.
    unsafe { vld1q_f32(numbers.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "stores take pointers")]
fn store(out: &mut [f32], value: float32x4_t) {
    let part = &mut out[..4];
    // SAFETY: `part` is 4 numbers; the store needs no alignment.
    unsafe { vst1q_f32(part.as_mut_ptr(), value) }
}
