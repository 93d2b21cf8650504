//! Attention on tensor cores: f16 and 8-bit pages; heads of 64, 128 and 256.

use walla_device::{CacheCommand, HeadShape, KvType};
use walla_reference_test::gpu_test;
use walla_types::{RopePairs, TensorType};

use crate::determinism::logits;
use crate::model::{Random, Shape};
use crate::parity::{check, check_steps, distance, tokens};
use crate::rig::{Piece, Rig, far};
use crate::{bits, gpu, is_emulated, oracle};

/// Shapes with heads that the tensor-core kernels support: groups of 1 to 12, windows, norms,
/// partial rotary embeddings. Everything else is exact f32.
fn shapes() -> Vec<(&'static str, Shape)> {
    let base = Shape { layers: 2, ..Shape::llama(TensorType::F32) };
    let heads = |heads, kv_heads, head_dim| HeadShape { heads, kv_heads, head_dim };
    vec![
        ("groups of 4", Shape { heads: heads(8, 2, 64), pairs_count: 32, ..base.clone() }),
        (
            "groups of 1, halves",
            Shape {
                heads: heads(3, 3, 64),
                pairs: RopePairs::Halves,
                pairs_count: 20,
                ..base.clone()
            },
        ),
        (
            "groups of 12, norms",
            Shape { heads: heads(12, 1, 64), pairs_count: 32, head_norms: true, ..base.clone() },
        ),
        (
            "heads of 128, norms, window",
            Shape {
                heads: heads(4, 2, 128),
                pairs: RopePairs::Halves,
                pairs_count: 64,
                head_norms: true,
                window: Some(100),
                ..base.clone()
            },
        ),
        (
            "heads of 256, window",
            Shape { heads: heads(4, 1, 256), pairs_count: 128, window: Some(50), ..base.clone() },
        ),
        ("groups of 7", Shape { heads: heads(14, 2, 64), pairs_count: 32, biases: true, ..base }),
    ]
}

