//! Replies from ask to end: frames, cancels, changes, refusals and a full context.

use walla_plan::Detail;

use super::*;
use crate::api::{ContextPolicy, Speaker, Turn};

#[test]
fn a_reply_emits_started_deltas_and_one_end() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(1, 20));
    let reply_id = rig.ask(agent, Prompt::Chat("Hello".into()));
    rig.run();
    let heard = rig.reply(reply_id);
    assert_eq!(heard.started, 1);
    assert!(heard.usage.prompt_tokens > 10, "the template is in it");
    assert!(heard.usage.reply_tokens <= 20);
    rig.assert_all_ended();
}

#[test]
fn one_step_per_frame_gives_one_token_per_frame() {
    let mut rig = Rig::new(&options(), &inline_cpu(), Pacing::default());
    let agent = rig.agent(AgentSpec { sampling: Sampling::greedy(), ..speaker(1, 10) });
    let reply_id = rig.ask(agent, tokens("ab"));
    let mut counts = Vec::new();
    for _ in 0..14 {
        rig.frame();
        counts.push(rig.reply(reply_id).tokens);
    }
    assert!(counts.windows(2).all(|pair| pair[1] - pair[0] <= 1), "{counts:?}");
    assert_eq!(rig.core.stats().steps, u64::from(rig.reply(reply_id).usage.reply_tokens));
    rig.assert_all_ended();
}

#[test]
fn without_frames_nothing_happens() {
    let mut rig = Rig::new(&options(), &inline_cpu(), Pacing::default());
    let agent = rig.agent(speaker(1, 10));
    rig.ask(agent, tokens("ab"));
    rig.run();
    assert_eq!(rig.core.stats().steps, 0);
}

#[test]
fn prompts_are_evaluated_in_chunks_during_other_replies() {
    let mut rig = Rig::new(&options(), &inline_cpu(), Pacing::default());
    let speaking = rig.agent(speaker(1, 60));
    let first = rig.ask(speaking, tokens("ab"));
    rig.frame();
    rig.frame();
    let reading = rig.agent(speaker(2, 4));
    rig.ask(reading, tokens(&"x".repeat(100)));
    // 100 tokens in chunks of 16 are 7 steps; the speaker gets a token in each of them.
    let before = rig.reply(first).tokens;
    for _ in 0..7 {
        rig.frame();
    }
    assert!(rig.reply(first).tokens >= before + 6, "{} after {before}", rig.reply(first).tokens);
    assert_eq!(rig.core.stats().prefill_tokens, 102);
}

#[test]
fn the_cache_keeps_the_conversation() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(3, 8));
    let first = rig.ask(agent, Prompt::Chat("Hello there".into()));
    rig.run();
    let second = rig.ask(agent, Prompt::Chat("And now?".into()));
    rig.run();
    let (first, second) = (rig.reply(first).clone(), rig.reply(second).clone());
    assert_eq!(first.usage.cached_tokens, 0);
    assert!(second.usage.cached_tokens >= first.usage.prompt_tokens - 1, "{second:?}");
    rig.assert_all_ended();
}

#[test]
fn a_cancelled_reply_ends_at_once_and_once() {
    let mut rig = Rig::new(&options(), &inline_cpu(), Pacing::default());
    let agent = rig.agent(speaker(1, 100));
    let reply_id = rig.ask(agent, tokens("ab"));
    let waiting = rig.ask(agent, tokens("cd"));
    for _ in 0..5 {
        rig.frame();
    }
    rig.command(Command::Cancel { agent, reply_id });
    rig.command(Command::Cancel { agent, reply_id: waiting });
    rig.command(Command::Cancel { agent, reply_id });
    rig.advance();
    assert_eq!(rig.reply(reply_id).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(rig.reply(waiting).ends, [Ok(FinishReason::Cancelled)]);
    rig.frame();
    assert_eq!(rig.reply(reply_id).ends.len(), 1);
    // The agent speaks again.
    let next = rig.ask(agent, tokens("ef"));
    for _ in 0..110 {
        rig.frame();
    }
    assert!(rig.reply(next).tokens > 0);
    rig.assert_all_ended();
}

#[test]
fn a_removed_agent_frees_its_pages() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(1, 30));
    let reply_id = rig.ask(agent, tokens("abc"));
    rig.advance();
    rig.command(Command::RemoveAgent { agent });
    rig.run();
    assert_eq!(rig.reply(reply_id).ends, [Ok(FinishReason::Cancelled)]);
    assert_eq!(rig.core.stats().pages_used, 0);
    let late = rig.ask(agent, tokens("abc"));
    rig.run();
    assert_eq!(rig.reply(late).ends, [Err(ReplyError::UnknownAgent)]);
}

