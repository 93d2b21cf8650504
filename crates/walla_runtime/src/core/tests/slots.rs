//! More agents than slots: waiting and parked agents. No part of a conversation is lost.

use walla_plan::Detail;

use super::*;
use crate::api::{Speaker, Turn};

/// Number of agents, more than the slots of a rig of [`options`].
const CROWD: u64 = 30;

fn crowd(rig: &mut Rig, max_reply_tokens: u32) -> Vec<AgentId> {
    (0..CROWD).map(|seed| rig.agent(speaker(seed, max_reply_tokens))).collect()
}

#[test]
fn agents_beyond_the_slots_get_the_same_replies_as_alone() {
    let mut rig = Rig::free();
    let agents = crowd(&mut rig, 6);
    let asks: Vec<_> = agents.iter().map(|&agent| rig.ask(agent, tokens("ab"))).collect();
    rig.run();
    rig.assert_all_ended();
    for (seed, &ask) in asks.iter().enumerate() {
        let heard = rig.reply(ask);
        assert!(heard.ends[0].is_ok(), "{seed}: {heard:?}");
        assert_eq!(heard.text, alone(&options(), speaker(seed as u64, 6), "ab").text, "{seed}");
    }
}

#[test]
fn a_parked_agent_keeps_its_conversation() {
    let talk = |max_agents: u32| {
        let options =
            EngineOptions { max_agents: Some(max_agents), context_tokens: 256, ..options() };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agents: Vec<_> = (0..12).map(|seed| rig.agent(speaker(seed, 6))).collect();
        let mut replies = Vec::new();
        for round in 0..3 {
            let question = format!("Question {round}");
            let asks: Vec<_> = agents
                .iter()
                .map(|&agent| rig.ask(agent, Prompt::Chat(question.clone())))
                .collect();
            rig.run();
            replies.extend(asks.into_iter().map(|ask| {
                let heard = rig.reply(ask);
                (heard.text.clone(), heard.ends.clone(), heard.usage.prompt_tokens)
            }));
        }
        rig.assert_all_ended();
        replies
    };
    let plenty = talk(12);
    assert!(plenty.iter().all(|(_, ends, _)| ends[0].is_ok()));
    assert!(plenty[24].2 > plenty[0].2 + 20, "the conversation grows");
    assert_eq!(talk(3), plenty);
    assert_eq!(talk(1), plenty);
}

/// The order in which replies begin.
fn order_of_starts(rig: &mut Rig, asks: &[ReplyId]) -> Vec<usize> {
    let mut started = Vec::new();
    for _ in 0..10_000 {
        let is_idle = rig.advance() == Advance::Idle;
        for (n, &ask) in asks.iter().enumerate() {
            if rig.reply(ask).started > 0 && !started.contains(&n) {
                started.push(n);
            }
        }
        if is_idle {
            return started;
        }
    }
    panic!("the core does not come to rest");
}

fn one_slot() -> Rig {
    let options = EngineOptions { max_agents: Some(1), ..options() };
    Rig::new(&options, &inline_cpu(), Pacing::FreeRunning)
}

#[test]
fn slots_are_assigned_by_priority_then_by_age_after_a_bound() {
    for (waited_micros, expected) in [(0, [0, 2, 1, 3]), (10_000_000, [0, 1, 2, 3])] {
        let mut rig = one_slot();
        let spec = |priority| AgentSpec { priority, ..speaker(1, 20) };
        let agents = [0, 0, 5, 0].map(|priority| rig.agent(spec(priority)));
        let asks = agents.map(|agent| {
            let ask = rig.ask(agent, tokens("ab"));
            // The first agent speaks when the others are asked.
            rig.advance();
            ask
        });
        rig.now_micros += waited_micros;
        assert_eq!(order_of_starts(&mut rig, &asks), expected, "{waited_micros}");
    }
}

#[test]
fn a_parked_agent_with_raised_priority_runs_first() {
    let mut rig = one_slot();
    let agents = [1, 2, 3].map(|seed| rig.agent(speaker(seed, 20)));
    let asks = agents.map(|agent| {
        let ask = rig.ask(agent, tokens("ab"));
        rig.advance();
        ask
    });
    let spec = AgentSpec { priority: 1, ..speaker(3, 3) };
    rig.command(Command::ChangeAgent { agent: agents[2], spec: Box::new(spec) });
    assert_eq!(order_of_starts(&mut rig, &asks), [0, 2, 1]);
}

