//! Devices that fail: other agents are unaffected, and every reply ends once.

use walla_device::DeviceError;
use walla_doubles::faulty::{Call, Fault, FaultHandle, FaultPlan, FaultyBackend, VirtualClock};

use super::*;
use crate::api::{Speaker, Turn};

pub(super) fn faulty(plan: FaultPlan) -> (Registry, FaultHandle) {
    let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let backend = FaultyBackend::new(cpu, plan);
    let handle = backend.handle();
    (Registry::new().with(backend), handle)
}

/// Replies of three agents, with different timing relative to the fault.
fn scenario(rig: &mut Rig) -> Vec<ReplyId> {
    let agents: Vec<_> = (0..3).map(|seed| rig.agent(speaker(seed, 12))).collect();
    let asks =
        agents.iter().enumerate().map(|(n, &agent)| rig.ask(agent, tokens(&format!("agent {n}"))));
    asks.collect()
}

fn texts(rig: &Rig, asks: &[ReplyId]) -> Vec<String> {
    asks.iter().map(|&ask| rig.reply(ask).text.clone()).collect()
}

fn faultless() -> Vec<String> {
    let mut rig = Rig::free();
    let asks = scenario(&mut rig);
    rig.run();
    texts(&rig, &asks)
}

#[test]
fn any_single_failed_call_of_a_step_changes_no_text() {
    let expected = faultless();
    for call in Call::ALL.into_iter().filter(|call| call.is_play()) {
        for nth in 0..8 {
            let (registry, _) = faulty(FaultPlan::new(1).fail_call(call, nth, Fault::Failed));
            let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
            let asks = scenario(&mut rig);
            rig.run();
            rig.assert_all_ended();
            assert_eq!(texts(&rig, &asks), expected, "{call:?} {nth}");
        }
    }
}

/// As above, on a slow device: the core never idles while a reply is open, because it would get no
/// wake-up.
#[test]
fn a_slow_device_that_fails_once_leaves_no_reply_waiting() {
    let expected = faultless();
    for call in Call::ALL.into_iter().filter(|call| call.is_play()) {
        for nth in 0..4 {
            let clock = VirtualClock::new();
            let plan = FaultPlan::new(1).clock(&clock).delay_micros(500..=500);
            let (registry, _) = faulty(plan.fail_call(call, nth, Fault::Failed));
            let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
            let asks = scenario(&mut rig);
            let is_idle = (0..10_000).any(|_| {
                clock.advance(100);
                rig.advance() == Advance::Idle
            });
            assert!(is_idle, "{call:?} {nth}");
            rig.assert_all_ended();
            assert_eq!(texts(&rig, &asks), expected, "{call:?} {nth}");
        }
    }
}

/// The CPU refuses a step with an invalid block and has no results for it.
#[test]
fn a_device_that_refuses_steps_fails_the_replies_and_repeats_no_token() {
    let expected = faultless();
    let (registry, _) = faulty(FaultPlan::new(0).misdirect_from(9));
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let asks = scenario(&mut rig);
    rig.run();
    for (ask, expected) in asks.into_iter().zip(expected) {
        let heard = rig.reply(ask);
        assert!(matches!(&heard.ends[..], [Err(ReplyError::Device(_))]), "{:?}", heard.ends);
        assert!(expected.starts_with(&heard.text), "{:?} {expected:?}", heard.text);
    }
}

#[test]
fn a_device_that_always_fails_fails_only_the_replies() {
    let plan =
        (0..1_000).fold(FaultPlan::new(1), |p, n| p.fail_call(Call::Launch, n, Fault::Failed));
    let (registry, _) = faulty(plan);
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let asks = scenario(&mut rig);
    rig.run();
    for ask in asks {
        assert!(matches!(rig.reply(ask).ends[..], [Err(ReplyError::Device(_))]));
    }
}

#[test]
fn a_lost_device_ends_every_reply_once() {
    for nth in 0..30 {
        let (registry, handle) = faulty(FaultPlan::new(1));
        let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
        let asks = scenario(&mut rig);
        for _ in 0..nth {
            rig.advance();
        }
        handle.lose();
        let Rig { core, heard, .. } = &mut rig;
        let mut emit = |_: ClientKey, event: Event| {
            hear(heard, event);
            Ok(())
        };
        let mut lost = false;
        for now in 0..100 {
            match core.advance(now, &mut emit) {
                Ok(_) => {}
                Err(error) => {
                    lost = matches!(device_error(&error), Some(DeviceError::Lost { .. }));
                    assert!(lost, "{error}");
                }
            }
        }
        let drain_events = core.drain_events("lost");
        drain_events
            .into_iter()
            .flat_map(|(_, events)| events)
            .for_each(|event| hear(heard, event));
        for ask in asks {
            let ends = &rig.reply(ask).ends;
            assert_eq!(ends.len(), 1);
            assert!(!lost || ends[0].is_ok() || matches!(ends[0], Err(ReplyError::EngineGone(_))));
        }
    }
}

