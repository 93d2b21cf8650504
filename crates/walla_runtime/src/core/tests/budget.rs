//! Frames under a budget, on a device with simulated step times.

use std::time::Duration;

use walla_plan::{BUCKETS, CostModel, StepCost, StepWork, defaults};

use super::*;

fn four_times_slower(work: StepWork) -> u64 {
    4 * as_expected(work)
}

fn rig(budget_micros: u32, pacing: Pacing) -> Rig {
    Rig::budgeted(&options(), budget_micros, pacing)
}

fn framed(budget_micros: u32) -> Rig {
    rig(budget_micros, Pacing::default())
}

#[test]
fn prefill_does_not_delay_the_decode_token_of_a_frame() {
    let mut rig = framed(1_000);
    let speaking = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(1, 60) });
    let first = rig.ask(speaking, tokens("ab"));
    rig.frame();
    let reading = rig.agent(speaker(2, 4));
    let second = rig.ask(reading, tokens(&"x".repeat(110)));
    for _ in 0..20 {
        let before = rig.reply(first).tokens;
        rig.frame();
        assert_eq!(rig.reply(first).tokens, before + 1);
        let used = rig.core.stats().budget;
        assert!(used.used <= Duration::from_micros(1_000), "{used:?}");
    }
    assert_eq!(rig.reply(second).ends.len(), 1, "110 tokens are read beside it");
    assert_eq!(rig.core.stats().budget.frames_over, 0);
}

#[test]
fn a_prompt_uses_the_remaining_time_of_a_frame() {
    let reads = |budget_micros| {
        let mut rig = framed(budget_micros);
        let agent = rig.agent(speaker(1, 4));
        rig.ask(agent, tokens(&"x".repeat(100)));
        rig.frame();
        rig.core.stats().prefill_tokens
    };
    // A chunk of 16 takes 620 µs, with the margin 713 µs.
    assert_eq!([reads(720), reads(1_500), reads(20_000)], [16, 32, 100]);
}

#[test]
fn a_new_budget_applies_to_the_next_frame() {
    let mut rig = framed(20_000);
    for seed in 0..8 {
        let agent = rig.agent(speaker(seed, 60));
        rig.ask(agent, tokens("a"));
    }
    rig.frame();
    assert_eq!(rig.core.stats().tokens, 8);
    rig.core.control(crate::engine_core::Control::Budget(Duration::from_micros(450).into()));
    rig.frame();
    let served = rig.core.stats().tokens - 8;
    assert!((1..=4).contains(&served), "{served} of 8 at 300 µs and 20 µs each, with margin");
    assert_eq!(rig.core.stats().budget.agents_deferred, 8 - served as u32);
    assert_eq!(rig.core.stats().budget.budget, Some(Duration::from_micros(450)));
    rig.core.control(crate::engine_core::Control::Budget(FrameBudget::Unlimited));
    rig.frame();
    assert_eq!(rig.core.stats().tokens, 8 + served + 8);
}

/// Time that other work on the processor has reserved is not the engine's, in any order of
/// settings, but it has at least half of its budget.
#[test]
fn a_reservation_is_taken_from_every_budget() {
    use crate::engine_core::Control;
    let mut rig = framed(1_000);
    let agent = rig.agent(speaker(1, 600));
    rig.ask(agent, tokens("a"));
    let micros = Duration::from_micros;
    for (control, left) in [
        (Control::Budget(micros(5_000).into()), Some(5_000)),
        (Control::Reserved(micros(1_000)), Some(4_000)),
        (Control::Budget(micros(3_000).into()), Some(2_000)),
        (Control::Budget(micros(1_500).into()), Some(750)),
        (Control::Budget(FrameBudget::Unlimited), None),
        (Control::Budget(micros(2_000).into()), Some(1_000)),
        (Control::Reserved(Duration::ZERO), Some(2_000)),
    ] {
        rig.core.control(control);
        rig.frame();
        assert_eq!(rig.core.stats().budget.budget, left.map(micros), "{control:?}");
    }
    let time = FrameBudget::Time(micros(5_000));
    assert_eq!(time.without(micros(1_000), true), Some(micros(5_000)), "a GPU has its own time");
}

