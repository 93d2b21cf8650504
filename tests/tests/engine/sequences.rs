//! The low-level API: batches, the ledger's operations and the executor's bounds, on a model with
//! random weights.

use std::ops::ControlFlow;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::step::ResultView;
use walla_device::{Device, DeviceError, KvType};
use walla_doubles::synth::{self, Mixture, Model};
use walla_doubles::{FaultPlan, Faulty};
use walla_exec::{Evaluator, ExecError, ExecOptions, Executor, Sequences, StepError, Target};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{Batch, Output, TokenInput};
use walla_types::{Sampling, SeqId, TokenId};

const OPTIONS: ExecOptions = ExecOptions {
    max_sequences: 4,
    max_snapshots: 0,
    transfer_bytes: 0,
    context_tokens: 128,
    page_tokens: 16,
    pages: 33,
    max_rows: 32,
    max_outputs: 32,
    max_logits_rows: 32,
    max_masks: 2,
    mapped_results: true,
    kv_type: KvType::F32,
    ring: 2,
    target: Target::Tokens,
};

fn executor(layers: u32, options: ExecOptions) -> Executor {
    on(cpu(), layers, options)
}

fn cpu() -> Box<dyn Device> {
    let cpu = CpuOptions { inline: true, ..CpuOptions::default() };
    Box::new(CpuDevice::new(cpu).expect("a CPU is here"))
}

fn on(device: Box<dyn Device>, layers: u32, options: ExecOptions) -> Executor {
    let shape = Model { layers, ..Model::TINY };
    let bytes =
        synth::write(&shape, Mixture::F16, 3, Vec::new()).expect("a vector takes everything");
    let file = Gguf::from_bytes(bytes).expect("valid");
    let model = ModelSpec::from_gguf(&file, options.context_tokens).expect("supported");
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Executor::load(device, &file, &model, options, go_on).expect("it loads")
}

fn tokens(seed: u32, count: u32) -> Vec<TokenId> {
    (0..count).map(|index| TokenId((seed * 31 + index * 7) % 256)).collect()
}

/// The last row of logits after appending.
fn append(evaluator: &mut Evaluator, seq: u32, tokens: &[TokenId]) -> Vec<f32> {
    let mut last = Vec::new();
    let sink = &mut |_: usize, position: usize, row: &[f32]| {
        if position + 1 == tokens.len() {
            last = row.to_vec();
        }
    };
    evaluator.append(&[(SeqId(seq), tokens)], sink).expect("the batch is valid");
    last
}

#[test]
fn a_shared_prefix_gives_the_same_logits() {
    let mut evaluator = Evaluator::new(executor(2, OPTIONS)).expect("a ledger");
    // 37 tokens: two full pages, which are shared, and a partial one, which is copied on the first
    // write.
    let (prefix, tail_a, tail_b) = (tokens(1, 37), tokens(2, 9), tokens(3, 9));
    append(&mut evaluator, 0, &prefix);
    let sequences = evaluator.sequences();
    sequences.ledger.copy(SeqId(0), SeqId(1), .., &mut sequences.commands).expect("there is room");
    assert_eq!(sequences.ledger.used_pages(), 3, "nothing is copied yet");
    sequences.flush_cache_ops().expect("the device lives");
    let (a, b) = (append(&mut evaluator, 0, &tail_a), append(&mut evaluator, 1, &tail_b));
    assert_eq!(evaluator.sequences().ledger.used_pages(), 4, "one page was copied");
    append(&mut evaluator, 2, &prefix);
    append(&mut evaluator, 3, &prefix);
    assert_eq!(a, append(&mut evaluator, 2, &tail_a));
    assert_eq!(b, append(&mut evaluator, 3, &tail_b));
}

