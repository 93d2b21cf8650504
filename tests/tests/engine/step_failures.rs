//! Steps and cache operations that a device fails once: the low-level API defines which calls are
//! allowed afterwards.

use std::ops::ControlFlow;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::{DeviceError, KvType};
use walla_doubles::faulty::{Call, Fault, FaultHandle, FaultPlan, Faulty, VirtualClock};
use walla_doubles::synth::{self, Mixture, Model};
use walla_exec::{Evaluator, ExecError, ExecOptions, Executor, Sequences, StepError, Target};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{Batch, Output, TokenInput, UBatch};
use walla_types::{Sampling, SeqId, TokenId};

const OPTIONS: ExecOptions = ExecOptions {
    max_sequences: 4,
    max_snapshots: 0,
    transfer_bytes: 0,
    context_tokens: 128,
    page_tokens: 16,
    pages: 33,
    max_rows: 64,
    max_outputs: 32,
    max_logits_rows: 8,
    max_masks: 2,
    mapped_results: true,
    kv_type: KvType::F32,
    ring: 2,
    target: Target::Tokens,
};

/// A model of one layer with random weights on a device that fails as planned.
fn executor(options: ExecOptions, plan: FaultPlan) -> (Executor, FaultHandle) {
    let shape = Model { layers: 1, ..Model::TINY };
    let bytes =
        synth::write(&shape, Mixture::F16, 3, Vec::new()).expect("a vector takes everything");
    let file = Gguf::from_bytes(bytes).expect("valid");
    let model = ModelSpec::from_gguf(&file, options.context_tokens).expect("supported");
    let cpu = CpuOptions { inline: true, ..CpuOptions::default() };
    let device = Faulty::new(Box::new(CpuDevice::new(cpu).expect("a CPU is here")), plan);
    let handle = device.handle();
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let executor = Executor::load(Box::new(device), &file, &model, options, go_on);
    (executor.expect("it loads"), handle)
}

fn sequences(options: ExecOptions, plan: FaultPlan) -> (Sequences, FaultHandle) {
    let (executor, handle) = executor(options, plan);
    (Sequences::new(executor).expect("a ledger"), handle)
}

fn tokens(seed: u32, count: u32) -> Vec<TokenId> {
    (0..count).map(|index| TokenId((seed * 31 + index * 7) % 256)).collect()
}

/// Submits tokens of one sequence; the last one samples.
fn submit(sequences: &mut Sequences, seq: u32, tokens: &[TokenId]) -> Result<u64, StepError> {
    let mut batch = Batch::new(sequences.limits());
    for (index, &token) in tokens.iter().enumerate() {
        let output = if index + 1 == tokens.len() { Output::Sample } else { Output::None };
        batch.push(TokenInput::Id(token), None, SeqId(seq), output).expect("room");
    }
    let greedy = Sampling::greedy();
    sequences.submit(&mut batch, &|_| Some((&greedy).into()))
}

#[test]
fn a_partly_failed_step_is_reclaimed_after_its_completion() {
    let clock = VirtualClock::new();
    let plan = FaultPlan::new(1).clock(&clock).delay_micros(500..=500);
    let (mut sequences, _) = sequences(OPTIONS, plan.fail_call(Call::Launch, 0, Fault::Failed));
    assert!(!sequences.executor.is_reclaiming());
    let failed = submit(&mut sequences, 0, &tokens(1, 3));
    let Err(StepError::Exec(failed)) = failed else { panic!("{failed:?}") };
    assert!(!failed.nothing_happened(), "{failed}");
    assert_eq!(sequences.executor.in_flight(), 0);
    assert!(sequences.executor.is_reclaiming());

    assert_eq!(sequences.poll().expect("it lives"), None);
    let early = submit(&mut sequences, 0, &tokens(1, 3));
    let Err(StepError::Exec(early)) = early else { panic!("{early:?}") };
    assert!(matches!(early, ExecError::Device(DeviceError::HostInFlight { .. })), "{early}");
    assert!(early.nothing_happened());
    assert!(sequences.executor.is_reclaiming());

    clock.advance(2_000);
    assert_eq!(sequences.poll().expect("it lives"), None);
    assert!(!sequences.executor.is_reclaiming());
    submit(&mut sequences, 0, &tokens(1, 3)).expect("its block is the host's again");
}

#[test]
fn a_step_without_rows_is_refused_without_side_effects() {
    let (mut sequences, device) = sequences(OPTIONS, FaultPlan::new(1));
    let begun = || device.calls(Call::Upload) + device.calls(Call::Launch);
    let before = begun();
    let none = UBatch::with_capacity(8);
    let greedy = Sampling::greedy();
    let refused =
        sequences.executor.submit_ubatch(&none, &sequences.ledger, &|_| Some((&greedy).into()));
    let Err(refused @ ExecError::NoRows) = refused else { panic!("{refused:?}") };
    assert!(refused.nothing_happened());
    assert_eq!(begun(), before);
    submit(&mut sequences, 0, &tokens(1, 3)).expect("the executor goes on");
}

