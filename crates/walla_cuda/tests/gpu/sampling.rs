use walla_device::KvType;
use walla_device::step::{BiasRow, ResultRow};
use walla_types::TensorType;

use crate::model::{Random, Shape};
use crate::parity::tokens;
use crate::rig::{Piece, Rig};
use crate::{gpu, oracle};

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
        // One of three tokens has two.
        if random.below(3) == 0 {
            piece.biases.push(BiasRow { token, bias: 1.5 });
        }
    }
}

// Vocabularies in one chunk, over several with a short last one, and with groups of tokens of several threads.
const VOCABULARIES: [(u32, u32); 3] = [(515, 60), (9001, 60), (40_003, 12)];

#[test]
fn draws_are_the_oracles() {
    compare(&VOCABULARIES, None, &|_, _| None);
}

/// Far more equal logits than top-k keeps: the lower tokens win.
#[test]
fn draws_from_equal_logits_are_the_oracles() {
    compare(&[(515, 20), (9001, 20), (40_004, 10)], Some(7), &|_, _| None);
}

/// Masks of every kind: few bits, half of them, all but a few, whole chunks without any.
#[test]
fn masked_draws_are_the_oracles_and_allowed() {
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

fn compare(
    vocabularies: &[(u32, u32)],
    repeated_rows: Option<u32>,
    mask: &dyn Fn(&mut Random, u32) -> Option<Vec<u32>>,
) {
    let Some(device) = gpu() else { return };
    let mut device = Some(device);
    for (vocab, steps) in vocabularies.iter().copied() {
        let device = device.take().or_else(gpu).unwrap();
        let shape = Shape { vocab, repeated_rows, layers: 1, ..Shape::llama(TensorType::F32) };
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

#[test]
fn a_mask_without_bits_fails_its_own_row_only() {
    let Some(device) = gpu() else { return };
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

#[test]
fn logits_that_are_not_finite_fail_their_own_row_only() {
    let Some(device) = gpu() else { return };
    let shape = Shape { layers: 1, ..Shape::llama(TensorType::F32) };
    let mut rig = Rig::new(device, &shape, KvType::F32, 8);
    let mut poisoned = Piece::new(0, 0, &[3]);
    poisoned.biases = (0..64).map(|token| BiasRow { token, bias: f32::NEG_INFINITY }).collect();
    let fine = Piece::new(1, 0, &[4]);
    let outcome = rig.step(&[poisoned, fine], 0);
    assert_eq!(outcome.rows[0].flags, ResultRow::SAMPLED);
    assert!(outcome.rows[0].token >= 64, "forbidden tokens are not drawn");
    assert_eq!(outcome.rows[1].flags, ResultRow::SAMPLED);
}
