//! Invariants of every plan, for arbitrary requests.

use std::collections::BTreeSet;

use proptest::prelude::*;
use walla_plan::{
    CostModel, Detail, KvCommands, KvLedger, LedgerOptions, Limits, LinearCost, NextWork, Plan,
    PlanRequest, plan,
};
use walla_types::SeqId;

const SEQUENCES: u32 = 24;

fn ledger_with(pages: u32, lengths: &[u32]) -> KvLedger {
    let options = LedgerOptions {
        page_tokens: 4,
        pages: pages + 1,
        max_pages_per_sequence: 16,
        max_sequences: SEQUENCES,
        ..LedgerOptions::default()
    };
    let mut ledger = KvLedger::new(options).unwrap();
    for (seq, &tokens) in lengths.iter().enumerate() {
        let _ = ledger.append(SeqId(seq as u32), tokens, &mut KvCommands::with_capacity(0));
    }
    ledger.retire(1);
    ledger
}

fn request() -> impl Strategy<Value = PlanRequest> {
    let work = prop_oneof![
        4 => (0u32..40).prop_map(|tokens| NextWork::Prefill { tokens }),
        6 => Just(NextWork::Decoding),
    ];
    let detail = prop_oneof![Just(Detail::Full), Just(Detail::Reduced), Just(Detail::Background)];
    let due = prop_oneof![Just(None), (-3.0f32..6.0).prop_map(Some), Just(Some(f32::NAN))];
    (0..SEQUENCES + 2, work, detail, due, -2i32..3, 0u32..12).prop_map(
        |(seq, work, detail, due, priority, waited_frames)| PlanRequest {
            seq: SeqId(seq),
            work,
            priority,
            detail,
            due,
            waited_frames,
        },
    )
}

fn limits() -> impl Strategy<Value = (Limits<'static>, Option<LinearCost>)> {
    let cost = (0.0f32..50.0, 0.0f32..20.0, 0.0f32..2.0, 0.0f32..20.0).prop_map(
        |(step_micros, row_micros, context_token_micros, prefill_token_micros)| LinearCost {
            step_micros,
            row_micros,
            context_token_micros,
            prefill_token_micros,
        },
    );
    let times = (0u32..600, prop_oneof![Just(u32::MAX), 0u32..300], 1.0f32..2.0);
    (0u32..20, 0u32..20, 0u32..20, times, prop::option::of(cost)).prop_map(
        |(max_rows, max_prefill_tokens, max_sequences, times, cost)| {
            let (max_device_micros, max_step_micros, chunk_gain_min) = times;
            let limits = Limits {
                max_rows,
                max_prefill_tokens,
                chunk_gain_min,
                chunk_tokens_min: 1,
                max_sequences,
                max_wait_frames: 10,
                max_device_micros,
                max_step_micros,
                forces: true,
                cost: None,
            };
            (limits, cost)
        },
    )
}

fn unique_by_seq(requests: Vec<PlanRequest>) -> Vec<PlanRequest> {
    let mut seen = BTreeSet::new();
    requests.into_iter().filter(|request| seen.insert(request.seq)).collect()
}

fn wants(request: &PlanRequest) -> bool {
    request.work != NextWork::Prefill { tokens: 0 }
}

