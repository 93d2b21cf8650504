//! Logits of whole sequences on the CPU: batches of any size, split into steps.

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::KvType;
use walla_doubles::faulty::{Call, Fault, FaultHandle, FaultPlan, Faulty};
use walla_exec::{Evaluator, ExecOptions, Executor, LastHidden, Lockstep, StepNanos};
use walla_types::{Sampling, SeqId, TokenId};

use crate::rig::{OPTIONS, go_on, is_failed, model, refusal};

const EVALUATED: ExecOptions = ExecOptions { max_rows: 8, kv_type: KvType::F32, ..OPTIONS };

fn cpu(plan: FaultPlan) -> (Box<Faulty>, FaultHandle) {
    let options = CpuOptions { inline: true, ..CpuOptions::default() };
    let device = Faulty::new(Box::new(CpuDevice::new(options).unwrap()), plan);
    let calls = device.handle();
    (Box::new(device), calls)
}

fn evaluator(plan: FaultPlan) -> (Evaluator, FaultHandle) {
    let (device, calls) = cpu(plan);
    let (file, model) = model();
    let executor = Executor::load(device, &file, &model, EVALUATED, &mut go_on).unwrap();
    (Evaluator::new(executor).unwrap(), calls)
}

fn tokens(seed: u32, count: u32) -> Vec<TokenId> {
    (0..count).map(|index| TokenId((seed * 31 + index * 7) % 256)).collect()
}

/// Bits of the logits after each token, by input.
fn append(evaluator: &mut Evaluator, inputs: &[(u32, &[TokenId])]) -> Vec<Vec<Vec<u32>>> {
    let inputs: Vec<_> = inputs.iter().map(|(seq, tokens)| (SeqId(*seq), *tokens)).collect();
    let mut rows = vec![Vec::new(); inputs.len()];
    let sink = &mut |input: usize, token: usize, row: &[f32]| {
        assert_eq!(token, rows[input].len(), "the rows come in the order of the tokens");
        rows[input].push(row.iter().map(|number| number.to_bits()).collect());
    };
    evaluator.append(&inputs, sink).unwrap();
    rows
}

/// Logits of a sequence that is fed token by token.
fn one_by_one(tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let (mut evaluator, _) = evaluator(FaultPlan::new(1));
    tokens.chunks(1).flat_map(|token| append(&mut evaluator, &[(2, token)]).remove(0)).collect()
}

#[test]
fn a_text_longer_than_a_step_gives_the_logits_of_single_tokens() {
    let text = tokens(1, 21);
    let (mut evaluator, calls) = evaluator(FaultPlan::new(1));
    assert_eq!(append(&mut evaluator, &[(0, &text)]), [one_by_one(&text)]);
    // Four rows of logits per step.
    assert_eq!(calls.calls(Call::Launch), 6);
    assert_eq!(evaluator.sequences().ledger.len(SeqId(0)), 21);
}

#[test]
fn texts_of_one_batch_give_their_own_logits() {
    let texts = [tokens(1, 13), tokens(2, 1), tokens(3, 6)];
    let (mut evaluator, calls) = evaluator(FaultPlan::new(1));
    let inputs = [(3, &texts[0][..]), (0, &texts[1]), (1, &texts[2])];
    let found = append(&mut evaluator, &inputs);
    assert!(calls.calls(Call::Launch) > 1, "more rows than a step has");
    for (text, found) in texts.iter().zip(found) {
        assert!(found == one_by_one(text), "a text of {} tokens", text.len());
    }
}

#[test]
fn a_failed_step_of_a_batch_is_an_error_and_the_sequence_can_be_recomputed() {
    let text = tokens(1, 21);
    let plan = FaultPlan::new(1).fail_call(Call::Launch, 3, Fault::Failed);
    let (mut evaluator, _) = evaluator(plan);
    let mut heard = 0;
    let failed = evaluator.append(&[(SeqId(0), &text)], &mut |_, _, _| heard += 1);
    assert!(is_failed(&refusal(failed)));
    assert_eq!(heard, 12, "three steps");
    evaluator.sequences().remove(SeqId(0)).unwrap();
    assert_eq!(append(&mut evaluator, &[(0, &text)]), [one_by_one(&text)]);
    evaluator.sequences().ledger.assert_consistent();
}

#[test]
fn hidden_states_do_not_depend_on_the_other_texts_of_a_step() {
    let (file, model) = model();
    let last = |texts: &[&[TokenId]]| {
        let (device, _) = cpu(FaultPlan::new(1));
        let options = LastHidden::options(EVALUATED.context_tokens, EVALUATED.max_rows);
        let executor = Executor::load(device, &file, &model, options, &mut go_on).unwrap();
        let mut hidden = LastHidden::new(executor).unwrap();
        let mut rows = vec![Vec::new(); texts.len()];
        hidden.run(texts, &mut |text, row| rows[text] = row.to_vec()).unwrap();
        assert_eq!(hidden.sequences().ledger.used_pages(), 0, "all texts are removed");
        rows
    };
    // Texts that end within a step, fill it, and need several.
    let texts = [tokens(1, 3), tokens(2, 8), tokens(3, 20), tokens(4, 1)];
    let together = last(&texts.each_ref().map(Vec::as_slice));
    for (text, row) in texts.iter().zip(&together) {
        assert_eq!(row.len(), 64);
        assert!(last(&[text.as_slice()])[0] == *row, "a text of {} tokens", text.len());
    }
    assert_ne!(together[0], together[1]);
}

#[test]
fn lockstep_decodes_all_sequences_in_one_step() {
    let (device, calls) = cpu(FaultPlan::new(1));
    let (file, model) = model();
    let executor = Executor::load(device, &file, &model, EVALUATED, &mut go_on).unwrap();
    let active = vec![SeqId(0), SeqId(3)];
    let mut lockstep = Lockstep::new(executor, active, Sampling::greedy()).unwrap();
    let launched = || calls.calls(Call::Launch);
    lockstep.submit_step().unwrap_err();
    assert_eq!(launched(), 0, "without a prompt there is no token to feed back");
    // Five tokens of each sequence in steps of two.
    lockstep.prefill(&tokens(1, 5), 2).unwrap();
    assert_eq!((launched(), lockstep.executor().in_flight()), (6, 0));
    let mut last = 0;
    for _ in 0..3 {
        lockstep.submit_step().unwrap();
        lockstep.submit_step().unwrap();
        for _ in 0..2 {
            let StepNanos { begin, end } = lockstep.collect().unwrap();
            assert!(last <= begin && begin <= end, "{last} {begin} {end}");
            last = end;
        }
    }
    assert_eq!(launched(), 12);
    assert_eq!(lockstep.collect().unwrap(), StepNanos::default(), "nothing is in flight");
    lockstep.restart(vec![SeqId(1)]).unwrap();
    lockstep.submit_step().unwrap_err();
    lockstep.prefill(&tokens(2, 3), 8).unwrap();
    assert_eq!(launched(), 13);
}
