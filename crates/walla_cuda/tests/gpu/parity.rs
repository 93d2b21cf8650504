use walla_cuda::CudaBackend;
use walla_device::{HeadShape, KvType};
use walla_reference_test::gpu_test;
use walla_types::{Activation, RopePairs, TensorType};

use crate::gpu_of;
use crate::model::{Random, Shape};
use crate::steps::check_on;
pub use crate::steps::{check, check_steps, distance, tokens};

// All arithmetic is f32 on both sides. The order of sums differs, and the last bit of exp, sin and
// cos.
pub const EXACT: f64 = 2e-4;
// Rows and weights are rounded to f16 for the tensor cores (11 bits): some 5e-4 per product, less
// in their sums, a few times more after two layers of random weights.
pub const HALF: f64 = 2e-2;

// Numbers of Q2_K are rounded to 8 bits when they are loaded.
const BYTES: f64 = 8e-2;

fn tolerance(ty: TensorType) -> f64 {
    match ty {
        TensorType::F32 => EXACT,
        TensorType::Q2K => BYTES,
        _ => HALF,
    }
}

/// Types that are loaded in the layout of another type.
const CONVERTED: [TensorType; 5] =
    [TensorType::Q2K, TensorType::Q3K, TensorType::Iq4Nl, TensorType::Iq4Xs, TensorType::Mxfp4];

/// Types of most files.
const USUAL: [TensorType; 5] =
    [TensorType::F16, TensorType::Q4_0, TensorType::Q8_0, TensorType::Q4K, TensorType::Q6K];

#[gpu_test]
fn every_usual_type_agrees_with_the_oracle() {
    for ty in USUAL {
        check(ty.name(), &Shape::llama(ty), KvType::F32, tolerance(ty));
    }
}

/// Separate tests of the others, because an emulator needs minutes.
#[gpu_test]
fn every_other_type_agrees_with_the_oracle() {
    let is_other = |ty: &TensorType| !CONVERTED.contains(ty) && !USUAL.contains(ty);
    for ty in TensorType::ALL.into_iter().filter(is_other) {
        check(ty.name(), &Shape::llama(ty), KvType::F32, tolerance(ty));
    }
}

/// They use the kernels of other types.
#[gpu_test]
fn converted_types_agree_with_the_oracle() {
    for ty in CONVERTED {
        check(ty.name(), &Shape::llama(ty), KvType::F32, tolerance(ty));
    }
}

#[gpu_test]
fn products_without_wgmma_agree_with_the_oracle() {
    let backend = || CudaBackend::from_env().without_warpgroups();
    for ty in TensorType::ALL {
        let device = gpu_of(backend());
        check_on(device, ty.name(), &Shape::llama(ty), KvType::F32, tolerance(ty));
    }
}

#[gpu_test]
fn f16_pages_agree_with_the_oracle() {
    // Keys and values are rounded to f16 on both sides; a number halfway between two f16 values may
    // round to either.
    let shape = Shape::llama(TensorType::Q8_0);
    check("Q8_0", &shape, KvType::F16, HALF);
    check("F32", &Shape::llama(TensorType::F32), KvType::F16, 5e-3);
}

#[gpu_test]
fn pages_of_8_bits_agree_with_the_oracle() {
    // Heads that the plain kernels take. Numbers halfway between two integers may round to either.
    check("Q8_0", &Shape::llama(TensorType::Q8_0), KvType::Q8, 3e-2);
    let shape = Shape {
        heads: HeadShape { heads: 14, kv_heads: 2, head_dim: 40 },
        pairs_count: 16,
        head_norms: true,
        window: Some(50),
        ..Shape::llama(TensorType::F32)
    };
    check("heads of 40, norms, window", &shape, KvType::Q8, 2e-2);
}

#[gpu_test]
fn mixed_types_agree_with_the_oracle() {
    let shape = Shape {
        types: [
            TensorType::Q4K,
            TensorType::Q4K,
            TensorType::Q6K,
            TensorType::Q4K,
            TensorType::Q5K,
            TensorType::Q8_0,
            TensorType::Q6K,
            TensorType::Q6K,
        ],
        ..Shape::llama(TensorType::Q4K)
    };
    check("mixed", &shape, KvType::F32, HALF);
    // As in Q5_K_M files: Q6_K shares kernels with Q5_K if the model has no Q4_K.
    let [q, v] = [TensorType::Q5K, TensorType::Q6K];
    let types = [q, q, v, q, q, q, v, v];
    check("Q5_K_M", &Shape { types, ..Shape::llama(q) }, KvType::F32, HALF);
    // F32 matrices, which do not run on tensor cores, among others: no kernel writes a norm's
    // factor there.
    let [q, f] = [TensorType::Q8_0, TensorType::F32];
    for types in [[q, q, q, q, f, f, q, q], [f, f, f, q, q, q, q, q], [q, q, f, q, f, f, f, q]] {
        let shape = Shape { types, ..shape.clone() };
        check(&format!("{types:?}"), &shape, KvType::F32, HALF);
    }
}