/// Executes a plan. Every append must find its pages.
fn carry_out(frame: &Plan, ledger: &mut KvLedger) {
    let mut commands = KvCommands::with_capacity(256);
    for prefill in frame.prefill() {
        ledger.reserve(prefill.seq, prefill.prompt_tokens, &mut commands).unwrap();
        ledger.append(prefill.seq, prefill.tokens, &mut commands).unwrap();
    }
    for &seq in frame.decode() {
        ledger.append(seq, 1, &mut commands).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_keeps_all_limits_and_accounts_for_all_requests(
        requests in prop::collection::vec(request(), 0..SEQUENCES as usize),
        (limits, cost) in limits(),
        pages in 4u32..80,
        lengths in prop::collection::vec(0u32..64, SEQUENCES as usize),
    ) {
        let requests = unique_by_seq(requests);
        let limits = Limits { cost: cost.as_ref().map(|cost| cost as &dyn CostModel), ..limits };
        let mut ledger = ledger_with(pages, &lengths);
        let mut frame = Plan::new(SEQUENCES);
        plan(&requests, &ledger, &limits, &mut frame).unwrap();

        let work = frame.step();
        prop_assert!(work.rows() <= limits.max_rows);
        prop_assert_eq!(frame.decode().len() as u32, work.decode_rows);
        let tokens: u32 = frame.prefill().iter().map(|prefill| prefill.tokens).sum();
        prop_assert!(tokens <= limits.max_prefill_tokens);
        prop_assert_eq!(tokens, work.prefill_tokens);
        let sequences = frame.decode().len() + frame.prefill().len();
        prop_assert!(sequences <= limits.max_sequences as usize);

        if let Some(cost) = cost.filter(|_| !work.is_empty()) {
            let micros = cost.predict_micros(work);
            let only_one = sequences == 1
                && work.rows() == 1
                && requests.iter().any(|request| request.waited_frames >= 10);
            let budget = limits.max_device_micros as f32;
            prop_assert!(micros <= budget || only_one, "{micros} > {budget}");
            prop_assert!(micros <= limits.max_step_micros as f32 || only_one, "{micros}");
        }

        let prefilled = frame.prefill().iter().map(|prefill| prefill.seq);
        let served: Vec<_> = frame.decode().iter().copied().chain(prefilled).collect();
        let deferred: Vec<_> = frame.deferred().iter().map(|deferred| deferred.seq).collect();
        let mut accounted: Vec<_> = served.iter().chain(&deferred).copied().collect();
        accounted.sort_unstable();
        accounted.dedup();
        prop_assert_eq!(accounted.len(), served.len() + deferred.len(), "nobody is listed twice");
        for request in requests.iter().filter(|request| wants(request)) {
            prop_assert!(accounted.contains(&request.seq), "{:?} is not accounted for", request);
        }
        carry_out(&frame, &mut ledger);
    }

    #[test]
    fn a_plan_does_not_depend_on_the_order_of_requests(
        requests in prop::collection::vec(request(), 0..SEQUENCES as usize),
        (limits, cost) in limits(),
        pages in 4u32..80,
        rotation in 0usize..24,
    ) {
        let requests = unique_by_seq(requests);
        let limits = Limits { cost: cost.as_ref().map(|cost| cost as &dyn CostModel), ..limits };
        let ledger = ledger_with(pages, &[3; SEQUENCES as usize]);
        let mut turned = requests.clone();
        turned.rotate_left(rotation.min(requests.len()));
        turned.reverse();
        let (mut one, mut other) = (Plan::new(SEQUENCES), Plan::new(SEQUENCES));
        // Leaves stale data in the scratch memory.
        plan(&turned, &ledger, &limits, &mut one).unwrap();
        plan(&requests, &ledger, &limits, &mut one).unwrap();
        plan(&turned, &ledger, &limits, &mut other).unwrap();
        prop_assert_eq!(one.decode(), other.decode());
        prop_assert_eq!(one.prefill(), other.prefill());
        prop_assert_eq!(one.step(), other.step());
        let mut deferred = other.deferred().to_vec();
        deferred.sort_unstable_by_key(|d| requests.iter().position(|r| r.seq == d.seq));
        prop_assert_eq!(one.deferred(), deferred);
    }

    #[test]
    fn every_wait_is_bounded(
        mut requests in prop::collection::vec(request(), 1..SEQUENCES as usize),
        max_rows in 1u32..12,
        budget in 0u32..200,
    ) {
        requests.retain(|request| wants(request) && request.seq.0 < SEQUENCES);
        let mut requests = unique_by_seq(requests);
        for request in &mut requests {
            request.waited_frames = 0;
        }
        let cost = LinearCost { step_micros: 100.0, row_micros: 10.0, ..LinearCost::default() };
        let limits = Limits {
            max_rows,
            max_prefill_tokens: 16,
            chunk_gain_min: 1.0,
            chunk_tokens_min: 1,
            max_sequences: 8,
            max_wait_frames: 10,
            max_device_micros: budget,
            max_step_micros: u32::MAX,
            forces: true,
            cost: Some(&cost),
        };
        let bound = limits.max_wait_frames + requests.len() as u32;
        let ledger = ledger_with(1_000, &[1; SEQUENCES as usize]);
        let mut frame = Plan::new(SEQUENCES);
        for _ in 0..100 {
            plan(&requests, &ledger, &limits, &mut frame).unwrap();
            for request in &mut requests {
                let seq = request.seq;
                let speaks = frame.decode().contains(&seq);
                let reads = frame.prefill().iter().any(|prefill| prefill.seq == seq);
                request.waited_frames = if speaks || reads { 0 } else { request.waited_frames + 1 };
                prop_assert!(request.waited_frames <= bound, "{:?} waits beyond {}", request, bound);
            }
        }
    }
}
