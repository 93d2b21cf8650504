//! Reasoning is never spoken: blocks that the prompt or the model opens, their limit, and all ways
//! in which a reply can end.

mod constraints;
mod faults;
mod limits;

use std::sync::Arc;

use walla_doubles::faulty::FaultPlan;
use walla_doubles::synth::Dialect;
use walla_types::TokenMask;

use super::faults::faulty;
use super::*;
use crate::api::{Speaker, Turn};

const THINK: [&str; 2] = ["<think>", "</think>"];

/// ChatML with `end` behind the generation prompt.
fn template(end: &str) -> String {
    format!(
        "{{% for m in messages %}}\
         <|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|im_start|>assistant\n{end}{{% endif %}}"
    )
}

/// A tiny model with these special tokens and this end of its generation prompt.
fn model(end: &str, special: &[&str]) -> EngineOptions {
    let template = template(end);
    let dialect = Dialect { template: &template, special };
    let file = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
    let bytes = Vec::leak(file.expect("a vector takes everything"));
    EngineOptions { model: ModelSource::Static(bytes), context_tokens: 256, ..options() }
}

fn rig(options: &EngineOptions) -> Rig {
    Rig::new(options, &inline_cpu(), Pacing::FreeRunning)
}

/// The model's token with this text.
fn token(rig: &Rig, text: &str) -> u32 {
    rig.core.model_text.tokenizer.special_token(text).expect("the model has it").0
}

/// Samples these tokens, each with about equal probability.
fn drawing(seed: u64, tokens: &[u32], (reply, reasoning): (u32, u32)) -> AgentSpec {
    let mask = TokenMask::allow(320, tokens.iter().copied().map(TokenId)).expect("a mask");
    let sampling = Sampling::builder().temperature(100.0).top_k(0).min_p(0.0).top_p(1.0).seed(seed);
    AgentSpec {
        sampling: sampling.allowed_tokens(Arc::new(mask)).build().expect("valid"),
        max_reply_tokens: reply,
        max_reasoning_tokens: reasoning,
        ..AgentSpec::new("You are a test.")
    }
}

fn chat(text: &str) -> Prompt {
    Prompt::Chat(text.into())
}

/// Reference implementation: speech and reasoning of a reply's tokens (letters and the two
/// markers).
fn split(drawn: &[TokenId], [open, close]: [u32; 2], mut is_open: bool) -> (String, String) {
    let (mut speech, mut reasoning) = (String::new(), String::new());
    for token in drawn {
        match token.0 {
            id if id == open => is_open = true,
            id if id == close => is_open = false,
            id if is_open => reasoning.push(char::from(id as u8)),
            id => speech.push(char::from(id as u8)),
        }
    }
    (speech, reasoning)
}

fn turns(rig: &Rig, agent: AgentId) -> Vec<Turn> {
    let agent = rig
        .core
        .agents
        .get(rig.core.agents.slot_of(agent).expect("it has a slot"))
        .expect("it lives");
    agent.history.turns().to_vec()
}

fn prompt_tokens(rig: &Rig, ask: ReplyId) -> usize {
    rig.reply(ask).usage.prompt_tokens as usize
}