#[test]
fn an_agent_with_endless_asks_does_not_starve_others() {
    let mut rig = one_slot();
    let agents = [1, 2].map(|seed| rig.agent(speaker(seed, 3)));
    let mut of_first: Vec<_> = (0..4).map(|_| rig.ask(agents[0], tokens("ab"))).collect();
    rig.advance();
    let of_second = rig.ask(agents[1], tokens("ab"));
    let is_open = |rig: &Rig, ask: &ReplyId| rig.reply(*ask).ends.is_empty();
    for _ in 0..1_000 {
        rig.advance();
        if of_first.iter().filter(|ask| is_open(&rig, ask)).count() < 4 {
            of_first.push(rig.ask(agents[0], tokens("ab")));
        }
    }
    let after: Vec<_> = of_first.iter().skip(4).filter(|ask| !is_open(&rig, ask)).collect();
    assert!(rig.reply(of_second).ends[0].is_ok() && after.len() > 20);
    rig.run();
    rig.assert_all_ended();
}

#[test]
fn a_paused_client_keeps_no_slot_that_it_does_not_use() {
    let mut rig = one_slot();
    let other = ClientKey(1);
    rig.core.add_client(other, Pacing::FreeRunning);
    let paused = rig.agent(speaker(1, 3));
    let first = rig.ask(paused, tokens("ab"));
    rig.core.set_paused(HOST, true);
    let agent = AgentId(rig.name());
    let spec = Box::new(speaker(2, 3));
    rig.command_of(other, Command::AddAgent { agent, spec });
    let second = rig.ask_of(other, agent, tokens("ab"));
    rig.run();
    assert!(rig.reply(second).ends[0].is_ok());
    assert_eq!((rig.reply(first).started, rig.core.stats().agents_waiting), (0, 1));
    rig.core.set_paused(HOST, false);
    rig.run();
    assert!(rig.reply(first).ends[0].is_ok());
}