/// The types of adjacent matrices determine the kernels and the data that they pass on.
#[gpu_test]
fn any_mixture_of_types_agrees_with_the_oracle() {
    // Blocks of the test's Q4_1 and Q5_1 are not centred on zero, so several products in a row
    // amplify rounding errors. Q2_K has larger ones.
    let is_fit =
        |ty: &TensorType| !matches!(ty, TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q2K);
    let all: Vec<_> = TensorType::ALL.into_iter().filter(is_fit).collect();
    let mut random = Random(20);
    for _ in 0..12 {
        // A third are F32, which do not run on tensor cores.
        let types = std::array::from_fn(|_| match random.below(3) {
            0 => TensorType::F32,
            _ => all[random.below(all.len() as u32) as usize],
        });
        let mut is = || random.below(2) == 0;
        let shape = Shape {
            types,
            biases: is(),
            post_norms: is(),
            taps: is().then_some(3),
            layers: 3,
            ..Shape::llama(TensorType::Q4K)
        };
        check(&format!("{shape:?}"), &shape, KvType::F32, HALF);
    }
}

#[gpu_test]
fn every_feature_agrees_with_the_oracle() {
    let base = Shape::llama(TensorType::F32);
    let qwen = Shape {
        biases: true,
        head_norms: true,
        pairs: RopePairs::Halves,
        layers: 3,
        heads: HeadShape { heads: 14, kv_heads: 2, head_dim: 40 },
        pairs_count: 16,
        ..base.clone()
    };
    check("biases, head norms, partial rope, groups of 7", &qwen, KvType::F32, EXACT);
    let gemma = Shape {
        post_norms: true,
        head_norms: true,
        activation: Activation::GeluTanh,
        pairs: RopePairs::Halves,
        heads: HeadShape { heads: 4, kv_heads: 1, head_dim: 256 },
        pairs_count: 128,
        window: Some(50),
        ..base.clone()
    };
    check("post norms, gelu, window, heads of 256", &gemma, KvType::F32, EXACT);
    check("the same", &gemma, KvType::F16, 1e-2);
    let many = Shape {
        heads: HeadShape { heads: 24, kv_heads: 2, head_dim: 128 },
        pairs_count: 64,
        window: Some(200),
        ..base.clone()
    };
    check("groups of 12, heads of 128", &many, KvType::F32, EXACT);
    let lfm = Shape { taps: Some(3), layers: 4, ..base.clone() };
    check("short convolutions of 3", &lfm, KvType::F32, EXACT);
    let lfm = Shape { taps: Some(4), layers: 2, biases: true, ..base };
    check("short convolutions of 4", &lfm, KvType::F32, EXACT);
}

#[gpu_test]
fn wide_rows_agree_with_the_oracle() {
    // Wider than the staged columns, and not a multiple of them.
    let shape = Shape { hidden: 4128, layers: 1, ..Shape::llama(TensorType::Q4_0) };
    check("hidden of 4128", &shape, KvType::F32, HALF);
    let shape = Shape { hidden: 2100, width: 54, layers: 1, ..Shape::llama(TensorType::F16) };
    check("hidden of 2100, width of 54", &shape, KvType::F32, HALF);
    let shape = Shape { hidden: 2100, width: 54, layers: 1, ..Shape::llama(TensorType::BF16) };
    check("the same in bf16", &shape, KvType::F32, HALF);
    let shape = Shape { hidden: 2100, width: 52, layers: 1, ..Shape::llama(TensorType::F32) };
    check("the same in f32", &shape, KvType::F32, EXACT);
    let shape = Shape { vocab: 10_003, layers: 1, ..Shape::llama(TensorType::Q6K) };
    check("a vocabulary of 10,003", &shape, KvType::F32, HALF);
}

#[gpu_test]
fn wide_and_uneven_rows_with_post_norms_agree_with_the_oracle() {
    // More than four numbers for each thread of `add_norm`, and not a multiple of four.
    for width in [4_160, 54] {
        let shape = Shape {
            width,
            hidden: 64,
            vocab: 64,
            post_norms: true,
            layers: 1,
            ..Shape::llama(TensorType::BF16)
        };
        check(&format!("post norms, width of {width}"), &shape, KvType::F32, HALF);
    }
}
