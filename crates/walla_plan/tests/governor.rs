//! The governor with the real planner and ledger: frame budgets, debt, and bounded waiting.

mod common;

use std::time::Duration;

use common::{Rig, cost};
use proptest::prelude::*;
use walla_plan::governor::{MAX_DEBT_FRAMES, NEEDED, OVERDRAFT};
use walla_plan::{GovernorOptions, NextWork, PlanRequest, StepWork};
use walla_types::SeqId;

fn options(budget_micros: u32) -> GovernorOptions {
    GovernorOptions {
        budget_micros: Some(budget_micros),
        max_launch_micros: None,
        ..GovernorOptions::default()
    }
}

fn speakers(count: u32) -> Vec<PlanRequest> {
    (0..count).map(|seq| PlanRequest::new(SeqId(seq), NextWork::Decoding)).collect()
}

#[test]
fn a_frame_stays_within_its_budget() {
    let mut rig = Rig::new(options(3_000), cost(700.0, 20.0), speakers(40));
    for _ in 0..100 {
        let frame = rig.frame(|predicted| predicted);
        assert!(frame.predicted_micros <= 3_000.0, "{frame:?}");
        assert!(frame.rows > 0);
    }
    assert_eq!(rig.governor.stats().frames_over, 0);
}

#[test]
fn later_frames_pay_for_the_overuse_of_a_frame() {
    let mut rig = Rig::new(options(1_000), cost(400.0, 10.0), speakers(4));
    rig.frame(|expected| expected);
    let usual = rig.frame(|expected| expected);
    assert!(usual.rows > 0);
    let over = rig.frame(|_| 2_600.0);
    assert!(over.rows > 0);
    let after: Vec<_> = (0..3).map(|_| rig.frame(|expected| expected).rows).collect();
    assert_eq!(after[..2], [0, 0], "1,600 µs are owed: one frame whole, 600 µs of the next");
    assert!(after[2] > 0);
    assert_eq!((rig.governor.stats().frames_over, rig.governor.stats().frames_skipped), (1, 2));
}

#[test]
fn a_new_budget_applies_from_the_next_frame() {
    let mut rig = Rig::new(options(400), cost(100.0, 10.0), speakers(100));
    let small = rig.frame(|expected| expected);
    rig.governor.set_budget(Some(3_000));
    assert_eq!(rig.governor.stats().budget, Some(Duration::from_micros(400)), "not yet");
    let large = rig.frame(|expected| expected);
    assert_eq!(rig.governor.stats().budget, Some(Duration::from_micros(3_000)));
    assert!(
        small.predicted_micros <= 400.0 && large.predicted_micros > 900.0,
        "{small:?} {large:?}"
    );
    rig.governor.set_budget(Some(400));
    assert!(rig.frame(|expected| expected).predicted_micros <= 400.0);
    rig.governor.set_budget(None);
    assert_eq!(rig.frame(|expected| expected).rows, 100, "no limit but rows");
}

#[test]
fn no_step_exceeds_the_launch_limit() {
    let launch = GovernorOptions {
        budget_micros: Some(4_000),
        max_launch_micros: Some(500),
        ..GovernorOptions::default()
    };
    let mut rig = Rig::new(launch, cost(150.0, 10.0), speakers(100));
    let frame = rig.frame(|expected| expected);
    assert!(frame.longest_micros <= 500.0, "{frame:?}");
    assert!(frame.steps >= 4 && frame.rows == 100, "cut, not dropped: {frame:?}");
    // One step just fits. A step close to the limit does not permit a longer one.
    let mut close = Rig::new(launch, cost(330.0, 10.0), speakers(100));
    let frame = close.frame(|expected| expected);
    assert!(frame.smallest_micros > 500.0 / OVERDRAFT, "{frame:?}");
    assert!(frame.rows > 0 && frame.longest_micros <= 500.0, "{frame:?}");
    // No step of this device is that short: the limit is relative to the smallest step.
    let mut slow = Rig::new(launch, cost(900.0, 10.0), speakers(100));
    let frame = slow.frame(|expected| expected);
    assert!(frame.rows > 1 && frame.longest_micros <= 910.0 * 1.2 * OVERDRAFT, "{frame:?}");
}

