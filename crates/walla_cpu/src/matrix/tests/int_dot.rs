//! Dot products in plain Rust: the same operations in the same order as the SIMD kernels.

use walla_types::TensorType;
use walla_types::blocks::{self, Block};

use crate::quantize::Group;

/// Dot product of one weight row (blocks in the file's layout) with one row of rounded activations.
///
/// Group by group, in order: `acc = fma(scale, scale_x * dot, acc)`, then `acc = fma(minimum,
/// sum_x, acc)`, where `dot` is an exact integer and `minimum` includes the codes' offset. Types
/// with sub-blocks of 16 do so for each half of a group. [Signed](blocks::is_signed) types have no
/// minimum: their `dot` is of signed numbers.
pub(crate) fn dot(ty: TensorType, row: &[u8], x: &[Group]) -> f32 {
    let per_block = ty.block_elements() / 32;
    let mut acc = 0.0_f32;
    for (bytes, x) in row.chunks_exact(ty.block_bytes()).zip(x.chunks(per_block)) {
        let block = blocks::take_apart(ty, bytes);
        for (g, x) in x.iter().enumerate() {
            let parts = blocks::subs_of_group(ty);
            for part in 0..parts {
                let numbers = 32 / parts;
                let first = part * numbers;
                let (scale, minimum) = factors(ty, &block, g * parts + part);
                let code = |i: usize| {
                    let code = block.codes[g * 32 + first + i];
                    if minimum.is_none() { blocks::integer(ty, code) } else { i32::from(code) }
                };
                let byte = |i: usize| {
                    i32::from(x.words[(first + i) / 4].to_le_bytes()[(first + i) % 4].cast_signed())
                };
                let dot: i32 = (0..numbers).map(|i| code(i) * byte(i)).sum();
                let sum = if parts == 2 { x.halves[part] } else { x.sum };
                acc = fused(scale, dot as f32 * x.scale, acc);
                if let Some(minimum) = minimum {
                    acc = fused(minimum, sum, acc);
                }
            }
        }
    }
    acc
}

/// Dot product of floats, as the SIMD kernels compute it: even columns in one sum, odd columns in
/// another.
pub(crate) fn float_dot(weights: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 2];
    for (i, (weight, x)) in weights.iter().zip(x).enumerate() {
        sums[i % 2] = fused(*weight, *x, sums[i % 2]);
    }
    sums[0] + sums[1]
}

/// `a * b + c`, rounded once. [`f32::mul_add`] outside of functions with an instruction for it
/// calls the C library, and that of MinGW rounds twice.
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(all(windows, target_env = "gnu"))]
    return libm::fmaf(a, b, c);
    #[cfg(not(all(windows, target_env = "gnu")))]
    a.mul_add(b, c)
}

#[test]
fn a_fused_sum_is_rounded_once() {
    let x = 1.0 + 1.0 / 4096.0;
    assert_eq!(fused(x, x, -(x * x)), 1.0 / 16_777_216.0);
}

/// Scale and minimum.
fn factors(ty: TensorType, block: &Block, sub: usize) -> (f32, Option<f32>) {
    let (d, m) = (block.d.to_f32(ty), block.m.to_f32());
    let scale = d * f32::from(block.scales[sub]);
    match ty {
        TensorType::Q2K | TensorType::Q4K | TensorType::Q5K => {
            (scale, Some(-(m * f32::from(block.mins[sub]))))
        }
        TensorType::Q4_1 | TensorType::Q5_1 => (d, Some(m)),
        _ if blocks::is_signed(ty) => (scale, None),
        _ => (scale, Some(scale * -f32::from(blocks::offset(ty)))),
    }
}
