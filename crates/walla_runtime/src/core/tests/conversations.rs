//! Changed conversations and copies of agents: the words that follow, and the tokens that are
//! evaluated.

use walla_types::SeqId;

use super::*;
use crate::api::{ConversationEdit, Notes, Speaker, Turn};

/// Several pages.
const PERSONA: &str =
    "the inn stands by the ford and the river sings all night to whoever listens to it";

/// With it the model has words for the fourth question.
const SEED: u64 = 6;

fn wide() -> EngineOptions {
    EngineOptions { context_tokens: 1_024, kv_tokens: Some(8 * 1_024), ..options() }
}

fn rig(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

fn chatty(seed: u64) -> AgentSpec {
    AgentSpec { persona: PERSONA.into(), ..speaker(seed, 20) }
}

fn chat(text: &str) -> Prompt {
    Prompt::Chat(text.into())
}

fn asked(rig: &mut Rig, agent: AgentId, prompt: Prompt, options: AskOptions) -> Heard {
    let ask = rig.ask_with(agent, prompt, options);
    rig.run();
    rig.reply(ask).clone()
}

fn said(rig: &mut Rig, agent: AgentId, text: &str) -> Heard {
    asked(rig, agent, chat(text), AskOptions::default())
}

fn fork(rig: &mut Rig, source: AgentId, spec: Option<AgentSpec>) -> AgentId {
    let agent = AgentId(rig.name());
    rig.command(Command::ForkAgent { agent, source, spec: spec.map(Box::new) });
    agent
}

fn rewind(rig: &mut Rig, agent: AgentId, turns: u32) {
    rig.command(Command::EditConversation { agent, edit: ConversationEdit::Rewind { turns } });
}

fn turns(rig: &mut Rig, agent: AgentId) -> Vec<Turn> {
    rig.core.agents.of_client(HOST, agent).expect("it lives").history.turns().to_vec()
}

fn pages(rig: &Rig, agent: AgentId) -> Vec<walla_plan::PageId> {
    let slot = rig.core.agents.slot_of(agent).expect("it has a slot");
    rig.core.kv.ledger().pages(SeqId(slot as u32)).to_vec()
}

fn evaluated(heard: &Heard) -> u32 {
    heard.usage.prompt_tokens - heard.usage.cached_tokens
}

/// An agent with a conversation of three questions.
fn talked(rig: &mut Rig, spec: AgentSpec) -> AgentId {
    let agent = rig.agent(spec);
    for question in ["Who are you?", "Where am I?", "What is it?"] {
        said(rig, agent, question);
    }
    agent
}

#[test]
fn a_fork_evaluates_no_token_of_its_source_again() {
    let mut alone = rig(&wide());
    let only = talked(&mut alone, chatty(SEED));
    let expected = said(&mut alone, only, "And now?");
    assert!(!expected.text.is_empty());

    let mut rig = rig(&wide());
    let source = talked(&mut rig, chatty(SEED));
    let used = rig.core.stats().pages_used;
    let agent = fork(&mut rig, source, None);
    assert_eq!(turns(&mut rig, agent), turns(&mut rig, source));
    assert_eq!(pages(&rig, agent), pages(&rig, source));
    rig.advance();
    assert_eq!(rig.core.stats().pages_used, used, "a copy needs no page");
    // The fork speaks first, then the source: each has its own future.
    for agent in [agent, source] {
        let heard = said(&mut rig, agent, "And now?");
        assert_eq!(heard.text, expected.text);
        assert!(heard.usage.cached_tokens >= expected.usage.cached_tokens, "{:?}", heard.usage);
    }
    let shared = expected.usage.cached_tokens as usize / 16;
    let (a, b) = (pages(&rig, agent), pages(&rig, source));
    assert!(shared >= 10, "{shared} pages");
    assert_eq!(a[..shared], b[..shared], "at most the page that both continue is copied");
    // Another seed, and the source does not notice.
    let other = asked(&mut rig, agent, Prompt::Again, AskOptions::seed(99));
    assert_ne!(other.text, expected.text);
    let next = said(&mut rig, source, "Why?");
    assert_eq!(next.text, said(&mut alone, only, "Why?").text);
}

#[test]
fn a_fork_during_a_reply_has_the_conversation_before_it() {
    let mut alone = rig(&wide());
    let only = talked(&mut alone, chatty(SEED));
    let expected = said(&mut alone, only, "And now?");
    assert!(!expected.text.is_empty());

    let mut rig = rig(&wide());
    let source = talked(&mut rig, chatty(SEED));
    let before = turns(&mut rig, source);
    let ask = rig.ask(source, chat("And now?"));
    let waiting = rig.ask(source, chat("Really?"));
    let mut forks = Vec::new();
    while rig.reply(ask).ends.is_empty() {
        if forks.len() < 6 {
            let agent = fork(&mut rig, source, None);
            let ask = rig.ask(agent, chat("And now?"));
            forks.push((agent, ask));
        }
        rig.advance();
    }
    rig.run();
    assert_eq!(rig.reply(ask).text, expected.text);
    assert!(rig.reply(waiting).ends[0].is_ok());
    for (agent, ask) in forks {
        assert_eq!(rig.reply(ask).text, expected.text, "the same question and seed");
        assert_eq!(turns(&mut rig, agent)[..before.len()], before);
        assert_eq!(turns(&mut rig, agent).len(), before.len() + 2);
    }
    rig.assert_all_ended();
}

#[test]
fn forks_beyond_the_slots_and_of_strangers_keep_to_the_rules_of_new_agents() {
    let mut rig = rig(&EngineOptions { max_agents: Some(1), ..wide() });
    let source = talked(&mut rig, chatty(SEED));
    let parked = fork(&mut rig, source, None);
    assert_eq!(rig.core.agents.slot_of(parked), None);
    let heard = said(&mut rig, parked, "And now?");
    assert_eq!(heard.text, said(&mut rig, source, "And now?").text);
    // An unknown source: nothing to copy, except for a whole specification.
    let nobody = fork(&mut rig, AgentId(u64::MAX), None);
    let ask = rig.ask(nobody, chat("?"));
    let spec = AgentSpec { turns: turns(&mut rig, source), ..chatty(SEED) };
    let known = fork(&mut rig, AgentId(u64::MAX), Some(spec));
    rig.run();
    assert_eq!(rig.reply(ask).ends, [Err(ReplyError::UnknownAgent)]);
    assert_eq!(turns(&mut rig, known), turns(&mut rig, source));
    // Another client's agent is unknown.
    let stranger = ClientKey(7);
    rig.core.add_client(stranger, Pacing::FreeRunning);
    let agent = AgentId(rig.name());
    rig.command_of(stranger, Command::ForkAgent { agent, source, spec: None });
    let edit = ConversationEdit::Rewind { turns: 9 };
    rig.command_of(stranger, Command::EditConversation { agent: source, edit });
    let edit = ConversationEdit::CopyOf { source };
    rig.command_of(stranger, Command::EditConversation { agent, edit });
    let ask = rig.ask_of(stranger, agent, chat("?"));
    rig.run();
    assert_eq!(rig.reply(ask).ends, [Err(ReplyError::UnknownAgent)]);
    assert!(!turns(&mut rig, source).is_empty());
}

#[test]
fn a_fork_with_another_specification_shares_what_is_the_same() {
    let mut rig = rig(&wide());
    let source = talked(&mut rig, chatty(SEED));
    let conversation = turns(&mut rig, source);
    let louder = AgentSpec { turns: conversation.clone(), max_reply_tokens: 5, ..chatty(8) };
    let agent = fork(&mut rig, source, Some(louder));
    let heard = said(&mut rig, agent, "And now?");
    assert!(heard.usage.reply_tokens <= 5 && evaluated(&heard) < 60, "{:?}", heard.usage);
    let changed = AgentSpec { persona: "another".into(), turns: conversation, ..chatty(SEED) };
    let agent = fork(&mut rig, source, Some(changed));
    let heard = said(&mut rig, agent, "And now?");
    assert!(heard.usage.cached_tokens < 40, "{:?}", heard.usage);
}

#[test]
fn after_a_rewind_only_new_tokens_are_evaluated() {
    for options in [wide(), recurrent()] {
        let mut short = rig(&options);
        let agent = short.agent(chatty(SEED));
        said(&mut short, agent, "Who are you?");
        let expected = said(&mut short, agent, "Is it late?");

        let mut rig = rig(&options);
        let agent = talked(&mut rig, chatty(SEED));
        rewind(&mut rig, agent, 4);
        assert_eq!(turns(&mut rig, agent).len(), 2);
        let heard = said(&mut rig, agent, "Is it late?");
        assert_eq!(heard.text, expected.text);
        assert_eq!(heard.usage.prompt_tokens, expected.usage.prompt_tokens);
        assert!(heard.usage.cached_tokens >= expected.usage.cached_tokens, "{:?}", heard.usage);
        rewind(&mut rig, agent, u32::MAX);
        assert!(turns(&mut rig, agent).is_empty());
    }
}

#[test]
fn a_rewind_ends_the_reply_in_progress_whose_text_is_a_turn() {
    let mut rig = rig(&wide());
    let agent = talked(&mut rig, chatty(SEED));
    let ask = rig.ask(agent, chat("And now?"));
    let waiting = rig.ask(agent, chat("Really?"));
    while rig.reply(ask).text.is_empty() {
        assert!(rig.reply(ask).ends.is_empty(), "it ended before its first word");
        rig.advance();
    }
    rewind(&mut rig, agent, 1);
    rig.run();
    assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(rig.reply(waiting).ends, [Ok(FinishReason::Cancelled)]);
    let last = turns(&mut rig, agent).pop().expect("the question");
    assert_eq!((last.speaker, last.text.as_str()), (Speaker::User, "And now?"));
}

#[test]
fn a_reply_is_given_again_from_the_cached_prompt() {
    for options in [wide(), recurrent()] {
        let is_recurrent = options.context_tokens == 512;
        let mut rig = rig(&options);
        let agent = rig.agent(chatty(SEED));
        said(&mut rig, agent, "Who are you?");
        let first = said(&mut rig, agent, "Where am I?");
        let before = turns(&mut rig, agent);
        let again = asked(&mut rig, agent, Prompt::Again, AskOptions::default());
        assert_eq!((&again.text, again.ends), (&first.text, first.ends));
        assert_eq!(turns(&mut rig, agent), before);
        let usage = again.usage;
        assert_eq!(usage.prompt_tokens, first.usage.prompt_tokens);
        if is_recurrent {
            // From the end of the first prompt: its state covers a whole sequence.
            assert!(usage.cached_tokens > 80, "{usage:?}");
        } else {
            assert_eq!(usage.cached_tokens, usage.prompt_tokens - 1, "the last gives the draw");
        }
        let mut texts = vec![first.text];
        for seed in 2..6 {
            texts.push(asked(&mut rig, agent, Prompt::Again, AskOptions::seed(seed)).text);
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 5, "each seed has its own words");
        assert_eq!(turns(&mut rig, agent).len(), 4);
        rig.assert_all_ended();
    }
}

#[test]
fn a_seed_of_an_ask_is_the_seed_of_an_agent() {
    let mut rig = rig(&wide());
    let (a, b) = (rig.agent(chatty(SEED)), rig.agent(chatty(5)));
    let with = asked(&mut rig, a, chat("Who?"), AskOptions::seed(5));
    assert_eq!(with.text, said(&mut rig, b, "Who?").text);
    let without = said(&mut rig, a, "Who?");
    assert_ne!(with.text, without.text, "it counts for one ask");
}

#[test]
fn without_a_reply_there_is_none_to_give_again() {
    let mut rig = rig(&wide());
    let agent = rig.agent(chatty(SEED));
    let heard = asked(&mut rig, agent, Prompt::Again, AskOptions::default());
    assert_eq!(heard.ends, [Err(ReplyError::NoReply)]);
    let question = Turn::new(Speaker::User, "Hello?");
    rig.command(Command::AppendTurns { agent, turns: vec![question.clone()] });
    let heard = asked(&mut rig, agent, Prompt::Again, AskOptions::default());
    assert_eq!(heard.ends, [Err(ReplyError::NoReply)]);
    assert_eq!(turns(&mut rig, agent), [question], "nothing is lost");
    // A reply to the conversation itself.
    let heard = asked(&mut rig, agent, Prompt::Continue, AskOptions::default());
    let again = asked(&mut rig, agent, Prompt::Again, AskOptions::default());
    assert_eq!(heard.text, again.text);
    assert_eq!(turns(&mut rig, agent).len(), 2);
}

#[test]
fn an_edited_turn_is_evaluated_from_the_first_token_that_differs() {
    let mut rig = rig(&wide());
    let agent = talked(&mut rig, chatty(SEED));
    let edit = |turns_after, text: &str| {
        let edit = ConversationEdit::Text { turns_after, text: text.into() };
        Command::EditConversation { agent, edit }
    };
    let whole = said(&mut rig, agent, "And now?").usage;
    rewind(&mut rig, agent, 2);
    rig.command(edit(0, "I am the smith."));
    rig.command(edit(400, "nobody"));
    let heard = said(&mut rig, agent, "And now?");
    let conversation = turns(&mut rig, agent);
    assert_eq!(
        (conversation[5].speaker, conversation[5].text.as_str()),
        (Speaker::Agent, "I am the smith.")
    );
    assert!(heard.usage.cached_tokens >= whole.cached_tokens - 200, "{:?} {whole:?}", heard.usage);
    let mut fresh = Rig::new(&wide(), &inline_cpu(), Pacing::FreeRunning);
    let spec = AgentSpec { turns: conversation[..6].to_vec(), ..chatty(SEED) };
    let agent = fresh.agent(spec);
    assert_eq!(heard.text, said(&mut fresh, agent, "And now?").text);
}

#[test]
fn a_conversation_is_copied_to_another_agent() {
    let mut rig = rig(&wide());
    let source = talked(&mut rig, chatty(SEED));
    let other = rig.agent(AgentSpec { persona: "You are the baker.".into(), ..chatty(2) });
    let ask = rig.ask(other, chat("Hello?"));
    rig.advance();
    let edit = ConversationEdit::CopyOf { source };
    rig.command(Command::EditConversation { agent: other, edit: edit.clone() });
    rig.run();
    assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(turns(&mut rig, other), turns(&mut rig, source));
    rig.command(Command::EditConversation { agent: source, edit });
    assert_eq!(turns(&mut rig, other), turns(&mut rig, source), "a copy of itself");
    let heard = said(&mut rig, other, "And now?");
    assert!(heard.ends[0].is_ok());
}

fn knowing(texts: &[&str]) -> AskOptions {
    AskOptions::notes(Notes::new(texts.iter().copied()))
}

#[test]
fn notes_precede_the_question_of_one_reply_and_leave_the_cache_valid() {
    let mut rig = rig(&wide());
    let agent = talked(&mut rig, chatty(SEED));
    let twin = talked(&mut rig, chatty(SEED));
    let before = turns(&mut rig, agent);
    let plain = said(&mut rig, twin, "And now?");
    let options = knowing(&["The bridge is closed.", "<|im_end|> is no marker."]);
    let with = asked(&mut rig, agent, chat("And now?"), options);
    assert!(with.ends[0].is_ok());
    // Persona and conversation are in the cache; the notes are new.
    let notes = with.usage.prompt_tokens - plain.usage.prompt_tokens;
    assert!(notes > 20, "{:?}", with.usage);
    assert!(
        evaluated(&with) <= evaluated(&plain) + notes + 20,
        "{:?} {:?}",
        with.usage,
        plain.usage
    );
    // They are no turn.
    let after = turns(&mut rig, agent);
    assert_eq!(after[..before.len()], before);
    assert_eq!((after.len(), after[before.len()].text.as_str()), (before.len() + 2, "And now?"));
    // The prompt equals one with an observation at the same place.
    let slot = rig.core.agents.slot_of(agent).expect("it has a slot");
    let known = rig.core.agents.get(slot).expect("it lives").sequence.tokens();
    let known = known[..with.usage.prompt_tokens as usize].to_vec();
    let note = "You know:\n- The bridge is closed.\n- <|im_end|> is no marker.";
    let observed = Turn::new(Speaker::Observation, note);
    let spec = AgentSpec { turns: [before, vec![observed]].concat(), ..chatty(SEED) };
    let other = rig.agent(spec);
    let same = said(&mut rig, other, "And now?");
    let slot = rig.core.agents.slot_of(other).expect("it has a slot");
    let tokens = rig.core.agents.get(slot).expect("it lives").sequence.tokens();
    assert_eq!(tokens[..same.usage.prompt_tokens as usize], known);
    assert_eq!(same.text, with.text);
}

#[test]
fn notes_have_a_limit_and_need_no_question() {
    let mut rig = rig(&options());
    let agent = rig.agent(AgentSpec { persona: String::new(), ..chatty(SEED) });
    let question = Turn::new(Speaker::User, "Who?");
    rig.command(Command::AppendTurns { agent, turns: vec![question] });
    let many: Vec<String> = (0..50).map(|nth| format!("This is note number {nth}.")).collect();
    let many = AskOptions::notes(Notes { max_tokens: u32::MAX, ..Notes::new(many) });
    let heard = asked(&mut rig, agent, Prompt::Continue, many.clone());
    assert!(heard.ends[0].is_ok(), "{:?}", heard.ends);
    let heard = asked(&mut rig, agent, chat("And?"), many);
    assert!(heard.ends[0].is_ok() && heard.usage.prompt_tokens < 128, "{heard:?}");
    let none = asked(&mut rig, agent, Prompt::Again, knowing(&[]));
    assert!(none.ends[0].is_ok());
}

#[test]
fn a_repetition_without_an_answer_loses_no_reply() {
    let mut rig = rig(&wide());
    let agent = talked(&mut rig, chatty(SEED));
    let before = turns(&mut rig, agent);
    // Refused, cancelled before its first word, and with a prompt that is too long.
    let constraint = crate::Constraint::json_schema("{");
    let refused = asked(&mut rig, agent, Prompt::Again, AskOptions::constraint(constraint));
    assert!(refused.ends[0].is_err(), "{:?}", refused.ends);
    assert_eq!(turns(&mut rig, agent), before);
    let ask = rig.ask(agent, Prompt::Again);
    rig.advance();
    let copy = fork(&mut rig, agent, None);
    assert_eq!(turns(&mut rig, copy), before, "a copy has what was");
    rig.command(Command::Cancel { agent, reply_id: ask });
    rig.run();
    assert_eq!(rig.reply(ask).ends, [Ok(FinishReason::Cancelled)]);
    if rig.reply(ask).text.is_empty() {
        assert_eq!(turns(&mut rig, agent), before);
    }
    // The next repetition has its reply.
    let again = asked(&mut rig, agent, Prompt::Again, AskOptions::default());
    assert!(again.ends[0].is_ok());
    assert_eq!(turns(&mut rig, agent).len(), before.len());
}

#[test]
fn a_bias_outside_the_vocabulary_fails_its_own_ask_only() {
    let mut rig = rig(&wide());
    let (good, bad) = (rig.agent(chatty(SEED)), rig.agent(chatty(2)));
    let sampling = Sampling::builder().bias(TokenId(u32::MAX), 1.0).build().expect("valid");
    let spec = AgentSpec { sampling, ..chatty(2) };
    rig.command(Command::ChangeAgent { agent: bad, spec: Box::new(spec) });
    let asks = [rig.ask(good, chat("Who?")), rig.ask(bad, chat("Who?"))];
    rig.run();
    assert!(rig.reply(asks[0]).ends[0].is_ok());
    let end = &rig.reply(asks[1]).ends[0];
    assert!(matches!(end, Err(ReplyError::Text(text)) if text.contains("bias")), "{end:?}");
}

#[test]
fn huge_notes_are_left_out() {
    let mut rig = rig(&wide());
    let agent = rig.agent(chatty(SEED));
    let huge = "walla ".repeat(2 << 20);
    let heard = asked(&mut rig, agent, chat("Who?"), knowing(&[&huge, "It rains."]));
    assert!(heard.ends[0].is_ok(), "{:?}", heard.ends);
    let many: Vec<String> = (0..300_000).map(|nth| format!("note number {nth}")).collect();
    let begin = std::time::Instant::now();
    let many = AskOptions::notes(Notes::new(many));
    let heard = asked(&mut rig, agent, chat("Who?"), many);
    // All of them would take hours.
    assert!(heard.ends[0].is_ok() && begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}
