use walla_device::{CacheCommand, KvType};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::Shape;
use crate::parity::{distance, tokens};
use crate::rig::{PAGE_TOKENS, Piece, Rig};
use crate::{gpu, oracle};

/// A page of a sequence, in the layout of the rig.
fn page(sequence: u32, index: u32) -> u32 {
    1 + sequence * 40 + (39 - index)
}

#[gpu_test]
fn cache_ops_match_the_oracle() {
    for kv_type in [KvType::F32, KvType::F16, KvType::Q8] {
        let device = gpu();
        let shape = Shape { taps: Some(3), layers: 4, ..Shape::llama(TensorType::F32) };
        let mut rigs =
            [Rig::new(device, &shape, kv_type, 2), Rig::new(oracle(), &shape, kv_type, 2)];
        let text = tokens(515, 100, 4);
        let penalized = |mut piece: Piece| {
            piece.sampling.temperature = 0.7;
            piece.sampling.repetition_penalty = 1.3;
            piece.sampling.penalty_window = 64;
            piece
        };
        let compare = |rigs: &mut [Rig; 2], piece: Piece, what: &str| {
            let [a, b] = rigs.each_mut().map(|rig| rig.step(std::slice::from_ref(&piece), 0));
            let distance = distance(&a, &b);
            let tolerance = match kv_type {
                KvType::F32 => 2e-4,
                KvType::F16 => 5e-3,
                // Sums in another order round some numbers of a cell to the next of 8 bits.
                _ => 4e-2,
            };
            assert!(distance < tolerance, "{kv_type:?}, {what}: {distance:.2e}");
            assert_eq!(a.rows[0].token, b.rows[0].token, "{what}");
        };
        compare(&mut rigs, penalized(Piece::new(0, 0, &text[..50])), "prompt");
        // Sequence 1 becomes a copy of sequence 0.
        for rig in &mut rigs {
            let pages = (0..4).map(|i| CacheCommand::CopyPage { from: page(0, i), to: page(1, i) });
            let pages: Vec<_> = pages.collect();
            rig.run_cache_ops(&pages);
            rig.run_cache_ops(&[CacheCommand::CopySequence { from: 0, to: 1 }]);
        }
        compare(&mut rigs, penalized(Piece::new(1, 50, &text[50..51])), "copied");
        // Positions 16..32 are removed: the following cells move down by one page, in two
        // overlapping pieces.
        for rig in &mut rigs {
            let turn = -(PAGE_TOKENS.cast_signed());
            rig.run_cache_ops(&[
                CacheCommand::MoveCells {
                    from_page: page(1, 2),
                    from_cell: 0,
                    to_page: page(1, 1),
                    to_cell: 0,
                    cells: 16,
                    turn,
                },
                CacheCommand::MoveCells {
                    from_page: page(1, 3),
                    from_cell: 0,
                    to_page: page(1, 2),
                    to_cell: 0,
                    cells: 3,
                    turn,
                },
                CacheCommand::ShiftRecent { sequence: 1, from: 32, end: 51, turn },
            ]);
        }
        compare(&mut rigs, penalized(Piece::new(1, 35, &text[51..52])), "shifted");
        // Cells 3.. of one page move down by two, in place.
        for rig in &mut rigs {
            rig.run_cache_ops(&[
                CacheCommand::MoveCells {
                    from_page: page(1, 2),
                    from_cell: 3,
                    to_page: page(1, 2),
                    to_cell: 1,
                    cells: 1,
                    turn: -2,
                },
                CacheCommand::ShiftRecent { sequence: 1, from: 35, end: 36, turn: -2 },
            ]);
        }
        compare(&mut rigs, penalized(Piece::new(1, 34, &text[52..53])), "moved in place");
        for rig in &mut rigs {
            rig.run_cache_ops(&[CacheCommand::ClearSequence { sequence: 0 }]);
        }
        compare(&mut rigs, penalized(Piece::new(0, 0, &text[60..70])), "cleared");
        // Continue with the token that the device sampled.
        compare(&mut rigs, penalized(Piece::new(0, 10, &[-1])), "continued");
    }
}

#[gpu_test]
fn cache_ops_outside_the_cache_are_refused() {
    let device = gpu();
    let mut rig = Rig::new(device, &Shape::llama(TensorType::F16), KvType::F16, 2);
    let bad = [
        CacheCommand::CopyPage { from: 1, to: 321 },
        CacheCommand::ClearSequence { sequence: 8 },
        CacheCommand::ShiftRecent { sequence: 0, from: 3, end: 9, turn: -4 },
    ];
    for command in bad {
        assert!(
            rig.device.run_cache_ops(rig.stream, rig.cache, &[command]).is_err(),
            "{command:?}"
        );
    }
}