/// A reservation makes no free-running client keep to a budget that it does not have.
#[test]
fn a_reservation_leaves_free_clients_free() {
    let mut rig = rig(1_000, Pacing::FreeRunning);
    assert!(rig.core.budget.is_unbudgeted_for(Pacing::FreeRunning));
    rig.core.control(crate::engine_core::Control::Reserved(Duration::from_millis(1)));
    assert!(rig.core.budget.is_unbudgeted_for(Pacing::FreeRunning));
}

#[test]
fn a_slow_step_is_paid_for_by_the_next_frames() {
    let mut rig = framed(1_000);
    let agent = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(1, 60) });
    let reply_id = rig.ask(agent, tokens("ab"));
    (0..20).for_each(|_| rig.frame());
    rig.core.budget.pretend(four_times_slower);
    rig.frame();
    rig.core.budget.pretend(as_expected);
    let before = rig.reply(reply_id).tokens;
    rig.frame();
    let budget = rig.core.stats().budget;
    // 1,280 µs, 280 µs over budget: the remaining 720 µs suffice for a step of 320 µs.
    assert_eq!((budget.frames_over, budget.debt), (1, Duration::from_micros(280)));
    assert_eq!(rig.reply(reply_id).tokens, before + 1);
}

#[test]
fn idle_time_pays_the_debt() {
    let after_a_rest_of = |micros: u64| {
        let mut rig = framed(1_000);
        rig.core.budget.pretend(|_| 9_000_000);
        let agent = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(1, 60) });
        let reply_id = rig.ask(agent, tokens("ab"));
        rig.frame();
        rig.core.budget.pretend(as_expected);
        let before = rig.reply(reply_id).tokens;
        rig.now_micros += micros;
        rig.frame();
        rig.reply(reply_id).tokens - before
    };
    assert_eq!([after_a_rest_of(0), after_a_rest_of(300_000)], [0, 1]);
}

#[test]
fn a_late_voice_gets_more_than_one_token_per_frame() {
    let spoken = |voice_rate| {
        let mut rig = framed(4_000);
        let spec = AgentSpec { voice_rate, sampling: Sampling::greedy(), ..speaker(1, 100) };
        let agent = rig.agent(spec);
        let reply_id = rig.ask(agent, tokens("ab"));
        (0..21).for_each(|_| rig.frame());
        rig.reply(reply_id).tokens
    };
    assert!((20..=21).contains(&spoken(None)));
    assert!((20..=22).contains(&spoken(Some(6.0))), "a rate is no maximum");
    // 180 tokens per second are three per frame.
    assert!((58..=64).contains(&spoken(Some(180.0))), "{}", spoken(Some(180.0)));
}

#[test]
fn a_budget_smaller_than_a_step_is_kept_on_average() {
    let mut rig = framed(200);
    for seed in 0..4 {
        let agent = rig.agent(speaker(seed, 50));
        rig.ask(agent, tokens("a"));
    }
    (0..200).for_each(|_| rig.frame());
    let (stats, budget) = (rig.core.stats(), rig.core.stats().budget);
    let micros = 300 * stats.steps + 20 * stats.tokens;
    assert!(micros <= 200 * 200 + 500, "{micros}");
    assert!(budget.frames_skipped > 0 && budget.frames_over == budget.frames_overdrawn);
    assert!(stats.tokens > 2 * stats.steps, "they share what steps there are");
}

#[test]
fn a_budget_does_not_change_replies() {
    let scenario = |mut rig: Rig, budget: bool| {
        if budget {
            rig.core.budget.pretend(four_times_slower);
        }
        let asks: Vec<_> = (0..6)
            .map(|seed| {
                let agent = rig.agent(speaker(seed, 20));
                rig.ask(agent, tokens(&"long".repeat(1 + 4 * seed as usize)))
            })
            .collect();
        for _ in 0..2_000 {
            rig.frame();
        }
        rig.assert_all_ended();
        asks.iter().map(|&ask| rig.reply(ask).text.clone()).collect::<Vec<_>>()
    };
    let free = scenario(Rig::new(&options(), &inline_cpu(), Pacing::default()), false);
    assert_eq!(scenario(framed(700), true), free);
}

