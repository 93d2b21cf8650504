//! A sequence's logits are bit-identical in any batch, on any number of threads.

use crate::support::{DELTA, ExpertShape, Harness, Random, Row, SEQUENCES, Shape, VOCAB, greedy};
use walla_cpu::{CpuOptions, Variant};
use walla_types::{ExpertScore, TensorType};

const TOKENS: usize = 24;

fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.iter().copied().filter(|variant| variant.score().is_some())
}

fn sequences(seed: u32) -> Vec<Vec<i32>> {
    let mut random = Random::new(seed);
    let mut tokens = |_| (0..TOKENS).map(|_| random.below(VOCAB) as i32).collect();
    (0..SEQUENCES).map(&mut tokens).collect()
}

/// Logits of every position of every sequence in random batches: each step takes random chunks of
/// random sequences.
fn in_random_batches(
    harness: &mut Harness,
    sequences: &[Vec<i32>],
    seed: u32,
) -> Vec<Vec<Vec<f32>>> {
    let mut random = Random::new(seed);
    let mut logits = vec![Vec::new(); sequences.len()];
    while logits.iter().any(|all| all.len() < TOKENS) {
        let mut rows = Vec::new();
        for s in 0..sequences.len() {
            let begin = logits[s].len();
            let chunk = [0, 1, 1, 2, 5, 9, 17][random.below(7)];
            let count = chunk.min(TOKENS - begin).min(40 - rows.len());
            let tokens = sequences[s].iter().enumerate().skip(begin).take(count);
            rows.extend(tokens.map(|(at, token)| Row(s as u32, at as u32, *token, true)));
        }
        // Rows of different sequences interleave in any order; so do rows of one sequence, if no
        // state passes from one to the next.
        for i in (1..rows.len()).rev() {
            rows.swap(i, random.below(i + 1));
        }
        if harness.shape.delta.is_some() {
            for s in 0..sequences.len() as u32 {
                let mut own: Vec<_> = rows.iter().filter(|row| row.0 == s).copied().collect();
                own.sort_by_key(|row| row.1);
                let places = rows.iter_mut().filter(|row| row.0 == s);
                places.zip(own).for_each(|(place, row)| *place = row);
            }
        }
        let (got, _) = harness.run(&rows, &greedy());
        let mut placed: Vec<_> = rows.iter().zip(got).collect();
        placed.sort_by_key(|(row, _)| (row.0, row.1));
        for (row, got) in placed {
            logits[row.0 as usize].push(got);
        }
    }
    logits
}

fn alone(options: CpuOptions, shape: Shape, sequence: u32, tokens: &[i32]) -> Vec<Vec<f32>> {
    let mut harness = Harness::new(options, shape);
    let mut logits = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        logits.extend(harness.run(&[Row(sequence, at as u32, *token, true)], &greedy()).0);
    }
    logits
}

#[test]
fn batches_and_threads_do_not_change_results() {
    for (i, ty) in TensorType::ALL.into_iter().enumerate() {
        for variant in variants() {
            let score = [ExpertScore::Softmax, ExpertScore::Sigmoid][i % 2];
            let experts = Some(ExpertShape::of(5, 2, score));
            let delta = (i % 2 == 0).then_some(DELTA);
            // A whole block of every type, or odd.
            let inputs = [None, Some(256), Some(7)][i % 3];
            let shape = Shape { seed: i as u32, experts, delta, inputs, ..Shape::small(ty) };
            let options = |threads, cost| CpuOptions {
                variant: Some(variant),
                threads: Some(threads),
                thread_cost_nanos: Some(cost),
                ..CpuOptions::default()
            };
            let sequences = sequences(i as u32);
            let wanted = alone(options(1, 0), shape, 2, &sequences[2]);
            // All threads in every op, and in turn: some in the larger ones, fewer, one.
            let other = [(1, 0), (2, 0), (3, 20), (3, u32::MAX)][i % 4];
            for (threads, cost) in [(3, 0), other] {
                let mut harness = Harness::new(options(threads, cost), shape);
                let got = in_random_batches(&mut harness, &sequences, 10 * i as u32 + threads);
                assert!(got[2] == wanted, "{ty} {variant} {threads} threads of {cost} ns");
            }
        }
    }
}

#[test]
fn random_mixes_give_the_same_bits() {
    for (delta, inputs) in [(None, None), (Some(DELTA), None), (None, Some(256))] {
        let experts = Some(ExpertShape::of(8, 3, ExpertScore::Softmax));
        let shape = Shape { experts, delta, inputs, ..Shape::small(TensorType::Q4K) };
        let sequences = sequences(9);
        let wanted: Vec<_> = (0..SEQUENCES)
            .map(|s| alone(CpuOptions::default(), shape, s, &sequences[s as usize]))
            .collect();
        let mut harness = Harness::new(CpuOptions::default(), shape);
        for seed in 0..30 {
            let got = in_random_batches(&mut harness, &sequences, seed);
            assert!(got == wanted, "{delta:?} {inputs:?}: mix {seed}");
        }
    }
}

#[test]
fn inline_and_threads_agree() {
    let shape = Shape::small(TensorType::Q4_0);
    let sequences = sequences(3);
    let run = |inline| {
        let options = CpuOptions {
            inline,
            threads: Some(2),
            thread_cost_nanos: Some(0),
            ..CpuOptions::default()
        };
        in_random_batches(&mut Harness::new(options, shape), &sequences, 4)
    };
    assert!(run(true) == run(false));
}
