//! Events for the tokens that a model samples.

use std::sync::Arc;

use walla_doubles::faulty::{FaultPlan, FaultyBackend};
use walla_model::tokenizer::DecodeOptions;
use walla_types::TokenMask;

use super::*;
use crate::api::{ContextPolicy, Speaker, Turn};

/// Samples these tokens, each with equal probability.
fn drawing(seed: u64, tokens: &[u32], max_reply_tokens: u32) -> AgentSpec {
    let mask = TokenMask::allow(320, tokens.iter().copied().map(TokenId)).expect("a mask");
    let spec = speaker(seed, max_reply_tokens);
    let sampling = spec.sampling.to_builder().temperature(100.0).allowed_tokens(Arc::new(mask));
    AgentSpec { sampling: sampling.build().expect("valid"), ..spec }
}

fn control_token(rig: &Rig, text: &str) -> TokenId {
    rig.core.model_text.tokenizer.special_token(text).expect("the model has it")
}

#[test]
fn control_tokens_that_a_model_draws_are_not_emitted() {
    let options = DecodeOptions { control_text: false, strip_space_prefix: false };
    let mut mixed = 0;
    for seed in 0..4 {
        let mut rig = Rig::free();
        let marker = control_token(&rig, "<|im_start|>");
        // Letters, halves of a character, and a marker that does not end the turn.
        let agent = rig.agent(drawing(seed, &[marker.0, 97, 0xC3, 0xA9], 30));
        let reply_id = rig.ask(agent, tokens("ab"));
        rig.run();
        let drawn = sampled_tokens(&rig, agent, 2);
        let heard = rig.reply(reply_id);
        let decoded = rig.core.model_text.tokenizer.decode_with(&drawn, options);
        assert_eq!(Ok(&heard.text), decoded.as_ref(), "seed {seed}");
        assert_eq!((drawn.len(), heard.usage.reply_tokens), (30, 30));
        let silent = drawn.iter().rev().take_while(|token| **token == marker).count();
        assert_eq!(heard.tokens as usize, 30 - silent, "seed {seed}");
        mixed += drawn.iter().filter(|token| **token == marker).count();
    }
    assert!((10..110).contains(&mixed), "{mixed} markers of 120 tokens");
}

/// A reply of the letter a only, all of it held back as a possible beginning of a stop string.
fn hesitant() -> AgentSpec {
    let stop = format!("{}b", "a".repeat(40));
    AgentSpec {
        stop_strings: vec![stop],
        context_policy: ContextPolicy::Stop,
        ..drawing(1, &[97], 30)
    }
}

#[test]
fn pending_text_of_a_failed_reply_is_emitted_before_its_end() {
    let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let registry = Registry::new().with(FaultyBackend::new(cpu, FaultPlan::new(1).poison(6, 0)));
    let mut rig = Rig::new(&options(), &registry, Pacing::FreeRunning);
    let agent = rig.agent(hesitant());
    let failed = rig.ask(agent, tokens("ab"));
    rig.run();
    let drawn = sampled_tokens(&rig, agent, 2).len();
    let heard = rig.reply(failed);
    assert_eq!(heard.ends, [Err(ReplyError::NotFinite)]);
    assert!(drawn > 2, "{drawn}");
    assert_eq!((heard.text.as_str(), heard.tokens), (&*"a".repeat(drawn), drawn as u32));

    rig.now_micros += 500;
    let full = rig.ask(agent, tokens(&"x".repeat(130)));
    rig.run();
    let heard = rig.reply(full);
    assert_eq!((heard.text.as_str(), &heard.ends[..]), ("", &[Ok(FinishReason::ContextFull)][..]));
    assert_eq!((heard.usage.prompt_tokens, heard.usage.total_micros), (130, 10));
    rig.assert_all_ended();
}