#[test]
fn a_budget_too_small_for_any_step_is_kept_on_average() {
    for (budget, smallest) in [(1_000, 1_500.0), (1_000, 8_000.0), (300, 4_000.0)] {
        let mut rig = Rig::new(options(budget), cost(smallest, 1.0), speakers(4));
        let (mut used, mut most_rows) = (0.0, 0);
        for _ in 0..2_000 {
            let frame = rig.frame(|expected| expected);
            used += frame.measured_micros;
            most_rows = most_rows.max(frame.rows);
            assert!(frame.predicted_micros <= smallest * 1.3 * OVERDRAFT, "{frame:?}");
        }
        assert!(used / 2_000.0 <= budget as f32 * 1.02, "{used} of {budget} for {smallest}");
        assert!(used / 2_000.0 >= budget as f32 * 0.45, "{used} of {budget} for {smallest}");
        assert_eq!(most_rows, 4, "rows that cost little are added");
        let stats = rig.governor.stats();
        assert_eq!(stats.frames_over, stats.frames_overdrawn);
    }
}

#[test]
fn aged_agents_beyond_capacity_do_not_break_the_budget() {
    // 400 agents on a device that serves 300 per second: every agent has waited for more than a
    // second.
    let mut rig = Rig::new(options(300), cost(280.0, 10.0), speakers(400));
    let mut used = 0.0;
    for _ in 0..600 {
        used += rig.frame(|expected| expected).measured_micros;
    }
    assert!(used / 600.0 <= 300.0 * 1.02, "{}", used / 600.0);
    let waits = rig.requests.iter().map(|request| request.waited_frames);
    assert!(waits.clone().min() > Some(0) || waits.max() > Some(60));
}

/// The same predictions limit launches: a margin that never decreased would keep launches short.
#[test]
fn the_margin_decays_after_the_budget_is_lifted() {
    let launch = GovernorOptions {
        budget_micros: Some(500),
        max_launch_micros: Some(600),
        ..GovernorOptions::default()
    };
    let mut rig = Rig::new(launch, cost(300.0, 10.0), speakers(8));
    let run = |rig: &mut Rig, frames: u32| {
        for _ in 0..frames {
            rig.frame(|expected| expected);
        }
    };
    let margin = |rig: &Rig| {
        let row = StepWork::decode(1, 1);
        rig.governor.cost().predict_micros(row) / rig.governor.expect_micros(row)
    };
    run(&mut rig, 200);
    let before = margin(&rig);
    for _ in 0..8 {
        rig.frame(|expected| 1.8 * expected);
        run(&mut rig, 40);
    }
    let careful = margin(&rig);
    assert!(careful > before + 0.1, "{before} {careful}");
    rig.governor.set_budget(None);
    run(&mut rig, 20_000);
    let after = margin(&rig);
    assert!(after < before + 0.01, "{before} {careful} {after}");
}

#[test]
fn a_budget_of_zero_runs_no_step_for_any_duration() {
    let mut rig = Rig::new(options(0), cost(100.0, 1.0), speakers(4));
    let rows: u32 = (0..1_000).map(|_| rig.frame(|expected| expected).rows).sum();
    assert_eq!((rows, rig.governor.stats().frames_skipped), (0, 0));
}

#[test]
fn a_long_prompt_delays_no_decode_token() {
    let mut requests = speakers(8);
    requests.push(PlanRequest::new(SeqId(8), NextWork::Prefill { tokens: 1_000 }));
    let mut rig = Rig::new(options(1_000), cost(300.0, 5.0), requests);
    let mut read = 0;
    for _ in 0..400 {
        let frame = rig.frame(|expected| expected);
        assert_eq!(frame.decode_rows, 8, "{frame:?}");
        read += frame.prefill_tokens;
    }
    assert!(read >= 1_000, "{read} tokens");
    assert_eq!(rig.governor.stats().frames_over, 0);
}

