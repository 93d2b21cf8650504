//! Conversations after interruptions and additions, compared by their next prompts.

use super::*;
use crate::api::{Speaker, Turn};

fn turn(speaker: Speaker, text: &str) -> Turn {
    Turn::new(speaker, text)
}

fn roomy() -> EngineOptions {
    EngineOptions { context_tokens: 512, ..options() }
}

/// The conversation of the agent.
fn turns(rig: &Rig, agent: AgentId) -> Vec<String> {
    let agent = rig
        .core
        .agents
        .get(rig.core.agents.slot_of(agent).expect("it has a slot"))
        .expect("it lives");
    agent.history.turns().iter().map(|turn| turn.text.clone()).collect()
}

/// The prompt tokens of an agent that began with this conversation.
fn prompt_of(turns: &[String], question: &str) -> Vec<TokenId> {
    let mut rig = Rig::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let speakers = [Speaker::User, Speaker::Agent].into_iter().cycle();
    let history = speakers.zip(turns).map(|(speaker, text)| turn(speaker, text)).collect();
    let agent = rig.agent(AgentSpec { turns: history, ..speaker(1, 5) });
    let ask = rig.ask(agent, Prompt::Chat(question.into()));
    rig.run();
    let prompt_tokens = rig.reply(ask).usage.prompt_tokens as usize;
    sampled_tokens(&rig, agent, 0)[..prompt_tokens].to_vec()
}

fn asked(rig: &mut Rig, agent: AgentId, question: &str) -> ReplyId {
    rig.ask(agent, Prompt::Chat(question.into()))
}

#[test]
fn history_keeps_the_heard_part_of_an_interrupted_reply() {
    for heard_bytes in [0, 1, 7, 1_000] {
        let mut rig = Rig::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
        let agent = rig.agent(speaker(2, 60));
        let reply_id = asked(&mut rig, agent, "Who are you?");
        while rig.reply(reply_id).text.len() < 12 {
            rig.advance();
        }
        rig.command(Command::CancelHeard { agent, reply_id, heard_bytes });
        rig.advance();
        let heard = rig.reply(reply_id);
        assert_eq!(heard.ends, [Ok(FinishReason::Cancelled)]);
        let kept = &heard.text[..heard.text.floor_char_boundary(heard_bytes as usize)];
        let expected =
            if kept.is_empty() { vec![] } else { vec!["Who are you?".to_owned(), kept.to_owned()] };
        assert_eq!(turns(&rig, agent), expected);
        // The cache holds more than that, and the next prompt is still correct.
        let next = asked(&mut rig, agent, "And now?");
        rig.run();
        let prompt_tokens = rig.reply(next).usage.prompt_tokens as usize;
        let prompt = sampled_tokens(&rig, agent, 0)[..prompt_tokens].to_vec();
        assert_eq!(prompt, prompt_of(&expected, "And now?"), "{heard_bytes}");
    }
}

#[test]
fn a_reply_that_has_ended_can_still_be_shortened() {
    let mut rig = Rig::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(2, 10));
    let asks = ["one", "two", "three"].map(|question| asked(&mut rig, agent, question));
    rig.run();
    let texts = asks.map(|ask| rig.reply(ask).text.clone());
    assert!(texts.iter().all(|text| text.len() > 4), "{texts:?}");
    rig.command(Command::CancelHeard { agent, reply_id: asks[1], heard_bytes: 0 });
    rig.command(Command::CancelHeard { agent, reply_id: asks[2], heard_bytes: 3 });
    // Ids that no exchange has.
    rig.command(Command::CancelHeard { agent, reply_id: ReplyId(999), heard_bytes: 0 });
    let cut = texts[2][..texts[2].floor_char_boundary(3)].to_owned();
    let expected = ["one".to_owned(), texts[0].clone(), "three".to_owned(), cut];
    assert_eq!(turns(&rig, agent), expected);
    let next = asked(&mut rig, agent, "And now?");
    rig.run();
    rig.assert_all_ended();
    let prompt_tokens = rig.reply(next).usage.prompt_tokens as usize;
    assert_eq!(sampled_tokens(&rig, agent, 0)[..prompt_tokens], prompt_of(&expected, "And now?"));
}

