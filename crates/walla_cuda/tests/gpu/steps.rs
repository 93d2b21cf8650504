//! Steps of the tests, and differences of their results.

use walla_device::{CacheCommand, Device, KvType};

use crate::model::{Random, Shape};
use crate::rig::{Outcome, Piece, Rig};
use crate::{bits, gpu, oracle};

/// Tokens of the test sequences.
pub fn tokens(vocab: u32, count: usize, seed: u64) -> Vec<i32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(vocab).cast_signed()).collect()
}

/// Prompts of different lengths in one batch, decode steps with holes, then a long prompt in
/// pieces: six, or two on the emulator, whose time is proportional to the rows.
pub fn mixed_steps(vocab: u32) -> Vec<Vec<Piece>> {
    let text = tokens(vocab, 400, 5);
    let piece = |s: u32, at: usize, n: usize| Piece::new(s, at as u32, &text[at..at + n]);
    let all = |mut piece: Piece| {
        piece.all_outputs = true;
        piece
    };
    let mut steps = vec![
        vec![piece(0, 0, 1)],
        vec![all(piece(1, 0, 37)), piece(2, 0, 5), piece(0, 1, 3)],
        vec![piece(0, 4, 1), piece(2, 5, 1)],
        vec![piece(0, 5, 1), piece(1, 37, 1), piece(2, 6, 1)],
        vec![piece(3, 0, 61), piece(2, 7, 3)],
    ];
    let end = if std::env::var_os("WALLA_EMULATED_CAPABILITY").is_some() { 121 } else { 361 };
    for at in (61..end).step_by(60) {
        steps.push(vec![piece(3, at, 60), piece(1, 38 + (at - 61) / 60, 1)]);
    }
    steps.push(vec![piece(3, end, 1)]);
    steps
}

/// The largest difference of any two logits, relative to their spread. Both suppress the same
/// tokens.
pub fn distance(a: &Outcome, b: &Outcome) -> f64 {
    assert_eq!(a.logits.len(), b.logits.len());
    let mut worst = 0.0_f64;
    for (a, b) in a.logits.iter().zip(&b.logits) {
        let is_suppressed = |logit: &f32| *logit == f32::NEG_INFINITY;
        let finite: Vec<f64> =
            b.iter().filter(|b| !is_suppressed(b)).map(|b| f64::from(*b)).collect();
        let spread = (finite.iter().map(|b| b.powi(2)).sum::<f64>() / finite.len() as f64).sqrt();
        for (a, b) in a.iter().zip(b) {
            if is_suppressed(a) && is_suppressed(b) {
                continue;
            }
            assert!(a.is_finite() && b.is_finite(), "{a} {b}");
            worst = worst.max((f64::from(*a) - f64::from(*b)).abs() / spread);
        }
    }
    worst
}

pub fn check(name: &str, shape: &Shape, kv_type: KvType, tolerance: f64) {
    check_on(gpu(), name, shape, kv_type, tolerance);
}

pub fn check_on(
    device: Box<dyn Device>,
    name: &str,
    shape: &Shape,
    kv_type: KvType,
    tolerance: f64,
) {
    let steps: Vec<_> = mixed_steps(shape.vocab).into_iter().map(|pieces| (pieces, 0)).collect();
    check_steps(device, name, shape, kv_type, tolerance, &steps);
}

/// Each result has the log-probability of its token under the logits of its row, to within 1e-4:
/// the difference between devices is then at most twice that of their logits.
fn check_log_probabilities(name: &str, outcome: &Outcome) {
    for (row, logits) in outcome.rows.iter().zip(&outcome.logits) {
        let logits = logits.iter().map(|&logit| f64::from(logit));
        let largest = logits.clone().fold(f64::MIN, f64::max);
        let sum: f64 = logits.clone().map(|logit| (logit - largest).exp()).sum();
        let token = usize::try_from(row.token).expect("a token");
        let exact = logits.clone().nth(token).expect("in the vocabulary") - largest - sum.ln();
        let found = f64::from(row.log_probability);
        assert!((found - exact).abs() < 1e-4, "{name}: {row:?}, not {exact}");
    }
}

/// Each step has the minimum size of its bucket.
pub fn check_steps(
    device: Box<dyn Device>,
    name: &str,
    shape: &Shape,
    kv_type: KvType,
    tolerance: f64,
    steps: &[(Vec<Piece>, u32)],
) {
    let mut cuda = Rig::new(device, shape, kv_type, 11);
    let mut cpu = Rig::new(oracle(), shape, kv_type, 11);
    let mut worst = 0.0_f64;
    for (i, (pieces, rows_at_least)) in steps.iter().enumerate() {
        let (a, b) = (cuda.step(pieces, *rows_at_least), cpu.step(pieces, *rows_at_least));
        let distance = distance(&a, &b);
        assert!(distance < tolerance, "{name}, step {i}: {distance:.2e}");
        worst = worst.max(distance);
        check_log_probabilities(name, &a);
        check_log_probabilities(name, &b);
    }
    println!("{name} {kv_type:?}: {worst:.1e}");
}

/// Reads sequence 0 in random pieces, with random batch composition and random buckets. Returns its
/// logits at every position.
pub fn logits(rig: &mut Rig, text: &[i32], random: &mut Random, alone: bool) -> Vec<Vec<u32>> {
    let vocab = 515;
    let mut out = vec![];
    let mut at = 0;
    let mut others = [0_u32; 4];
    while at < text.len() {
        let n = (1 + random.below(9) as usize).min(text.len() - at);
        let mut mine = Piece::new(0, at as u32, &text[at..at + n]);
        mine.all_outputs = true;
        let mut pieces = vec![];
        let mut first_output = 0;
        if !alone {
            for (s, position) in others.iter_mut().enumerate() {
                let count = random.below(5) as usize;
                if count > 0 {
                    let words = tokens(vocab, count, random.bits());
                    pieces.push(Piece::new(s as u32 + 1, *position, &words));
                    *position += count as u32;
                }
            }
            let place = random.below(pieces.len() as u32 + 1) as usize;
            first_output = place;
            pieces.insert(place, mine);
        } else {
            pieces.push(mine);
        }
        let bucket = if alone { 0 } else { random.below(65) };
        let outcome = rig.step(&pieces, bucket);
        for row in &outcome.logits[first_output..first_output + n] {
            out.push(bits(row));
        }
        at += n;
    }
    out
}

/// Compares rows in `mixes` batch compositions with the same rows alone, on all
/// [kinds of devices](crate::DEVICES): all must be bitwise identical.
pub fn compare(name: &str, shape: &Shape, mixes: u32) {
    let text = tokens(515, 150, 9);
    let mut alone = None;
    for device in crate::DEVICES {
        let mut rig = Rig::new(device(), shape, KvType::F16, 3);
        let mut random = Random(1);
        for mix in 0..=mixes {
            for sequence in 0..5 {
                rig.run_cache_ops(&[CacheCommand::ClearSequence { sequence }]);
            }
            let found = logits(&mut rig, &text, &mut random, mix == 0);
            let expected = alone.get_or_insert_with(|| found.clone());
            let same = found.iter().zip(&*expected).filter(|(a, b)| a == b).count();
            assert_eq!(same, expected.len(), "{name}, mix {mix}: rows that are bit-identical");
        }
    }
    println!("{name}: {mixes} mixes of {} rows bit-identical", text.len());
}