#[test]
fn a_device_that_becomes_slow_is_detected_within_a_few_frames() {
    let mut rig = Rig::new(options(2_000), cost(400.0, 10.0), speakers(64));
    for _ in 0..100 {
        rig.frame(|expected| expected);
    }
    let mut over = 0;
    for frame in 0..200 {
        let slow = cost(400.0 * 2.0, 10.0 * 2.0);
        let used = rig.frame_on(&slow);
        let is_over = used.measured_micros > 2_000.0;
        over += u32::from(is_over);
        assert!(!is_over || frame < 60, "frame {frame}: {used:?}");
    }
    assert!(over < 30, "{over}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Rules 1 to 4: the budget minus debt, or a few times the smallest step if nothing fits, or
    /// one row of an agent that has waited too long.
    #[test]
    fn no_frame_is_planned_beyond_its_budget(
        step_micros in 20.0f32..3_000.0,
        row_micros in 0.0f32..60.0,
        budget in 0u32..4_000,
        agents in 1u32..30,
        prompts in 0u32..6,
        noise in prop::collection::vec(0.5f32..2.5, 30),
    ) {
        let mut requests = speakers(agents);
        for seq in agents..agents + prompts {
            requests.push(PlanRequest::new(SeqId(seq), NextWork::Prefill { tokens: 200 }));
        }
        let mut rig = Rig::new(options(budget), cost(step_micros, row_micros), requests);
        for noise in noise {
            let before = rig.governor.stats();
            prop_assert!(before.debt.as_micros() as u32 <= budget * MAX_DEBT_FRAMES);
            let frame = rig.frame(|expected| expected * noise);
            let grant = (budget as f32 - frame.debt_micros).max(0.0);
            let is_within = frame.predicted_micros <= grant + 1.0;
            let nothing_fits = frame.smallest_micros > budget as f32 && frame.debt_micros < 1.0;
            let is_smallest = frame.predicted_micros <= frame.least_micros * NEEDED + 1.0;
            let is_forced = frame.rows == 1 && frame.longest_wait >= 60 && frame.debt_micros < 1.0;
            // A trial may take a quarter more.
            let most = 1.25 * (budget as f32).max(frame.least_micros * NEEDED) + 1.0;
            let has_trial = rig.governor.stats().trials > before.trials;
            let is_trial = has_trial && frame.predicted_micros <= most;
            prop_assert!(
                is_within || (nothing_fits && is_smallest) || is_forced || is_trial,
                "{frame:?} {budget}"
            );
        }
    }

    #[test]
    fn every_agent_is_served_within_a_bound(
        step_micros in 20.0f32..3_000.0,
        budget in 1u32..2_000,
        agents in 1u32..30,
        noise in prop::collection::vec(0.5f32..4.0, 7),
    ) {
        let mut rig = Rig::new(options(budget), cost(step_micros, 5.0), speakers(agents));
        for n in 0..1_000 {
            rig.frame(|expected| expected * noise[n % noise.len()]);
            let longest = rig.requests.iter().map(|request| request.waited_frames).max();
            // Each of the other agents can be followed by this number of frames that pay its debt.
            let bound = 60 + (MAX_DEBT_FRAMES + 2) * agents;
            prop_assert!(longest <= Some(bound), "{longest:?}");
        }
    }

    #[test]
    fn more_budget_never_reduces_work(
        step_micros in 20.0f32..1_000.0,
        row_micros in 1.0f32..60.0,
        beyond in (0u32..4_000, 0u32..4_000),
        agents in 1u32..60,
    ) {
        let rows_of = |budget| {
            let cost = cost(step_micros, row_micros);
            Rig::new(options(budget), cost, speakers(agents)).frame(|expected| expected).rows
        };
        // A budget in which nothing fits is overdrawn: compare budgets in which a step fits.
        let less = (1.2 * (step_micros + row_micros)).ceil() as u32 + beyond.0;
        let more = less + beyond.1;
        prop_assert!(rows_of(less) <= rows_of(more));
    }
}
