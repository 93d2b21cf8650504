//! Masks of allowed tokens in the executor: their effect, refused masks, and how often they are
//! copied.

use std::ops::ControlFlow;
use std::sync::Arc;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_doubles::faulty::{Call, FaultHandle};
use walla_doubles::synth::{self, Mixture, Model};
use walla_doubles::{FaultPlan, Faulty};
use walla_exec::{ExecError, ExecOptions, Executor, Sequences, StepError};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{Batch, Output, TokenInput};
use walla_types::{Sampling, SeqId, TokenId, TokenMask};

fn sequences(max_masks: u32) -> (Sequences, FaultHandle) {
    let options = ExecOptions {
        max_sequences: 4,
        context_tokens: 128,
        max_rows: 8,
        max_outputs: 8,
        max_masks,
        ..ExecOptions::default()
    };
    let bytes = synth::write(&Model::TINY, Mixture::Q8_0, 3, Vec::new()).expect("it fits");
    let file = Gguf::from_bytes(bytes).expect("valid");
    let model = ModelSpec::from_gguf(&file, options.context_tokens).expect("supported");
    let cpu = CpuOptions { inline: true, ..CpuOptions::default() };
    let cpu = CpuDevice::new(cpu).expect("a CPU is here");
    let device = Faulty::new(Box::new(cpu), FaultPlan::new(0));
    let handle = device.handle();
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let executor =
        Executor::load(Box::new(device), &file, &model, options.with_full_pages(), go_on);
    (Sequences::new(executor.expect("it loads")).expect("a ledger"), handle)
}

fn mask(first: u32) -> Arc<TokenMask> {
    Arc::new(TokenMask::allow(320, (first..first + 3).map(TokenId)).expect("a mask"))
}

fn with_mask(mask: &Arc<TokenMask>) -> Sampling {
    Sampling::greedy().to_builder().allowed_tokens(Arc::clone(mask)).build().expect("valid")
}

/// One token of each sequence, sampled with its sampling. Returns the tokens.
fn step(sequences: &mut Sequences, samplings: &[Sampling]) -> Result<Vec<u32>, StepError> {
    let mut batch = Batch::new(sequences.limits());
    for seq in 0..samplings.len() as u32 {
        batch.push(TokenInput::Id(TokenId(65 + seq)), None, SeqId(seq), Output::Sample)?;
    }
    sequences.submit(&mut batch, &|row| samplings.get(row.seq.index()).map(Into::into))?;
    let completed = sequences.wait()?.expect("inline steps are complete");
    let mut drawn = Vec::new();
    sequences.executor.read_results(completed, &mut |view| {
        drawn.extend(view.rows[..samplings.len()].iter().map(|row| row.token));
    })?;
    sequences.release(completed);
    Ok(drawn)
}

#[test]
fn each_row_draws_from_its_own_mask_and_a_mask_is_copied_once() {
    let (mut sequences, device) = sequences(2);
    let masks = [mask(10), mask(200)];
    let [ten, two_hundred] = [with_mask(&masks[0]), with_mask(&masks[1])];
    let free = Sampling::greedy();
    let mut copies = |samplings: &[Sampling], copies: u64| {
        let before = device.calls(Call::Upload);
        let drawn = step(&mut sequences, samplings).expect("it runs");
        for (token, sampling) in drawn.iter().zip(samplings) {
            let allowed = sampling.allowed_tokens();
            assert!(allowed.is_none_or(|mask| mask.allows(TokenId(*token))), "{token}");
        }
        // The step block, and possibly masks.
        assert_eq!(device.calls(Call::Upload) - before, 1 + copies, "{samplings:?}");
        drawn
    };
    let unmasked = copies(&[free.clone(), free.clone()], 0);
    assert!(unmasked.iter().any(|token| !masks[0].allows(TokenId(*token))));
    copies(&[ten.clone(), free.clone()], 1);
    copies(&[ten.clone(), ten.clone(), free.clone()], 0);
    copies(&[two_hundred.clone(), ten.clone()], 1);
    // Both are cached, for any batch composition.
    copies(&[ten.clone(), two_hundred.clone()], 0);
    copies(&[free.clone(), two_hundred.clone()], 0);
    copies(&[free], 0);
    // A third mask evicts another.
    let third = mask(100);
    copies(&[with_mask(&third)], 1);
    copies(&[with_mask(&third), ten], 1);
}

#[test]
fn invalid_masks_are_refused_before_any_device_call() {
    let (mut sequences, device) = sequences(2);
    let held = with_mask(&mask(1));
    step(&mut sequences, std::slice::from_ref(&held)).expect("it runs");
    let outside = TokenMask::allow(1_000, [TokenId(900)]).expect("a mask for a larger vocabulary");
    let before = device.calls(Call::Upload) + device.calls(Call::Launch);
    let refused = step(&mut sequences, &[held, with_mask(&Arc::new(outside))]);
    let Err(StepError::Exec(error)) = refused else { panic!("{refused:?}") };
    let of_the_second = ExecError::NothingAllowed { seq: SeqId(1), vocab: 320 };
    assert_eq!(error.to_string(), of_the_second.to_string());
    assert!(error.nothing_happened());
    let three = [mask(1), mask(2), mask(3)];
    let refused = step(&mut sequences, &three.each_ref().map(with_mask));
    let too_many = ExecError::StepTooLarge { what: "masks", wanted: 3, max: 2 };
    let Err(StepError::Exec(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.to_string(), too_many.to_string());
    assert_eq!(device.calls(Call::Upload) + device.calls(Call::Launch), before);
    // The executor continues.
    step(&mut sequences, &[with_mask(&three[0])]).expect("it runs");
}
