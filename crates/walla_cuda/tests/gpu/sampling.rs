use walla_device::step::{BiasRow, ResultRow};
use walla_device::{HeadShape, KvType, Program};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::{POISONED, Poison, Random, Shape};
use crate::parity::tokens;
use crate::rig::{LONG, Piece, Rig};
use crate::{bits, gpu, oracle};

/// Random parameters of every kind.
fn sampling(piece: &mut Piece, random: &mut Random, vocab: u32) {
    let s = &mut piece.sampling;
    let unit = |random: &mut Random| (random.number() + 1.0) / 2.0;
    s.temperature = [0.0, 0.3, 0.7, 1.0, 2.0][random.below(5) as usize];
    s.top_k = [0, 1, 2, 5, 40, 64, 65, 200, 100_000][random.below(9) as usize];
    s.top_p = [1.0, 0.95, 0.5, 0.05, 0.999][random.below(5) as usize];
    s.min_p = [0.0, 0.05, 0.5][random.below(3) as usize];
    if random.below(2) == 1 {
        s.repetition_penalty = 0.8 + unit(random);
        s.presence_penalty = unit(random);
        s.frequency_penalty = unit(random) - 0.5;
        s.penalty_window = random.below(257);
    }
    s.seed = [random.bits() as u32, random.bits() as u32];
    s.candidates = random.below(17);
    for _ in 0..random.below(4) {
        let token = random.below(vocab);
        let bias = [f32::NEG_INFINITY, -3.0, 4.0][random.below(3) as usize];
        piece.biases.push(BiasRow { token, bias });
        // One in three tokens has two biases.
        if random.below(3) == 0 {
            piece.biases.push(BiasRow { token, bias: 1.5 });
        }
    }
}

// Vocabularies in one chunk, in several with a short last one, and with groups of tokens over
// several threads.
const VOCABULARIES: [(u32, u32); 3] = [(515, 60), (9001, 60), (40_003, 12)];

#[gpu_test]
fn draws_match_the_oracle() {
    compare(&VOCABULARIES, None, &|_, _| None);
}

/// Far more equal logits than top-k keeps: the lower token ids win.
#[gpu_test]
fn draws_from_equal_logits_match_the_oracle() {
    compare(&[(515, 20), (9001, 20), (40_004, 10)], Some(7), &|_, _| None);
}

/// The vocabulary of Gemma 3.
#[gpu_test]
fn draws_from_a_large_vocabulary_match_the_oracle() {
    compare(&[(262_208, 3)], None, &|_, _| None);
}