fn shapes_and_types() -> impl Iterator<Item = ((&'static str, Shape), KvType)> {
    shapes().into_iter().flat_map(|shape| [KvType::F16, KvType::Q8].map(|kv| (shape.clone(), kv)))
}

fn shape_named(name: &str) -> Shape {
    shapes().into_iter().find(|(its, _)| *its == name).unwrap().1
}

fn agrees_with_the_oracle(name: &str) {
    let shape = shape_named(name);
    // Queries and weights are rounded to f16 (11 bits): some 2e-4 of an attention's output.
    check(name, &shape, KvType::F16, 5e-3);
    // A number halfway between two integers may round to either: some 0.8 % of its head's largest.
    check(name, &shape, KvType::Q8, 2e-2);
}

/// One test per shape, so that the slow compute-sanitizer can run them one by one.
macro_rules! test_each {
    ($check:ident: $($test:ident: $name:literal,)*) => {
        $(
            #[gpu_test]
            fn $test() {
                $check($name);
            }
        )*
    };
}

macro_rules! agree_with_the_oracle {
    ($($test:ident: $name:literal,)*) => {
        test_each! { agrees_with_the_oracle: $($test: $name,)* }

        #[test]
        fn every_shape_has_a_test() {
            assert_eq!(shapes().iter().map(|(name, _)| *name).collect::<Vec<_>>(), [$($name),*]);
        }
    };
}

agree_with_the_oracle! {
    groups_of_4_agree_with_the_oracle: "groups of 4",
    groups_of_1_agree_with_the_oracle: "groups of 1, halves",
    groups_of_12_agree_with_the_oracle: "groups of 12, norms",
    heads_of_128_agree_with_the_oracle: "heads of 128, norms, window",
    heads_of_256_agree_with_the_oracle: "heads of 256, window",
    groups_of_7_agree_with_the_oracle: "groups of 7",
}

/// 17 to 32 rows of two groups: clusters of two blocks, with contexts of one and of two iterations.
fn clusters_of_two_blocks_agree(shape: &Shape, kv_type: KvType, tolerance: f64) {
    let text = tokens(shape.vocab, 300, 5);
    let lengths = [1, 3, 17, 63, 64, 65, 130, 290];
    let piece = |sequence, at: usize, end: usize| Piece::new(sequence, at as u32, &text[at..end]);
    let mut steps = Vec::new();
    for (sequence, length) in (0..).zip(lengths) {
        let starts = (0..length).step_by(64);
        steps.extend(starts.map(|at| (vec![piece(sequence, at, length.min(at + 64))], 0)));
    }
    for i in 0..3 {
        let rows = (0..).zip(lengths);
        let rows = rows.map(|(sequence, length)| piece(sequence, length + i, length + i + 1));
        steps.push((rows.collect(), 17));
    }
    check_steps(gpu(), "clusters of two", shape, kv_type, tolerance, &steps);
}

#[gpu_test]
fn clusters_of_two_blocks_agree_with_the_oracle() {
    clusters_of_two_blocks_agree(&shape_named("groups of 4"), KvType::F16, 5e-3);
}

#[gpu_test]
fn clusters_of_two_blocks_with_heads_of_128_agree_with_the_oracle() {
    let shape = Shape { window: None, ..shape_named("heads of 128, norms, window") };
    clusters_of_two_blocks_agree(&shape, KvType::F16, 5e-3);
    clusters_of_two_blocks_agree(&shape, KvType::Q8, 2e-2);
}

/// Packed for a product on tensor cores.
#[gpu_test]
fn packed_rows_agree_with_the_oracle() {
    let (_, shape) = shapes().remove(0);
    check("packed", &Shape { types: [TensorType::F16; 8], ..shape }, KvType::F16, 2e-2);
}

#[gpu_test]
fn a_row_does_not_depend_on_batch_bucket_chunks_or_decode_mode() {
    let mut mixes = 0;
    for ((name, shape), kv_type) in shapes_and_types() {
        let device = gpu();
        let mut rig = Rig::new(device, &shape, kv_type, 3);
        let mut random = Random(7);
        let text = tokens(shape.vocab, 300, 9);
        let expected = logits(&mut rig, &text, &mut random, true);
        for mix in 0..34 {
            for sequence in 0..5 {
                rig.run_cache_ops(&[CacheCommand::ClearSequence { sequence }]);
            }
            // Decode with the programs for one row per sequence and with the general programs.
            rig.keeps_promise = mix % 3 != 0;
            let found = logits(&mut rig, &text, &mut random, false);
            let same = found.iter().zip(&expected).filter(|(a, b)| a == b).count();
            assert_eq!(
                same,
                expected.len(),
                "{name} {kv_type:?}, mix {mix}: rows that are bit-identical"
            );
            mixes += 1;
        }
    }
    println!("{mixes} mixes bit-identical");
}

#[gpu_test]
fn row_by_row_and_batched_prefill_give_the_same_cache() {
    for ((name, shape), kv_type) in shapes_and_types() {
        let device = gpu();
        let mut rig = Rig::new(device, &shape, kv_type, 3);
        let text = tokens(shape.vocab, 140, 9);
        let mut at_once = vec![];
        for at in [0, 63, 126] {
            let mut piece = Piece::new(0, at as u32, &text[at..text.len().min(at + 63)]);
            piece.all_outputs = true;
            at_once.extend(rig.step(&[piece], 0).logits.iter().map(|row| bits(row)));
        }
        for (at, token) in text.iter().enumerate() {
            let row = rig.step(&[Piece::new(1, at as u32, &[*token])], 0);
            assert_eq!(bits(&row.logits[0]), at_once[at], "{name} {kv_type:?}, position {at}");
        }
    }
}

/// Contexts of one span and of many: KV splits store chunks or whole spans. Programs for shorter
/// contexts decode in clusters, if the GPU has them. Page tables repeat the same pages, so no long
/// text has to be read.
fn is_the_same_far_into_a_text(name: &str) {
    const READ: u32 = 640;
    let device = gpu();
    // The emulator takes a minute for two.
    let is_emulated = is_emulated(&*device);
    // In ascending order: positions that the shorter context skips must not write cells that others
    // read.
    let positions: &[u32] =
        if is_emulated { &[1_024, 2_400] } else { &[640, 1_023, 1_024, 2_112, 2_400, 4_790] };
    drop(device);
    let shape = shape_named(name);
    // The window of some shapes is long enough for splits of spans, and begins within a span.
    let shape = Shape { window: shape.window.map(|_| 2_300), layers: 1, ..shape };
    // Rows with more than 256 columns are processed as prompts.
    let rows_at_once = 256 / (shape.heads.heads / shape.heads.kv_heads).min(8) + 1;
    let text = tokens(shape.vocab, 4_800, 9);
    let piece =
        |sequence, at: u32, end: u32| Piece::new(sequence, at, &text[at as usize..end as usize]);
    for (kv_type, tolerance) in [(KvType::F16, 5e-3), (KvType::Q8, 2e-2)] {
        let rig = |device, context| {
            let mut rig = Rig::with_steps(device, &shape, kv_type, (3, false), far(context));
            for at in (0..READ).step_by(128) {
                rig.step(&[piece(0, at, at + 128)], 0);
            }
            rig.step(&(1..4).map(|other| piece(other, 0, 12)).collect::<Vec<_>>(), 0);
            rig
        };
        let mut expected = vec![];
        for context in [4_800, 2_240] {
            let device = gpu();
            let mut cuda = rig(device, context);
            let mut cpu = expected.is_empty().then(|| rig(oracle(), context));
            for (i, at) in positions.iter().copied().enumerate() {
                if at >= context {
                    continue;
                }
                // Its cells are shared with other positions of the text: they have their final
                // values once all of these have been read.
                let run = [piece(0, at + 1 - rows_at_once, at + 1)];
                let at_once = cuda.step(&run, 0);
                if let Some(cpu) = &mut cpu {
                    let off = distance(&at_once, &cpu.step(&run, 0));
                    assert!(off < tolerance, "{name} {kv_type:?}, {at}: {off:.2e}");
                    expected.push(bits(&at_once.logits[0]));
                }
                assert_eq!(bits(&at_once.logits[0]), expected[i], "{name} {kv_type:?}, {at}");
                let with_others = || {
                    let others = (1..4).map(|other| piece(other, 12, 13));
                    [piece(0, at, at + 1)].into_iter().chain(others).collect()
                };
                for (promise, pieces, rows) in [
                    (true, vec![piece(0, at, at + 1)], 1),
                    (true, with_others(), 4),
                    (true, with_others(), 16),
                    (false, vec![piece(0, at, at + 1)], 1),
                    (false, with_others(), 128),
                    (false, vec![piece(0, at - 1, at + 1)], 4),
                    (false, vec![piece(0, at - 12, at + 1)], 16),
                ] {
                    cuda.keeps_promise = promise;
                    let found = cuda.step(&pieces, rows);
                    let its = (name, kv_type, at, pieces.len(), rows, promise);
                    assert_eq!(bits(&found.logits[0]), expected[i], "{its:?}");
                }
            }
        }
    }
}

test_each! {
    is_the_same_far_into_a_text:
    rows_far_into_a_text_are_the_same_in_groups_of_4: "groups of 4",
    rows_far_into_a_text_are_the_same_in_groups_of_12: "groups of 12, norms",
    rows_far_into_a_text_are_the_same_with_heads_of_128: "heads of 128, norms, window",
    rows_far_into_a_text_are_the_same_with_heads_of_256: "heads of 256, window",
    rows_far_into_a_text_are_the_same_in_groups_of_7: "groups of 7",
}

/// Eight contexts of 12,000 cells: gate and up of many rows prefetch pages into L2 for the next
/// layer's attention. The results are the same without prefetch: in programs of few rows, and in
/// programs that allow several rows per sequence.
#[gpu_test]
fn kv_prefetch_does_not_change_results() {
    const CONTEXT: u32 = 12_288;
    for (window, kv_type) in [(None, KvType::F16), (Some(11_500), KvType::F16), (None, KvType::Q8)]
    {
        let device = gpu();
        // An 8-bit page has half the bytes.
        let kv_heads = if kv_type == KvType::Q8 { 4 } else { 2 };
        let heads = HeadShape { heads: 8, kv_heads, head_dim: 64 };
        let shape =
            Shape { hidden: 8_192, heads, window, layers: 3, ..Shape::llama(TensorType::Q4K) };
        let mut rig = Rig::with_steps(device, &shape, kv_type, (3, false), far(CONTEXT));
        let text = tokens(shape.vocab, 640, 9);
        for at in (0..640).step_by(128) {
            for sequence in 0..8 {
                rig.step(&[Piece::new(sequence, at, &text[at as usize..][..128])], 0);
            }
        }
        for at in [12_000, 12_001, 12_287] {
            let pieces: Vec<_> =
                (0..8).map(|s| Piece::new(s, at - s, &text[s as usize..][..1])).collect();
            // Its cells are shared with other positions of the text: each step finalises the cells
            // of one more layer.
            for _ in 0..shape.layers {
                rig.step(&pieces, 0);
            }
            let mut found = vec![];
            for (promise, rows) in [(true, 16), (false, 160), (true, 160), (true, 160)] {
                rig.keeps_promise = promise;
                let outcome = rig.step(&pieces, rows);
                found.push(outcome.logits.iter().map(|row| bits(row)).collect::<Vec<_>>());
            }
            assert!(found.iter().all(|its| *its == found[0]), "{window:?}, {kv_type:?}, {at}");
        }
    }
}
