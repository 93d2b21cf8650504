//! A host that grants no frames or reads no events does not block other hosts.

use super::*;

/// Another host of the same engine.
const OTHER: ClientKey = ClientKey(7);

/// Which hosts do their part.
struct Hosts {
    framed: bool,
    reads: bool,
}

/// Frames of both hosts; `HOST` may grant none, or read no events.
fn frames(stage: &mut Stage, count: u32, host: &Hosts) {
    for _ in 0..count {
        stage.now_micros += FRAME_MICROS;
        if host.framed {
            stage.core.frame(HOST, stage.now_micros);
        }
        let Stage { core, heard, now_micros, .. } = stage;
        let mut emit = |client: ClientKey, event: Event| {
            if client == HOST && !host.reads {
                return Err(event);
            }
            hear(heard, event);
            Ok(())
        };
        for _ in 0..1_000 {
            let advance = core.advance(*now_micros, &mut emit).expect("the device lives");
            if advance != Advance::Again {
                break;
            }
        }
    }
}

/// Two agents of `HOST` speak; then it stalls, and an agent of `OTHER` is asked.
fn stalled(options: &EngineOptions, stall: &Hosts) -> (Stage, [GenerationId; 2], GenerationId) {
    let mut stage = Stage::new(options, &inline_cpu(), Pacing::PerFrame { steps: 1 });
    stage.core.add_client(OTHER, Pacing::FreeRunning);
    let asks = [1, 2].map(|seed| {
        let agent = stage.agent(speaker(seed, 60));
        stage.ask(agent, tokens(&seed.to_string().repeat(50)))
    });
    frames(&mut stage, 12, &Hosts { framed: true, reads: true });
    assert!(asks.iter().all(|&ask| stage.reply(ask).tokens > 0), "both speak");
    frames(&mut stage, 2, stall);
    let agent = AgentId(stage.name());
    let spec = Box::new(speaker(9, 5));
    stage.command_of(OTHER, Command::AddAgent { agent, spec });
    let ask = stage.ask_of(OTHER, agent, tokens(&"z".repeat(40)));
    (stage, asks, ask)
}

const STALLS: [Hosts; 2] =
    [Hosts { framed: false, reads: true }, Hosts { framed: true, reads: false }];

/// The pages of a stalled host serve others. When it continues, no word of it is lost.
#[test]
fn pages_of_a_stalled_host_serve_others() {
    let options = EngineOptions { kv_tokens: Some(16 * 9), context_tokens: 128, ..options() };
    for stall in STALLS {
        let (mut stage, asks, ask) = stalled(&options, &stall);
        frames(&mut stage, 30, &stall);
        assert!(stage.reply(ask).ends.is_empty(), "its pages are not taken at once");
        frames(&mut stage, 60, &stall);
        assert_eq!(stage.reply(ask).ends, [Ok(FinishReason::Length)]);
        frames(&mut stage, 200, &Hosts { framed: true, reads: true });
        for (seed, ask) in (1..).zip(asks) {
            let expected = alone(&options, speaker(seed, 60), &seed.to_string().repeat(50));
            assert_eq!(stage.reply(ask).text, expected.text, "{seed}");
        }
        stage.assert_all_ended();
    }
}

/// An agent of a stalled host claims no pages. Otherwise others could claim none, and would preempt
/// each other without end while steps in flight hold the pages.
#[test]
fn a_stalled_host_claims_no_pages() {
    for stall in STALLS {
        let (mut stage, asks, ask) = stalled(&options(), &stall);
        let speaks = |stage: &Stage, slot: usize| {
            let agent = stage.core.agents.get(slot)?;
            agent.reply.as_ref().map(|reply| reply.generation)
        };
        let slot = (0..8).find(|&slot| speaks(&stage, slot) == Some(asks[0]));
        stage.core.pages.set_claim(slot);
        frames(&mut stage, 120, &stall);
        assert_eq!(stage.reply(ask).ends, [Ok(FinishReason::Length)]);
        assert!(slot.is_some() && stage.reply(asks[0]).ends.is_empty(), "it still speaks");
        let agent = AgentId(stage.name());
        stage.command_of(OTHER, Command::AddAgent { agent, spec: Box::new(speaker(3, 5)) });
        stage.ask_of(OTHER, agent, tokens("abc"));
        frames(&mut stage, 1, &stall);
        assert_eq!(stage.core.pages.claim(), None);
    }
}

