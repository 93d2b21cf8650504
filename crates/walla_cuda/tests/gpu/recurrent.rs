//! Gated DeltaNet and gates: parity with the oracle, states, and bits in any batch.

use walla_device::{CacheCommand, DeltaShape, KvType};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::{Random, Shape};
use crate::parity::{EXACT, HALF, check, distance, tokens};
use crate::rig::{LAYOUT, Piece, Rig};
use crate::{bits, gpu, oracle};

const SMALL: DeltaShape = DeltaShape { key_heads: 2, value_heads: 4, head_dim: 32, taps: 4 };

fn with(delta: DeltaShape, ty: TensorType) -> Shape {
    Shape { delta: Some(delta), gates: true, ..Shape::llama(ty) }
}

#[gpu_test]
fn delta_nets_agree_with_the_oracle() {
    let shapes = [
        SMALL,
        // A strip that is half full.
        DeltaShape { key_heads: 3, value_heads: 3, head_dim: 16, taps: 2 },
        DeltaShape { key_heads: 1, value_heads: 3, head_dim: 48, taps: 4 },
        DeltaShape { key_heads: 1, value_heads: 2, head_dim: 128, taps: 8 },
        DeltaShape { key_heads: 1, value_heads: 1, head_dim: 256, taps: 1 },
    ];
    for delta in shapes {
        let shape = with(delta, TensorType::F32);
        check(&format!("{delta:?}"), &shape, KvType::F32, EXACT);
        // The norm of its heads without a gate, and biases.
        let shape = Shape { gates: false, biases: true, ..shape };
        check(&format!("{delta:?}, no gates"), &shape, KvType::F32, EXACT);
    }
}

#[gpu_test]
fn gates_after_products_on_tensor_cores_agree_with_the_oracle() {
    let [q4, q8, f32] = [TensorType::Q4K, TensorType::Q8_0, TensorType::F32];
    // Gate and inputs of one type or of two, alpha and beta on tensor cores or not.
    for types in [
        [q8; 8],
        [q8, q8, f32, q8, q8, q8, q8, q8],
        [q8, f32, q8, q8, f32, q8, q8, q8],
        [q4, q8, f32, q4, q4, q4, TensorType::Q6K, q8],
    ] {
        // Rows of 256 values: a block of Q4_K.
        let shape = Shape { types, layers: 3, ..with(DeltaShape { value_heads: 8, ..SMALL }, q4) };
        check(&format!("{types:?}"), &shape, KvType::F32, HALF);
    }
}

#[gpu_test]
fn states_are_copied_and_cleared() {
    let device = gpu();
    let shape = with(DeltaShape { head_dim: 128, ..SMALL }, TensorType::F32);
    let mut rigs =
        [Rig::new(device, &shape, KvType::F32, 2), Rig::new(oracle(), &shape, KvType::F32, 2)];
    let text = tokens(515, 60, 4);
    let compare = |rigs: &mut [Rig; 2], piece: Piece, what: &str| {
        let [a, b] = rigs.each_mut().map(|rig| rig.step(std::slice::from_ref(&piece), 0));
        let distance = distance(&a, &b);
        assert!(distance < EXACT, "{what}: {distance:.2e}");
        a.logits.iter().map(|row| bits(row)).collect::<Vec<_>>()
    };
    compare(&mut rigs, Piece::new(0, 0, &text[..30]), "prompt");
    let pages = LAYOUT.pages_per_sequence;
    let mut commands: Vec<_> =
        (0..pages).map(|i| CacheCommand::CopyPage { from: 1 + i, to: 1 + 3 * pages + i }).collect();
    commands.push(CacheCommand::CopySequence { from: 0, to: 3 });
    rigs.iter_mut().for_each(|rig| rig.run_cache_ops(&commands));
    let copied = compare(&mut rigs, Piece::new(3, 30, &text[30..50]), "copied");
    let original = compare(&mut rigs, Piece::new(0, 30, &text[30..50]), "original");
    assert_eq!(copied, original);
    // A state is zero before position 0, cleared or not.
    let anew = compare(&mut rigs, Piece::new(3, 0, &text[..30]), "anew");
    let clear = [CacheCommand::ClearSequence { sequence: 0 }];
    rigs.iter_mut().for_each(|rig| rig.run_cache_ops(&clear));
    let cleared = compare(&mut rigs, Piece::new(0, 0, &text[..30]), "cleared");
    assert_eq!(anew, cleared);
}

/// The rows of a prompt pass a state one by one, in steps of any size, next to any other rows.
#[gpu_test]
fn rows_of_a_delta_net_do_not_depend_on_the_batch() {
    for ty in [TensorType::Q8_0, TensorType::F32] {
        crate::determinism::compare("DeltaNet", &with(SMALL, ty), 6);
    }
}

#[gpu_test]
fn a_prompt_in_any_pieces_leaves_the_same_state() {
    let device = gpu();
    let shape = with(SMALL, TensorType::Q8_0);
    let mut rig = Rig::new(device, &shape, KvType::F16, 5);
    let text = tokens(515, 64, 8);
    let mut random = Random(3);
    let mut expected = None;
    for turn in 0..6 {
        let mut at = 0;
        let mut last = vec![];
        while at < text.len() {
            let wanted = if turn == 0 { text.len() } else { 1 + random.below(40) as usize };
            let count = wanted.min(text.len() - at);
            let outcome = rig.step(&[Piece::new(0, at as u32, &text[at..at + count])], 0);
            last = bits(&outcome.logits[0]);
            at += count;
        }
        assert_eq!(&last, expected.get_or_insert_with(|| last.clone()), "turn {turn}");
    }
}
