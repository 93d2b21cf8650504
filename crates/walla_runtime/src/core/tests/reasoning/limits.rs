//! Limits of reasoning and of the speech behind it.

use walla_doubles::faulty::VirtualClock;

use super::*;

/// Samples all letters, with penalties, which consider earlier tokens.
fn talkative(seed: u64, limits: (u32, u32)) -> AgentSpec {
    let letters: Vec<u32> = (97..123).collect();
    let spec = drawing(seed, &letters, limits);
    let sampling = spec.sampling.to_builder().temperature(1.5).repetition_penalty(1.3);
    AgentSpec { sampling: sampling.build().expect("valid"), ..spec }
}

/// At the limit the closing marker is fed like a prompt. The following text equals the text after
/// these tokens in a prompt, so the draw in flight has left no trace. Tested with devices of
/// different speeds.
#[test]
fn at_the_limit_the_engine_closes_the_block_and_the_reply_has_its_own_limit() {
    for (special, closing) in [(&THINK[..], 4), (&[], 11)] {
        let options = model("<think>\n", special);
        for seed in 0..4 {
            let scenario = |registry: &Registry, clock: Option<&VirtualClock>, pacing| {
                let mut rig = Rig::new(&options, registry, pacing);
                let agent = rig.agent(talkative(seed, (12, 7)));
                let ask = rig.ask(agent, chat("Hi"));
                for _ in 0..2_000 {
                    rig.frame();
                    clock.inspect(|clock| clock.advance(70));
                }
                rig.assert_all_ended();
                let drawn = sampled_tokens(&rig, agent, 0);
                let mut heard = rig.reply(ask).clone();
                (heard.usage.first_token_micros, heard.usage.total_micros) = (0, 0);
                heard.usage.first_token = FirstTokenTimes::default();
                (heard, drawn)
            };
            let (heard, history) = scenario(&inline_cpu(), None, Pacing::FreeRunning);
            assert_eq!(heard.ends, [Ok(FinishReason::Length)]);
            assert_eq!((heard.usage.reasoning_tokens, heard.usage.reply_tokens), (7, 12));
            assert_eq!((heard.reasoning.len(), heard.text.len()), (7, 12));
            let prompt = heard.usage.prompt_tokens as usize + 7 + closing;
            assert_eq!(history.len(), prompt + 12, "{special:?}");

            // The same tokens as one prompt.
            let mut rig = rig(&options);
            let agent = rig.agent(talkative(seed, (12, 7)));
            let ask = rig.ask(agent, Prompt::Tokens(history[..prompt].to_vec()));
            rig.run();
            assert_eq!(rig.reply(ask).text, heard.text, "seed {seed}");

            let clock = VirtualClock::new();
            let (slow, _) = faulty(FaultPlan::new(seed).clock(&clock).delay_micros(0..=200));
            for (registry, clock, pacing) in [
                (&inline_cpu(), None, Pacing::default()),
                (&slow, Some(&clock), Pacing::FreeRunning),
            ] {
                assert_eq!(scenario(registry, clock, pacing), (heard.clone(), history.clone()));
            }
        }
    }
}

/// The limit of all tokens counts reasoning, and does not close the block.
#[test]
fn a_limit_of_all_tokens_includes_reasoning() {
    for (max_tokens, expected) in
        [(0, (0, 0)), (5, (5, 0)), (7, (7, 0)), (10, (7, 3)), (90, (7, 12))]
    {
        let mut rig = rig(&model("<think>\n", &THINK));
        let agent = rig.agent(drawing(1, &[97, 98], (12, 7)));
        let options = AskOptions { max_tokens: Some(max_tokens), ..AskOptions::default() };
        let ask = rig.ask_with(agent, chat("Hi"), options);
        rig.run();
        rig.assert_all_ended();
        let heard = rig.reply(ask);
        assert_eq!((heard.usage.reasoning_tokens, heard.usage.reply_tokens), expected);
        assert_eq!(heard.ends, [Ok(FinishReason::Length)]);
    }
}

#[test]
fn a_limit_of_zero_closes_the_block_in_the_prompt() {
    for special in [&THINK[..], &[]] {
        let mut rig = rig(&model("<think>\n", special));
        let agent = rig.agent(drawing(1, &[97, 98], (9, 0)));
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!((heard.text.len(), heard.reasoning.len()), (9, 0));
        assert_eq!((heard.usage.reasoning_tokens, heard.usage.reply_tokens), (0, 9));
    }
    // A block that the model opens is closed at once.
    let mut rig = rig(&model("", &THINK));
    let open = token(&rig, "<think>");
    let agent = rig.agent(drawing(2, &[97, open], (9, 0)));
    let ask = rig.ask(agent, chat("Hi"));
    rig.run();
    let heard = rig.reply(ask);
    assert!(heard.text.chars().all(|c| c == 'a') && heard.reasoning.is_empty(), "{heard:?}");
    assert!(heard.usage.reasoning_tokens > 0, "it tried");
}

#[test]
fn reasoning_reserves_context_for_the_reply() {
    let mut rig = rig(&EngineOptions { context_tokens: 160, ..model("<think>\n", &THINK) });
    let agent = rig.agent(drawing(1, &[97, 98], (30, 100_000)));
    let ask = rig.ask(agent, chat("Hi"));
    rig.run();
    let heard = rig.reply(ask);
    assert_eq!((&heard.ends[..], heard.text.len()), (&[Ok(FinishReason::Length)][..], 30));
    let left = 160 - heard.usage.prompt_tokens - heard.usage.reasoning_tokens;
    assert!((30..=40).contains(&left), "reasoning had the rest: {heard:?}");
    // A reply that may fill the context leaves half of it to reasoning.
    let agent = rig.agent(drawing(1, &[97, 98], (100_000, 100_000)));
    let ask = rig.ask(agent, chat("Hi"));
    rig.run();
    let heard = rig.reply(ask);
    assert_eq!(heard.ends, [Ok(FinishReason::ContextFull)]);
    assert!(heard.text.len() > 30 && heard.reasoning.len() > 30, "{heard:?}");
}