#[test]
fn a_command_for_another_clients_agent_is_ignored() {
    let mut rig = Rig::free();
    let stranger = ClientKey(1);
    rig.core.add_client(stranger, Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 12));
    let reply_id = rig.ask(agent, tokens("ab"));
    let foreign = rig.ask_of(stranger, agent, tokens("cd"));
    rig.advance();
    rig.command_of(stranger, Command::Cancel { agent, reply_id });
    rig.command_of(stranger, Command::SetConversation { agent, turns: Vec::new() });
    let spec = Box::new(AgentSpec { max_reply_tokens: 1, ..speaker(1, 1) });
    rig.command_of(stranger, Command::ChangeAgent { agent, spec });
    rig.command_of(stranger, Command::RemoveAgent { agent });
    rig.run();
    rig.assert_all_ended();
    assert_eq!(rig.reply(foreign).ends, [Err(ReplyError::UnknownAgent)]);
    assert_eq!(rig.reply(reply_id).text, alone(&options(), speaker(1, 12), "ab").text);
}

#[test]
fn a_change_during_a_reply_applies_to_the_next_one() {
    let before = AgentSpec { stop_strings: vec!["never said".into()], ..speaker(1, 30) };
    let after = AgentSpec {
        sampling: Sampling::greedy(),
        stop_tokens: (0..320).map(TokenId).collect(),
        priority: 3,
        ..speaker(2, 5)
    };
    let whole = alone(&options(), before.clone(), "ab");
    assert!(whole.tokens > 10, "{whole:?}");
    let mut rig = Rig::free();
    let agent = rig.agent(before);
    let first = rig.ask(agent, tokens("ab"));
    while rig.reply(first).tokens < 8 {
        rig.advance();
    }
    rig.command(Command::ChangeAgent { agent, spec: Box::new(after.clone()) });
    rig.command(Command::SetDetail { agent, detail: Detail::Background });
    let spec = |rig: &Rig| rig.core.agents.get(0).expect("it lives").spec.clone();
    assert_eq!((spec(&rig).priority, spec(&rig).detail), (3, Detail::Background));
    let second = rig.ask(agent, tokens("ab"));
    rig.run();
    let heard = rig.reply(first);
    assert_eq!((&heard.text, &heard.ends), (&whole.text, &whole.ends));
    assert_eq!(rig.reply(second).ends, [Ok(FinishReason::StopToken)]);
    assert_eq!(spec(&rig), AgentSpec { detail: Detail::Background, ..after.clone() });
    // Between replies the change applies at once.
    rig.command(Command::ChangeAgent { agent, spec: Box::new(after.clone()) });
    assert_eq!(spec(&rig), after);
}

#[test]
fn too_many_asks_of_one_agent_are_refused() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(0, 2));
    let asks: Vec<_> = (0..12).map(|_| rig.ask(agent, tokens("a"))).collect();
    rig.run();
    let busy = |g: &&ReplyId| matches!(rig.reply(**g).ends[0], Err(ReplyError::Busy { .. }));
    assert_eq!(asks.iter().filter(busy).count(), 4);
    rig.assert_all_ended();
}

