//! Embeddings of each layer, shared keys and values, norms of values, scaled layers, bounded
//! logits, large heads, and scores that grow with the position.

use walla_cuda::CudaBackend;
use walla_device::{HeadShape, KvType};
use walla_reference_test::gpu_test;
use walla_types::{Activation, PositionScale, RopePairs, TensorType};

use crate::model::Shape;
use crate::parity::{EXACT, HALF, check, tokens};
use crate::rig::{Piece, Rig};
use crate::{bits, gpu, gpu_of};

/// A model with all features of Gemma 4.
pub fn gemma4(ty: TensorType) -> Shape {
    let part = if ty.block_elements() == 256 { 256 } else { 32 };
    Shape {
        layer_inputs: Some(part),
        post_norms: true,
        head_norms: true,
        bounded: true,
        activation: Activation::GeluTanh,
        pairs: RopePairs::Halves,
        layers: 4,
        ..Shape::llama(ty)
    }
}

#[gpu_test]
fn layers_with_inputs_agree_with_the_oracle() {
    let base = gemma4(TensorType::F32);
    check("layer inputs", &base, KvType::F32, EXACT);
    // Parts that begin in the middle of a segment; scaled layers without post norms.
    let shape = Shape { layer_inputs: Some(20), post_norms: false, ..base };
    check("layer inputs of 20, no post norms", &shape, KvType::F32, EXACT);
    // Rounding errors grow from layer to layer.
    for ty in [TensorType::Q8_0, TensorType::Q4K] {
        check(ty.name(), &Shape { layers: 2, ..gemma4(ty) }, KvType::F16, HALF);
    }
}

/// Tables in host memory change neither bits nor the device memory of other weights.
#[gpu_test]
fn tables_in_host_memory_give_the_same_bits() {
    let shape = Shape { layers: 2, ..gemma4(TensorType::Q4K) };
    let pieces = [0, 1].map(|i| Piece::new(i, 0, &tokens(shape.vocab, 9 + i as usize, i.into())));
    let mut of_device = None;
    for bytes_min in [usize::MAX, 1] {
        let backend = CudaBackend::from_env().host_table_bytes_min(bytes_min);
        let device = gpu_of(backend);
        let mut rig = Rig::new(device, &shape, KvType::F16, 3);
        let found = rig.step(&pieces, 0).logits.iter().map(|row| bits(row)).collect::<Vec<_>>();
        let used = rig.device.memory();
        let (expected, without) = of_device.get_or_insert_with(|| (found.clone(), used));
        assert_eq!(&found, expected);
        let moved = without.weight_bytes - used.weight_bytes;
        assert_eq!(moved, used.host_table_bytes.next_multiple_of(256));
        assert_eq!(used.host_bytes, without.host_bytes + used.host_table_bytes);
        assert_eq!(moved > 0, bytes_min == 1);
    }
}

#[gpu_test]
fn heads_of_512_agree_with_the_oracle() {
    for (heads, kv_type, limit) in [
        (HeadShape { heads: 8, kv_heads: 1, head_dim: 512 }, KvType::F32, EXACT),
        (HeadShape { heads: 2, kv_heads: 2, head_dim: 512 }, KvType::F16, HALF),
        (HeadShape { heads: 3, kv_heads: 1, head_dim: 320 }, KvType::Q8, HALF),
    ] {
        let shape = Shape {
            heads,
            pairs_count: heads.head_dim / 2,
            window: Some(70),
            ..gemma4(TensorType::F32)
        };
        check(&format!("{heads:?}"), &shape, kv_type, limit);
    }
}

#[gpu_test]
fn growing_scores_agree_with_the_oracle() {
    let position_scale = Some(PositionScale { slope: 0.7, period_tokens: 16 });
    for ty in [TensorType::F32, TensorType::Q8_0] {
        let shape = Shape { position_scale, ..Shape::llama(ty) };
        let limit = if ty == TensorType::F32 { EXACT } else { HALF };
        check(&format!("{ty}"), &shape, KvType::F32, limit);
    }
}

/// Suppressed tokens are neither sampled nor candidates, at any temperature.
#[gpu_test]
fn suppressed_tokens_are_never_sampled() {
    let device = gpu();
    let mut rig = Rig::new(device, &gemma4(TensorType::Q8_0), KvType::F16, 3);
    let text = tokens(515, 8, 2);
    let is_emulated = std::env::var_os("WALLA_EMULATED_CAPABILITY").is_some();
    for seed in 0..if is_emulated { 8 } else { 40 } {
        let mut piece = Piece::new(0, 0, &text);
        piece.sampling.temperature = 5.0;
        piece.sampling.seed = [seed, 1];
        piece.sampling.candidates = 16;
        let outcome = rig.step(&[piece], 0);
        let candidates = outcome.candidates[0].iter().map(|candidate| candidate.token);
        let all = candidates.chain([outcome.rows[0].token]);
        for token in all {
            assert!(!(5..75).contains(&token) && token != 514, "seed {seed}: {token}");
        }
        let suppressed = &outcome.logits[0][5..75];
        assert!(suppressed.iter().all(|logit| *logit == f32::NEG_INFINITY));
        let others = outcome.logits[0].iter().filter(|logit| logit.is_finite());
        assert!(others.clone().all(|logit| logit.abs() <= 3.0) && others.count() == 515 - 71);
    }
}
