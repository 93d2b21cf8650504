//! The rules of the frame plan, each in its own test.

use walla_plan::{
    AGED_CHUNK_TOKENS, CostModel, Deferral, Deferred, Detail, KvCommands, KvLedger, LedgerOptions,
    Limits, LinearCost, NextWork, Plan, PlanRequest, Prefill, StepWork, TooManyRequests, plan,
};
use walla_types::SeqId;

const SEQUENCES: u32 = 32;

/// A ledger where sequence `i` holds `lengths[i]` tokens, in pages of 4.
fn ledger_with(pages: u32, lengths: &[u32]) -> KvLedger {
    let options = LedgerOptions {
        page_tokens: 4,
        pages: pages + 1,
        max_pages_per_sequence: 64,
        max_sequences: SEQUENCES,
        ..LedgerOptions::default()
    };
    let mut ledger = KvLedger::new(options).unwrap();
    for (seq, &tokens) in lengths.iter().enumerate() {
        ledger.append(SeqId(seq as u32), tokens, &mut KvCommands::with_capacity(0)).unwrap();
    }
    ledger.retire(1);
    ledger
}

fn speaker(seq: u32) -> PlanRequest {
    PlanRequest::new(SeqId(seq), NextWork::Decoding)
}

fn voice(seq: u32, due: f32) -> PlanRequest {
    PlanRequest { due: Some(due), ..speaker(seq) }
}

fn prompt(seq: u32, tokens: u32) -> PlanRequest {
    PlanRequest::new(SeqId(seq), NextWork::Prefill { tokens })
}

fn planned(requests: &[PlanRequest], ledger: &KvLedger, limits: &Limits<'_>) -> Plan {
    let mut frame = Plan::new(SEQUENCES);
    plan(requests, ledger, limits, &mut frame).unwrap();
    frame
}

fn speakers(frame: &Plan) -> Vec<u32> {
    frame.decode().iter().map(|seq| seq.0).collect()
}

fn readers(frame: &Plan) -> Vec<(u32, u32)> {
    frame.prefill().iter().map(|prefill| (prefill.seq.0, prefill.tokens)).collect()
}

fn reason(frame: &Plan, seq: u32) -> Option<Deferral> {
    let of = |deferred: &&Deferred| deferred.seq == SeqId(seq);
    frame.deferred().iter().find(of).map(|deferred| deferred.reason)
}

const LIMITS: Limits<'static> = Limits {
    max_rows: 8,
    max_prefill_tokens: 8,
    chunk_gain_min: 1.0,
    chunk_tokens_min: 1,
    max_sequences: 8,
    max_wait_frames: 60,
    max_device_micros: 0,
    max_step_micros: u32::MAX,
    forces: true,
    cost: None,
};

/// 100 µs per step and 10 µs per row.
const COST: LinearCost = LinearCost {
    step_micros: 100.0,
    row_micros: 10.0,
    context_token_micros: 0.0,
    prefill_token_micros: 0.0,
};

#[test]
fn priority_goes_before_lateness_before_waiting_before_id() {
    let requests = [
        voice(5, 0.0),
        voice(4, 0.0),
        PlanRequest { waited_frames: 3, ..voice(6, 0.0) },
        voice(7, 2.0),
        PlanRequest { priority: 1, ..voice(8, 0.0) },
        PlanRequest { priority: -1, ..voice(1, 9.0) },
    ];
    let ledger = ledger_with(64, &[1; 16]);
    let frame = planned(&requests, &ledger, &LIMITS);
    assert_eq!(speakers(&frame), [8, 7, 6, 4, 5, 1]);
    let narrow = Limits { max_rows: 3, ..LIMITS };
    let frame = planned(&requests, &ledger, &narrow);
    assert_eq!(speakers(&frame), [8, 7, 6]);
    assert_eq!(reason(&frame, 1), Some(Deferral::Rows));
}

#[test]
fn no_prompt_takes_the_row_of_a_due_voice() {
    let urgent = PlanRequest { priority: i32::MAX, waited_frames: 59, ..prompt(0, 100) };
    let mut requests = vec![urgent];
    requests.extend((1..6).map(speaker));
    let ledger = ledger_with(64, &[0, 1, 1, 1, 1, 1]);
    let frame = planned(&requests, &ledger, &LIMITS);
    assert_eq!(speakers(&frame), [1, 2, 3, 4, 5]);
    assert_eq!(readers(&frame), [(0, 3)], "the prompt gets the rows that are left");
    assert!(!frame.prefill()[0].finishes());
}

#[test]
fn agents_ahead_of_their_voice_rate_yield_to_prompts() {
    let requests = [voice(0, -3.0), prompt(1, 8), voice(2, 0.5)];
    let ledger = ledger_with(64, &[1, 0, 1]);
    let frame = planned(&requests, &ledger, &LIMITS);
    assert_eq!((speakers(&frame), readers(&frame)), (vec![2], vec![(1, 7)]));
    assert_eq!(reason(&frame, 0), Some(Deferral::Rows));
    let wide = Limits { max_rows: 16, ..LIMITS };
    let frame = planned(&requests, &ledger, &wide);
    assert_eq!(speakers(&frame), [2, 0], "a deadline is not a maximum of effort");
    assert_eq!(frame.prefill(), [Prefill { seq: SeqId(1), tokens: 8, prompt_tokens: 8 }]);
    assert!(frame.prefill()[0].finishes());
}

