use walla_cuda::CudaBackend;
use walla_device::{HeadShape, KvType};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::Shape;
use crate::parity::{distance, tokens};
use crate::rig::{LONG, Piece, Rig, WIDE};
pub use crate::steps::{compare, logits};
use crate::{bits, gpu_of, oracle};

/// For each of five types: 200 in total, and as many without WGMMA kernels.
const MIXES: u32 = 40;
/// For each of four types with large matrices.
const LARGE_MIXES: u32 = 6;

#[gpu_test]
fn a_row_does_not_depend_on_its_batch_or_bucket() {
    for ty in
        [TensorType::Q4K, TensorType::Q8_0, TensorType::BF16, TensorType::F16, TensorType::Q6K]
    {
        let shape = Shape { taps: Some(3), layers: 3, ..Shape::llama(ty) };
        compare(ty.name(), &shape, MIXES);
    }
}

/// Matrices with many tiles, and with splits of two runs: runs of four segments each; of five and
/// four, and in the last split three and none; or of five, four and two. The last are reduced
/// through the split-K workspace if rows are many.
#[gpu_test]
fn rows_of_large_matrices_do_not_depend_on_batch_or_bucket() {
    for ty in [TensorType::Q4K, TensorType::Q6K, TensorType::Q8_0, TensorType::BF16] {
        for hidden in [8_192, 8_448, 8_960] {
            let shape = Shape { width: 256, hidden, vocab: 8_300, layers: 1, ..Shape::llama(ty) };
            compare(&format!("{}, hidden of {hidden}", ty.name()), &shape, LARGE_MIXES);
        }
    }
}

/// Query, key and value of two types: they have the same splits, although each alone would have
/// others. Blocks compute the gate in two waves of eight segments; the second is a half wave.
#[gpu_test]
fn rows_of_large_matrices_of_two_types_do_not_depend_on_batch_or_bucket() {
    let (q4, q6) = (TensorType::Q4K, TensorType::Q6K);
    let shape = Shape {
        width: 1_024,
        hidden: 8_960,
        heads: HeadShape { heads: 64, kv_heads: 8, head_dim: 64 },
        layers: 1,
        types: [q4, q4, q6, q4, q4, q4, q6, q6],
        ..Shape::llama(q4)
    };
    compare("Q4_K and Q6_K", &shape, LARGE_MIXES);
}

/// Post norms, whose kernel packs rows for the next norm, and types of rows that are not a multiple
/// of 256, as in small Gemma models: query and key are Q5_0, values Q8_0.
#[gpu_test]
fn rows_with_post_norms_do_not_depend_on_batch_or_bucket() {
    let (q5, q8) = (TensorType::Q5_0, TensorType::Q8_0);
    let shape = Shape {
        width: 160,
        hidden: 256,
        heads: HeadShape { heads: 4, kv_heads: 1, head_dim: 256 },
        pairs_count: 128,
        window: Some(50),
        head_norms: true,
        post_norms: true,
        types: [q5, q5, q8, q5, q5, q5, q5, q8],
        ..Shape::llama(q5)
    };
    compare("post norms, Q5_0 and Q8_0", &shape, MIXES);
}