/// Masks of every kind: few bits, half of the bits, almost all, and none in whole chunks.
#[gpu_test]
fn masked_draws_match_the_oracle_and_are_allowed() {
    compare(&VOCABULARIES, None, &|random, vocab| {
        let mut mask = vec![0_u32; vocab.div_ceil(32) as usize];
        match random.below(5) {
            0 => return None,
            1 => {}
            2 => mask.iter_mut().for_each(|word| *word = random.bits() as u32),
            3 => mask.iter_mut().for_each(|word| *word = (random.bits() | random.bits()) as u32),
            _ => mask.iter_mut().take(100).for_each(|word| *word = u32::MAX),
        }
        for _ in 0..1 + random.below(9) {
            let token = random.below(vocab);
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Some(mask)
    });
}

/// A mask of neighbouring tokens leaves many tokens in few groups of the sampler.
#[gpu_test]
fn neighboring_allowed_tokens_match_the_oracle() {
    compare(&[(20_000, 3)], None, &|random, vocab| {
        let mut mask = vec![0_u32; vocab.div_ceil(32) as usize];
        let first = random.below(400) as usize;
        let words = 35 + random.below(25) as usize;
        mask[first..first + words].fill(u32::MAX);
        Some(mask)
    });
}

fn compare(
    vocabularies: &[(u32, u32)],
    repeated_rows: Option<u32>,
    mask: &dyn Fn(&mut Random, u32) -> Option<Vec<u32>>,
) {
    let device = gpu();
    let mut device = Some(device);
    for (vocab, steps) in vocabularies.iter().copied() {
        let device = device.take().unwrap_or_else(gpu);
        let base = Shape { layers: 1, ..Shape::llama(TensorType::F32) };
        let width = if vocab > 100_000 { 32 } else { base.width };
        let shape = Shape { vocab, width, repeated_rows, ..base };
        let mut cuda = Rig::new(device, &shape, KvType::F32, 8);
        let mut cpu = Rig::new(oracle(), &shape, KvType::F32, 8);
        let mut random = Random(77);
        let (mut draws, mut others) = (0, 0);
        for step in 0..steps {
            let mut pieces = vec![];
            for sequence in 0..6 {
                let mut piece = Piece::new(sequence, step, &tokens(vocab, 1, random.bits()));
                sampling(&mut piece, &mut random, vocab);
                piece.mask = mask(&mut random, vocab);
                pieces.push(piece);
            }
            let (a, b) = (cuda.step(&pieces, 0), cpu.step(&pieces, 0));
            for (o, piece) in pieces.iter().enumerate() {
                draws += 1;
                assert_eq!(a.rows[o].flags, b.rows[o].flags);
                assert_eq!(a.rows[o].candidates, b.rows[o].candidates);
                if let Some(mask) =
                    piece.mask.as_ref().filter(|_| a.rows[o].flags == ResultRow::SAMPLED)
                {
                    let allows = |token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
                    assert!(allows(a.rows[o].token), "{} {:?}", a.rows[o].token, piece.sampling);
                    assert!(a.candidates[o].iter().all(|candidate| allows(candidate.token)));
                }
                if a.rows[o].token != b.rows[o].token {
                    // A near-tie or a cut within rounding; rare.
                    others += 1;
                    println!(
                        "step {step}: {} and {}, {:?}",
                        a.rows[o].token, b.rows[o].token, piece.sampling
                    );
                } else {
                    let (a, b) = (a.rows[o].log_probability, b.rows[o].log_probability);
                    assert!((a - b).abs() < 1e-3, "{a} {b}");
                }
                for (a, b) in a.candidates[o].iter().zip(&b.candidates[o]) {
                    assert!((a.log_probability - b.log_probability).abs() < 1e-3, "{a:?} {b:?}");
                }
            }
        }
        println!("vocabulary {vocab}: {others} of {draws} draws differ");
        assert!(others * 100 <= draws, "{others} of {draws} draws differ");
    }
}

#[gpu_test]
fn a_mask_without_bits_fails_its_own_row_only() {
    let device = gpu();
    let shape = Shape { vocab: 9001, layers: 1, ..Shape::llama(TensorType::F32) };
    let mut rig = Rig::new(device, &shape, KvType::F32, 8);
    for (temperature, top_k) in [(0.0, 0), (1.0, 40), (1.0, 0), (1.0, 500)] {
        let mut empty = Piece::new(0, 0, &[3]);
        empty.mask = Some(vec![0; 9001_usize.div_ceil(32)]);
        (empty.sampling.temperature, empty.sampling.top_k) = (temperature, top_k);
        empty.sampling.candidates = 4;
        let outcome = rig.step(&[empty, Piece::new(1, 0, &[4])], 0);
        assert_eq!(outcome.rows[0].flags, ResultRow::NOT_FINITE);
        assert_eq!(outcome.rows[1].flags, ResultRow::SAMPLED);
    }
}

#[gpu_test]
fn more_outputs_than_rows_are_refused() {
    let device = gpu();
    let mut rig = Rig::new(device, &Shape::llama(TensorType::Q8_0), KvType::F16, 8);
    let program = Program { max_rows: 2, max_outputs: 3, ..rig.program.clone() };
    let refused = rig.device.prepare(vec![program]).unwrap_err();
    assert!(refused.to_string().contains("3 outputs of 2 rows"), "{refused}");
}

#[gpu_test]
fn forbidden_tokens_are_not_drawn() {
    let device = gpu();
    let shape = Shape { layers: 1, ..Shape::llama(TensorType::F32) };
    let mut rig = Rig::new(device, &shape, KvType::F32, 8);
    let mut restricted = Piece::new(0, 0, &[3]);
    restricted.biases = (0..64).map(|token| BiasRow { token, bias: f32::NEG_INFINITY }).collect();
    let free = Piece::new(1, 0, &[4]);
    let outcome = rig.step(&[restricted, free], 0);
    assert_eq!(outcome.rows[0].flags, ResultRow::SAMPLED);
    assert!(outcome.rows[0].token >= 64, "{}", outcome.rows[0].token);
    assert_eq!(outcome.rows[1].flags, ResultRow::SAMPLED);
}

/// NaN in a row of the embedding table, and infinities in f16 pages, with all kernels between them
/// and the logits. The sequence fails as long as it has the cells, and the bits of the other
/// sequences do not change.
#[gpu_test]
fn non_finite_logits_fail_only_their_own_row() {
    let base = Shape {
        heads: HeadShape { heads: 4, kv_heads: 2, head_dim: 64 },
        ..Shape::llama(TensorType::F32)
    };
    // An emulated device takes minutes for all.
    let is_emulated = std::env::var_os("WALLA_EMULATED_CAPABILITY").is_some();
    let types = [TensorType::Q8_0, TensorType::F32, TensorType::F16];
    for ty in types.into_iter().take(if is_emulated { 1 } else { 3 }) {
        for (poison, kv_type, post_norms) in [
            (Poison::Table, KvType::F16, false),
            (Poison::Table, KvType::Q8, true),
            (Poison::Table, KvType::F32, true),
            (Poison::Values, KvType::F16, false),
            (Poison::Values, KvType::F16, true),
        ] {
            let device = gpu();
            let shape = Shape { types: [ty; 8], poison: Some(poison), post_norms, ..base.clone() };
            let rig = Rig::new(device, &shape, kv_type, 8);
            lose_one_of_two(rig, &format!("{poison:?}, {ty}, {kv_type:?}, {post_norms}"));
            lose_one_of_two(Rig::new(oracle(), &shape, kv_type, 8), "the oracle");
        }
    }
}

/// Sequences 0 and 4 have the poisoned token, the others read a text.
fn lose_one_of_two(mut rig: Rig, name: &str) {
    let poisoned = POISONED.cast_signed();
    let text = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];
    let mut alone = |pieces: &[Piece]| {
        let outcome = rig.step(pieces, 0);
        assert_eq!(outcome.rows[0].flags, ResultRow::SAMPLED, "{name}");
        bits(&outcome.logits[0])
    };
    let read = |sequence| Piece::new(sequence, 0, &text);
    let decode = |sequence, token| Piece::new(sequence, text.len() as u32, &[token]);
    let expected = [alone(&[read(1)]), alone(&[decode(1, 5)]), alone(&[Piece::new(2, 0, &[6])])];
    let mut with = |pieces: [Piece; 2], expected: &[u32]| {
        let outcome = rig.step(&pieces, 0);
        assert_eq!(outcome.rows[0].flags, ResultRow::NOT_FINITE, "{name}");
        assert_eq!(outcome.rows[1].flags, ResultRow::SAMPLED, "{name}");
        assert!(bits(&outcome.logits[1]) == expected, "{name}: the other's bits");
    };
    with([Piece::new(0, 0, &[20, poisoned, 21]), read(3)], &expected[0]);
    with([Piece::new(0, 3, &[22]), decode(3, 5)], &expected[1]);
    with([Piece::new(4, 0, &[poisoned]), Piece::new(5, 0, &[6])], &expected[2]);
    // No non-finite values remain in the workspace rows.
    let outcome = rig.step(&[read(6), read(7)], 0);
    assert!(outcome.logits.iter().all(|row| bits(row) == expected[0]), "{name}: later rows");
}

/// The second half of a prompt of twice the window overwrites the first: only the second half's
/// tokens are penalised.
#[gpu_test]
fn penalties_apply_to_the_last_tokens_of_a_long_prompt() {
    let device = gpu();
    let heads = HeadShape { heads: 1, kv_heads: 1, head_dim: 24 };
    let shape = Shape {
        width: 32,
        hidden: 32,
        vocab: 512,
        heads,
        layers: 1,
        ..Shape::llama(TensorType::F32)
    };
    let mut piece = Piece::new(0, 0, &(0..512).collect::<Vec<_>>());
    piece.sampling.penalty_window = 256;
    piece.sampling.presence_penalty = 1e6;
    for device in [device, oracle()] {
        let mut rig = Rig::with_steps(device, &shape, KvType::F32, (8, false), LONG);
        let drawn = rig.step(std::slice::from_ref(&piece), 0).rows[0];
        assert_eq!(drawn.flags, ResultRow::SAMPLED);
        assert!(drawn.token < 256, "{} was in the window", drawn.token);
    }
}