/// The model or the template opens the block.
#[test]
fn reasoning_is_an_event_and_not_part_of_speech_or_history() {
    for end in ["", "<think>\n"] {
        let options = model(end, &THINK);
        let (mut spoken, mut thought) = (0, 0);
        for seed in 0..6 {
            let mut rig = rig(&options);
            let markers = THINK.map(|text| token(&rig, text));
            let spec = drawing(seed, &[97, 98, markers[0], markers[1]], (20, 200));
            let agent = rig.agent(spec);
            let ask = rig.ask(agent, chat("Hi"));
            rig.run();
            rig.assert_all_ended();
            let drawn = sampled_tokens(&rig, agent, prompt_tokens(&rig, ask));
            let (speech, reasoning) = split(&drawn, markers, !end.is_empty());
            let heard = rig.reply(ask);
            assert_eq!((&heard.text, &heard.reasoning), (&speech, &reasoning), "{end:?} {seed}");
            assert_eq!(heard.ends, [Ok(FinishReason::Length)]);
            let usage = heard.usage;
            assert_eq!((usage.reply_tokens, speech.len()), (20, 20));
            assert_eq!(usage.reasoning_tokens as usize, drawn.len() - 20);
            assert_eq!(heard.tokens, 20);
            let expected = [(Speaker::User, "Hi"), (Speaker::Agent, &*speech)]
                .map(|(speaker, text)| Turn::new(speaker, text));
            assert_eq!(turns(&rig, agent), expected);
            (spoken, thought) = (spoken + speech.len(), thought + reasoning.len());
        }
        assert!(spoken > 100 && thought > 60, "{end:?}: {spoken} and {thought}");
    }
}

/// Samples these letters in order, each once: biases set the order, penalties prevent repetition.
/// The end of the prompt contains none of them.
fn spelling(text: &str) -> AgentSpec {
    let letters: Vec<u32> = text.bytes().map(u32::from).collect();
    let spec = drawing(1, &letters, (40, 100));
    let sampling = spec.sampling.to_builder().temperature(0.0);
    let sampling = sampling.presence_penalty(100.0).frequency_penalty(100.0);
    let sampling = sampling.penalty_window(letters.len() as u32);
    let biased = letters.iter().zip(0_u8..).fold(sampling, |sampling, (&letter, nth)| {
        sampling.bias(TokenId(letter), 400.0 - 12.0 * f32::from(nth))
    });
    AgentSpec { sampling: biased.build().expect("valid"), max_reply_tokens: 2, ..spec }
}

/// The vocabulary lacks the markers, so the model spells them, here in single letters.
#[test]
fn markers_split_over_tokens_are_found() {
    let (text, prefilled) = ("ab</think>\ncd", "<think>\nLET ME SEE HOW IT GOES. ");
    for (end, speech, reasoning, counts) in
        [(prefilled, "cd", "ab", (2, 11)), ("ZZZZ ZZZZ ZZZZ ZZZZ {# <think> #}", "ab", "", (2, 0))]
    {
        let mut rig = rig(&model(end, &[]));
        let agent = rig.agent(spelling(text));
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        let drawn = sampled_tokens(&rig, agent, prompt_tokens(&rig, ask));
        let drawn: String = drawn.iter().map(|token| char::from(token.0 as u8)).collect();
        assert!(text.starts_with(&drawn), "{drawn:?}");
        assert_eq!((&*heard.text, &*heard.reasoning), (speech, reasoning), "{end:?}");
        assert_eq!((heard.usage.reply_tokens, heard.usage.reasoning_tokens), counts);
    }
}

/// The next prompt contains only speech, as if the agent had never reasoned.
#[test]
fn the_next_prompt_contains_no_reasoning() {
    let options = model("<think>\n", &THINK);
    let mut rig = rig(&options);
    let [open, close] = THINK.map(|text| token(&rig, text));
    let spec = drawing(3, &[97, 98, open, close], (10, 100));
    let agent = rig.agent(spec.clone());
    let first = rig.ask(agent, chat("Hi"));
    rig.run();
    let second = rig.ask(agent, chat("Go on"));
    rig.run();
    let told = rig.agent(AgentSpec { turns: turns(&rig, agent)[..2].to_vec(), ..spec });
    let retold = rig.ask(told, chat("Go on"));
    rig.run();
    assert!(!rig.reply(first).reasoning.is_empty());
    let (second, retold) = (rig.reply(second), rig.reply(retold));
    assert_eq!(second.usage.prompt_tokens, retold.usage.prompt_tokens);
    assert_eq!((&second.text, &second.reasoning), (&retold.text, &retold.reasoning));
    assert!(second.usage.cached_tokens > 20, "the turns before the reply: {:?}", second.usage);
}

