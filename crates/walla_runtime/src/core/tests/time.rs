//! Clocks that jump, stop or go backwards, and steps that complete late: work is bounded, nothing
//! panics, and preemptions do not cascade.

use std::time::Duration;

use super::*;
use crate::engine_core::Control;

const HOUR_MICROS: u64 = 3_600_000_000;

fn budgeted(budget_micros: u32, pacing: Pacing) -> Rig {
    Rig::budgeted(&options(), budget_micros, pacing)
}

/// A voice of 180 tokens per second, three per frame.
fn voice(seed: u64) -> AgentSpec {
    AgentSpec { voice_rate: Some(180.0), sampling: Sampling::greedy(), ..speaker(seed, 110) }
}

#[test]
fn an_hour_without_frames_causes_no_burst() {
    let mut rig = budgeted(1_500, Pacing::default());
    let agent = rig.agent(voice(1));
    let reply_id = rig.ask(agent, tokens("ab"));
    (0..10).for_each(|_| rig.frame());
    rig.now_micros += HOUR_MICROS;
    // The voice is 648,000 tokens late; a frame grants no more than its budget.
    for _ in 0..10 {
        let before = rig.core.stats().steps;
        rig.frame();
        let (stats, budget) = (rig.core.stats(), rig.core.stats().budget);
        assert!(stats.steps - before <= 1_500 / 320, "{}", stats.steps - before);
        assert!(budget.used <= Duration::from_micros(1_500), "{budget:?}");
        assert_eq!((budget.frames_over, budget.debt), (0, Duration::ZERO));
    }
    assert!(rig.reply(reply_id).tokens > 20, "it goes on");
}

#[test]
fn a_free_running_client_gets_one_window_after_an_hour() {
    let mut rig = budgeted(1_000, Pacing::FreeRunning);
    rig.core.control(Control::Budget(Duration::from_micros(1_000).into()));
    let agent = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(1, 110) });
    rig.ask(agent, tokens("ab"));
    let window = |rig: &mut Rig| {
        let before = rig.core.stats().steps;
        for _ in 0..100 {
            if matches!(rig.advance(), Advance::Pause(_)) {
                break;
            }
        }
        rig.core.stats().steps - before
    };
    window(&mut rig);
    for jump_micros in [FRAME_MICROS, HOUR_MICROS, 24 * HOUR_MICROS, FRAME_MICROS] {
        rig.now_micros += jump_micros;
        let steps = window(&mut rig);
        assert!((1..=3).contains(&steps), "{steps} steps after {jump_micros} µs");
    }
}

#[test]
fn frames_at_the_same_time_keep_their_budgets() {
    let mut rig = budgeted(1_000, Pacing::default());
    let agent = rig.agent(voice(1));
    let reply_id = rig.ask(agent, tokens("ab"));
    rig.frame();
    for _ in 0..50 {
        let (now, before) = (rig.now_micros, rig.core.stats().steps);
        rig.core.frame(HOST, now);
        let mut advance = || {
            let mut emit = |_, event| {
                hear(&mut rig.heard, event);
                Ok(())
            };
            rig.core.advance(now, &mut emit).expect("the device lives")
        };
        while advance() == Advance::Again {}
        assert!(rig.core.stats().steps - before <= 3, "as in any frame");
    }
    (0..110).for_each(|_| rig.frame());
    assert_eq!(rig.reply(reply_id).ends.len(), 1);
    assert_eq!(rig.core.stats().budget.frames_over, 0);
}

/// The shell's clock is monotonic. Otherwise the core would wait for the length of a jump, and
/// nothing would overflow.
#[test]
fn a_clock_that_goes_back_some_frames_stops_no_reply() {
    for pacing in [Pacing::default(), Pacing::FreeRunning] {
        let mut rig = budgeted(2_000, pacing);
        rig.core.control(Control::Budget(Duration::from_micros(2_000).into()));
        rig.now_micros = HOUR_MICROS;
        let agents: Vec<_> = (0..3).map(|seed| rig.agent(voice(seed))).collect();
        for agent in agents {
            rig.ask(agent, tokens("ab"));
        }
        for round in 0..2_000_u64 {
            rig.frame();
            if round % 10 == 3 {
                rig.now_micros = rig.now_micros.saturating_sub(5 * FRAME_MICROS);
            }
        }
        rig.assert_all_ended();
    }
}

