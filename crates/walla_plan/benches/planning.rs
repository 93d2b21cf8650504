//! Duration of planning: `cargo bench -p walla_plan`. Prints the median and the 99th percentile of
//! many runs.

use std::hint::black_box;
use std::time::Instant;

use walla_plan::{
    Batch, BatchLimits, KvCommands, KvLedger, LedgerOptions, Limits, LinearCost, NextWork, Output,
    OutputMap, Plan, PlanRequest, Splitter, TokenInput, UBatch, plan,
};
use walla_types::SeqId;

const RUNS: usize = 400;

fn report(name: &str, mut work: impl FnMut()) {
    for _ in 0..20 {
        work();
    }
    let mut micros: Vec<f64> = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        work();
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    micros.sort_by(f64::total_cmp);
    let (median, p99) = (micros[RUNS / 2], micros[RUNS * 99 / 100]);
    println!("{name:<64} median {median:>8.1} µs   p99 {p99:>8.1} µs");
}

/// A ledger in which every sequence has `tokens` tokens.
fn ledger_with(sequences: u32, tokens: u32) -> KvLedger {
    let pages = sequences * tokens.div_ceil(32) + 4_096;
    let options = LedgerOptions {
        page_tokens: 32,
        pages,
        max_sequences: sequences,
        max_pages_per_sequence: 64,
        ..LedgerOptions::default()
    };
    let mut ledger = KvLedger::new(options).expect("options are valid");
    let mut commands = KvCommands::with_capacity(0);
    for seq in (0..sequences).map(SeqId) {
        ledger.append(seq, tokens, &mut commands).expect("pages suffice");
    }
    ledger.retire(1);
    ledger
}

/// Agents with mixed states, priorities and waits.
fn crowd(agents: u32) -> Vec<PlanRequest> {
    let agent = |seq: u32| {
        let mixed = seq.wrapping_mul(2_654_435_761) >> 8;
        let state = match mixed % 8 {
            0 | 1 => NextWork::Prefill { tokens: 20 + mixed % 300 },
            _ => NextWork::Decoding,
        };
        PlanRequest {
            priority: (mixed % 5) as i32,
            due: Some((mixed % 100) as f32 / 20.0 - 2.0),
            waited_frames: mixed % 70,
            ..PlanRequest::new(SeqId(seq), state)
        }
    };
    (0..agents).map(agent).collect()
}

fn bench_plans() {
    let cost = LinearCost {
        step_micros: 300.0,
        row_micros: 2.0,
        context_token_micros: 0.01,
        prefill_token_micros: 3.0,
    };
    for agents in [64, 1_000, 10_000] {
        let (ledger, requests) = (ledger_with(agents, 40), crowd(agents));
        let mut frame = Plan::new(agents);
        let budgets = [("4 ms", 4_000), ("nothing", 0)];
        for (name, max_device_micros) in budgets {
            let limits = Limits { max_device_micros, cost: Some(&cost), ..Limits::default() };
            report(&format!("plan, {agents} agents, a budget of {name}"), || {
                plan(black_box(&requests), &ledger, &limits, &mut frame)
                    .expect("the plan has room");
            });
        }
    }
    // No agent finds a page, so all agents are visited.
    let agents = 10_000;
    let options = LedgerOptions {
        page_tokens: 16,
        pages: agents + 1,
        max_pages_per_sequence: 64,
        max_sequences: agents,
        ..LedgerOptions::default()
    };
    let mut ledger = KvLedger::new(options).expect("options are valid");
    for seq in (0..agents).map(SeqId) {
        ledger.append(seq, 16, &mut KvCommands::with_capacity(0)).expect("pages suffice");
    }
    let (requests, limits) = (crowd(agents), Limits { cost: Some(&cost), ..Limits::default() });
    let mut frame = Plan::new(agents);
    report("plan, 10000 agents, no page left", || {
        plan(black_box(&requests), &ledger, &limits, &mut frame).expect("the plan has room");
    });
}

fn bench_steps() {
    for agents in [64, 128] {
        let limits = BatchLimits::new(150_000, agents, 512);
        let mut ledger = ledger_with(agents, 1_000);
        let mut commands = KvCommands::with_capacity(256);
        let mut batch = Batch::new(limits);
        let (mut splitter, mut outputs) = (Splitter::new(limits), OutputMap::new(limits));
        let mut ubatch = UBatch::with_capacity(512);
        let mut fence = 2;
        report(&format!("step of {agents} speakers: batch, check, split, append"), || {
            batch.clear();
            for seq in (0..agents).map(SeqId) {
                let pushed = batch.push(TokenInput::LastSampled, None, seq, Output::Sample);
                black_box(pushed.expect("the batch has room"));
            }
            let checked = batch.check(&ledger).expect("the batch is right");
            let mut split = checked.split(&mut splitter, &mut outputs);
            while split.ragged(512, &mut ubatch) {
                black_box(&ubatch);
            }
            for (seq, tokens) in checked.sequences() {
                ledger.append(seq, tokens, &mut commands).expect("pages suffice");
            }
            ledger.retire(fence);
            ledger.release_up_to(fence);
            fence += 1;
        });
    }
}

fn main() {
    bench_plans();
    bench_steps();
}
