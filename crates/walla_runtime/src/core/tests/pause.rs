//! A budget of zero: no step runs, and all other state is kept.

use std::time::Duration;

use walla_doubles::faulty::{FaultPlan, FaultyBackend, VirtualClock};

use super::*;
use crate::engine_core::Control;
use crate::options::Deadlines;

/// Microseconds per step.
const STEP_MICROS: u64 = 500;

struct Slow {
    rig: Rig,
    clock: VirtualClock,
}

impl Slow {
    fn new(pacing: Pacing) -> Self {
        let clock = VirtualClock::new();
        let plan = FaultPlan::new(1).clock(&clock).delay_micros(STEP_MICROS..=STEP_MICROS);
        let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
        let registry = Registry::new().with(FaultyBackend::new(cpu, plan));
        let mut slow = Self { rig: Rig::new(&options(), &registry, pacing), clock };
        slow.budget(Some(Duration::from_secs(1)));
        slow
    }

    /// Rounds of the device thread, one frame apart.
    fn rounds(&mut self, rounds: u32) -> Advance {
        let mut advance = Advance::Idle;
        for _ in 0..rounds {
            self.rig.now_micros += FRAME_MICROS;
            self.clock.advance(STEP_MICROS);
            self.rig.core.frame(HOST, self.rig.now_micros);
            for _ in 0..100 {
                advance = self.rig.advance();
                if advance != Advance::Again {
                    break;
                }
            }
        }
        advance
    }

    fn budget(&mut self, budget: Option<Duration>) {
        self.rig.core.control(Control::Budget(budget.into()));
    }
}

#[test]
fn a_budget_of_zero_runs_no_step_and_loses_no_text() {
    for pacing in [Pacing::FreeRunning, Pacing::default()] {
        let mut slow = Slow::new(pacing);
        let agents = [1, 2, 3].map(|seed| slow.rig.agent(speaker(seed, 40)));
        let asks = agents.map(|agent| slow.rig.ask(agent, tokens("some words")));
        slow.rounds(6);
        let before = slow.rig.core.stats();
        assert!(before.steps > before.steps_done, "a step is in flight: {before:?}");
        slow.budget(Some(Duration::ZERO));
        // More than a minute.
        let advance = slow.rounds(4_000);
        let paused = slow.rig.core.stats();
        assert_eq!(paused.steps, before.steps, "{pacing:?}");
        assert_eq!(paused.steps_done, before.steps, "what was in flight is collected");
        assert_eq!(advance, Advance::Idle, "the device thread parks");
        slow.budget(Some(Duration::from_secs(1)));
        slow.rounds(200);
        for (seed, ask) in (1..).zip(asks) {
            let heard = slow.rig.reply(ask);
            assert_eq!(heard.text, alone(&options(), speaker(seed, 40), "some words").text);
        }
        slow.rig.assert_all_ended();
    }
}

#[test]
fn during_a_pause_asks_queue_and_cancels_and_removals_apply() {
    for pacing in [Pacing::FreeRunning, Pacing::default()] {
        let mut slow = Slow::new(pacing);
        let agents = [1, 2, 3].map(|seed| slow.rig.agent(speaker(seed, 40)));
        let asks = agents.map(|agent| slow.rig.ask(agent, Prompt::Chat("Hi".into())));
        slow.rounds(8);
        slow.budget(Some(Duration::ZERO));
        slow.rounds(5);
        let waiting = slow.rig.ask(agents[0], Prompt::Chat("And then?".into()));
        let new = slow.rig.agent(speaker(4, 5));
        let asked = slow.rig.ask(new, tokens("ab"));
        slow.rig.command(Command::Cancel { agent: agents[1], reply_id: asks[1] });
        slow.rig.command(Command::RemoveAgent { agent: agents[2] });
        let pages = slow.rig.core.stats().pages_used;
        assert_eq!(slow.rounds(100), Advance::Idle);
        for ended in &asks[1..] {
            assert_eq!(slow.rig.reply(*ended).ends, [Ok(FinishReason::Cancelled)]);
        }
        assert!(slow.rig.core.stats().pages_used < pages);
        for open in [asks[0], waiting, asked] {
            assert!(slow.rig.reply(open).ends.is_empty());
        }
        assert_eq!([waiting, asked].map(|ask| slow.rig.reply(ask).started), [0, 0]);
        slow.budget(None);
        slow.rounds(300);
        slow.rig.assert_all_ended();
        assert!(slow.rig.reply(waiting).ends[0].is_ok());
    }
}

/// Number of rounds of slightly more than a minute.
const LONG: u32 = 4_000;

