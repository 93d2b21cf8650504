//! Steps in flight: order, bounds, results, and steps that fail half-way.

use walla_device::DeviceError;
use walla_doubles::faulty::{Call, Fault, FaultPlan};
use walla_doubles::hash::reference_draw;
use walla_exec::{Draw, ExecError, ExecOptions};
use walla_plan::{Batch, Output, UBatch};
use walla_types::{Sampling, SeqId, TokenId};

use crate::rig::{OPTIONS, Rig, ids, is_failed, push, refusal};

const COPIED: ExecOptions = ExecOptions { mapped_results: false, ..OPTIONS };

/// The greedy token after a text.
fn greedy(text: &[TokenId]) -> TokenId {
    reference_draw(text, &Sampling::greedy(), 320).unwrap()
}

#[test]
fn a_full_ring_refuses_a_step_without_a_trace() {
    let mut rig = Rig::new(OPTIONS);
    for step in 0..3 {
        assert!(rig.sequences.executor.has_room());
        assert_eq!(rig.greedy(0, &[step]).unwrap(), u64::from(step));
    }
    let before = rig.calls.calls_total();
    let error = refusal(rig.greedy(0, &[3]));
    assert!(matches!(error, ExecError::RingFull { in_flight: 3 }) && error.nothing_happened());
    assert_eq!((rig.calls.calls_total(), rig.sequences.ledger.len(SeqId(0))), (before, 3));
    assert!(!rig.sequences.executor.has_room());
    assert_eq!(rig.drawn(), [greedy(&ids(&[0]))]);
    assert_eq!(rig.greedy(0, &[3]).unwrap(), 3);
}

#[test]
fn steps_complete_in_order_at_their_time() {
    let mut rig = Rig::new(OPTIONS);
    for token in 0..3 {
        rig.greedy(token, &[token]).unwrap();
    }
    // A step of one row takes 320 us.
    for step in 0..3 {
        rig.clock.advance(319);
        assert_eq!(rig.sequences.poll().unwrap(), None);
        rig.clock.advance(1);
        let completed = rig.sequences.poll().unwrap().expect("its time has passed");
        assert_eq!((completed.step, completed.rows, completed.outputs), (step, 1, 1));
        rig.sequences.release(completed);
    }
    assert_eq!(rig.sequences.executor.in_flight(), 0);
    assert_eq!(rig.sequences.poll().unwrap(), None);
}

#[test]
fn results_stay_until_the_slot_is_released() {
    let mut rig = Rig::new(ExecOptions { ring: 1, ..OPTIONS });
    rig.greedy(0, &[5]).unwrap();
    let completed = rig.completed();
    assert_eq!(rig.sequences.poll().unwrap(), Some(completed));
    assert!(matches!(refusal(rig.greedy(1, &[6])), ExecError::RingFull { in_flight: 1 }));
    assert_eq!(rig.drawn(), [greedy(&ids(&[5]))]);
    rig.greedy(1, &[6]).unwrap();
    assert_eq!(rig.drawn(), [greedy(&ids(&[6]))]);
}

/// Twenty rounds through a ring of three, with two steps in flight.
fn conversation(options: ExecOptions) -> Rig {
    let mut rig = Rig::new(options);
    let mut texts = [ids(&[1, 2, 3]), ids(&[200])];
    for (seq, text) in (0..).zip(&texts) {
        rig.greedy(seq, &text.iter().map(|token| token.0).collect::<Vec<_>>()).unwrap();
    }
    for round in 0..20 {
        for (seq, text) in (0..).zip(&mut texts) {
            let drawn = rig.drawn();
            assert_eq!(drawn, [greedy(text)], "round {round}");
            text.push(drawn[0]);
            rig.greedy(seq, &[drawn[0].0]).unwrap();
        }
    }
    rig
}