#[test]
fn the_reasoning_switch_is_per_agent() {
    let options = model(
        "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}",
        &THINK,
    );
    let mut rig = rig(&options);
    let card = rig.core.card();
    assert!(card.reasoning && card.thinking_switch);
    for thinking in [true, false] {
        let agent = rig.agent(AgentSpec { thinking, ..drawing(1, &[97, 98], (10, 5)) });
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        let expected = if thinking { (10, 5) } else { (10, 0) };
        assert_eq!((heard.text.len(), heard.reasoning.len()), expected, "{thinking}");
    }
    let plain = Rig::free().core.card();
    assert!(!plain.reasoning && !plain.thinking_switch);
}

#[test]
fn a_reply_that_ends_in_a_block_has_no_text_and_is_no_exchange() {
    let options = model("<think>\n", &THINK);
    // The model ends its turn in the block, and behind the block that the engine closes then.
    let mut rig = rig(&options);
    let end = token(&rig, "<|im_end|>");
    let mut asked = |seed| {
        let agent = rig.agent(drawing(seed, &[97, 98, end], (20, 200)));
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        (heard.text.is_empty() && !heard.reasoning.is_empty()).then_some((agent, ask))
    };
    let (agent, ask) = (0..60).find_map(&mut asked).expect("a reply without text");
    let heard = rig.reply(ask);
    assert_eq!((&heard.ends[..], &*heard.text), (&[Ok(FinishReason::EndOfTurn)][..], ""));
    assert_eq!(heard.usage.reply_tokens, 0);
    assert_eq!(turns(&rig, agent), []);
    // The repeated ask has the same prompt as the first one.
    let again = rig.ask(agent, chat("Hi"));
    rig.run();
    assert_eq!(prompt_tokens(&rig, again), prompt_tokens(&rig, ask));

    // The host cancels; the device computes a NaN; the engine ends.
    let thinker = || drawing(1, &[97, 98], (20, 200));
    for nth in [3, 6, 9] {
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agent = rig.agent(thinker());
        let ask = rig.ask(agent, chat("Hi"));
        for _ in 0..nth {
            rig.advance();
        }
        rig.command(Command::Cancel { agent, reply_id: ask });
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!((&heard.ends[..], &*heard.text), (&[Ok(FinishReason::Cancelled)][..], ""));
        assert_eq!(turns(&rig, agent), []);

        let (registry, _) = faulty(FaultPlan::new(1).poison(nth + 5, 0));
        let mut rig = Rig::new(&options, &registry, Pacing::FreeRunning);
        let agent = rig.agent(thinker());
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!((&heard.ends[..], &*heard.text), (&[Err(ReplyError::NotFinite)][..], ""));
        assert!(!heard.reasoning.is_empty());

        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agent = rig.agent(thinker());
        let ask = rig.ask(agent, chat("Hi"));
        for _ in 0..nth {
            rig.advance();
        }
        let last = rig.core.drain_events("over");
        last.into_iter()
            .flat_map(|(_, events)| events)
            .for_each(|event| hear(&mut rig.heard, event));
        let heard = rig.reply(ask);
        assert!(matches!(heard.ends[..], [Err(ReplyError::EngineGone(_))]), "{heard:?}");
        assert_eq!(heard.text, "");
    }
}