#[test]
fn a_pause_counts_neither_for_deadlines_nor_for_voice_rates() {
    for wants_pause in [false, true] {
        let mut slow = Slow::new(Pacing::default());
        let pause = |slow: &mut Slow, is_paused: bool| {
            if wants_pause {
                slow.rig.core.set_paused(HOST, is_paused);
            } else {
                slow.budget(Some(if is_paused { Duration::ZERO } else { Duration::from_secs(1) }));
            }
        };
        let spec = AgentSpec { voice_rate: Some(30.0), ..speaker(1, 100) };
        let agent = slow.rig.agent(AgentSpec { sampling: Sampling::greedy(), ..spec });
        let speaking = slow.rig.ask(agent, tokens("ab"));
        let late = slow.rig.agent(speaker(2, 3));
        slow.rounds(20);
        let before = slow.rig.ask(late, tokens("ab"));
        pause(&mut slow, true);
        slow.rounds(LONG / 2);
        let within = slow.rig.ask(late, tokens("ab"));
        slow.rounds(LONG / 2);
        let said = slow.rig.reply(speaking).tokens;
        pause(&mut slow, false);
        slow.rounds(5);
        let more = slow.rig.reply(speaking).tokens - said;
        // One token per frame and a step ahead. A voice that was a minute behind would use the
        // whole budget.
        assert!((3..=7).contains(&more), "{more} tokens in five frames");
        slow.rounds(200);
        slow.rig.assert_all_ended();
        let most = 250 * FRAME_MICROS;
        for ask in [speaking, before, within] {
            let usage = slow.rig.reply(ask).usage;
            let first = usage.first_token_micros;
            assert!(first > 0 && first < 30 * FRAME_MICROS, "{usage:?}");
            assert!(usage.total_micros >= first && usage.total_micros < most, "{usage:?}");
        }
    }
}

#[test]
fn an_engine_started_with_a_budget_of_zero_waits() {
    let options = EngineOptions { budget: FrameBudget::Time(Duration::ZERO), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let agent = rig.agent(speaker(1, 5));
    let ask = rig.ask(agent, tokens("ab"));
    (0..200).for_each(|_| rig.frame());
    assert_eq!((rig.core.stats().steps, rig.reply(ask).started), (0, 0));
    assert_eq!(rig.core.stats().budget.budget, Some(Duration::ZERO));
    // Less than a microsecond is a small budget, but not a pause.
    rig.core.control(Control::Budget(Duration::from_nanos(1).into()));
    (0..500).for_each(|_| rig.frame());
    rig.assert_all_ended();
}

#[test]
fn pages_of_a_paused_client_are_available_and_its_text_is_kept() {
    // Each needs five pages at the end; there are seven.
    let options = EngineOptions { kv_tokens: Some(7 * 16), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let other = ClientKey(1);
    rig.core.add_client(other, Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 50));
    let first = rig.ask(agent, tokens("somebody in a paused game"));
    for _ in 0..15 {
        rig.advance();
    }
    rig.core.set_paused(HOST, true);
    let agent = AgentId(rig.name());
    rig.command_of(other, Command::AddAgent { agent, spec: Box::new(speaker(2, 50)) });
    let second = rig.ask_of(other, agent, tokens("somebody in another program"));
    rig.run();
    assert!(rig.reply(second).ends[0].is_ok() && rig.reply(first).ends.is_empty());
    rig.core.set_paused(HOST, false);
    while rig.reply(first).ends.is_empty() {
        rig.run();
    }
    let prompts =
        [(first, 1, "somebody in a paused game"), (second, 2, "somebody in another program")];
    for (ask, seed, prompt) in prompts {
        assert_eq!(rig.reply(ask).text, alone(&self::options(), speaker(seed, 50), prompt).text);
    }
    rig.assert_all_ended();
}

/// A free-running client lifts no budget of zero, idle or with work.
#[test]
fn a_budget_of_zero_also_pauses_free_running_clients() {
    const OTHER: ClientKey = ClientKey(7);
    let deadlines = Deadlines { reply: Some(Duration::from_millis(500)), ..Deadlines::default() };
    let options =
        EngineOptions { budget: FrameBudget::Time(Duration::ZERO), deadlines, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    rig.core.add_client(OTHER, Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 5));
    let ask = rig.ask(agent, tokens("abc"));
    (0..200).for_each(|_| rig.frame());
    assert_eq!((rig.reply(ask).started, rig.core.stats().steps), (0, 0));
    assert!(rig.reply(ask).ends.is_empty());
    let other = AgentId(rig.name());
    let spec = Box::new(speaker(2, 5));
    rig.command_of(OTHER, Command::AddAgent { agent: other, spec });
    let waits = rig.ask_of(OTHER, other, tokens("abc"));
    (0..100).for_each(|_| rig.frame());
    assert_eq!((rig.reply(waits).started, rig.core.stats().steps), (0, 0));
    assert_eq!(rig.advance(), Advance::Idle, "the device thread sleeps");
    rig.core.control(Control::Budget(FrameBudget::Unlimited));
    (0..100).for_each(|_| rig.frame());
    rig.assert_all_ended();
    assert!([ask, waits].iter().all(|&ask| rig.reply(ask).ends == [Ok(FinishReason::Length)]));
}

/// `hear` checks that the parts of the time to the first token are its sum.
#[test]
fn a_pause_while_a_prompt_is_encoded_does_not_count() {
    let options = EngineOptions { inline_text: false, context_tokens: 512, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let persona = "All of the people here. ".repeat(12);
    let agent = rig.agent(AgentSpec { persona, ..speaker(1, 4) });
    let ask = rig.ask(agent, Prompt::Chat("Hi".into()));
    rig.core.start_asks(rig.now_micros);
    rig.core.set_paused(HOST, true);
    // The pause begins with the first of these calls.
    for round in 0.. {
        rig.now_micros += 100_000;
        rig.advance();
        std::thread::sleep(Duration::from_micros(200));
        if round >= 5 && rig.reply(ask).started > 0 {
            break;
        }
    }
    assert!(rig.reply(ask).ends.is_empty());
    rig.core.set_paused(HOST, false);
    rig.run();
    let first = rig.reply(ask).usage.first_token;
    assert!(first.encoding_micros < 200_000, "{first:?}");
}