#[test]
fn a_budget_set_at_run_time_applies_to_free_running_clients() {
    let mut rig = rig(1_000, Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 110));
    rig.ask(agent, tokens("a"));
    for _ in 0..5 {
        rig.advance();
    }
    assert!(rig.core.stats().steps >= 5, "the default budget is for frames");
    rig.core.control(crate::engine_core::Control::Budget(Duration::from_micros(1_000).into()));
    rig.now_micros += FRAME_MICROS;
    for _ in 0..20 {
        let before = rig.core.stats().steps;
        let mut pause = None;
        for _ in 0..20 {
            if let Advance::Pause(micros) = rig.advance() {
                pause = Some(micros);
                break;
            }
        }
        let steps = rig.core.stats().steps - before;
        if !rig.heard.values().all(|heard| heard.ends.is_empty()) {
            return;
        }
        // 320 µs each, with margin 370 µs at first: the measured time counts.
        assert!((2..=3).contains(&steps), "{steps}");
        rig.now_micros += pause.expect("it waits for the next window");
    }
}

#[test]
fn costs_are_measured_at_load_without_lasting_state() {
    let budget = Duration::from_millis(4).into();
    let options = EngineOptions { budget, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let cost = rig.core.budget.governor.cost();
    let of_rows = |rows| cost.predict_micros(StepWork::decode(rows, rows.into()));
    assert_ne!(of_rows(1), StepCost::guess().predict_micros(StepWork::decode(1, 1)));
    assert!(of_rows(1) > 0.0 && of_rows(8) >= of_rows(1));
    assert_eq!(rig.core.stats().pages_used, 0);
    let agent = rig.agent(speaker(1, 12));
    let reply_id = rig.ask(agent, tokens("agent"));
    rig.run();
    let mut plain = Rig::free();
    let agent = plain.agent(speaker(1, 12));
    let expected = plain.ask(agent, tokens("agent"));
    plain.run();
    assert_eq!(rig.reply(reply_id).text, plain.reply(expected).text);
    assert!(
        rig.core.stats().budget.error_p50 > 0.0,
        "predictions are compared with what steps take"
    );
}

#[test]
fn costs_are_saved_and_a_damaged_file_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = Duration::from_millis(4).into();
    let cost_cache = Some(folder.path().to_owned());
    let options = EngineOptions { budget, cost_cache, ..options() };
    let load = || {
        let rig = Rig::new(&options, &inline_cpu(), Pacing::default());
        rig.core.budget.governor.cost().predict_micros(StepWork::decode(1, 1))
    };
    let first = load();
    assert_eq!(load(), first, "the same number again: it was not measured");
    let file = std::fs::read_dir(folder.path()).expect("a folder").next().expect("a file");
    let file = file.expect("a file").path();
    let text = std::fs::read_to_string(&file).expect("text");
    // Twice the cost of every bucket: it is accepted.
    let mut of_file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let costs = of_file[3].as_array_mut().expect("costs");
    assert_eq!(costs.len(), BUCKETS.len());
    for cost in costs {
        *cost = (2.0 * cost.as_f64().expect("microseconds")).into();
    }
    std::fs::write(&file, of_file.to_string()).expect("written");
    assert!((load() / first - 2.0).abs() < 0.01);
    std::fs::write(&file, "nonsense").expect("written");
    let measured = load();
    assert!(measured.is_finite() && measured > 0.0, "{measured}");
    assert_ne!(std::fs::read_to_string(&file).expect("text"), "nonsense");
}

#[test]
fn the_default_budget_follows_the_device() {
    let limit = |budget: &mut crate::core::budget::Budget| {
        budget.begin_window(0, true);
        budget.stats().budget.map(|limit| limit.as_micros())
    };
    let [on_gpu, on_cpu] = [defaults::BUDGET_MICROS, defaults::CPU_BUDGET_MICROS].map(u128::from);
    for (setting, expected) in [
        (FrameBudget::Auto, [Some(on_gpu), Some(on_cpu)]),
        (FrameBudget::Unlimited, [None, None]),
        (Duration::from_micros(700).into(), [Some(700), Some(700)]),
    ] {
        let options = EngineOptions { budget: setting, budget_free_running: true, ..options() };
        let mut gpu = crate::core::budget::Budget::new(&options, true, None);
        assert_eq!(limit(&mut gpu), expected[0], "{setting:?}");
        // The CPU takes over.
        let mut cpu = crate::core::budget::Budget::new(&options, false, None);
        cpu.inherit(&gpu);
        cpu.begin_window(u64::MAX / 2, true);
        assert_eq!(cpu.stats().budget.map(|limit| limit.as_micros()), expected[1], "{setting:?}");
    }
}