#[test]
fn stop_strings_and_stop_tokens_apply_only_to_speech() {
    let options = model("<think>\n", &THINK);
    let (mut by_string, mut by_token) = (0, 0);
    for seed in 0..8 {
        let mut rig = rig(&options);
        let [open, close] = THINK.map(|text| token(&rig, text));
        let spec = drawing(seed, &[97, 98, 99, open, close], (40, 100));
        let stop_strings = vec!["x".into(), "ba".into()];
        let spec = AgentSpec { stop_strings, stop_tokens: vec![TokenId(99)], ..spec };
        let agent = rig.agent(spec);
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        let drawn = sampled_tokens(&rig, agent, prompt_tokens(&rig, ask));
        let (speech, reasoning) = split(&drawn, [open, close], true);
        assert_eq!(heard.reasoning, reasoning);
        match heard.ends[..] {
            [Ok(FinishReason::Stop { index: 1 })] => {
                by_string += 1;
                assert_eq!(format!("{}ba", heard.text), speech);
            }
            [Ok(FinishReason::StopToken)] => {
                by_token += 1;
                assert_eq!(format!("{}c", heard.text), speech);
            }
            ref other => panic!("{other:?}: {heard:?}"),
        }
    }
    assert!(by_string > 0 && by_token > 0, "{by_string} and {by_token}");
}

#[test]
fn raw_prompts_and_models_without_markers_are_not_separated() {
    let mut rig = rig(&model("<think>\n", &THINK));
    let [open, close] = THINK.map(|text| token(&rig, text));
    let agent = rig.agent(drawing(1, &[97, 98, open, close], (30, 3)));
    for prompt in [Prompt::Raw("Once".into()), tokens("Once")] {
        let ask = rig.ask(agent, prompt);
        rig.run();
        let drawn = sampled_tokens(&rig, agent, prompt_tokens(&rig, ask));
        let heard = rig.reply(ask);
        assert_eq!(rig.core.model_text.tokenizer.decode(&drawn).as_ref(), Ok(&heard.text));
        assert!(heard.text.contains("<think>") && heard.reasoning.is_empty());
        assert_eq!((heard.usage.reply_tokens, heard.usage.reasoning_tokens), (30, 0));
    }
}

/// During reasoning, the voice is behind by one token, independent of the time.
#[test]
fn reasoning_time_does_not_make_the_voice_late() {
    let mut rig = rig(&model("<think>\n", &THINK));
    let spec = AgentSpec { voice_rate: Some(6.0), ..drawing(1, &[97, 98], (20, 40)) };
    let agent = rig.agent(spec);
    let ask = rig.ask(agent, chat("Hi"));
    let due = |rig: &Rig| {
        let agent = rig.core.agents.get(0).expect("it lives");
        agent.tokens_due(rig.now_micros)
    };
    while rig.reply(ask).tokens == 0 {
        rig.now_micros += 500_000;
        assert!(due(&rig).is_none_or(|due| due <= 1.0), "{:?}", due(&rig));
        rig.advance();
    }
    assert!(rig.now_micros > 5_000_000);
    assert!(due(&rig).is_none_or(|due| due <= 1.0), "{:?}", due(&rig));
    rig.run();
    rig.assert_all_ended();
}

/// An agent that is parked between its replies has no reply buffers.
#[test]
fn agents_that_share_slots_reason_the_same() {
    let talk = |max_agents: u32| {
        let options = EngineOptions { max_agents: Some(max_agents), ..model("<think>\n", &THINK) };
        let mut rig = rig(&options);
        let [open, close] = THINK.map(|text| token(&rig, text));
        let spec = |seed| drawing(seed, &[97, 98, open, close], (8, 40));
        let agents: Vec<_> = (0..4).map(|seed| rig.agent(spec(seed))).collect();
        let mut replies = Vec::new();
        for question in ["Hi", "Go on"] {
            let asks: Vec<_> = agents.iter().map(|&agent| rig.ask(agent, chat(question))).collect();
            rig.run();
            replies.extend(asks.into_iter().map(|ask| {
                let heard = rig.reply(ask);
                (heard.text.clone(), heard.reasoning.clone(), heard.ends.clone())
            }));
        }
        rig.assert_all_ended();
        replies
    };
    let plenty = talk(4);
    let separated = |text: &str, reasoning: &str| !text.is_empty() && !reasoning.is_empty();
    assert!(plenty.iter().any(|(text, reasoning, _)| separated(text, reasoning)), "{plenty:?}");
    assert_eq!(talk(1), plenty);
}
