use walla_plan::Detail;
use walla_types::SeqId;

use super::*;
use crate::api::{ContextPolicy, Speaker, Turn};
use crate::engine_core::Control;

#[test]
fn a_reply_starts_speaks_and_ends() {
    let mut stage = Stage::free();
    let agent = stage.agent(speaker(1, 20));
    let generation = stage.ask(agent, Prompt::Chat("Hello".into()));
    stage.run();
    let heard = stage.reply(generation);
    assert_eq!(heard.started, 1);
    assert!(heard.usage.prompt_tokens > 10, "the template is in it");
    assert!(heard.usage.reply_tokens <= 20);
    stage.assert_all_ended();
}

#[test]
fn one_step_a_frame_is_one_token_a_frame() {
    let mut stage = Stage::new(&options(), &inline_cpu(), Pacing::default());
    let agent = stage.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(1, 10) });
    let generation = stage.ask(agent, tokens("ab"));
    let mut counts = Vec::new();
    for _ in 0..14 {
        stage.frame();
        counts.push(stage.reply(generation).tokens);
    }
    assert!(counts.windows(2).all(|pair| pair[1] - pair[0] <= 1), "{counts:?}");
    assert_eq!(stage.core.stats().steps, u64::from(stage.reply(generation).usage.reply_tokens));
    stage.assert_all_ended();
}

#[test]
fn without_frames_nothing_happens() {
    let mut stage = Stage::new(&options(), &inline_cpu(), Pacing::default());
    let agent = stage.agent(speaker(1, 10));
    stage.ask(agent, tokens("ab"));
    stage.run();
    assert_eq!(stage.core.stats().steps, 0);
}

#[test]
fn prompts_are_read_in_chunks_while_others_speak() {
    let mut stage = Stage::new(&options(), &inline_cpu(), Pacing::default());
    let speaking = stage.agent(speaker(1, 60));
    let first = stage.ask(speaking, tokens("ab"));
    stage.frame();
    stage.frame();
    let reading = stage.agent(speaker(2, 4));
    stage.ask(reading, tokens(&"x".repeat(100)));
    // 100 tokens in chunks of 16 are 7 steps; the speaker gets a token in each of them.
    let before = stage.reply(first).tokens;
    for _ in 0..7 {
        stage.frame();
    }
    assert!(
        stage.reply(first).tokens >= before + 6,
        "{} after {before}",
        stage.reply(first).tokens
    );
    assert_eq!(stage.core.stats().prefill_tokens, 102);
}

#[test]
fn the_cache_keeps_the_conversation() {
    let mut stage = Stage::free();
    let agent = stage.agent(speaker(3, 8));
    let first = stage.ask(agent, Prompt::Chat("Hello there".into()));
    stage.run();
    let second = stage.ask(agent, Prompt::Chat("And now?".into()));
    stage.run();
    let (first, second) = (stage.reply(first).clone(), stage.reply(second).clone());
    assert_eq!(first.usage.cached_tokens, 0);
    assert!(second.usage.cached_tokens >= first.usage.prompt_tokens - 1, "{second:?}");
    stage.assert_all_ended();
}

