//! Mixtures of experts: every type of matrix against the CPU's scalar variant, and the bits of a
//! row in any batch.
//!
//! A row chooses other experts if its hidden state differs by a rounding. Where results are
//! compared with the oracle, all matrices before the experts are therefore F32.

use walla_cuda::CudaBackend;
use walla_device::{DeviceError, KvType};
use walla_reference_test::gpu_test;
use walla_types::{Activation, ExpertScore, TensorType};

use crate::determinism::compare;
use crate::model::{Experts, Shape};
use crate::parity::{check, distance, tokens};
use crate::rig::{LONG, Piece, Rig};
use crate::{bits, gpu, gpu_of, oracle};

// Rows of x, h and weights are rounded to f16, and each row adds several experts.
const HALF: f64 = 2e-2;
// Numbers of Q2_K are rounded to 8 bits when they are loaded.
const BYTES: f64 = 8e-2;
/// Batches per shape in comparisons of bits.
const MIXES: u32 = 8;

/// One layer of experts after an attention layer without rounding.
fn exact(ty: TensorType, experts: Experts) -> Shape {
    let types = [TensorType::F32; 8];
    Shape { types, layers: 1, experts: Some(experts), ..Shape::llama(ty) }
}

/// Types whose kernels read experts.
fn types() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.into_iter().filter(|ty| *ty != TensorType::F32)
}

#[gpu_test]
fn experts_of_every_type_agree_with_the_oracle() {
    for ty in types() {
        let tolerance = if ty == TensorType::Q2K { BYTES } else { HALF };
        check(ty.name(), &exact(ty, Experts::of(ty)), KvType::F32, tolerance);
    }
}

#[gpu_test]
fn any_choice_of_experts_agrees_with_the_oracle() {
    let (f32, f16, bf16) = (TensorType::F32, TensorType::F16, TensorType::BF16);
    let q8 = TensorType::Q8_0;
    for (count, used, score, is_biased, router) in [
        (1, 1, ExpertScore::Softmax, false, f32),
        (5, 5, ExpertScore::Softmax, true, f16),
        (40, 1, ExpertScore::Softmax, false, bf16),
        (40, 4, ExpertScore::Sigmoid, true, f32),
        (130, 8, ExpertScore::Softmax, false, f32),
        (33, 32, ExpertScore::Sigmoid, false, bf16),
    ] {
        let types = [router, q8, q8, q8];
        let experts = Experts { count, used, score, is_biased, types, ..Experts::of(q8) };
        let shape = Shape { hidden: 64, ..exact(q8, experts) };
        check(&format!("{experts:?}"), &shape, KvType::F32, HALF);
    }
}

/// Gate and up in another type than down, as in Q4_K_M; matrices whose columns have runs of
/// different lengths; GeLU; a network next to the experts, which reads the same packed rows.
#[gpu_test]
fn experts_of_other_shapes_agree_with_the_oracle() {
    let (q4, q6) = (TensorType::Q4K, TensorType::Q6K);
    let mixed = Experts { types: [TensorType::F32, q4, q4, q6], ..Experts::of(q4) };
    check("Q4_K and Q6_K", &exact(q4, mixed), KvType::F32, HALF);
    let q8 = TensorType::Q8_0;
    let wide = Shape {
        width: 1_824,
        hidden: 736,
        vocab: 64,
        activation: Activation::GeluTanh,
        ..exact(q8, Experts { count: 4, ..Experts::of(q8) })
    };
    check("15 and 6 segments", &wide, KvType::F32, HALF);
    let shared = exact(q8, Experts { is_shared: true, ..Experts::of(q8) });
    check("a shared expert in F32", &shared, KvType::F32, HALF);
    let [a, b, c, d, .., h] = shared.types;
    let types = [a, b, c, d, q8, q8, q8, h];
    check("a shared expert", &Shape { types, ..shared }, KvType::F32, HALF);
}

/// Projections pack rows for the norm of the experts, and experts for the next norm.
#[gpu_test]
fn a_row_of_experts_does_not_depend_on_its_batch_or_bucket() {
    let sigmoid = |ty| Experts { score: ExpertScore::Sigmoid, is_biased: true, ..Experts::of(ty) };
    let shared = |ty| Experts { is_shared: true, dense_layers: 1, ..Experts::of(ty) };
    let (q4, q8, f16) = (TensorType::Q4K, TensorType::Q8_0, TensorType::F16);
    for (ty, experts) in [(q4, Experts::of(q4)), (q8, shared(q8)), (f16, sigmoid(f16))] {
        let shape = Shape { layers: 3, taps: Some(3), experts: Some(experts), ..Shape::llama(ty) };
        compare(&format!("experts of {}", ty.name()), &shape, MIXES);
    }
}

/// Up to 400 rows per expert: several items and passes. The first rows have the bits of rows that
/// are read alone.
#[gpu_test]
fn experts_of_hundreds_of_rows_match_the_oracle_and_rows_alone() {
    let ty = TensorType::Q4_0;
    let experts = Experts { count: 6, used: 2, ..Experts::of(ty) };
    let shape = Shape { vocab: 64, hidden: 160, ..exact(ty, experts) };
    let text = tokens(shape.vocab, 400, 9);
    let rig = |device| Rig::with_steps(device, &shape, KvType::F16, (3, false), LONG);
    let piece = |sequence, at: usize, end: usize| Piece {
        all_outputs: end - at <= 60,
        ..Piece::new(sequence, at as u32, &text[at..end])
    };
    // The tokens of the second sequence are equal.
    let equal = Piece::new(1, 0, &[7; 50]);
    let pieces = [piece(0, 0, 60), equal, piece(2, 0, 400)];
    let expected = rig(oracle()).step(&pieces, 0);
    let device = gpu();
    let mut cuda = rig(device);
    let found = cuda.step(&pieces, 0);
    let distance = distance(&found, &expected);
    assert!(distance < HALF, "{distance:.2e}");
    for (at, end) in [(0, 1), (1, 2), (2, 9), (9, 60)] {
        let parts = cuda.step(&[piece(3, at, end)], 0).logits;
        for (position, row) in (at..end).zip(&parts) {
            assert_eq!(bits(row), bits(&found.logits[position]), "position {position}");
        }
    }
}

/// Mixtures without kernels are refused when programs are prepared.
#[gpu_test]
fn mixtures_without_kernels_are_refused() {
    let [f32, f16, q8, q4] = [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_0];
    let with = |types| exact(q8, Experts { types, ..Experts::of(q8) });
    let used = exact(q8, Experts { count: 40, used: 33, ..Experts::of(q8) });
    for (shape, wanted) in [
        (with([f32, f32, f32, q8]), "experts of type F32"),
        (with([f32, q8, q4, q8]), "experts with gates of type Q8_0 and ups of Q4_0"),
        (Shape { hidden: 72, ..with([f32, f16, f16, f16]) }, "experts of 72 rows"),
        (used, "33 of 40 experts per token"),
    ] {
        let device = gpu_of(CudaBackend::from_env());
        let Err(DeviceError::Unsupported { what, .. }) =
            Rig::try_with_steps(device, &shape, KvType::F16, (3, false), LONG)
        else {
            panic!("{wanted}")
        };
        assert!(what.starts_with(wanted), "{what}");
    }
}