#[test]
fn an_empty_prompt_gets_nothing_and_is_not_deferred() {
    let frame = planned(&[prompt(0, 0)], &ledger_with(8, &[1]), &LIMITS);
    assert!(frame.is_empty() && frame.deferred().is_empty());
}

#[test]
fn an_agent_without_pages_is_deferred_with_its_page_count() {
    let ledger = ledger_with(4, &[8, 8]);
    let frame = planned(&[speaker(0), prompt(2, 5)], &ledger, &LIMITS);
    assert!(frame.is_empty());
    assert_eq!(reason(&frame, 0), Some(Deferral::Pages { wanted_pages: 1 }));
    assert_eq!(reason(&frame, 2), Some(Deferral::Pages { wanted_pages: 2 }));
}

#[test]
fn steps_that_exceed_the_budget_are_not_started() {
    let requests: Vec<_> = (0..8).map(speaker).collect();
    let ledger = ledger_with(64, &[1; 8]);
    // Buckets 1, 2, 3, 4, 6, 8: five rows cost 160, as six do; seven would cost 180.
    let limits = Limits { max_device_micros: 179, cost: Some(&COST), ..LIMITS };
    let frame = planned(&requests, &ledger, &limits);
    assert_eq!(speakers(&frame), [0, 1, 2, 3, 4, 5]);
    assert_eq!(reason(&frame, 7), Some(Deferral::Budget));
    let nothing = Limits { max_device_micros: 109, ..limits };
    let frame = planned(&requests, &ledger, &nothing);
    assert!(frame.is_empty());
    assert_eq!(frame.deferred().len(), 8);
}

#[test]
fn a_chunk_is_as_long_as_the_budget_allows() {
    let cost = LinearCost { prefill_token_micros: 7.0, row_micros: 0.0, ..COST };
    let limits = Limits { max_device_micros: 150, cost: Some(&cost), ..LIMITS };
    let frame = planned(&[prompt(0, 100)], &ledger_with(64, &[]), &limits);
    assert_eq!(readers(&frame), [(0, 7)]);
    assert_eq!(cost.predict_micros(frame.step()), 149.0);
}

#[test]
fn context_counts_the_tokens_that_attention_reads() {
    let cost = LinearCost { context_token_micros: 1.0, ..LinearCost::default() };
    let limits = Limits { max_device_micros: 100, cost: Some(&cost), ..LIMITS };
    let ledger = ledger_with(64, &[10, 60, 30, 5]);
    let requests = [speaker(0), speaker(1), speaker(2), prompt(3, 8)];
    let frame = planned(&requests, &ledger, &limits);
    // 11 + 61 fit, another 31 do not. The prompt reads 5 cached tokens and gets the 6 remaining
    // rows.
    let reached = StepWork {
        decode_rows: 2,
        prefill_tokens: 6,
        context_tokens: 11 + 61 + 5 + 6,
        prefill_pairs: 6 * 5 + (1 + 2 + 3 + 4 + 5 + 6),
    };
    assert_eq!(frame.step(), reached);
    assert_eq!(reason(&frame, 2), Some(Deferral::Budget));
}

#[test]
fn a_chunk_smaller_than_the_step_overhead_starts_no_step() {
    let cost =
        LinearCost { step_micros: 100.0, prefill_token_micros: 10.0, ..LinearCost::default() };
    let limits = |max_device_micros| Limits {
        chunk_gain_min: 1.5,
        max_device_micros,
        cost: Some(&cost),
        ..LIMITS
    };
    let ledger = ledger_with(64, &[0, 0, 5]);
    let requests = [prompt(0, 20), prompt(1, 3)];
    // Five tokens cost 150 µs, one costs 110 µs.
    let frame = planned(&requests, &ledger, &limits(150));
    assert_eq!(readers(&frame), [(1, 3)], "the whole of a short one, no part of the long one");
    assert_eq!(readers(&planned(&requests, &ledger, &limits(170))), [(0, 7)]);
    let beside = [prompt(0, 20), speaker(2)];
    assert_eq!(readers(&planned(&beside, &ledger, &limits(150))), [(0, 5)], "the step is there");
    let aged = [PlanRequest { waited_frames: 60, ..prompt(0, 20) }];
    assert!(!readers(&planned(&aged, &ledger, &limits(120))).is_empty(), "who waits too long");
}

#[test]
fn a_nan_prediction_starts_no_step() {
    #[derive(Debug)]
    struct Broken;
    impl CostModel for Broken {
        fn predict_micros(&self, _: StepWork) -> f32 {
            f32::NAN
        }
    }
    let limits = Limits { max_device_micros: u32::MAX, cost: Some(&Broken), ..LIMITS };
    let frame = planned(&[speaker(0)], &ledger_with(8, &[1]), &limits);
    assert!(frame.is_empty());
    assert_eq!(reason(&frame, 0), Some(Deferral::Budget));
}