#[test]
fn a_cancelled_reply_ends_at_once_and_once() {
    let mut stage = Stage::new(&options(), &inline_cpu(), Pacing::default());
    let agent = stage.agent(speaker(1, 100));
    let generation = stage.ask(agent, tokens("ab"));
    let waiting = stage.ask(agent, tokens("cd"));
    for _ in 0..5 {
        stage.frame();
    }
    stage.command(Command::Cancel { agent, generation });
    stage.command(Command::Cancel { agent, generation: waiting });
    stage.command(Command::Cancel { agent, generation });
    stage.advance();
    assert_eq!(stage.reply(generation).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(stage.reply(waiting).ends, [Ok(FinishReason::Cancelled)]);
    stage.frame();
    assert_eq!(stage.reply(generation).ends.len(), 1);
    // The agent speaks again.
    let next = stage.ask(agent, tokens("ef"));
    for _ in 0..110 {
        stage.frame();
    }
    assert!(stage.reply(next).tokens > 0);
    stage.assert_all_ended();
}

#[test]
fn a_removed_agent_frees_its_pages() {
    let mut stage = Stage::free();
    let agent = stage.agent(speaker(1, 30));
    let generation = stage.ask(agent, tokens("abc"));
    stage.advance();
    stage.command(Command::RemoveAgent { agent });
    stage.run();
    assert_eq!(stage.reply(generation).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(stage.core.stats().pages_used, 0);
    let late = stage.ask(agent, tokens("abc"));
    stage.run();
    assert_eq!(stage.reply(late).ends, [Err(ReplyError::UnknownAgent)]);
}

#[test]
fn nobody_speaks_through_another_clients_agent() {
    let mut stage = Stage::free();
    let stranger = ClientKey(1);
    stage.core.add_client(stranger, Pacing::FreeRunning);
    let agent = stage.agent(speaker(1, 12));
    let generation = stage.ask(agent, tokens("ab"));
    let foreign = stage.ask_of(stranger, agent, tokens("cd"));
    stage.advance();
    stage.command_of(stranger, Command::Cancel { agent, generation });
    stage.command_of(stranger, Command::SetConversation { agent, turns: Vec::new() });
    let spec = Box::new(AgentSpec { reply_tokens_max: 1, ..speaker(1, 1) });
    stage.command_of(stranger, Command::ChangeAgent { agent, spec });
    stage.command_of(stranger, Command::RemoveAgent { agent });
    stage.run();
    stage.assert_all_ended();
    assert_eq!(stage.reply(foreign).ends, [Err(ReplyError::UnknownAgent)]);
    assert_eq!(stage.reply(generation).text, alone(&options(), speaker(1, 12), "ab").text);
}

#[test]
fn a_change_in_mid_reply_counts_from_the_next_one_on() {
    let before = AgentSpec { stop_strings: vec!["never said".into()], ..speaker(1, 30) };
    let after = AgentSpec {
        sampling: Sampling::greedy(),
        stop_tokens: (0..320).map(TokenId).collect(),
        priority: 3,
        ..speaker(2, 5)
    };
    let whole = alone(&options(), before.clone(), "ab");
    assert!(whole.tokens > 10, "{whole:?}");
    let mut stage = Stage::free();
    let agent = stage.agent(before);
    let first = stage.ask(agent, tokens("ab"));
    while stage.reply(first).tokens < 8 {
        stage.advance();
    }
    stage.command(Command::ChangeAgent { agent, spec: Box::new(after.clone()) });
    stage.command(Command::SetDetail { agent, detail: Detail::Background });
    let spec = |stage: &Stage| stage.core.agents.get(0).expect("it lives").spec.clone();
    assert_eq!((spec(&stage).priority, spec(&stage).detail), (3, Detail::Background));
    let second = stage.ask(agent, tokens("ab"));
    stage.run();
    let heard = stage.reply(first);
    assert_eq!((&heard.text, &heard.ends), (&whole.text, &whole.ends));
    assert_eq!(stage.reply(second).ends, [Ok(FinishReason::StopToken)]);
    assert_eq!(spec(&stage), AgentSpec { detail: Detail::Background, ..after.clone() });
    // Between replies the change applies at once.
    stage.command(Command::ChangeAgent { agent, spec: Box::new(after.clone()) });
    assert_eq!(spec(&stage), after);
}

#[test]
fn too_many_asks_of_one_agent_are_refused() {
    let mut stage = Stage::free();
    let agent = stage.agent(speaker(0, 2));
    let asks: Vec<_> = (0..12).map(|_| stage.ask(agent, tokens("a"))).collect();
    stage.run();
    let busy = |g: &&GenerationId| matches!(stage.reply(**g).ends[0], Err(ReplyError::Busy { .. }));
    assert_eq!(asks.iter().filter(busy).count(), 4);
    stage.assert_all_ended();
}

#[test]
fn bad_prompts_fail_alone() {
    let mut stage = Stage::free();
    let agent = stage.agent(speaker(1, 5));
    let empty = stage.ask(agent, Prompt::Tokens(Vec::new()));
    let foreign = stage.ask(agent, Prompt::Tokens(vec![TokenId(320)]));
    let long = stage.ask(agent, tokens(&"x".repeat(128)));
    let good = stage.ask(agent, tokens("ok"));
    stage.run();
    assert!(matches!(stage.reply(empty).ends[..], [Err(ReplyError::Text(_))]));
    assert!(matches!(stage.reply(foreign).ends[..], [Err(ReplyError::Text(_))]));
    let too_long = ReplyError::PromptTooLong { prompt_tokens: 128, context_tokens: 128 };
    assert_eq!(stage.reply(long).ends, [Err(too_long)]);
    assert!(stage.reply(good).ends[0].is_ok());
}

#[test]
fn a_full_context_ends_the_reply() {
    let mut stage = Stage::free();
    let agent = stage.agent(speaker(5, 1_000));
    let generation = stage.ask(agent, tokens(&"x".repeat(100)));
    stage.run();
    let heard = stage.reply(generation);
    match heard.ends[0] {
        // 128 positions hold 100 prompt tokens and 28 of the reply; one more is sampled from the
        // last.
        Ok(FinishReason::ContextFull) => assert_eq!(heard.usage.reply_tokens, 29),
        Ok(FinishReason::EndOfTurn) => {}
        ref other => panic!("{other:?}"),
    }
    stage.assert_all_ended();
}

#[test]
fn old_turns_are_forgotten_and_the_persona_stays() {
    let mut stage = Stage::free();
    let turn =
        |speaker: Speaker, n: usize| Turn { speaker, text: format!("turn number {n} with words") };
    let history: Vec<_> =
        (0..10).flat_map(|n| [turn(Speaker::User, n), turn(Speaker::Agent, n)]).collect();
    let ask = |stage: &mut Stage, context_policy| {
        let spec = AgentSpec { context_policy, history: history.clone(), ..speaker(1, 8) };
        let agent = stage.agent(spec);
        let generation = stage.ask(agent, Prompt::Chat("What now?".into()));
        stage.run();
        stage.reply(generation).clone()
    };
    let dropped = ask(&mut stage, ContextPolicy::DropOldest);
    assert!(dropped.ends[0].is_ok(), "{dropped:?}");
    assert!(dropped.usage.prompt_tokens < 128 - 8);
    let refused = ask(&mut stage, ContextPolicy::Refuse);
    assert!(matches!(refused.ends[0], Err(ReplyError::PromptTooLong { .. })), "{refused:?}");
    let stopped = ask(&mut stage, ContextPolicy::Stop);
    assert_eq!(stopped.ends[0], Ok(FinishReason::ContextFull));
    stage.assert_all_ended();
}

#[test]
fn a_question_that_was_never_read_is_forgotten() {
    let mut stage = Stage::free();
    let agent = stage.agent(AgentSpec { context_policy: ContextPolicy::Refuse, ..speaker(1, 8) });
    let short = stage.ask(agent, Prompt::Chat("Hi".into()));
    let long = stage.ask(agent, Prompt::Chat("x".repeat(200)));
    let again = stage.ask(agent, Prompt::Chat("Hi again".into()));
    stage.run();
    assert!(stage.reply(short).ends[0].is_ok());
    assert!(matches!(stage.reply(long).ends[..], [Err(ReplyError::PromptTooLong { .. })]));
    assert!(stage.reply(again).ends[0].is_ok(), "the long question does not stand in its way");
}

#[test]
fn a_full_queue_pauses_and_loses_nothing() {
    let story = |room: Option<usize>| {
        let mut stage = Stage::free();
        stage.room = room;
        let agent = stage.agent(speaker(9, 40));
        let generation = stage.ask(agent, tokens("slow"));
        for _ in 0..200 {
            stage.advance();
            if let Some(room) = &mut stage.room {
                *room = 1;
            }
        }
        stage.room = None;
        stage.run();
        stage.assert_all_ended();
        stage.reply(generation).clone()
    };
    let (fast, slow) = (story(None), story(Some(0)));
    assert_eq!((fast.text, fast.ends), (slow.text, slow.ends));
}

#[test]
fn scarce_pages_are_shared_and_everybody_ends() {
    // 8 agents need up to 5 pages each; there are 12.
    let options = EngineOptions { kv_tokens: Some(12 * 16), ..options() };
    let mut scarce = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let mut plenty = Stage::free();
    let mut asks = Vec::new();
    for seed in 0..8 {
        let spec = speaker(seed, 50);
        let prompt = format!("agent {seed} begins to speak");
        let (a, b) = (scarce.agent(spec.clone()), plenty.agent(spec));
        asks.push((scarce.ask(a, tokens(&prompt)), plenty.ask(b, tokens(&prompt))));
    }
    scarce.run();
    plenty.run();
    scarce.assert_all_ended();
    for (a, b) in asks {
        // Preempted and recomputed, with the same text.
        assert_eq!(scarce.reply(a).text, plenty.reply(b).text);
    }
}

#[test]
fn nobody_is_evaluated_anew_for_an_agent_in_the_background() {
    // Each needs five pages at the end; there are seven.
    let options = EngineOptions { kv_tokens: Some(7 * 16), ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let far = stage.agent(AgentSpec { detail: Detail::Background, priority: 9, ..speaker(1, 50) });
    let first = stage.ask(far, tokens("somebody far away"));
    for _ in 0..5 {
        stage.advance();
    }
    let near = stage.agent(speaker(2, 50));
    let second = stage.ask(near, tokens("somebody in front of the player"));
    let mut cached = 0;
    while stage.reply(second).ends.is_empty() {
        stage.advance();
        let now = stage.core.sequences.ledger.len(SeqId(1));
        assert!(now >= cached || !stage.reply(second).ends.is_empty(), "{now} after {cached}");
        cached = now;
    }
    assert!(stage.reply(first).ends.is_empty(), "it was the one to wait");
    stage.run();
    for (ask, seed, prompt) in
        [(first, 1, "somebody far away"), (second, 2, "somebody in front of the player")]
    {
        assert_eq!(stage.reply(ask).text, alone(&self::options(), speaker(seed, 50), prompt).text);
    }
    stage.assert_all_ended();
}

#[test]
fn a_reply_larger_than_all_pages_fails_alone() {
    let options = EngineOptions { kv_tokens: Some(3 * 16), ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agent = stage.agent(speaker(1, 4));
    let large = stage.ask(agent, tokens(&"x".repeat(60)));
    let small = stage.ask(agent, tokens("x"));
    stage.run();
    assert!(matches!(stage.reply(large).ends[..], [Err(ReplyError::NoPages { .. })]));
    assert!(stage.reply(small).ends[0].is_ok());
}

#[test]
fn a_smaller_cache_preempts_the_least_urgent_and_nobody_loses_a_word() {
    let story = |shrinks: bool| {
        let mut stage = Stage::free();
        let asks: Vec<_> = (0..8)
            .map(|seed| {
                let agent = stage.agent(AgentSpec { priority: seed, ..speaker(seed as u64, 40) });
                stage.ask(agent, tokens(&"long prompt ".repeat(3)))
            })
            .collect();
        for tick in 0..60 {
            stage.advance();
            if shrinks && tick % 7 == 3 {
                // At least 3 pages per agent; a reply needs 5 at the end.
                let kv_tokens = [16 * 8, 16 * 64, 16 * 5, 16 * 20][tick / 7 % 4];
                stage.core.control(Control::KvTokens(kv_tokens));
                let used = stage.core.sequences.ledger.used_pages();
                assert!(used <= kv_tokens / 16, "{used} of {}", kv_tokens / 16);
                stage.advance();
                assert!(!stage.core.pages.is_resizing(), "steps in flight end within a round here");
                let stats = stage.core.stats();
                assert_eq!(stats.pages, kv_tokens / 16);
                let ledger = &stage.core.sequences.ledger;
                assert_eq!(ledger.pages_end(), stats.pages + 1, "and no page above is in use");
                ledger.assert_consistent();
                let urgent = stage.core.sequences.ledger.len(SeqId(7));
                assert!(
                    urgent > 0
                        || stage.reply(asks[7]).tokens == 0
                        || !stage.reply(asks[7]).ends.is_empty()
                );
            }
        }
        stage.core.control(Control::KvTokens(u32::MAX));
        stage.advance();
        assert_eq!(stage.core.stats().pages, 64, "all that were loaded");
        stage.run();
        stage.assert_all_ended();
        asks.iter().map(|&ask| stage.reply(ask).text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(story(true), story(false));
}

/// Common prefix of all prompts: more than two pages.
const LORE: &str =
    "the inn stands by the ford and the river sings all night to whoever listens to it";

#[test]
fn prompts_that_begin_alike_are_read_once() {
    let mut stage = Stage::free();
    let pages = |stage: &Stage| stage.core.sequences.ledger.used_pages();
    let teller = stage.agent(speaker(1, 40));
    stage.ask(teller, tokens(&format!("{LORE}, says the innkeeper")));
    stage.run();
    let (own, read) = (pages(&stage), stage.core.stats().prefill_tokens);
    let page_tokens = stage.core.sequences.ledger.options().page_tokens;
    let shared = LORE.len() as u32 / page_tokens * page_tokens;
    assert!(shared > page_tokens, "there is something to share");
    for (seed, end) in [(2, ", says the smith"), (3, ", asks the guard"), (4, "")] {
        let listener = stage.agent(speaker(seed, 12));
        let generation = stage.ask(listener, tokens(&format!("{LORE}{end}")));
        stage.run();
        let heard = stage.reply(generation).clone();
        // The last token is recomputed, and with it its page.
        let expected = if end.is_empty() {
            (LORE.len() as u32 - 1) / page_tokens * page_tokens
        } else {
            shared
        };
        assert_eq!(heard.usage.cached_tokens, expected, "{end:?}");
        let alone = alone(&options(), speaker(seed, 12), &format!("{LORE}{end}"));
        assert_eq!((heard.text, heard.ends), (alone.text, alone.ends), "{end:?}");
    }
    let each = stage.core.stats().prefill_tokens - read;
    assert!(each < 3 * u64::from(LORE.len() as u32 - shared + 20), "{each} tokens read by three");
    assert!(pages(&stage) < 2 * own + 2, "{} pages for four, {own} for one", pages(&stage));
    stage.assert_all_ended();
}

#[test]
fn a_crowd_that_is_asked_at_once_reads_its_lore_once_or_twice() {
    let options = EngineOptions { context_tokens: 256, ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let lore = LORE.repeat(2);
    let asks: Vec<_> = (0..6)
        .map(|seed| {
            let agent = stage.agent(speaker(seed, 12));
            stage.ask(agent, tokens(&format!("{lore}, says number {seed}")))
        })
        .collect();
    stage.run();
    let read = stage.core.stats().prefill_tokens;
    assert!(read < 3 * lore.len() as u64 + 6 * 40, "{read} tokens read for {}", lore.len());
    for (seed, ask) in asks.into_iter().enumerate() {
        let prompt = format!("{lore}, says number {seed}");
        let alone = alone(&options, speaker(seed as u64, 12), &prompt);
        assert_eq!(stage.reply(ask).text, alone.text);
    }
}

#[test]
fn whoever_shares_keeps_what_its_neighbour_loses() {
    let mut stage = Stage::free();
    let teller = stage.agent(speaker(1, 40));
    stage.ask(teller, tokens(&format!("{LORE}, says the innkeeper")));
    stage.run();
    let listener = stage.agent(speaker(2, 12));
    let generation = stage.ask(listener, tokens(&format!("{LORE}, says the smith")));
    // The listener has begun when the teller is removed.
    for _ in 0..3 {
        stage.advance();
    }
    assert!(stage.core.stats().steps > 0 && stage.reply(generation).ends.is_empty());
    stage.command(Command::RemoveAgent { agent: teller });
    let stranger = stage.agent(speaker(5, 30));
    stage.ask(
        stranger,
        tokens("somebody else takes the pages that are free now, and writes into them"),
    );
    stage.run();
    let heard = stage.reply(generation).clone();
    let alone = alone(&options(), speaker(2, 12), &format!("{LORE}, says the smith"));
    assert_eq!(heard.text, alone.text);
    stage.assert_all_ended();
}

/// The teller's tokens occupy the positions in the penalty window where the lore's tokens were
/// recorded. Penalties of an agent that shares the lore must count the lore's tokens.
#[test]
fn penalties_of_a_shared_prompt_count_its_own_tokens() {
    let options = EngineOptions { context_tokens: 512, ..options() };
    let lore = LORE.repeat(2);
    let listener = || {
        let sampling = speaker(2, 1).sampling.to_builder().repetition_penalty(3.0);
        AgentSpec { sampling: sampling.build().expect("valid"), ..speaker(2, 12) }
    };
    let alone = alone(&options, listener(), &lore);
    let mut told = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let teller = told.agent(speaker(1, 330));
    told.ask(teller, tokens(&lore));
    told.run();
    let agent = told.agent(listener());
    let shared = told.ask(agent, tokens(&lore));
    told.run();
    let shared = told.reply(shared);
    assert!(shared.usage.cached_tokens > 0, "{shared:?}");
    assert_eq!(shared.text, alone.text);
}

/// A plan that submits nothing because a reply had to end is followed by another plan: the freed
/// pages may be enough for another agent.
#[test]
fn replies_that_no_page_is_left_for_all_end_without_another_command() {
    for pages in [2, 3, 5] {
        let options = EngineOptions { kv_tokens: Some(16 * 8), ..options() };
        let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let agents: Vec<_> = (0..3).map(|seed| stage.agent(speaker(seed, 40))).collect();
        let asks: Vec<_> =
            agents.iter().map(|&agent| stage.ask(agent, tokens(&"x".repeat(90)))).collect();
        stage.advance();
        stage.core.control(Control::KvTokens(16 * pages));
        stage.run();
        stage.assert_all_ended();
        for ask in asks {
            let ends = &stage.reply(ask).ends;
            assert!(matches!(ends[..], [Err(ReplyError::NoPages { .. })]), "{pages}: {ends:?}");
        }
    }
}

#[test]
fn a_prompt_larger_than_the_whole_cache_fails_when_it_is_encoded() {
    let options = EngineOptions { kv_tokens: Some(16 * 3), ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agent = stage.agent(speaker(1, 5));
    let raw = stage.ask(agent, tokens(&"x".repeat(49)));
    let fits = stage.ask(agent, tokens(&"x".repeat(40)));
    stage.run();
    let expected = ReplyError::NoPages { wanted_pages: 4, free_pages: 3 };
    assert_eq!(stage.reply(raw).ends, [Err(expected)]);
    assert_eq!(stage.reply(raw).started, 0);
    assert!(stage.reply(fits).ends[0].is_ok());
}

/// Older turns are also dropped if the cache is smaller than an agent's context.
#[test]
fn a_conversation_is_cut_to_the_cache() {
    let options = EngineOptions { kv_tokens: Some(16 * 5), ..options() };
    let mut stage = Stage::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let agent = stage.agent(AgentSpec { persona: String::new(), ..speaker(1, 4) });
    for _ in 0..6 {
        let ask = stage.ask(agent, Prompt::Chat("Who are you?".into()));
        stage.run();
        assert!(stage.reply(ask).ends[0].is_ok(), "{:?}", stage.reply(ask).ends);
    }
}