#[test]
fn an_interruption_cancels_an_ask_that_has_not_started() {
    let mut rig = Rig::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(2, 10));
    let asks = ["one", "two"].map(|question| asked(&mut rig, agent, question));
    rig.command(Command::CancelHeard { agent, reply_id: asks[1], heard_bytes: 5 });
    rig.run();
    assert_eq!(rig.reply(asks[1]).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(turns(&rig, agent), ["one".to_owned(), rig.reply(asks[0]).text.clone()]);
}

#[test]
fn appended_turns_keep_their_order_among_asks() {
    let mut rig = Rig::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(2, 5));
    let append = |rig: &mut Rig, text: &str| {
        let turns = vec![turn(Speaker::User, text)];
        rig.command(Command::AppendTurns { agent, turns });
    };
    append(&mut rig, "a");
    let one = asked(&mut rig, agent, "one");
    let two = asked(&mut rig, agent, "two");
    rig.advance();
    append(&mut rig, "b");
    append(&mut rig, "c");
    let cancelled = asked(&mut rig, agent, "cancelled");
    append(&mut rig, "d");
    let three = asked(&mut rig, agent, "three");
    append(&mut rig, "e");
    rig.command(Command::Cancel { agent, reply_id: cancelled });
    assert_eq!(turns(&rig, agent), ["a"], "nothing is cancelled, nothing comes too early");
    rig.run();
    append(&mut rig, "f");
    rig.assert_all_ended();
    let said = |ask| rig.reply(ask).text.clone();
    let [one, two, three] = [one, two, three].map(said);
    let expected = ["a", "one", &one, "two", &two, "b", "c", "d", "three", &three, "e", "f"];
    assert_eq!(turns(&rig, agent), expected);
}

#[test]
fn turns_can_be_appended_to_a_parked_agent() {
    let options = EngineOptions { max_agents: Some(1), ..roomy() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let [first, agent] = [1, 2].map(|seed| rig.agent(speaker(seed, 5)));
    asked(&mut rig, first, "Hello");
    let append = |rig: &mut Rig, text: &str| {
        let turns = vec![turn(Speaker::User, text)];
        rig.command(Command::AppendTurns { agent, turns });
    };
    append(&mut rig, "a");
    let ask = asked(&mut rig, agent, "one");
    append(&mut rig, "b");
    rig.run();
    let said = rig.reply(ask).text.clone();
    assert_eq!(turns(&rig, agent), ["a", "one", &said, "b"]);
}

/// An agent may reply without a question: it speaks first, and answers an observation.
#[test]
fn an_agent_continues_its_conversation_as_it_is() {
    let mut rig = Rig::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(2, 5));
    let observe = |rig: &mut Rig, text: &str| {
        let turns = vec![turn(Speaker::Observation, text)];
        rig.command(Command::AppendTurns { agent, turns });
    };
    let first = rig.ask(agent, Prompt::Continue);
    rig.run();
    observe(&mut rig, "Odo enters.");
    let greeting = rig.ask(agent, Prompt::Continue);
    rig.run();
    let answer = asked(&mut rig, agent, "Who are you?");
    rig.run();
    let after = rig.ask(agent, Prompt::Continue);
    rig.run();
    rig.assert_all_ended();
    let said = [first, greeting, answer, after].map(|ask| rig.reply(ask).text.clone());
    let [first_text, greeting_text, answer_text, after_text] = &said;
    let expected =
        [first_text, "Odo enters.", greeting_text, "Who are you?", answer_text, after_text];
    assert_eq!(turns(&rig, agent), expected);
    // Only the reply is removed, because it has no question.
    rig.command(Command::CancelHeard { agent, reply_id: greeting, heard_bytes: 0 });
    rig.command(Command::CancelHeard { agent, reply_id: after, heard_bytes: 1 });
    rig.run();
    let cut = &after_text[..after_text.floor_char_boundary(1)];
    let expected: Vec<&str> = [first_text, "Odo enters.", "Who are you?", answer_text, cut]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    assert_eq!(turns(&rig, agent), expected);
}