#[test]
fn mapped_and_copied_results_are_those_of_their_step() {
    for options in [OPTIONS, COPIED] {
        let rig = conversation(options);
        let copies = if options.mapped_results { 0 } else { 42 };
        let calls = [Call::WriteHost, Call::Upload, Call::Launch, Call::Download, Call::Record];
        let made = calls.map(|call| rig.calls.calls(call));
        assert_eq!(made, [42, 42, 42, copies, 2 * copies], "{options:?}");
        // Only loading allocates.
        assert_eq!(rig.calls.calls(Call::Prepare), 1);
    }
}

#[test]
fn candidates_are_in_mapped_and_copied_results() {
    for options in [OPTIONS, COPIED] {
        let mut rig = Rig::new(options);
        let sampling = Sampling::builder().candidates(5).build().unwrap();
        rig.submit(0, &[7], Draw::from(&sampling)).unwrap();
        let completed = rig.completed();
        let mut found = Vec::new();
        rig.sequences
            .executor
            .read_results(completed, &mut |view| {
                let candidates = view.candidates.iter().take(view.rows[0].candidates as usize);
                found.extend(candidates.map(|its| (its.token, its.log_probability)));
            })
            .unwrap();
        let expected: Vec<_> = (0..5_u32).map(|token| (token, -1.0 - token as f32)).collect();
        assert_eq!(found, expected, "{options:?}");
    }
}

#[test]
fn logits_are_copied_for_the_rows_that_want_them() {
    let mut rig = Rig::new(OPTIONS);
    let mut batch = Batch::new(rig.sequences.limits());
    push(&mut batch, 0, &[1, 2], Output::Sample);
    push(&mut batch, 1, &[3], Output::Logits);
    push(&mut batch, 2, &[4, 5], Output::Logits);
    let greedy = Sampling::greedy();
    rig.sequences.submit(&mut batch, &|_| Some(Draw::from(&greedy))).unwrap();
    assert_eq!((rig.calls.calls(Call::Download), rig.calls.calls(Call::Record)), (2, 2));
    let completed = rig.completed();
    assert_eq!((completed.outputs, completed.logits_rows), (3, 2));
    let executor = &mut rig.sequences.executor;
    for row in 0..2 {
        let mut numbers = 0;
        executor.read_logits(completed, row, &mut |row| numbers = row.len()).unwrap();
        assert_eq!(numbers, 320);
    }
    let error = executor.read_logits(completed, 2, &mut |_| panic!("no such row")).unwrap_err();
    let wanted = (&"rows of logits", &3, &2);
    let ExecError::StepTooLarge { what, wanted: rows, max } = &error else { panic!("{error}") };
    assert_eq!((what, rows, max), wanted);
}

#[test]
fn a_step_without_rows_makes_no_call() {
    let mut rig = Rig::new(OPTIONS);
    let before = rig.calls.calls_total();
    let sequences = &mut rig.sequences;
    let empty = UBatch::with_capacity(4);
    let error = sequences.executor.submit_ubatch(&empty, &sequences.ledger, &|_| None).unwrap_err();
    assert!(matches!(error, ExecError::NoRows) && error.nothing_happened());
    assert_eq!(rig.calls.calls_total(), before);
}