#[test]
fn aged_agents_run_first_even_beyond_the_budget() {
    let mut requests: Vec<_> =
        (0..8).map(|seq| PlanRequest { priority: 9, ..speaker(seq) }).collect();
    requests.push(PlanRequest { waited_frames: 60, priority: -9, ..prompt(8, 100) });
    requests.push(PlanRequest { waited_frames: 61, priority: -9, ..speaker(9) });
    let ledger = ledger_with(64, &[1; 10]);
    let frame = planned(&requests, &ledger, &LIMITS);
    // One row in eight is for aged agents; the longest wait gets it.
    assert_eq!(speakers(&frame), [9, 0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(reason(&frame, 8), Some(Deferral::Rows));

    let too_small = Limits { max_device_micros: 1, cost: Some(&COST), ..LIMITS };
    let frame = planned(&requests, &ledger, &too_small);
    assert_eq!(speakers(&frame), [9]);
    assert_eq!(COST.predict_micros(frame.step()), 110.0);
    requests.pop();
    let frame = planned(&requests, &ledger, &too_small);
    assert_eq!((speakers(&frame), readers(&frame)), (vec![], vec![(8, 1)]));
}

#[test]
fn an_aged_prompt_gets_a_chunk_in_its_share() {
    let mut requests: Vec<_> = (0..31).map(speaker).collect();
    requests.push(PlanRequest { waited_frames: 60, ..prompt(31, 100) });
    let ledger = ledger_with(64, &[1; 31]);
    let wide = Limits { max_rows: 256, max_prefill_tokens: 64, max_sequences: 4, ..LIMITS };
    let frame = planned(&requests, &ledger, &wide);
    assert_eq!(speakers(&frame), [0, 1, 2], "one of four sequences is the aged prompt's");
    assert_eq!(reason(&frame, 3), Some(Deferral::Sequences));
    assert_eq!(readers(&frame), [(31, 64)], "its chunk grows by what nobody else wants");

    let full = Limits { max_rows: 32, max_prefill_tokens: 64, max_sequences: 64, ..LIMITS };
    let frame = planned(&requests, &ledger, &full);
    assert_eq!(readers(&frame), [(31, 4)], "an eighth of 32 rows");
    assert_eq!(speakers(&frame).len(), 28);
    const { assert!(AGED_CHUNK_TOKENS == 16) };
}

#[test]
fn a_prompt_extended_within_a_step_reads_its_cache_once() {
    let aged = PlanRequest { waited_frames: 60, ..prompt(0, 5) };
    let frame = planned(&[aged], &ledger_with(64, &[40]), &LIMITS);
    let once = StepWork::prefill(5, 40);
    assert_eq!((readers(&frame), frame.step()), (vec![(0, 5)], once));
}

#[test]
fn background_agents_take_the_remaining_time() {
    let background = |request| PlanRequest { detail: Detail::Background, priority: 99, ..request };
    let requests = [background(speaker(0)), background(prompt(1, 2)), speaker(2), prompt(3, 3)];
    let ledger = ledger_with(64, &[1, 0, 1, 0]);
    let limits = Limits { max_rows: 5, ..LIMITS };
    let frame = planned(&requests, &ledger, &limits);
    assert_eq!((speakers(&frame), readers(&frame)), (vec![2, 0], vec![(3, 3)]));
    assert_eq!(reason(&frame, 1), Some(Deferral::Rows));
}

#[test]
fn a_prompt_starts_only_if_all_of_it_has_pages() {
    let ledger = ledger_with(4, &[]);
    let requests = [prompt(0, 17), prompt(1, 12), prompt(2, 8)];
    let limits = Limits { max_rows: 64, max_prefill_tokens: 64, ..LIMITS };
    let frame = planned(&requests, &ledger, &limits);
    assert_eq!(readers(&frame), [(1, 12)]);
    assert_eq!(reason(&frame, 0), Some(Deferral::Pages { wanted_pages: 5 }));
    assert_eq!(reason(&frame, 2), Some(Deferral::Pages { wanted_pages: 2 }));
}

#[test]
fn a_sequence_at_the_end_of_its_context_is_reported() {
    let ledger = ledger_with(130, &[256, 250]);
    let frame = planned(&[speaker(0), prompt(1, 7), speaker(40), prompt(1, 1)], &ledger, &LIMITS);
    assert_eq!(reason(&frame, 0), Some(Deferral::ContextFull));
    assert_eq!(reason(&frame, 1), Some(Deferral::ContextFull));
    assert_eq!(reason(&frame, 40), Some(Deferral::UnknownSequence));
    assert_eq!(frame.deferred()[3].reason, Deferral::Duplicate);
}

#[test]
fn a_plan_reports_its_size() {
    let mut frame = Plan::new(1);
    let refused = plan(&[speaker(0), speaker(1)], &ledger_with(8, &[1, 1]), &LIMITS, &mut frame);
    assert_eq!(refused, Err(TooManyRequests { requests: 2, max_sequences: 1 }));
}