#[test]
fn an_unanswered_prompt_can_be_asked_again_with_the_same_reply() {
    let question = || Prompt::Chat("Where is the smith?".into());
    let options = EngineOptions { context_tokens: 256, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let agent = rig.agent(drawing(1, &[97, 98], 8));
    let unheard = rig.ask(agent, question());
    // No frame is granted: the prompt is encoded, and no text is generated.
    rig.advance();
    assert_eq!(rig.reply(unheard).started, 1);
    rig.command(Command::Cancel { agent, reply_id: unheard });
    let first = rig.ask(agent, question());
    (0..20).for_each(|_| rig.frame());
    let interrupted = rig.ask(agent, question());
    while rig.reply(interrupted).tokens == 0 {
        rig.frame();
    }
    rig.command(Command::Cancel { agent, reply_id: interrupted });
    let last = rig.ask(agent, question());
    (0..20).for_each(|_| rig.frame());
    rig.assert_all_ended();
    let prompt_tokens = |ask: &ReplyId| rig.reply(*ask).usage.prompt_tokens;
    assert_eq!(prompt_tokens(&first), prompt_tokens(&unheard), "as if it were the first time");
    let two = prompt_tokens(&interrupted) - prompt_tokens(&first);
    let three = prompt_tokens(&last) - prompt_tokens(&interrupted);
    assert!(three > 0 && three < two, "what was said stays: {two} and {three} tokens more");
}

#[test]
fn a_stop_token_ends_the_reply_and_is_not_emitted() {
    for seed in 0..4 {
        let mut rig = Rig::free();
        let spec = AgentSpec { stop_tokens: vec![TokenId(98)], ..drawing(seed, &[97, 98], 60) };
        let agent = rig.agent(spec);
        let reply_id = rig.ask(agent, tokens("ab"));
        rig.run();
        let drawn = sampled_tokens(&rig, agent, 2);
        let heard = rig.reply(reply_id);
        assert_eq!(heard.ends, [Ok(FinishReason::StopToken)]);
        assert_eq!(drawn.last(), Some(&TokenId(98)));
        assert_eq!(heard.text, "a".repeat(drawn.len() - 1));
        assert_eq!(heard.usage.reply_tokens as usize, drawn.len() - 1);
        assert_eq!(heard.tokens, heard.usage.reply_tokens);
    }
}

#[test]
fn the_reason_names_the_stop_string() {
    // Every reply contains "ba" at some point. Of the strings that end there the longest counts,
    // and of equal ones the first.
    let stops = |stops: &[&str]| stops.iter().map(|&stop| stop.to_owned()).collect::<Vec<_>>();
    for (given, index) in [
        (&["x", "ba"][..], 1),
        (&["", "", "ba", "y"], 2),
        (&["a", "zz"], 0),
        (&["no", "ba", "ba"], 1),
    ] {
        for seed in 0..3 {
            let spec = AgentSpec { stop_strings: stops(given), ..drawing(seed, &[97, 98], 100) };
            let mut rig = Rig::free();
            let agent = rig.agent(spec);
            let reply_id = rig.ask(agent, tokens("ab"));
            rig.run();
            assert_eq!(rig.reply(reply_id).ends, [Ok(FinishReason::Stop { index })], "{given:?}");
        }
    }
}

#[test]
fn a_stop_string_is_neither_emitted_nor_kept() {
    for seed in 0..4 {
        let spec = AgentSpec { stop_strings: vec!["ba".into()], ..drawing(seed, &[97, 98], 60) };
        let options = EngineOptions { context_tokens: 256, ..options() };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agent = rig.agent(spec.clone());
        let first = rig.ask(agent, Prompt::Chat("Hi".into()));
        rig.run();
        let second = rig.ask(agent, Prompt::Chat("Go on".into()));
        rig.run();
        let heard = rig.reply(first);
        assert_eq!(heard.ends, [Ok(FinishReason::Stop { index: 0 })]);
        assert!(!heard.text.contains("ba"), "{heard:?}");
        assert_eq!(heard.usage.reply_tokens, heard.tokens + 2, "counted, though not said");

        let turn = |speaker, text: &str| Turn::new(speaker, text);
        let history = vec![turn(Speaker::User, "Hi"), turn(Speaker::Agent, &heard.text)];
        let told = rig.agent(AgentSpec { turns: history, ..spec });
        let retold = rig.ask(told, Prompt::Chat("Go on".into()));
        rig.run();
        let (second, retold) = (rig.reply(second), rig.reply(retold));
        assert_eq!(second.usage.prompt_tokens, retold.usage.prompt_tokens, "seed {seed}");
        assert_eq!((&second.text, &second.ends), (&retold.text, &retold.ends), "seed {seed}");
    }
}