/// The last row of logits after appending.
fn append(evaluator: &mut Evaluator, seq: u32, tokens: &[TokenId]) -> Result<Vec<f32>, StepError> {
    let mut last = Vec::new();
    let sink = &mut |_: usize, position: usize, row: &[f32]| {
        if position + 1 == tokens.len() {
            last = row.to_vec();
        }
    };
    evaluator.append(&[(SeqId(seq), tokens)], sink)?;
    Ok(last)
}

#[test]
fn failed_cache_ops_resume_where_they_failed() {
    // Two pages of keys are rotated in place, by one command each; the second command fails once.
    let shifted = |plan: FaultPlan| {
        let mut evaluator = Evaluator::new(executor(OPTIONS, plan).0).expect("a ledger");
        append(&mut evaluator, 0, &tokens(1, 64)).expect("nothing fails");
        let sequences = evaluator.sequences();
        let shifted = sequences.ledger.remove_and_shift(SeqId(0), 16..32, &mut sequences.commands);
        shifted.expect("the middle can go");
        let first = sequences.flush_cache_ops();
        sequences.flush_cache_ops().expect("it fails once");
        assert!(sequences.commands.is_empty());
        (first.is_err(), append(&mut evaluator, 0, &tokens(2, 4)).expect("nothing fails"))
    };
    let (failed, logits) = shifted(FaultPlan::new(1).fail_call(Call::Maintain, 1, Fault::Failed));
    assert!(failed);
    assert_eq!(shifted(FaultPlan::new(1)), (false, logits));
}

#[test]
fn logits_after_a_failed_call_belong_to_the_requested_tokens() {
    let mut faultless = Evaluator::new(executor(OPTIONS, FaultPlan::new(1)).0).expect("a ledger");
    append(&mut faultless, 0, &tokens(1, 3)).expect("nothing fails");
    let expected = append(&mut faultless, 0, &tokens(2, 3)).expect("nothing fails");
    for (call, nth) in [(Call::Poll, 0), (Call::ReadHost, 0), (Call::ReadHost, 1)] {
        let plan = FaultPlan::new(1).fail_call(call, nth, Fault::Failed);
        let mut evaluator = Evaluator::new(executor(OPTIONS, plan).0).expect("a ledger");
        append(&mut evaluator, 0, &tokens(1, 3)).expect_err("it fails once");
        let logits = append(&mut evaluator, 0, &tokens(2, 3)).expect("it lives");
        assert_eq!(logits, expected, "{call:?} {nth}");
    }
}

/// Two sequences of 100 pages each. The first is removed: pages 101 to 200 are in use.
fn high_pages(plan: FaultPlan) -> (Sequences, FaultHandle) {
    let options =
        ExecOptions { max_sequences: 2, page_tokens: 1, max_rows: 100, pages: 257, ..OPTIONS };
    let (mut sequences, device) = sequences(options, plan);
    for seq in [0, 1] {
        submit(&mut sequences, seq, &tokens(seq, 100)).expect("nothing fails");
        let completed = sequences.wait().expect("it lives").expect("in flight");
        sequences.release(completed);
    }
    sequences.remove(SeqId(0)).expect("it can go");
    (sequences, device)
}

fn highest_page(sequences: &Sequences) -> Option<u32> {
    sequences.ledger.pages(SeqId(1)).iter().map(|page| page.0).max()
}

#[test]
fn memory_is_returned_only_above_moved_pages() {
    // The list has capacity for 72 commands, so pages move in two rounds, and the second cannot
    // begin. Then resizing the memory fails once, which stops the sequence there.
    let plan = FaultPlan::new(1).fail_call(Call::Maintain, 40, Fault::Failed);
    let (mut sequences, device) = high_pages(plan.fail_call(Call::ResizeCache, 0, Fault::Failed));
    sequences.resize(100).expect_err("moving fails once");
    assert_eq!((highest_page(&sequences), device.calls(Call::ResizeCache)), (Some(200), 0));

    sequences.resize(150).expect_err("memory fails once");
    assert_eq!((highest_page(&sequences), device.calls(Call::ResizeCache)), (Some(100), 1));
    assert!(sequences.commands.is_empty());
    sequences.resize(150).expect("nothing fails any more");
    assert_eq!(device.calls(Call::ResizeCache), 2);
    sequences.ledger.assert_consistent();
}

#[test]
fn memory_is_kept_while_owned_pages_exceed_the_limit() {
    let (mut sequences, device) = high_pages(FaultPlan::new(1));
    sequences.resize(50).expect("nothing fails");
    sequences.resize(80).expect("nothing fails");
    assert!(highest_page(&sequences) > Some(80));
    assert_eq!(device.calls(Call::ResizeCache), 0);
    sequences.resize(120).expect("nothing fails");
    assert!(highest_page(&sequences) <= Some(120));
    assert_eq!(device.calls(Call::ResizeCache), 1);
}