/// The vocabulary has only the opening marker, or the model opens block after block: the limit ends
/// the reply with a separate reason.
#[test]
fn a_block_that_cannot_be_closed_ends_the_reply() {
    for (special, tokens, drawn) in
        [(&THINK[..1], &["<think>", "a"][..], 6), (&THINK[..], &["<think>"], 6 + 4)]
    {
        let mut rig = rig(&model("", special));
        let id =
            |text: &&str| rig.core.model_text.tokenizer.special_token(text).map_or(97, |t| t.0);
        let allowed: Vec<u32> = tokens.iter().map(id).collect();
        let agent = rig.agent(drawing(1, &allowed, (200, 6)));
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!(heard.ends, [Ok(FinishReason::ReasoningLength)], "{special:?} {heard:?}");
        assert_eq!(heard.usage.reasoning_tokens, drawn);
        if heard.text.is_empty() {
            assert_eq!(turns(&rig, agent), [], "a question without an answer is forgotten");
        }
    }
}

/// The model opens a block while the next step already runs: that step's draw is discarded. The
/// following text equals the text after the same tokens in a prompt.
#[test]
fn a_draw_in_flight_is_discarded_when_a_block_is_closed() {
    let options = model("", &THINK);
    let mut closed = 0;
    for seed in 0..12 {
        let clock = VirtualClock::new();
        let (slow, _) = faulty(FaultPlan::new(seed).clock(&clock).delay_micros(50..=50));
        let mut rig = Rig::new(&options, &slow, Pacing::FreeRunning);
        let [open, close] = THINK.map(|text| token(&rig, text));
        let letters: Vec<u32> = (97..110).chain([open]).collect();
        let spec = drawing(seed, &letters, (25, 0));
        let sampling = spec.sampling.to_builder().temperature(8.0).repetition_penalty(1.3);
        let spec = AgentSpec { sampling: sampling.build().expect("valid"), ..spec };
        let agent = rig.agent(spec.clone());
        let ask = rig.ask(agent, chat("Hi"));
        for _ in 0..3_000 {
            rig.advance();
            clock.advance(20);
        }
        rig.assert_all_ended();
        let history = sampled_tokens(&rig, agent, 0);
        let Some(at) = history.iter().rposition(|token| token.0 == close) else { continue };
        closed += 1;
        let (prompt, rest) = history.split_at(at + 3);
        assert_eq!(prompt[at..], [TokenId(close), TokenId(10), TokenId(10)]);
        assert!(rig.reply(ask).text.ends_with(&split(rest, [open, close], false).0));
        let mut alone = self::rig(&options);
        let spec = AgentSpec { max_reply_tokens: rest.len() as u32, ..spec };
        let agent = alone.agent(spec);
        alone.ask(agent, Prompt::Tokens(prompt.to_vec()));
        alone.run();
        assert_eq!(sampled_tokens(&alone, agent, prompt.len()), rest, "seed {seed}");
    }
    assert!(closed > 5, "{closed}");
}

/// Prompts leave context for reasoning and for speech.
#[test]
fn old_turns_are_dropped_to_reserve_context_for_reasoning() {
    let turn = |speaker, n: u32| Turn::new(speaker, format!("turn {n} of a talk"));
    let history: Vec<_> =
        (0..30).flat_map(|n| [turn(Speaker::User, n), turn(Speaker::Agent, n)]).collect();
    let prompt_tokens = |end: &str, thinking| {
        let mut rig = rig(&model(end, &THINK));
        let spec = AgentSpec { turns: history.clone(), thinking, ..drawing(1, &[97], (10, 90)) };
        let agent = rig.agent(spec);
        let ask = rig.ask(agent, chat("Hi"));
        rig.run();
        rig.reply(ask).usage.prompt_tokens
    };
    let plain = prompt_tokens("", false);
    // At least half of the context without the reply.
    assert!((100..=246).contains(&plain), "{plain}");
    for (end, thinking) in [("", true), ("<think>\n", false)] {
        let found = prompt_tokens(end, thinking);
        assert!(found <= 117, "{end:?}: {found}");
    }
}

/// White space behind a block and markers outside of blocks count as reasoning, but no block is
/// open that could be closed.
#[test]
fn reasoning_outside_of_blocks_is_limited() {
    for (end, text) in [("<think>\n</think>\n", None), ("", Some("</think>"))] {
        let options = model(end, &THINK);
        for most in [0, 8, 40] {
            let mut rig = rig(&options);
            let drawn = text.map_or(32, |text| token(&rig, text));
            let agent = rig.agent(drawing(1, &[drawn], (5, most)));
            let ask = rig.ask(agent, chat("Hi"));
            rig.run();
            let heard = rig.reply(ask);
            assert_eq!(heard.ends, [Ok(FinishReason::ReasoningLength)], "{end:?} {most}");
            let reasoned = heard.usage.reasoning_tokens;
            assert!((most..=most + 40).contains(&reasoned), "{reasoned} of {most}");
            assert_eq!((&*heard.text, &*heard.reasoning), ("", ""));
        }
    }
}