#[test]
fn an_output_that_is_not_finite_fails_one_reply() {
    let expected = faultless();
    // By the fifth launch all three agents speak; outputs are in the order of their sequences.
    let (registry, _) = faulty(FaultPlan::new(1).poison(6, 1));
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let asks = scenario(&mut rig);
    rig.run();
    rig.assert_all_ended();
    let failed = |ask: &&ReplyId| rig.reply(**ask).ends[0] == Err(ReplyError::NotFinite);
    assert_eq!(asks.iter().filter(failed).count(), 1);
    for (ask, text) in asks.iter().zip(&expected) {
        if !failed(&ask) {
            assert_eq!(&rig.reply(*ask).text, text);
        }
    }
}

#[test]
fn slow_completions_do_not_change_replies() {
    let expected = faultless();
    for seed in 0..10 {
        let clock = VirtualClock::new();
        let plan = FaultPlan::new(seed).clock(&clock).delay_micros(0..=3_000);
        let (registry, _) = faulty(plan);
        let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
        let asks = scenario(&mut rig);
        while asks.iter().any(|&ask| rig.reply(ask).ends.is_empty()) {
            rig.advance();
            clock.advance(100);
        }
        assert_eq!(texts(&rig, &asks), expected, "seed {seed}");
    }
}

/// An agent that takes the slot of an agent removed during its reply receives no results of that
/// agent's steps in flight.
#[test]
fn a_reused_slot_receives_no_tokens_of_its_previous_agent() {
    let alone = |seed: u64| alone(&options(), speaker(seed, 12), "one after the other");
    for leave_after in 1..12 {
        let clock = VirtualClock::new();
        let (registry, _) = faulty(FaultPlan::new(3).clock(&clock).delay_micros(100..=100));
        let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
        for seed in 0..12 {
            let agent = rig.agent(speaker(seed, 12));
            let ask = rig.ask(agent, tokens("one after the other"));
            let leaves = seed % 2 == 0;
            for tick in 0..200 {
                rig.advance();
                clock.advance(50);
                if leaves && tick == leave_after {
                    break;
                }
            }
            rig.command(Command::RemoveAgent { agent });
            if !leaves {
                assert_eq!(rig.reply(ask).text, alone(seed).text, "after {leave_after}");
            }
        }
    }
}

#[test]
fn replies_can_be_cancelled_during_a_hung_step() {
    // Steps record two events each; the copy of the third step never completes.
    let (registry, _) = faulty(FaultPlan::new(1).never_complete(5));
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 50));
    let reply_id = rig.ask(agent, tokens("ab"));
    for _ in 0..100 {
        rig.advance();
    }
    assert!(rig.reply(reply_id).ends.is_empty(), "it hangs");
    rig.command(Command::Cancel { agent, reply_id });
    rig.advance();
    assert_eq!(rig.reply(reply_id).ends, [Ok(FinishReason::Cancelled)]);
}

#[test]
fn a_load_without_enough_memory_is_an_out_of_memory_error() {
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    for kilobytes in [0, 1, 10, 50, 100, 150] {
        let (registry, _) = faulty(FaultPlan::new(1).max_memory_bytes(kilobytes << 10));
        match Core::load(&options(), &registry, &Clock::real(), go_on) {
            Err(error) if matches!(device_error(&error), Some(DeviceError::OutOfMemory { .. })) => {
            }
            other => panic!("{kilobytes} kB: {other:?}"),
        }
    }
}

/// Lifts the limit of the cache, and runs until all replies have ended.
pub(super) fn run_to_the_end(rig: &mut Rig, clock: &VirtualClock) {
    rig.core.control(crate::engine_core::Control::KvTokens(u32::MAX));
    for _ in 0..20_000 {
        if rig.heard.values().all(|heard| !heard.ends.is_empty()) {
            break;
        }
        rig.frame();
        clock.advance(1_000);
    }
    rig.assert_all_ended();
}

/// Asks, cancels, changes and removals in random order on a device that fails and delays at random.
#[test]
fn seeded_fault_schedules_complete() {
    for seed in 0..40 {
        seeded_schedule(seed);
    }
}

