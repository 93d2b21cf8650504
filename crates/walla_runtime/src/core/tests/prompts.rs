//! From asks to prompts: the kept part of a conversation, and the order of encoding.

use super::*;
use crate::api::{Speaker, Turn};
use crate::core::agents::ReplyPhase;

fn turn(speaker: Speaker, text: impl Into<String>) -> Turn {
    Turn { speaker, text: text.into() }
}

#[test]
fn an_endless_conversation_is_bounded_by_its_context() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(1, 6));
    let mut turns = Vec::new();
    for n in 0..40 {
        let reply_id = rig.ask(agent, Prompt::Chat(format!("Question {n}")));
        rig.run();
        assert!(rig.reply(reply_id).ends[0].is_ok());
        turns.push(rig.core.agents.get(0).expect("it lives").turns.len());
    }
    assert!(turns.iter().all(|&turns| (2..16).contains(&turns)), "{turns:?}");
    rig.assert_all_ended();
}

#[test]
fn a_restored_conversation_beyond_the_encoder_limit_is_shortened() {
    // Longer than the tokenizer's limit, followed by more turns than any context can hold.
    let long = || "x".repeat(700 << 10);
    let mut history = vec![turn(Speaker::User, long()), turn(Speaker::Agent, long())];
    for n in 0..2_000 {
        history.push(turn(Speaker::User, format!("turn number {n}")));
        history.push(turn(Speaker::Agent, "yes"));
    }
    let mut rig = Rig::free();
    let agent = rig.agent(AgentSpec { turns: history, ..speaker(1, 8) });
    let reply_id = rig.ask(agent, Prompt::Chat("What now?".into()));
    rig.run();
    rig.assert_all_ended();
    let heard = rig.reply(reply_id);
    assert!(heard.ends[0].is_ok(), "{heard:?}");
    // Three quarters of the context without the reply.
    assert!((60..=90).contains(&heard.usage.prompt_tokens), "{heard:?}");
}

/// The text thread holds a limited number of prompts. Agents that ask again wait behind agents that
/// have not been served yet.
#[test]
fn prompts_of_many_agents_are_encoded_round_robin() {
    let options = EngineOptions { agents_max: 150, context_tokens: 64, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let agents: Vec<_> = (0..150).map(|seed| rig.agent(speaker(seed, 2))).collect();
    let ask = |rig: &mut Rig, slot: usize| rig.ask(agents[slot], Prompt::Raw("Hi".into()));
    let begun = |rig: &Rig, phase: ReplyPhase| {
        let of = |slot: &usize| {
            let agent = rig.core.agents.get(*slot).expect("it lives");
            agent.reply.as_ref().is_some_and(|reply| reply.phase == phase)
        };
        (0..150).filter(of).collect::<Vec<_>>()
    };
    let first: Vec<_> = (0..150).map(|slot| ask(&mut rig, slot)).collect();
    rig.core.start_asks(0);
    assert_eq!(begun(&rig, ReplyPhase::Encoding), (0..64).collect::<Vec<_>>());
    assert!(rig.core.prompts.is_full());
    // A prompt of tokens needs no encoding, so it does not wait.
    let spectator = rig.ask(agents[140], tokens("ab"));
    rig.command(Command::Cancel { agent: agents[140], reply_id: first[140] });
    rig.core.start_asks(0);
    assert_eq!(begun(&rig, ReplyPhase::Running), [140]);
    assert_eq!(begun(&rig, ReplyPhase::Encoding).len(), 64);
    for (slot, (&agent, &reply_id)) in agents.iter().zip(&first).take(64).enumerate() {
        rig.command(Command::Cancel { agent, reply_id });
        ask(&mut rig, slot);
    }
    assert!(rig.core.collect_prompts(0));
    rig.core.start_asks(0);
    assert_eq!(begun(&rig, ReplyPhase::Encoding), (64..128).collect::<Vec<_>>());
    (0..300).for_each(|_| rig.frame());
    assert!(rig.reply(spectator).ends[0].is_ok());
    rig.assert_all_ended();
}