/// Every call of a step may fail: the step counts as failed, the next ones work, and no result is
/// that of another step.
#[test]
fn a_step_that_fails_at_any_call_does_not_disturb_the_next() {
    for (options, call, last) in [
        (OPTIONS, Call::WriteHost, 1),
        (OPTIONS, Call::Upload, 1),
        (OPTIONS, Call::Launch, 1),
        (COPIED, Call::Record, 2),
        (COPIED, Call::Wait, 1),
        (COPIED, Call::Download, 1),
    ] {
        for nth in 0..last {
            let plan = FaultPlan::new(1).fail_call(call, nth, Fault::Failed);
            let mut rig = Rig::with_plan(options, plan);
            let error = refusal(rig.greedy(0, &[1, 2]));
            assert!(is_failed(&error) && !error.nothing_happened(), "{call:?}: {error}");
            let executor = &rig.sequences.executor;
            assert_eq!(executor.in_flight(), 0);
            // Nothing was enqueued if the host's block could not be written.
            assert_eq!(executor.is_reclaiming(), call != Call::WriteHost, "{call:?}");
            rig.sequences.remove(SeqId(0)).unwrap();
            rig.sequences.executor.synchronize().unwrap();
            for text in [[3, 4], [5, 6], [7, 8], [9, 10]] {
                rig.greedy(1, &text).unwrap();
                assert_eq!(rig.drawn(), [greedy(&ids(&text))], "{call:?} {nth}");
                rig.sequences.remove(SeqId(1)).unwrap();
            }
            assert!(!rig.sequences.executor.is_reclaiming());
        }
    }
}

#[test]
fn a_torn_step_is_reclaimed_when_its_copies_have_ended() {
    let plan = FaultPlan::new(1).fail_call(Call::Launch, 1, Fault::Failed);
    let mut rig = Rig::with_plan(OPTIONS, plan);
    rig.greedy(0, &[1]).unwrap();
    refusal(rig.greedy(1, &[2]));
    // The first step runs until 320 us, and the copies of the second follow it.
    let early = refusal(rig.greedy(2, &[3]));
    assert!(matches!(early, ExecError::Device(DeviceError::HostInFlight { .. })), "{early}");
    assert!(early.nothing_happened() && rig.sequences.executor.is_reclaiming());
    assert_eq!(rig.sequences.executor.in_flight(), 1, "the first step");
    assert_eq!(rig.drawn(), [greedy(&ids(&[1]))]);
    assert_eq!(rig.sequences.poll().unwrap(), None, "no step, but the end of the copies");
    assert!(!rig.sequences.executor.is_reclaiming());
    rig.greedy(2, &[3]).unwrap();
    assert_eq!(rig.drawn(), [greedy(&ids(&[3]))]);
}

#[test]
fn a_lost_device_fails_every_later_call() {
    let plan = FaultPlan::new(1).fail_call(Call::Launch, 1, Fault::Lost);
    let mut rig = Rig::with_plan(OPTIONS, plan);
    rig.greedy(0, &[1]).unwrap();
    let is_lost = |error: &ExecError| matches!(error, ExecError::Device(it) if it.is_lost());
    assert!(is_lost(&refusal(rig.greedy(1, &[2]))));
    assert!(is_lost(&refusal(rig.greedy(2, &[3]))));
    assert!(is_lost(&rig.sequences.poll().unwrap_err()));
    assert!(is_lost(&rig.sequences.executor.synchronize().unwrap_err()));
}

#[test]
fn an_abandoned_device_is_lost_and_never_dropped() {
    let mut rig = Rig::new(OPTIONS);
    rig.greedy(0, &[1]).unwrap();
    rig.sequences.executor.abandon("a test says so");
    let error = refusal(rig.greedy(0, &[2]));
    assert!(error.to_string().contains("a test says so"), "{error}");
    drop(rig.sequences);
    assert!(!rig.calls.is_dropped());
}

#[test]
fn results_of_another_step_are_refused() {
    // The block is not evaluated, so the slot keeps the results of the step before it.
    let plan = FaultPlan::new(1).misdirect_from(1);
    let mut rig = Rig::with_plan(ExecOptions { ring: 1, ..OPTIONS }, plan);
    rig.greedy(0, &[1]).unwrap();
    rig.drawn();
    rig.greedy(1, &[2]).unwrap();
    let completed = rig.completed();
    let read = &mut |_: &walla_device::step::ResultView<'_>| panic!("results of another step");
    let error = rig.sequences.executor.read_results(completed, read).unwrap_err();
    assert!(matches!(error, ExecError::ForeignResults { step: 1, found: 0 }), "{error}");
}