#[test]
fn invalid_prompts_fail_only_their_own_reply() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(1, 5));
    let empty = rig.ask(agent, Prompt::Tokens(Vec::new()));
    let foreign = rig.ask(agent, Prompt::Tokens(vec![TokenId(320)]));
    let long = rig.ask(agent, tokens(&"x".repeat(128)));
    let good = rig.ask(agent, tokens("ok"));
    rig.run();
    assert!(matches!(rig.reply(empty).ends[..], [Err(ReplyError::Text(_))]));
    assert!(matches!(rig.reply(foreign).ends[..], [Err(ReplyError::Text(_))]));
    let too_long = ReplyError::PromptTooLong { prompt_tokens: 128, context_tokens: 128 };
    assert_eq!(rig.reply(long).ends, [Err(too_long)]);
    assert!(rig.reply(good).ends[0].is_ok());
}

#[test]
fn a_full_context_ends_the_reply() {
    let mut rig = Rig::free();
    let agent = rig.agent(speaker(5, 1_000));
    let reply_id = rig.ask(agent, tokens(&"x".repeat(100)));
    rig.run();
    let heard = rig.reply(reply_id);
    match heard.ends[0] {
        // 128 positions hold 100 prompt tokens and 28 of the reply; one more is sampled from the
        // last.
        Ok(FinishReason::ContextFull) => assert_eq!(heard.usage.reply_tokens, 29),
        Ok(FinishReason::EndOfTurn) => {}
        ref other => panic!("{other:?}"),
    }
    rig.assert_all_ended();
}

#[test]
fn old_turns_are_dropped_and_the_persona_is_kept() {
    let mut rig = Rig::free();
    let turn =
        |speaker: Speaker, n: usize| Turn::new(speaker, format!("turn number {n} with words"));
    let history: Vec<_> =
        (0..10).flat_map(|n| [turn(Speaker::User, n), turn(Speaker::Agent, n)]).collect();
    let ask = |rig: &mut Rig, context_policy| {
        let spec = AgentSpec { context_policy, turns: history.clone(), ..speaker(1, 8) };
        let agent = rig.agent(spec);
        let reply_id = rig.ask(agent, Prompt::Chat("What now?".into()));
        rig.run();
        rig.reply(reply_id).clone()
    };
    let dropped = ask(&mut rig, ContextPolicy::DropOldest);
    assert!(dropped.ends[0].is_ok(), "{dropped:?}");
    assert!(dropped.usage.prompt_tokens < 128 - 8);
    let refused = ask(&mut rig, ContextPolicy::Refuse);
    assert!(matches!(refused.ends[0], Err(ReplyError::PromptTooLong { .. })), "{refused:?}");
    let stopped = ask(&mut rig, ContextPolicy::Stop);
    assert_eq!(stopped.ends[0], Ok(FinishReason::ContextFull));
    rig.assert_all_ended();
}

#[test]
fn a_refused_prompt_is_not_kept() {
    let mut rig = Rig::free();
    let agent = rig.agent(AgentSpec { context_policy: ContextPolicy::Refuse, ..speaker(1, 8) });
    let short = rig.ask(agent, Prompt::Chat("Hi".into()));
    let long = rig.ask(agent, Prompt::Chat("x".repeat(200)));
    let again = rig.ask(agent, Prompt::Chat("Hi again".into()));
    rig.run();
    assert!(rig.reply(short).ends[0].is_ok());
    assert!(matches!(rig.reply(long).ends[..], [Err(ReplyError::PromptTooLong { .. })]));
    assert!(rig.reply(again).ends[0].is_ok(), "the long question does not stand in its way");
}

#[test]
fn a_full_queue_pauses_the_agent_and_loses_nothing() {
    let scenario = |room: Option<usize>| {
        let mut rig = Rig::free();
        rig.room = room;
        let agent = rig.agent(speaker(9, 40));
        let reply_id = rig.ask(agent, tokens("slow"));
        for _ in 0..200 {
            rig.advance();
            if let Some(room) = &mut rig.room {
                *room = 1;
            }
        }
        rig.room = None;
        rig.run();
        rig.assert_all_ended();
        rig.reply(reply_id).clone()
    };
    let (fast, slow) = (scenario(None), scenario(Some(0)));
    assert_eq!((fast.text, fast.ends), (slow.text, slow.ends));
}