/// All pages of every victim are fenced by a step in flight: the preemption waits and takes no
/// second victim.
#[test]
fn victims_behind_a_fence_are_waited_for_without_a_cascade() {
    use walla_doubles::{FaultPlan, FaultyBackend, VirtualClock};
    // Ten agents need five pages each; there are eleven, and a step takes ten rounds to complete.
    let clock = VirtualClock::new();
    let plan = FaultPlan::new(3).delay_micros(100..=100).clock(&clock);
    let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let registry = Registry::new().with(FaultyBackend::new(cpu, plan));
    let options = EngineOptions { kv_tokens: Some(11 * 16), max_agents: Some(10), ..options() };
    let mut rig = Rig::new(&options, &registry, Pacing::FreeRunning);
    let prompt = |seed: u64| format!("agent {seed} begins to speak");
    let asks: Vec<_> = (0..10)
        .map(|seed| {
            let agent = rig.agent(speaker(seed, 50));
            rig.ask(agent, tokens(&prompt(seed)))
        })
        .collect();
    let mut rounds = 0;
    while asks.iter().any(|ask| rig.reply(*ask).ends.is_empty()) {
        rig.advance();
        clock.advance(10);
        rig.core.kv.ledger().assert_consistent();
        rounds += 1;
        assert!(rounds < 100_000, "the engine makes no progress");
    }
    rig.assert_all_ended();
    let mut spoken = 0;
    for (seed, ask) in (0..).zip(asks) {
        let heard = rig.reply(ask);
        let expected = alone(&super::options(), speaker(seed, 50), &prompt(seed));
        assert_eq!((&heard.text, &heard.ends), (&expected.text, &expected.ends));
        spoken += u64::from(heard.usage.reply_tokens + heard.usage.prompt_tokens);
    }
    // A victim recomputes its tokens, 80 at most. A cascade would recompute all of them
    // for every page.
    let read = rig.core.stats().prefill_tokens;
    assert!(read < 10 * spoken, "{read} tokens were read for replies of {spoken}");
}

/// A budget of one step per frame, 10 rows each.
#[test]
fn the_parts_of_the_time_to_the_first_token_show_where_an_ask_waited() {
    let mut rig = budgeted(600, Pacing::default());
    let agents = [1, 2].map(|seed| rig.agent(speaker(seed, 4)));
    let asks = agents.map(|agent| rig.ask(agent, tokens(&"x".repeat(60))));
    let behind = rig.ask(agents[0], tokens("ab"));
    (0..40).for_each(|_| rig.frame());
    let times = |ask| {
        let usage = rig.reply(ask).usage;
        (usage.first_token, usage.first_token_micros)
    };
    let frames = |micros: u64| micros / FRAME_MICROS;
    let (first, all) = times(asks[0]);
    // Until the next frame.
    assert_eq!((frames(first.waiting_micros), first.encoding_micros), (1, 0), "{first:?}");
    // Six chunks of at most ten rows.
    assert!((5..=8).contains(&frames(first.prefill_micros)), "{first:?}");
    assert!(frames(all) <= 9, "{all}");
    // The second prompt is evaluated after the first.
    let (second, _) = times(asks[1]);
    assert!((6..=9).contains(&frames(second.waiting_micros)), "{second:?}");
    let (last, _) = times(behind);
    assert!(frames(last.waiting_micros) >= 8 && last.prefill_micros == 0, "{last:?}");
    assert!(last.decode_micros < FRAME_MICROS, "{last:?}");
}
