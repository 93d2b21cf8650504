//! Masks, seeds and biases of outputs.

use std::sync::Arc;

use walla_doubles::faulty::{Call, Fault, FaultPlan};
use walla_doubles::hash::reference_draw;
use walla_exec::{Draw, ExecError, ExecOptions};
use walla_plan::{Batch, Output};
use walla_types::{Sampling, SeqId, TokenId, TokenMask};

use crate::rig::{OPTIONS, Rig, ids, push, refusal};

const VOCAB: u32 = 320;

fn allowing(tokens: &[u32]) -> Sampling {
    let mask = Arc::new(TokenMask::allow(VOCAB, ids(tokens)).unwrap());
    Sampling::greedy().to_builder().allowed_tokens(mask).build().unwrap()
}

/// One step with a row of each sequence that has a sampling. Returns the tokens.
fn step(rig: &mut Rig, samplings: &[&Sampling]) -> Vec<TokenId> {
    let mut batch = Batch::new(rig.sequences.limits());
    for seq in 0..samplings.len() as u32 {
        push(&mut batch, seq, &[10 + seq], Output::Sample);
    }
    rig.sequences
        .submit(&mut batch, &|row| Some(Draw::from(samplings[row.seq.0 as usize])))
        .unwrap();
    rig.drawn()
}

#[test]
fn each_output_draws_from_its_own_mask() {
    let mut rig = Rig::new(OPTIONS);
    let [few, other, free] = [allowing(&[3, 64, 319]), allowing(&[100]), Sampling::greedy()];
    let samplings = [&few, &other, &free, &few];
    let drawn = step(&mut rig, &samplings);
    for (seq, (token, sampling)) in (0..).zip(drawn.iter().zip(samplings)) {
        let expected = reference_draw(&[TokenId(10 + seq)], sampling, VOCAB);
        assert_eq!(Some(*token), expected, "sequence {seq}");
    }
    assert_eq!(drawn[1], TokenId(100));
}

#[test]
fn a_mask_on_the_device_is_not_copied_again() {
    let mut rig = Rig::new(OPTIONS);
    let [a, b, c] = [allowing(&[1]), allowing(&[2]), allowing(&[3])];
    let mut uploads = |samplings: &[&Sampling], expected: &[u32]| {
        let before = rig.calls.calls(Call::Upload);
        assert_eq!(step(&mut rig, samplings), ids(expected));
        // One copy is the step block.
        rig.calls.calls(Call::Upload) - before - 1
    };
    assert_eq!(uploads(&[&a], &[1]), 1);
    assert_eq!(uploads(&[&a, &a], &[1, 1]), 0);
    assert_eq!(uploads(&[&b, &a], &[2, 1]), 1);
    assert_eq!(uploads(&[&a, &b], &[1, 2]), 0);
    // Two places: the third mask takes one of them.
    assert_eq!(uploads(&[&c], &[3]), 1);
    assert_eq!(uploads(&[&a, &c], &[1, 3]) + uploads(&[&b, &c], &[2, 3]), 2);
}

#[test]
fn masks_are_copied_again_after_a_failed_step() {
    for nth in [0, 1] {
        let plan = FaultPlan::new(1).fail_call(Call::Upload, nth, Fault::Failed);
        let mut rig = Rig::with_plan(OPTIONS, plan);
        let sampling = allowing(&[77]);
        refusal(rig.submit(0, &[1], Draw::from(&sampling)));
        rig.sequences.remove(SeqId(0)).unwrap();
        rig.submit(0, &[1], Draw::from(&sampling)).unwrap();
        assert_eq!(rig.drawn(), ids(&[77]), "failed copy {nth}");
        assert_eq!(rig.calls.calls(Call::Upload), nth + 3);
    }
}

#[test]
fn more_masks_than_places_are_refused_without_a_trace() {
    let mut rig = Rig::new(OPTIONS);
    let samplings = [allowing(&[1]), allowing(&[2]), allowing(&[3])];
    let mut batch = Batch::new(rig.sequences.limits());
    (0..3).for_each(|seq| push(&mut batch, seq, &[1], Output::Sample));
    let submitted =
        rig.sequences.submit(&mut batch, &|row| Some((&samplings[row.seq.0 as usize]).into()));
    let error = refusal(submitted);
    assert!(error.nothing_happened(), "{error}");
    assert_eq!(error.to_string(), "a step has 3 masks, the maximum is 2");
    assert_eq!(rig.calls.calls(Call::WriteHost), 0);
}

#[test]
fn without_places_any_mask_is_refused() {
    let mut rig = Rig::new(ExecOptions { max_masks: 0, ..OPTIONS });
    let error = refusal(rig.submit(0, &[1], Draw::from(&allowing(&[1]))));
    assert_eq!(error.to_string(), "a step has 1 masks, the maximum is 0");
}

#[test]
fn a_mask_without_a_token_of_the_vocabulary_names_its_sequence() {
    let mut rig = Rig::new(OPTIONS);
    // Packed bits may end beyond the vocabulary.
    let beyond = Arc::new(TokenMask::from_words([[0; 10].as_slice(), &[1]].concat()).unwrap());
    let sampling = Sampling::greedy();
    let draw = Draw { mask: Some(&beyond), ..Draw::from(&sampling) };
    let error = refusal(rig.submit(3, &[1], draw));
    assert!(error.nothing_happened());
    let ExecError::NothingAllowed { seq, vocab } = error else { panic!("{error}") };
    assert_eq!((seq, vocab), (SeqId(3), VOCAB));
}

#[test]
fn a_seed_of_the_draw_replaces_the_seed_of_the_sampling() {
    let with = |seed| Sampling::builder().temperature(1.0).seed(seed).build().unwrap();
    let (plain, seeded) = (with(1), with(9 << 40));
    let mut rig = Rig::new(OPTIONS);
    let draw = Draw { seed: Some(9 << 40), ..Draw::from(&plain) };
    rig.submit(0, &[4, 5], draw).unwrap();
    let [expected, other] = [&seeded, &plain].map(|its| reference_draw(&ids(&[4, 5]), its, VOCAB));
    assert_ne!(expected, other);
    assert_eq!(rig.drawn(), [expected.unwrap()]);
}

#[test]
fn biases_apply_to_their_own_output() {
    let greedy = Sampling::greedy();
    let best = reference_draw(&ids(&[10]), &greedy, VOCAB).unwrap();
    let forbidding = greedy.to_builder().bias(best, f32::NEG_INFINITY).build().unwrap();
    let mut rig = Rig::new(OPTIONS);
    for samplings in [[&forbidding, &forbidding], [&forbidding, &greedy], [&greedy, &forbidding]] {
        let drawn = step(&mut rig, &samplings);
        for (seq, (token, sampling)) in (0..).zip(drawn.iter().zip(samplings)) {
            assert_eq!(Some(*token), reference_draw(&ids(&[10 + seq]), sampling, VOCAB));
        }
        (0..2).for_each(|seq| rig.sequences.remove(SeqId(seq)).unwrap());
    }
    assert_ne!(reference_draw(&ids(&[10]), &forbidding, VOCAB), Some(best));
}