fn seeded_schedule(seed: u64) {
    let clock = VirtualClock::new();
    let plan = FaultPlan::new(seed).clock(&clock).delay_micros(0..=500).fail_in_play(2_000);
    let (registry, _) = faulty(plan);
    let options = EngineOptions { kv_tokens: Some(20 * 16), ..options() };
    let mut rig = Rig::new(&options, &registry, Pacing::default());
    let mut random = (0u32..).map(|n| walla_device::philox4x32([n, 0, 0, 9], [seed as u32, 1])[0]);
    let mut draw = move |below: u32| random.next().unwrap_or_default() % below;
    let mut agents = Vec::new();
    let mut asks: Vec<(AgentId, ReplyId)> = Vec::new();
    for _ in 0..150 {
        match draw(12) {
            // Two and a half times the number of slots.
            0 | 1 if agents.len() < 20 => {
                let priority = draw(3) as i32;
                let spec = AgentSpec { priority, ..speaker(draw(100).into(), draw(40)) };
                agents.push(rig.agent(spec));
            }
            2..=4 if !agents.is_empty() => {
                let agent = agents[draw(agents.len() as u32) as usize];
                let prompt = if draw(2) == 0 {
                    Prompt::Chat("Hi".repeat(1 + draw(10) as usize))
                } else {
                    tokens(&"x".repeat(1 + draw(90) as usize))
                };
                asks.push((agent, rig.ask(agent, prompt)));
            }
            5 if !asks.is_empty() => {
                let (agent, reply_id) = asks[draw(asks.len() as u32) as usize];
                rig.command(Command::Cancel { agent, reply_id });
            }
            6 if !asks.is_empty() => {
                let (agent, reply_id) = asks[draw(asks.len() as u32) as usize];
                let heard_bytes = draw(20);
                rig.command(Command::CancelHeard { agent, reply_id, heard_bytes });
            }
            7 if !agents.is_empty() => {
                let agent = agents[draw(agents.len() as u32) as usize];
                let turns = vec![Turn::new(Speaker::User, "It rains.")];
                rig.command(if draw(4) == 0 {
                    Command::SetConversation { agent, turns }
                } else {
                    Command::AppendTurns { agent, turns }
                });
            }
            8 if agents.len() > 2 && draw(4) == 0 => {
                let agent = agents.swap_remove(draw(agents.len() as u32) as usize);
                rig.command(Command::RemoveAgent { agent });
            }
            9 if draw(3) == 0 => {
                rig.core.control(crate::engine_core::Control::KvTokens(16 * (6 + draw(20))));
            }
            10 => rig.core.set_paused(HOST, draw(3) == 0),
            _ => {}
        }
        rig.frame();
        clock.advance(200 + u64::from(draw(2_000)));
        let stats = rig.core.stats();
        assert_eq!(stats.agents as usize, agents.len(), "seed {seed}: nobody is lost");
        assert!(stats.agents_waiting <= stats.agents_parked);
    }
    rig.core.set_paused(HOST, false);
    run_to_the_end(&mut rig, &clock);
    let stats = rig.core.stats();
    assert_eq!((stats.agents_waiting, stats.asks_waiting, stats.agents_active), (0, 0, 0));
    for agent in agents {
        rig.command(Command::RemoveAgent { agent });
    }
    rig.frame();
    assert_eq!(rig.core.stats().pages_used, 0, "seed {seed}: every page comes back");
    assert_eq!(rig.core.stats().agents, 0, "seed {seed}");
}

/// Devices may wait for steps in flight when memory is mapped or unmapped. The engine waits for
/// them instead, without blocking.
#[test]
fn the_cache_changes_its_size_when_no_step_is_in_flight() {
    let clock = VirtualClock::new();
    let (registry, handle) = faulty(FaultPlan::new(1).clock(&clock).delay_micros(500..=500));
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let agent = rig.agent(speaker(3, 60));
    let ask = rig.ask(agent, tokens("a prompt"));
    for (nth, pages) in [20, 64].into_iter().enumerate() {
        let is_busy = (0..100).any(|_| {
            rig.advance();
            rig.core.kv.executor().in_flight() > 0
        });
        assert!(is_busy, "{pages} pages: the reply is too short");
        rig.core.control(crate::engine_core::Control::KvTokens(16 * pages));
        assert_eq!(rig.advance(), Advance::Poll);
        assert_eq!(handle.calls(Call::ResizeCache), nth as u64, "{pages} pages, a step runs");
        for _ in 0..10 {
            clock.advance(500);
            rig.advance();
        }
        assert_eq!(handle.calls(Call::ResizeCache), nth as u64 + 1);
        assert_eq!(rig.core.stats().pages, pages);
    }
    for _ in 0..1_000 {
        clock.advance(100);
        rig.advance();
    }
    rig.assert_all_ended();
    assert_eq!(rig.reply(ask).text, alone(&options(), speaker(3, 60), "a prompt").text);
}

#[test]
fn a_failed_cache_resize_keeps_the_cache_and_is_reported() {
    // The first call releases memory; the next two fail because it is taken.
    let plan = (1..3)
        .fold(FaultPlan::new(1), |plan, n| plan.fail_call(Call::ResizeCache, n, Fault::Failed));
    let (registry, _) = faulty(plan);
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let agent = rig.agent(speaker(3, 40));
    let ask = rig.ask(agent, tokens("a prompt"));
    for _ in 0..5 {
        rig.advance();
    }
    rig.core.control(crate::engine_core::Control::KvTokens(16 * 12));
    for _ in 0..3 {
        rig.advance();
    }
    for (wanted, pages, refused) in [(30, 12, 18), (u32::MAX / 16, 12, 52), (10, 10, 0)] {
        rig.core.control(crate::engine_core::Control::KvTokens(16 * wanted));
        rig.advance();
        let stats = rig.core.stats();
        assert_eq!((stats.pages, stats.pages_refused), (pages, refused), "{wanted} pages");
    }
    rig.core.control(crate::engine_core::Control::KvTokens(u32::MAX));
    rig.advance();
    let stats = rig.core.stats();
    assert_eq!((stats.pages, stats.pages_refused), (64, 0), "now it is there");
    rig.run();
    assert!(rig.reply(ask).ends[0].is_ok());
}
