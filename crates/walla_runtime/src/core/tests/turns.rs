//! Conversations after interruptions and additions, compared by their next prompts.

use super::*;
use crate::api::{Speaker, Turn};

fn turn(speaker: Speaker, text: &str) -> Turn {
    Turn { speaker, text: text.into() }
}

fn roomy() -> EngineOptions {
    EngineOptions { context_tokens: 512, ..options() }
}

/// The conversation of the agent.
fn turns(stage: &Stage, agent: AgentId) -> Vec<String> {
    let agent = stage
        .core
        .agents
        .get(stage.core.agents.slot_of(agent).expect("it has a slot"))
        .expect("it lives");
    agent.turns.iter().map(|turn| turn.text.clone()).collect()
}

/// The prompt tokens of an agent that began with this conversation.
fn prompt_of(turns: &[String], question: &str) -> Vec<TokenId> {
    let mut stage = Stage::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let speakers = [Speaker::User, Speaker::Agent].into_iter().cycle();
    let history = speakers.zip(turns).map(|(speaker, text)| turn(speaker, text)).collect();
    let agent = stage.agent(AgentSpec { history, ..speaker(1, 5) });
    let ask = stage.ask(agent, Prompt::Chat(question.into()));
    stage.run();
    let prompt_tokens = stage.reply(ask).usage.prompt_tokens as usize;
    said(&stage, agent, 0)[..prompt_tokens].to_vec()
}

fn asked(stage: &mut Stage, agent: AgentId, question: &str) -> GenerationId {
    stage.ask(agent, Prompt::Chat(question.into()))
}

#[test]
fn the_conversation_holds_what_was_heard_of_an_interrupted_reply() {
    for heard_bytes in [0, 1, 7, 1_000] {
        let mut stage = Stage::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
        let agent = stage.agent(speaker(2, 60));
        let generation = asked(&mut stage, agent, "Who are you?");
        while stage.reply(generation).text.len() < 12 {
            stage.advance();
        }
        stage.command(Command::Interrupt { agent, generation, heard_bytes });
        stage.advance();
        let heard = stage.reply(generation);
        assert_eq!(heard.ends, [Ok(FinishReason::Cancelled)]);
        let kept = &heard.text[..heard.text.floor_char_boundary(heard_bytes as usize)];
        let expected =
            if kept.is_empty() { vec![] } else { vec!["Who are you?".to_owned(), kept.to_owned()] };
        assert_eq!(turns(&stage, agent), expected);
        // The cache holds more than that, and the next prompt is still correct.
        let next = asked(&mut stage, agent, "And now?");
        stage.run();
        let prompt_tokens = stage.reply(next).usage.prompt_tokens as usize;
        let prompt = said(&stage, agent, 0)[..prompt_tokens].to_vec();
        assert_eq!(prompt, prompt_of(&expected, "And now?"), "{heard_bytes}");
    }
}

#[test]
fn a_reply_that_has_ended_can_still_be_shortened() {
    let mut stage = Stage::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = stage.agent(speaker(2, 10));
    let asks = ["one", "two", "three"].map(|question| asked(&mut stage, agent, question));
    stage.run();
    let texts = asks.map(|ask| stage.reply(ask).text.clone());
    assert!(texts.iter().all(|text| text.len() > 4), "{texts:?}");
    stage.command(Command::Interrupt { agent, generation: asks[1], heard_bytes: 0 });
    stage.command(Command::Interrupt { agent, generation: asks[2], heard_bytes: 3 });
    // Ids that no exchange has.
    stage.command(Command::Interrupt { agent, generation: GenerationId(999), heard_bytes: 0 });
    let cut = texts[2][..texts[2].floor_char_boundary(3)].to_owned();
    let expected = ["one".to_owned(), texts[0].clone(), "three".to_owned(), cut];
    assert_eq!(turns(&stage, agent), expected);
    let next = asked(&mut stage, agent, "And now?");
    stage.run();
    stage.assert_all_ended();
    let prompt_tokens = stage.reply(next).usage.prompt_tokens as usize;
    assert_eq!(said(&stage, agent, 0)[..prompt_tokens], prompt_of(&expected, "And now?"));
}

#[test]
fn an_ask_that_has_not_begun_is_cancelled_by_an_interruption() {
    let mut stage = Stage::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = stage.agent(speaker(2, 10));
    let asks = ["one", "two"].map(|question| asked(&mut stage, agent, question));
    stage.command(Command::Interrupt { agent, generation: asks[1], heard_bytes: 5 });
    stage.run();
    assert_eq!(stage.reply(asks[1]).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(turns(&stage, agent), ["one".to_owned(), stage.reply(asks[0]).text.clone()]);
}

#[test]
fn appended_turns_stand_where_they_were_told_among_the_asks() {
    let mut stage = Stage::new(&roomy(), &inline_cpu(), Pacing::FreeRunning);
    let agent = stage.agent(speaker(2, 5));
    let append = |stage: &mut Stage, text: &str| {
        let turns = vec![turn(Speaker::User, text)];
        stage.command(Command::AppendTurns { agent, turns });
    };
    append(&mut stage, "a");
    let one = asked(&mut stage, agent, "one");
    let two = asked(&mut stage, agent, "two");
    stage.advance();
    append(&mut stage, "b");
    append(&mut stage, "c");
    let cancelled = asked(&mut stage, agent, "cancelled");
    append(&mut stage, "d");
    let three = asked(&mut stage, agent, "three");
    append(&mut stage, "e");
    stage.command(Command::Cancel { agent, generation: cancelled });
    assert_eq!(turns(&stage, agent), ["a"], "nothing is cancelled, nothing comes too early");
    stage.run();
    append(&mut stage, "f");
    stage.assert_all_ended();
    let said = |ask| stage.reply(ask).text.clone();
    let [one, two, three] = [one, two, three].map(said);
    let expected = ["a", "one", &one, "two", &two, "b", "c", "d", "three", &three, "e", "f"];
    assert_eq!(turns(&stage, agent), expected);
}

#[test]
fn a_parked_agent_takes_turns_as_well() {
    let options = EngineOptions { agents_max: 1, ..roomy() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let [first, agent] = [1, 2].map(|seed| stage.agent(speaker(seed, 5)));
    asked(&mut stage, first, "Hello");
    let append = |stage: &mut Stage, text: &str| {
        let turns = vec![turn(Speaker::User, text)];
        stage.command(Command::AppendTurns { agent, turns });
    };
    append(&mut stage, "a");
    let ask = asked(&mut stage, agent, "one");
    append(&mut stage, "b");
    stage.run();
    let said = stage.reply(ask).text.clone();
    assert_eq!(turns(&stage, agent), ["a", "one", &said, "b"]);
}