#[test]
fn growth_beyond_the_short_context_tier_does_not_change_logits() {
    // Programs of one row have a tier for contexts of up to 2,048 tokens.
    let options = ExecOptions { context_tokens: 2_120, pages: 2 * 133 + 1, ..OPTIONS };
    let executor = executor(2, options);
    let tiers: Vec<_> = executor.buckets().iter().map(|bucket| bucket.context).collect();
    assert!(tiers.contains(&2_048) && tiers.contains(&2_120), "{tiers:?}");
    let mut evaluator = Evaluator::new(executor).expect("a ledger");
    let text = tokens(1, 2_054);
    let (start, rest) = text.split_at(2_044);
    append(&mut evaluator, 0, start);
    let mut last = Vec::new();
    for token in rest {
        last = append(&mut evaluator, 0, &[*token]);
    }
    assert_eq!(last, append(&mut evaluator, 1, &text));
}

#[test]
fn a_removed_tail_does_not_affect_later_logits() {
    let mut evaluator = Evaluator::new(executor(2, OPTIONS)).expect("a ledger");
    append(&mut evaluator, 0, &tokens(1, 20));
    append(&mut evaluator, 0, &tokens(5, 30));
    let sequences = evaluator.sequences();
    sequences.ledger.remove(SeqId(0), 20.., &mut sequences.commands).expect("a tail can go");
    sequences.flush_cache_ops().expect("the device lives");
    let again = append(&mut evaluator, 0, &tokens(2, 6));
    append(&mut evaluator, 1, &tokens(1, 20));
    assert_eq!(again, append(&mut evaluator, 1, &tokens(2, 6)));
}

/// In a model of one layer, a token's keys and values depend on no other token. So rotating keys to
/// their new positions gives the same result as evaluating the shorter sequence.
#[test]
fn shifted_keys_are_rotated_to_their_new_positions() {
    for removed in [5..21, 3..10] {
        let mut evaluator = Evaluator::new(executor(1, OPTIONS)).expect("a ledger");
        let all = tokens(1, 40);
        append(&mut evaluator, 0, &all);
        let sequences = evaluator.sequences();
        let range = removed.start as u32..removed.end as u32;
        sequences
            .ledger
            .remove_and_shift(SeqId(0), range, &mut sequences.commands)
            .expect("the middle can go");
        sequences.flush_cache_ops().expect("the device lives");
        let kept: Vec<_> =
            all.iter().enumerate().filter(|(i, _)| !removed.contains(i)).map(|(_, t)| *t).collect();
        append(&mut evaluator, 1, &kept);
        let (shifted, fresh) =
            (append(&mut evaluator, 0, &tokens(2, 4)), append(&mut evaluator, 1, &tokens(2, 4)));
        let far = shifted.iter().zip(&fresh).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-3, "removed {removed:?}: off by {far}");
    }
}

#[test]
fn the_ring_and_the_bucket_have_bounds() {
    let options = ExecOptions { page_tokens: 1, ..OPTIONS };
    let mut sequences = Sequences::new(executor(1, options)).expect("a ledger");
    let mut batch = Batch::new(sequences.limits());
    let greedy = Sampling::greedy();
    let mut step = |sequences: &mut Sequences| {
        batch.clear();
        batch.push(TokenInput::Id(TokenId(65)), None, SeqId(0), Output::Sample).expect("room");
        sequences.submit(&mut batch, &|_| Some((&greedy).into()))
    };
    assert_eq!(step(&mut sequences).expect("one"), 0);
    assert_eq!(step(&mut sequences).expect("two"), 1);
    // The third would begin a page, which is not reserved before a slot is free.
    let (pages, length) = (sequences.ledger.used_pages(), sequences.ledger.len(SeqId(0)));
    let full = step(&mut sequences);
    let Err(StepError::Exec(full)) = full else { panic!("{full:?}") };
    assert!(matches!(full, ExecError::RingFull { in_flight: 2 }) && full.nothing_happened());
    assert_eq!((sequences.ledger.used_pages(), sequences.ledger.len(SeqId(0))), (pages, length));
    let completed = sequences.poll().expect("it lives").expect("inline steps are complete");
    let mut sampled = None;
    sequences
        .executor
        .read_results(completed, &mut |view| sampled = Some((view.header.step, view.rows[0].flags)))
        .expect("it lives");
    assert_eq!(sampled, Some((0, walla_device::step::ResultRow::SAMPLED)));
    sequences.release(completed);
    assert_eq!(step(&mut sequences).expect("three"), 2);
    // It has overwritten the slot of the first step, whose results are lost.
    let read = &mut |_: &ResultView<'_>| panic!("results of another step are seen by nobody");
    let gone = sequences.executor.read_results(completed, read);
    assert!(matches!(gone, Err(ExecError::ForeignResults { step: 0, found: 2 })), "{gone:?}");
}