/// More rows than a block of a product takes, than a word of attention's lists holds, and than the
/// sampler samples at once. A prompt of 500 tokens in two steps, batched with others, matches the
/// oracle, and is bitwise identical when it is read in pieces.
#[gpu_test]
fn steps_of_hundreds_of_rows_match_the_oracle_and_chunked_steps() {
    let shape = Shape {
        width: 128,
        hidden: 256,
        vocab: 64,
        heads: HeadShape { heads: 2, kv_heads: 1, head_dim: 64 },
        pairs_count: 32,
        layers: 1,
        ..Shape::llama(TensorType::Q8_0)
    };
    let text = tokens(shape.vocab, 500, 9);
    let piece = |sequence, at: usize, end: usize, all_outputs| Piece {
        all_outputs,
        ..Piece::new(sequence, at as u32, &text[at..end])
    };
    let steps = [
        vec![piece(0, 0, 100, true), piece(1, 0, 20, true), piece(2, 0, 3, false)],
        vec![piece(3, 0, 70, false), piece(0, 100, 500, false), piece(1, 20, 61, false)],
    ];
    let rig = |device| Rig::with_steps(device, &shape, KvType::F16, (3, false), LONG);
    let mut cpu = rig(oracle());
    let expected: Vec<_> = steps.iter().map(|pieces| cpu.step(pieces, 0)).collect();
    for backend in [CudaBackend::from_env(), CudaBackend::from_env().without_warpgroups()] {
        let device = gpu_of(backend);
        let mut cuda = rig(device);
        let found: Vec<_> = steps.iter().map(|pieces| cuda.step(pieces, 0)).collect();
        for (found, expected) in found.iter().zip(&expected) {
            let distance = distance(found, expected);
            assert!(distance < 2e-2, "{distance:.2e}");
        }
        // Sequence 4 reads the same text as sequence 0.
        for at in (0..500).step_by(63) {
            let end = 500.min(at + 63);
            let outcome = cuda.step(&[piece(4, at, end, true)], 0);
            for (position, row) in (at..end).zip(&outcome.logits) {
                let at_once = match position {
                    0..100 => &found[0].logits[position],
                    499 => &found[1].logits[1],
                    _ => continue,
                };
                let same = row.iter().zip(at_once).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "position {position}");
            }
        }
    }
}

/// Every type in steps of hundreds of rows, whose WGMMA products take 64 or 128 rows a block,
/// against steps of one row: splits of two runs, the last shorter; one split of two runs; two types
/// in one launch. Without WGMMA kernels (the emulator) only one small shape.
#[gpu_test]
fn rows_of_steps_of_hundreds_of_rows_equal_rows_of_steps_of_one() {
    let (q4, q6) = (TensorType::Q4K, TensorType::Q6K);
    let of = |ty| Shape { width: 256, hidden: 8_960, layers: 1, ..Shape::llama(ty) };
    let types = [q4, TensorType::Q5K, q6, TensorType::Q8_0, TensorType::Q4_0, TensorType::Q5_0];
    let shapes = types.into_iter().chain([TensorType::F16]).map(|ty| (ty.name(), of(ty)));
    let pair = Shape {
        width: 1_024,
        hidden: 2_048,
        heads: HeadShape { heads: 64, kv_heads: 8, head_dim: 64 },
        layers: 1,
        types: [q4, q4, q6, q4, q4, q4, q6, q6],
        ..Shape::llama(q4)
    };
    let small = Shape { hidden: 512, ..of(q4) };
    let device = gpu_of(CudaBackend::from_env());
    let image = device.info().gpu.as_ref().map(|gpu| gpu.kernel_image.clone());
    let has_wgmma = image.is_some_and(|image| image.starts_with("sm_90a"));
    drop(device);
    let large = shapes.chain([("Q4_K and Q6_K", pair)]).filter(|_| has_wgmma);
    for (name, shape) in large.chain([("small Q4_K", small)]) {
        let text = tokens(shape.vocab, 412, 9);
        let piece = |sequence, at: usize, end: usize, all_outputs| Piece {
            all_outputs,
            ..Piece::new(sequence, at as u32, &text[at..end])
        };
        let mut alone = None;
        for backend in [CudaBackend::from_env(), CudaBackend::from_env().without_warpgroups()] {
            let device = gpu_of(backend);
            let mut rig = Rig::with_steps(device, &shape, KvType::F16, (3, false), WIDE);
            let pieces = [piece(1, 0, 412, false), piece(6, 0, 76, false), piece(0, 0, 24, true)];
            let found = rig.step(&pieces, 0).logits.split_off(2);
            let expected = alone.get_or_insert_with(|| {
                let row = |at| rig.step(&[piece(2, at, at + 1, true)], 0).logits.remove(0);
                (0..24).map(row).collect::<Vec<_>>()
            });
            let same = |found: &[Vec<f32>], what: &str| {
                for (position, (row, expected)) in found.iter().zip(&*expected).enumerate() {
                    assert_eq!(bits(row), bits(expected), "{name}, {what}, position {position}");
                }
            };
            same(&found, "512 rows");
            let first = rig.step(&[piece(3, 0, 24, true), piece(7, 0, 48, false)], 0).logits;
            same(&first[..24], "72 rows");
            let later = rig.step(&[piece(4, 0, 24, true), piece(5, 0, 126, false)], 0).logits;
            same(&later[..24], "150 rows");
        }
    }
}