#[test]
fn the_longest_idle_agent_loses_its_slot() {
    let options = EngineOptions { max_agents: Some(3), ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agents: Vec<_> = (0..4).map(|seed| rig.agent(speaker(seed, 3))).collect();
    for speaks in [1, 0, 2, 1, 3] {
        let ask = rig.ask(agents[speaks], tokens("ab"));
        rig.run();
        assert!(rig.reply(ask).ends[0].is_ok());
    }
    let has_slot = |agent: &&AgentId| rig.core.agents.slot_of(**agent).is_some();
    let seated: Vec<_> = agents.iter().filter(has_slot).collect();
    assert_eq!(seated, [&agents[1], &agents[2], &agents[3]], "the first spoke longest ago");
    let stats = rig.core.stats();
    assert_eq!((stats.agents, stats.agents_parked, stats.agents_waiting), (4, 1, 0));
}

#[test]
fn waiting_agents_are_counted_cancelled_and_removed() {
    let mut rig = Rig::new(
        &EngineOptions { max_agents: Some(2), ..options() },
        &inline_cpu(),
        Pacing::default(),
    );
    let agents: Vec<_> = (0..6).map(|seed| rig.agent(speaker(seed, 30))).collect();
    let asks: Vec<_> = agents.iter().map(|&agent| rig.ask(agent, tokens("ab"))).collect();
    let more = rig.ask(agents[5], tokens("cd"));
    rig.frame();
    let waiting = |rig: &Rig| {
        let stats = rig.core.stats();
        (stats.agents_parked, stats.agents_waiting, stats.asks_waiting, stats.agents_active)
    };
    assert_eq!(waiting(&rig), (4, 4, 5, 6));
    rig.command(Command::Cancel { agent: agents[3], reply_id: asks[3] });
    rig.command(Command::RemoveAgent { agent: agents[4] });
    rig.command(Command::Cancel { agent: agents[5], reply_id: asks[5] });
    rig.advance();
    for cancelled in [3, 4, 5] {
        assert_eq!(rig.reply(asks[cancelled]).ends, [Ok(FinishReason::Cancelled)]);
    }
    assert_eq!(waiting(&rig), (3, 2, 2, 4));
    // The next agent gets a free slot at once.
    rig.command(Command::RemoveAgent { agent: agents[0] });
    rig.frame();
    assert_eq!(waiting(&rig), (2, 1, 1, 3));
    assert_eq!(rig.reply(asks[2]).started, 1);
    (0..200).for_each(|_| rig.frame());
    rig.assert_all_ended();
    assert!(rig.reply(more).ends[0].is_ok());
    assert_eq!(waiting(&rig), (2, 0, 0, 0));
    rig.core.remove_client(HOST);
    rig.advance();
    assert_eq!((waiting(&rig), rig.core.stats().agents), ((0, 0, 0, 0), 0));
}

#[test]
fn parked_agents_are_bounded() {
    let options = EngineOptions { max_agents: Some(2), max_agents_parked: 3, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agents: Vec<_> = (0..7).map(|seed| rig.agent(speaker(seed, 3))).collect();
    let asks: Vec<_> = agents.iter().map(|&agent| rig.ask(agent, tokens("ab"))).collect();
    rig.run();
    rig.assert_all_ended();
    let refused = Err(ReplyError::TooManyAgents { max_agents: 2 });
    for (n, &ask) in asks.iter().enumerate() {
        assert_eq!(rig.reply(ask).ends[0] == refused, n >= 5, "{n}");
    }
    // A freed slot is available to a new agent.
    rig.command(Command::RemoveAgent { agent: agents[4] });
    let new = rig.agent(speaker(9, 3));
    let asks = [agents[6], new].map(|agent| rig.ask(agent, tokens("ab")));
    rig.run();
    assert_eq!(rig.reply(asks[0]).ends, [refused]);
    assert!(rig.reply(asks[1]).ends[0].is_ok());
}

#[test]
fn an_ask_takes_a_free_slot_immediately() {
    let options = EngineOptions { wait_for_slot: false, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agents: Vec<_> = (0..20).map(|seed| rig.agent(speaker(seed, 2))).collect();
    let [agent, gone, other] = [agents[19], agents[18], agents[8]];
    // Commands for an agent without a slot are not lost.
    rig.command(Command::ChangeAgent { agent, spec: Box::new(speaker(1, 7)) });
    let turns = [Speaker::User, Speaker::Agent].map(|speaker| Turn::new(speaker, "Hi"));
    rig.command(Command::SetConversation { agent, turns: turns.to_vec() });
    rig.command(Command::SetDetail { agent, detail: Detail::Reduced });
    rig.command(Command::RemoveAgent { agent: gone });
    let refused = rig.ask(agent, tokens("ab"));
    rig.command(Command::RemoveAgent { agent: agents[3] });
    let heard = rig.ask(agent, tokens("ab"));
    let second = rig.ask(agent, tokens("ab"));
    let full = rig.ask(other, tokens("ab"));
    rig.command(Command::RemoveAgent { agent: agents[4] });
    let unknown = rig.ask(gone, tokens("ab"));
    let answered = rig.ask(other, tokens("ab"));
    rig.run();
    rig.assert_all_ended();
    for refused in [refused, full] {
        assert_eq!(rig.reply(refused).ends, [Err(ReplyError::TooManyAgents { max_agents: 8 })]);
    }
    assert_eq!(rig.reply(heard).text, alone(&self::options(), speaker(1, 7), "ab").text);
    let placed = rig.core.agents.get(3).expect("it has the slot");
    assert_eq!((&placed.history.turns()[..], placed.spec.detail), (&turns[..], Detail::Reduced));
    assert_eq!(rig.reply(unknown).ends, [Err(ReplyError::UnknownAgent)]);
    assert!([second, answered].iter().all(|&ask| rig.reply(ask).ends[0].is_ok()));
    assert_eq!(rig.core.stats().agents_waiting, 0);
}

#[test]
fn shutdown_ends_the_asks_of_waiting_agents() {
    let mut rig = one_slot();
    let agents = [1, 2, 3].map(|seed| rig.agent(speaker(seed, 3)));
    let asks = agents.map(|agent| rig.ask(agent, tokens("ab")));
    for (_, events) in rig.core.drain_events("the end") {
        events.into_iter().for_each(|event| hear(&mut rig.heard, event));
    }
    for ask in asks {
        assert_eq!(rig.reply(ask).ends, [Err(ReplyError::EngineGone("the end".into()))]);
    }
}
