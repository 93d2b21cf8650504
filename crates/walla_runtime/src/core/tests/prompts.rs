//! From asks to prompts: the kept part of a conversation, and the order of encoding.

use super::*;
use crate::api::{ContextPolicy, Speaker, Turn};

fn turn(speaker: Speaker, text: impl Into<String>) -> Turn {
    Turn::new(speaker, text)
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
        turns.push(rig.core.agents.get(0).expect("it lives").history.turns().len());
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
    // Half of the context without the reply, at least.
    assert!((40..=90).contains(&heard.usage.prompt_tokens), "{heard:?}");
}

/// The text thread holds a limited number of prompts. Agents that ask again wait behind agents that
/// have not been served yet.
#[test]
fn prompts_of_many_agents_are_encoded_round_robin() {
    let options = EngineOptions { max_agents: Some(150), context_tokens: 64, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let agents: Vec<_> = (0..150).map(|seed| rig.agent(speaker(seed, 2))).collect();
    let ask = |rig: &mut Rig, slot: usize| rig.ask(agents[slot], Prompt::Raw("Hi".into()));
    let begun = |rig: &Rig, is_running: bool| {
        let of = |slot: &usize| {
            let agent = rig.core.agents.get(*slot).expect("it lives");
            agent.reply.as_ref().is_some_and(|reply| reply.is_running == is_running)
        };
        (0..150).filter(of).collect::<Vec<_>>()
    };
    let first: Vec<_> = (0..150).map(|slot| ask(&mut rig, slot)).collect();
    rig.core.start_asks(0);
    assert_eq!(begun(&rig, false), (0..64).collect::<Vec<_>>());
    assert!(rig.core.prompts.is_full());
    // A prompt of tokens needs no encoding, so it does not wait.
    let spectator = rig.ask(agents[140], tokens("ab"));
    rig.command(Command::Cancel { agent: agents[140], reply_id: first[140] });
    rig.core.start_asks(0);
    assert_eq!(begun(&rig, true), [140]);
    assert_eq!(begun(&rig, false).len(), 64);
    for (slot, (&agent, &reply_id)) in agents.iter().zip(&first).take(64).enumerate() {
        rig.command(Command::Cancel { agent, reply_id });
        ask(&mut rig, slot);
    }
    assert!(rig.core.collect_prompts(0));
    rig.core.start_asks(0);
    assert_eq!(begun(&rig, false), (64..128).collect::<Vec<_>>());
    (0..300).for_each(|_| rig.frame());
    assert!(rig.reply(spectator).ends[0].is_ok());
    rig.assert_all_ended();
}

/// Asks agents with the same lore and different names in one frame. Returns the rows of all
/// prompts, the tokens that were cached, and the texts.
fn asked_together(options: &EngineOptions, pacing: Pacing) -> (u64, Vec<u32>, Vec<String>) {
    let mut rig = Rig::new(options, &inline_cpu(), pacing);
    let lore = "The mill burned down last winter. ".repeat(6);
    let agents: Vec<_> = (0..8)
        .map(|seed| {
            let persona = format!("{lore}You are guard {seed}.");
            rig.agent(AgentSpec { persona, ..speaker(seed, 4) })
        })
        .collect();
    let asks: Vec<_> =
        agents.into_iter().map(|agent| rig.ask(agent, Prompt::Chat("Who?".into()))).collect();
    for _ in 0..200 {
        rig.frame();
    }
    rig.assert_all_ended();
    let heard = |ask: &ReplyId| rig.reply(*ask).clone();
    let cached = asks.iter().map(|ask| heard(ask).usage.cached_tokens).collect();
    let texts = asks.iter().map(|ask| heard(ask).text).collect();
    (rig.core.stats().prefill_tokens, cached, texts)
}

#[test]
fn agents_that_are_asked_in_one_frame_evaluate_their_common_prefix_once() {
    let options = EngineOptions { context_tokens: 512, ..options() };
    let mut texts_of_all = Vec::new();
    for (max_rows, pacing) in [
        (32, Pacing::FreeRunning),
        (128, Pacing::FreeRunning),
        (128, Pacing::default()),
        (256, Pacing::PerFrame { steps: 2 }),
    ] {
        let options = EngineOptions {
            max_rows: Some(max_rows),
            max_prefill_tokens: Some(max_rows),
            ..options.clone()
        };
        let (prefill_tokens, cached, texts) = asked_together(&options, pacing);
        // The lore has some 110 tokens, a persona and its question some 40 more.
        let found = cached.iter().filter(|&&cached| cached >= 96).count();
        assert_eq!(found, 7, "{max_rows}: {cached:?}");
        assert!(prefill_tokens < 110 + 8 * 64, "{max_rows}: {prefill_tokens}");
        texts_of_all.push(texts);
    }
    texts_of_all.dedup();
    assert_eq!(texts_of_all.len(), 1, "{texts_of_all:?}");
}

/// The first of them is cancelled, or loses its client's frames: the others do not wait for it.
#[test]
fn a_prompt_waits_for_no_prompt_that_ends() {
    let options = EngineOptions {
        context_tokens: 512,
        max_prefill_tokens: Some(16),
        max_rows: Some(32),
        ..options()
    };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let agents = [1, 2].map(|seed| rig.agent(speaker(seed, 4)));
    let asks = agents.map(|agent| rig.ask(agent, tokens(&"x".repeat(300))));
    rig.frame();
    rig.frame();
    rig.command(Command::Cancel { agent: agents[0], reply_id: asks[0] });
    let mut frames = 0;
    while rig.reply(asks[1]).ends.is_empty() {
        rig.frame();
        frames += 1;
    }
    // 300 tokens, 16 per frame, and the reply.
    assert!(frames < 28, "{frames}");
}

/// The other client grants a frame every 0.9 s, so it is not stalled.
#[test]
fn a_prompt_waits_for_no_prompt_of_another_client() {
    const OTHER: ClientKey = ClientKey(1);
    let options = EngineOptions { context_tokens: 512, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    rig.core.add_client(OTHER, Pacing::default());
    let slow = AgentId(rig.name());
    rig.command_of(OTHER, Command::AddAgent { agent: slow, spec: Box::new(speaker(1, 4)) });
    rig.ask_of(OTHER, slow, tokens(&"x".repeat(300)));
    rig.core.frame(OTHER, rig.now_micros);
    (0..10).for_each(|_| _ = rig.advance());
    let agent = rig.agent(speaker(2, 4));
    let ask = rig.ask(agent, tokens(&"x".repeat(300)));
    (0..200).for_each(|_| _ = rig.advance());
    assert!(matches!(rig.reply(ask).ends[..], [Ok(_)]), "{:?}", rig.reply(ask));
}

/// The leader has shifted keys, which no other agent shares.
#[test]
fn a_prompt_does_not_wait_for_shifted_keys() {
    let options = EngineOptions { context_tokens: 512, context_shift: true, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let [one, two] = [1, 2].map(|seed| rig.agent(speaker(seed, 60)));
    let frames = |rig: &mut Rig, count: u32| (0..count).for_each(|_| rig.frame());
    let parts = ["a", "b", "c"].map(|letter| letter.repeat(100));
    rig.ask(one, tokens(&(parts.concat() + "0123456789")));
    frames(&mut rig, 100);
    // Without the second part: its keys are removed, and the later ones shifted.
    let shorter = tokens(&format!("{}{}0123456789!", parts[0], parts[2]));
    rig.ask(one, shorter.clone());
    frames(&mut rig, 2);
    let ask = rig.ask(two, shorter);
    frames(&mut rig, 30);
    assert!(rig.reply(ask).tokens > 0, "{:?}", rig.reply(ask));
}

/// An agent that waits for another agent's common prefix must not keep the pages that the other one
/// waits for.
#[test]
fn prompts_that_fill_the_cache_wait_for_no_prefix() {
    let text: String = (0..200_u8).map(|n| char::from(b'a' + n % 23)).collect();
    for background_prefill in [false, true] {
        let kv_tokens = Some(16 * 13);
        let options =
            EngineOptions { background_prefill, context_tokens: 512, kv_tokens, ..options() };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let less_urgent = rig.agent(speaker(1, 2));
        let more_urgent = rig.agent(AgentSpec { priority: 1, ..speaker(2, 2) });
        // The less urgent one has more of the prompt in the cache.
        rig.ask(less_urgent, tokens(&text[..100]));
        rig.ask(more_urgent, tokens(&text[..31]));
        rig.run();
        for agent in [less_urgent, more_urgent] {
            rig.ask(agent, tokens(&text));
        }
        rig.run();
        rig.assert_all_ended();
    }
}

/// A prompt does not wait for an agent whose mask is late.
#[test]
fn no_prompt_waits_for_a_mask() {
    let text = "x".repeat(160);
    let options = EngineOptions { context_tokens: 512, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    rig.core.constraints.delays = [10_000].into();
    let constraint = Some(walla_grammar::Constraint::choice(["yes", "no"]));
    let constrained = rig.agent(AgentSpec { constraint, ..speaker(1, 4) });
    let free = rig.agent(speaker(2, 4));
    rig.ask(constrained, tokens(&text));
    let ask = rig.ask(free, tokens(&text));
    for _ in 0..500 {
        rig.advance();
    }
    assert_eq!(rig.reply(ask).ends.len(), 1, "{:?}", rig.reply(ask));
}

/// A reply that lost its pages and took them from another agent has evaluated its prompt itself.
#[test]
fn pages_taken_after_the_first_token_are_not_cached_prompt() {
    let text: String = (0..200_u8).map(|n| char::from(b'a' + n % 23)).collect();
    let options = EngineOptions { context_tokens: 512, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let [one, other] = [1, 2].map(|seed| rig.agent(speaker(seed, 60)));
    let begins = |rig: &mut Rig, agent| {
        let ask = rig.ask(agent, tokens(&text));
        for _ in 0..100 {
            if rig.reply(ask).tokens > 2 {
                break;
            }
            rig.advance();
        }
        ask
    };
    let first = begins(&mut rig, one);
    let second = begins(&mut rig, other);
    rig.core.drop_sequence(rig.core.agents.slot_of(one).expect("it has a slot"));
    rig.run();
    rig.assert_all_ended();
    assert_eq!(rig.reply(first).usage.cached_tokens, 0);
    assert!(rig.reply(second).usage.cached_tokens > 150);
}

/// A conversation that cannot fit is refused without being encoded.
#[test]
fn a_conversation_far_beyond_the_context_is_refused_at_once() {
    for (policy, is_error) in [(ContextPolicy::Refuse, true), (ContextPolicy::Stop, false)] {
        let mut rig = Rig::free();
        let observation = Turn::new(Speaker::Observation, "x".repeat(900));
        let spec =
            AgentSpec { context_policy: policy, turns: vec![observation; 1_000], ..speaker(1, 4) };
        let agent = rig.agent(spec);
        let ask = rig.ask(agent, Prompt::Chat("Hello".into()));
        rig.run();
        rig.assert_all_ended();
        match &rig.reply(ask).ends[0] {
            Err(ReplyError::PromptTooLong { prompt_tokens, .. }) => {
                // A bound that needs no encoding: each byte is a token.
                assert!(is_error && (1_000..900_000).contains(prompt_tokens), "{prompt_tokens}");
            }
            Ok(FinishReason::ContextFull) => assert!(!is_error),
            other => panic!("{other:?}"),
        }
    }
}

/// The latest turns are not left out of a reply to them, at any points where a conversation may
/// begin. If they do not fit, the ask fails.
#[test]
fn a_reply_to_results_or_observations_includes_them_or_fails() {
    let options = EngineOptions { context_tokens: 256, ..options() };
    let tokens_of = |rig: &Rig, text: &str| {
        rig.core.model_text.tokenizer.encode_untrusted(text).expect("short").len() as u32
    };
    let (mut fitted, mut refused) = (0, 0);
    for seed in 0..24 {
        for words in [4, 20, 60, 100, 140, 400, 20_000] {
            let text = "a word ".repeat(words);
            for is_result in [true, false] {
                let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
                let last = match is_result {
                    true => vec![
                        turn(Speaker::User, "Read the letter."),
                        turn(Speaker::Action, "read"),
                        turn(Speaker::ActionResult, text.clone()),
                    ],
                    false => vec![turn(Speaker::Observation, text.clone())],
                };
                let early = (0..seed % 4).map(|_| turn(Speaker::Observation, "It rains again."));
                let turns = early.chain(last).collect();
                let agent = rig.agent(AgentSpec { turns, ..speaker(seed, 16) });
                let ask = rig.ask(agent, Prompt::Continue);
                rig.run();
                rig.assert_all_ended();
                let heard = rig.reply(ask);
                match &heard.ends[..] {
                    [Ok(_)] => {
                        assert!(heard.usage.prompt_tokens >= tokens_of(&rig, text.trim()));
                        fitted += 1;
                    }
                    [Err(ReplyError::PromptTooLong { prompt_tokens, context_tokens })] => {
                        assert!(prompt_tokens >= context_tokens, "{heard:?}");
                        assert!(tokens_of(&rig, text.trim()) > context_tokens - 100, "{heard:?}");
                        refused += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert!(fitted > 50 && refused > 50, "{fitted} {refused}");
}