/// Replies of a stalled host end if others wait for their slots: not at once, and one per waiting
/// agent.
#[test]
fn slots_of_a_stalled_host_are_not_held_for_ever() {
    let options = EngineOptions { agents_max: 2, ..options() };
    for stall in STALLS {
        let (mut stage, asks, ask) = stalled(&options, &stall);
        frames(&mut stage, 500, &stall);
        assert!(stage.reply(ask).ends.is_empty(), "a stall of 8 s costs no reply");
        frames(&mut stage, 200, &stall);
        assert_eq!(stage.reply(ask).ends, [Ok(FinishReason::Length)]);
        frames(&mut stage, 200, &Hosts { framed: true, reads: true });
        let ends: Vec<_> = asks.iter().map(|&ask| stage.reply(ask).ends.clone()).collect();
        let timed_out = ends.iter().filter(|ends| **ends == [Ok(FinishReason::TimedOut)]).count();
        assert_eq!(timed_out, 1, "{ends:?}");
        stage.assert_all_ended();
    }
}

/// Without another host that waits, a stall ends nothing, however long it is.
#[test]
fn a_stall_alone_ends_nothing() {
    let options = EngineOptions { agents_max: 2, ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::PerFrame { steps: 1 });
    stage.core.add_client(OTHER, Pacing::FreeRunning);
    let asks = [1, 2].map(|seed| {
        let agent = stage.agent(speaker(seed, 60));
        stage.ask(agent, tokens("abc"))
    });
    frames(&mut stage, 5, &Hosts { framed: true, reads: true });
    frames(&mut stage, 4_000, &Hosts { framed: false, reads: true });
    assert!(asks.iter().all(|&ask| stage.reply(ask).ends.is_empty()));
    frames(&mut stage, 100, &Hosts { framed: true, reads: true });
    stage.assert_all_ended();
    assert!(asks.iter().all(|&ask| stage.reply(ask).ends == [Ok(FinishReason::Length)]));
}

/// The core does not park while a stall is about to free something that another host waits for.
#[test]
fn the_core_wakes_when_a_stall_takes_effect() {
    let options = EngineOptions { kv_tokens: Some(16 * 9), context_tokens: 128, ..options() };
    let (mut stage, _, ask) = stalled(&options, &STALLS[0]);
    for _ in 0..200 {
        match stage.advance() {
            Advance::Idle => break,
            Advance::Pause(micros) => stage.now_micros += micros,
            Advance::Poll | Advance::Again => {}
        }
    }
    assert_eq!(stage.reply(ask).ends, [Ok(FinishReason::Length)]);
}

/// A process that was suspended, or stopped in a debugger, loses no reply: the device thread runs
/// first afterwards, before any host does its part.
#[test]
fn a_suspended_process_is_not_a_stalled_host() {
    let options = EngineOptions { agents_max: 2, ..options() };
    for stall in STALLS {
        let (mut stage, asks, ask) = stalled(&options, &stall);
        frames(&mut stage, 2, &stall);
        for seconds in [20, 3_600] {
            stage.now_micros += seconds * 1_000_000;
            frames(&mut stage, 1, &stall);
        }
        assert!(asks.iter().chain([&ask]).all(|&ask| stage.reply(ask).ends.is_empty()));
        frames(&mut stage, 300, &Hosts { framed: true, reads: true });
        stage.assert_all_ended();
        let ended = asks.iter().chain([&ask]);
        assert!(ended.clone().all(|&ask| stage.reply(ask).ends == [Ok(FinishReason::Length)]));
    }
}
