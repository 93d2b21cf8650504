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
fn frames(rig: &mut Rig, count: u32, host: &Hosts) {
    for _ in 0..count {
        rig.now_micros += FRAME_MICROS;
        if host.framed {
            rig.core.frame(HOST, rig.now_micros);
        }
        let Rig { core, heard, now_micros, .. } = rig;
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
fn stalled(options: &EngineOptions, stall: &Hosts) -> (Rig, [ReplyId; 2], ReplyId) {
    let mut rig = Rig::new(options, &inline_cpu(), Pacing::PerFrame { steps: 1 });
    rig.core.add_client(OTHER, Pacing::FreeRunning);
    let asks = [1, 2].map(|seed| {
        let agent = rig.agent(speaker(seed, 60));
        rig.ask(agent, tokens(&seed.to_string().repeat(50)))
    });
    frames(&mut rig, 12, &Hosts { framed: true, reads: true });
    assert!(asks.iter().all(|&ask| rig.reply(ask).tokens > 0), "both speak");
    frames(&mut rig, 2, stall);
    let agent = AgentId(rig.name());
    let spec = Box::new(speaker(9, 5));
    rig.command_of(OTHER, Command::AddAgent { agent, spec });
    let ask = rig.ask_of(OTHER, agent, tokens(&"z".repeat(40)));
    (rig, asks, ask)
}

const STALLS: [Hosts; 2] =
    [Hosts { framed: false, reads: true }, Hosts { framed: true, reads: false }];

/// The pages of a stalled host serve others. When it continues, no word of it is lost.
#[test]
fn pages_of_a_stalled_host_are_available_to_others() {
    let options = EngineOptions { kv_tokens: Some(16 * 9), context_tokens: 128, ..options() };
    for stall in STALLS {
        let (mut rig, asks, ask) = stalled(&options, &stall);
        frames(&mut rig, 30, &stall);
        assert!(rig.reply(ask).ends.is_empty(), "its pages are not taken at once");
        frames(&mut rig, 60, &stall);
        assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Length)]);
        frames(&mut rig, 200, &Hosts { framed: true, reads: true });
        for (seed, ask) in (1..).zip(asks) {
            let expected = alone(&options, speaker(seed, 60), &seed.to_string().repeat(50));
            assert_eq!(rig.reply(ask).text, expected.text, "{seed}");
        }
        rig.assert_all_ended();
    }
}

/// An agent of a stalled host claims no pages. Otherwise others could claim none, and would preempt
/// each other without end while steps in flight hold the pages.
#[test]
fn a_stalled_host_claims_no_pages() {
    for stall in STALLS {
        let (mut rig, asks, ask) = stalled(&options(), &stall);
        let speaks = |rig: &Rig, slot: usize| {
            let agent = rig.core.agents.get(slot)?;
            agent.reply.as_ref().map(|reply| reply.reply_id)
        };
        let slot = (0..8).find(|&slot| speaks(&rig, slot) == Some(asks[0]));
        rig.core.kv.claim = slot;
        frames(&mut rig, 120, &stall);
        assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Length)]);
        assert!(slot.is_some() && rig.reply(asks[0]).ends.is_empty(), "it still speaks");
        let agent = AgentId(rig.name());
        rig.command_of(OTHER, Command::AddAgent { agent, spec: Box::new(speaker(3, 5)) });
        rig.ask_of(OTHER, agent, tokens("abc"));
        frames(&mut rig, 1, &stall);
        assert_eq!(rig.core.kv.claim, None);
    }
}

/// Replies of a stalled host end if others wait for their slots: not at once, and one per waiting
/// agent.
#[test]
fn slots_of_a_stalled_host_are_released_within_a_bound() {
    let options = EngineOptions { max_agents: Some(2), ..options() };
    for stall in STALLS {
        let (mut rig, asks, ask) = stalled(&options, &stall);
        frames(&mut rig, 500, &stall);
        assert!(rig.reply(ask).ends.is_empty(), "a stall of 8 s costs no reply");
        frames(&mut rig, 200, &stall);
        assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Length)]);
        frames(&mut rig, 200, &Hosts { framed: true, reads: true });
        let ends: Vec<_> = asks.iter().map(|&ask| rig.reply(ask).ends.clone()).collect();
        let timed_out = ends.iter().filter(|ends| **ends == [Ok(FinishReason::TimedOut)]).count();
        assert_eq!(timed_out, 1, "{ends:?}");
        rig.assert_all_ended();
    }
}

/// Without another host that waits, a stall ends nothing, however long it is.
#[test]
fn a_stall_without_waiting_hosts_ends_no_reply() {
    let options = EngineOptions { max_agents: Some(2), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::PerFrame { steps: 1 });
    rig.core.add_client(OTHER, Pacing::FreeRunning);
    let asks = [1, 2].map(|seed| {
        let agent = rig.agent(speaker(seed, 60));
        rig.ask(agent, tokens("abc"))
    });
    frames(&mut rig, 5, &Hosts { framed: true, reads: true });
    frames(&mut rig, 4_000, &Hosts { framed: false, reads: true });
    assert!(asks.iter().all(|&ask| rig.reply(ask).ends.is_empty()));
    frames(&mut rig, 100, &Hosts { framed: true, reads: true });
    rig.assert_all_ended();
    assert!(asks.iter().all(|&ask| rig.reply(ask).ends == [Ok(FinishReason::Length)]));
}

/// The core does not park while a stall is about to free something that another host waits for.
#[test]
fn the_core_wakes_when_a_stall_takes_effect() {
    let options = EngineOptions { kv_tokens: Some(16 * 9), context_tokens: 128, ..options() };
    let (mut rig, _, ask) = stalled(&options, &STALLS[0]);
    for _ in 0..200 {
        match rig.advance() {
            Advance::Idle => break,
            Advance::Pause(micros) => rig.now_micros += micros,
            Advance::Poll | Advance::Again => {}
        }
    }
    assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Length)]);
}

/// A process that was suspended, or stopped in a debugger, loses no reply: the device thread runs
/// first afterwards, before any host does its part.
#[test]
fn a_suspended_process_is_not_a_stalled_host() {
    let options = EngineOptions { max_agents: Some(2), ..options() };
    for stall in STALLS {
        let (mut rig, asks, ask) = stalled(&options, &stall);
        frames(&mut rig, 2, &stall);
        for seconds in [20, 3_600] {
            rig.now_micros += seconds * 1_000_000;
            frames(&mut rig, 1, &stall);
        }
        assert!(asks.iter().chain([&ask]).all(|&ask| rig.reply(ask).ends.is_empty()));
        frames(&mut rig, 300, &Hosts { framed: true, reads: true });
        rig.assert_all_ended();
        let ended = asks.iter().chain([&ask]);
        assert!(ended.clone().all(|&ask| rig.reply(ask).ends == [Ok(FinishReason::Length)]));
    }
}
