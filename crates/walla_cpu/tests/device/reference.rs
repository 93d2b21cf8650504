//! A small whole decoder on the device, compared with the same decoder in f64.

use crate::support::{Harness, Random, Row, Shape, VOCAB, greedy, whole};
use walla_cpu::{CpuOptions, Variant};
use walla_device::KvType;
use walla_types::{Activation, RopePairs, TensorType};

fn tokens(count: usize, seed: u32) -> Vec<i32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(VOCAB) as i32).collect()
}

fn worst(got: &[Vec<f32>], wanted: &[Vec<f64>]) -> f64 {
    assert_eq!(got.len(), wanted.len());
    let pairs = got.iter().flatten().zip(wanted.iter().flatten());
    pairs.map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max)
}

fn spread(wanted: &[Vec<f64>]) -> f64 {
    let all: Vec<f64> = wanted.iter().flatten().copied().collect();
    (all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64).sqrt()
}

#[test]
fn the_decoder_agrees_with_f64_for_every_exact_type() {
    for variant in Variant::ALL.iter().copied().filter(|variant| variant.score().is_some()) {
        for (i, ty) in [TensorType::F32, TensorType::F16, TensorType::BF16].into_iter().enumerate()
        {
            let pairs = [RopePairs::Halves, RopePairs::Interleaved][i % 2];
            let activation = [Activation::Silu, Activation::GeluTanh][i % 2];
            let shape = Shape { pairs, activation, kv_type: KvType::F32, ..Shape::small(ty) };
            let options = CpuOptions { variant: Some(variant), ..Default::default() };
            let mut harness = Harness::new(options, shape);
            let tokens = tokens(38, 5);
            let wanted = harness.reference(&tokens);
            let (got, _) = harness.run(&whole(2, &tokens), &greedy());
            let error = worst(&got, &wanted) / spread(&wanted);
            assert!(error < 1e-4, "{variant} {ty}: {error}");
        }
    }
}

/// Head and page sizes that are multiples of a register take another code path than the odd sizes
/// above; 8-bit keys and values take a third.
#[test]
fn attention_agrees_with_f64_for_every_kv_type() {
    for variant in Variant::ALL.iter().copied().filter(|variant| variant.score().is_some()) {
        for (head_dim, page_tokens) in [(16, 16), (48, 16), (64, 32), (24, 5)] {
            // Half a step of 8 bits is 8 times half a step of f16's 11 bits: 1/254 of a head's
            // largest number compared with 1/2048.
            for (kv_type, bound) in [(KvType::F16, 0.01), (KvType::Q8, 0.1)] {
                let window = Some(if head_dim == 48 { 21 } else { 7 });
                let shape =
                    Shape { head_dim, page_tokens, window, ..Shape::small(TensorType::F32) };
                let options = CpuOptions { variant: Some(variant), ..Default::default() };
                let mut harness = Harness::new(options, Shape { kv_type, ..shape });
                let tokens = tokens(40, 5);
                let wanted = harness.reference(&tokens);
                let (got, _) = harness.run(&whole(2, &tokens), &greedy());
                let error = worst(&got, &wanted) / spread(&wanted);
                assert!(error < bound, "{variant} {head_dim} {page_tokens} {kv_type:?}: {error}");
            }
        }
    }
}

#[test]
fn chunks_and_single_tokens_give_the_same_bits_as_the_whole() {
    // Odd head and page sizes, and multiples of a register, whose tiles have several rows; each
    // with every KV type.
    let odd = Shape::small(TensorType::Q8_0);
    let registers = Shape { head_dim: 64, page_tokens: 16, ..Shape::small(TensorType::F16) };
    let shapes = [odd, registers, Shape { window: Some(21), ..registers }];
    for variant in Variant::ALL.iter().copied().filter(|variant| variant.score().is_some()) {
        for shape in shapes {
            for kv_type in [KvType::F32, KvType::F16, KvType::Q8] {
                check_chunks(variant, Shape { kv_type, ..shape });
            }
        }
    }
}

fn check_chunks(variant: Variant, shape: Shape) {
    let options = CpuOptions { variant: Some(variant), ..Default::default() };
    let tokens = tokens(30, 6);
    let rows = whole(3, &tokens);
    let mut harness = Harness::new(options, shape);
    let (all, drawn) = harness.run(&rows, &greedy());
    let mut pieces = Vec::new();
    for chunk in [&rows[..7], &rows[7..8], &rows[8..9], &rows[9..10], &rows[10..27], &rows[27..]] {
        pieces.extend(harness.run(chunk, &greedy()).0);
    }
    assert!(all == pieces, "{variant} {shape:?}");
    let mut single = Vec::new();
    for row in &rows {
        single.extend(harness.run(std::slice::from_ref(row), &greedy()).0);
    }
    assert!(all == single, "{variant} {shape:?}");
    let best = |logits: &Vec<f32>| {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        logits.iter().position(|l| *l == max).unwrap() as u32
    };
    assert_eq!(drawn, all.iter().map(best).collect::<Vec<_>>());
}

#[test]
fn the_sampled_token_is_input_of_the_next_step() {
    let prompt = tokens(4, 7);
    let next = |token: Option<i32>| {
        let mut harness = Harness::new(CpuOptions::default(), Shape::small(TensorType::F16));
        let (_, drawn) = harness.run(&whole(1, &prompt), &greedy());
        let token = token.unwrap_or(drawn[3] as i32);
        harness.run(&[Row(1, 4, token, true)], &greedy())
    };
    assert_eq!(next(Some(-1)), next(None));
    assert_ne!(next(Some(-1)).0, next(Some(3)).0);
}