/// A refused step has no results, and the results of the previous step in its slot are not returned
/// for it.
#[test]
fn a_refused_step_leaves_no_results() {
    let faulty = Faulty::new(cpu(), FaultPlan::new(0).misdirect_from(2));
    let mut sequences = Sequences::new(on(Box::new(faulty), 1, OPTIONS)).expect("a ledger");
    let mut batch = Batch::new(sequences.limits());
    let greedy = Sampling::greedy();
    for step in 0..4 {
        batch.clear();
        batch.push(TokenInput::Id(TokenId(65)), None, SeqId(0), Output::Sample).expect("room");
        assert_eq!(sequences.submit(&mut batch, &|_| Some((&greedy).into())).expect("room"), step);
        let is_refused = step >= 2;
        if is_refused {
            match sequences.poll() {
                Err(ExecError::Device(DeviceError::Invalid(words))) => {
                    assert!(words.contains("page"), "{words}");
                }
                other => panic!("{other:?}"),
            }
        }
        let completed = sequences.poll().expect("it lives").expect("inline steps are complete");
        let mut read = 0;
        let outcome = sequences.executor.read_results(completed, &mut |_| read += 1);
        let failed = matches!(outcome, Err(ExecError::ForeignResults { .. }));
        assert_eq!(
            (failed, read),
            (is_refused, u32::from(!is_refused)),
            "step {step}: {outcome:?}"
        );
        sequences.release(completed);
    }
}

#[test]
fn candidates_are_the_most_likely_tokens() {
    let mut sequences = Sequences::new(executor(2, OPTIONS)).expect("a ledger");
    let mut batch = Batch::new(sequences.limits());
    let sampling = Sampling::greedy().to_builder().candidates(5).build().expect("valid");
    for token in tokens(4, 6) {
        batch.push(TokenInput::Id(token), None, SeqId(0), Output::Unsaid).expect("room");
    }
    let last = batch.len() - 1;
    batch.truncate(last);
    batch.push(TokenInput::Id(TokenId(9)), None, SeqId(0), Output::SampleAndLogits).expect("room");
    sequences.submit(&mut batch, &|_| Some((&sampling).into())).expect("it runs");
    let completed = sequences.wait().expect("it lives").expect("in flight");
    let mut logits = Vec::new();
    sequences
        .executor
        .read_logits(completed, 0, &mut |row| logits = row.to_vec())
        .expect("asked for");
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let mut ranked: Vec<(usize, f64)> =
        logits.iter().enumerate().map(|(t, &l)| (t, f64::from(l) - sum.ln())).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    sequences
        .executor
        .read_results(completed, &mut |view| {
            let row = view.rows[0];
            assert_eq!((row.candidates, row.token as usize), (5, ranked[0].0));
            assert!((f64::from(row.log_probability) - ranked[0].1).abs() < 1e-4);
            for (candidate, (token, log_probability)) in view.candidates.iter().zip(&ranked).take(5)
            {
                assert_eq!(candidate.token as usize, *token);
                assert!((f64::from(candidate.log_probability) - log_probability).abs() < 1e-4);
            }
        })
        .expect("it lives");
}
