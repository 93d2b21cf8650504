//! Agents: changed, given another history, removed, too many.

use std::task::{Poll, Waker};

use walla::{
    AgentSpec, Detail, EngineError, EngineOptions, FinishReason, Prompt, ReplyError, ReplyEvent,
    Speaker, TemplateState, Turn,
};
use walla_doubles::FaultPlan;

use crate::host::{begun, engine, eventually, held, on, options, poll, soon, speaker, working};

fn turns() -> Vec<Turn> {
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    vec![turn(Speaker::User, "What is your name?"), turn(Speaker::Agent, "Greta, and yours?")]
}

#[tokio::test]
async fn a_change_applies_from_the_next_ask() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(1, 30));
    let before = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    let persona = "You are Greta, the smith of Emberfall.".into();
    agent.change(AgentSpec { persona, ..speaker(1, 3) });
    let after = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    assert_eq!((before.usage.reply_tokens, after.usage.reply_tokens), (30, 3));
    assert!(after.usage.prompt_tokens > before.usage.prompt_tokens + 30, "{after:?}");
}

#[tokio::test]
async fn a_level_of_detail_applies_within_a_reply_and_does_not_change_it() {
    const TOKENS: u32 = 60;
    // A step has one row, and both agents are always late.
    let (engine, clock) = held(EngineOptions { max_rows: Some(1), ..options() }).await;
    let late = |seed| AgentSpec { voice_rate: Some(1e9), ..speaker(seed, TOKENS) };
    let agents = [1, 2].map(|seed| engine.agent_with(late(seed)));
    let mut first = agents[0].ask("Hello");
    let mut text = String::new();
    text.push_str(working("a delta", &clock, first.next()).await.unwrap().unwrap().text());
    agents[0].set_detail(Detail::Background);
    working("the end", &clock, agents[1].ask("Hello").finish()).await.unwrap();
    let mut tokens = 1;
    while let Poll::Ready(Some(event)) = poll(first.next_event(), Waker::noop()) {
        let ReplyEvent::Delta { text: more, tokens: of_delta } = event else { continue };
        text.push_str(&more);
        tokens += of_delta;
    }
    assert!(tokens < TOKENS / 2, "{tokens} tokens of an agent in the background");
    agents[0].set_detail(Detail::Full);
    text.push_str(&working("the end", &clock, first.finish()).await.unwrap().text);
    let alone = engine.agent_with(late(1));
    let alone = working("the end", &clock, alone.ask("Hello").finish()).await.unwrap();
    assert_eq!((text, alone.usage.reply_tokens), (alone.text, TOKENS));
}

#[tokio::test]
async fn replacing_the_conversation_cancels_its_asks() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(2, 300));
    let mut speaking = agent.ask("Tell me a story.");
    working("a delta", &clock, speaking.next()).await.unwrap().unwrap();
    let waiting = agent.ask("And then?");
    agent.set_conversation(turns());
    for reply in [speaking, waiting] {
        let end = soon("the end", reply.finish()).await.unwrap();
        assert_eq!(end.reason, FinishReason::Cancelled);
    }
    // The agent's conversation equals that of an agent that began with these turns.
    let restored = engine.agent_with(AgentSpec { turns: turns(), ..speaker(2, 8) });
    agent.change(speaker(2, 8));
    let both = async {
        (
            agent.ask("Go on.").finish().await.unwrap(),
            restored.ask("Go on.").finish().await.unwrap(),
        )
    };
    let (one, other) = working("both end", &clock, both).await;
    assert_eq!((&one.text, one.usage.prompt_tokens), (&other.text, other.usage.prompt_tokens));
}

#[tokio::test]
async fn a_dropped_agent_ends_its_reply_and_frees_its_slot() {
    let (engine, clock) = held(EngineOptions { max_agents: Some(1), ..options() }).await;
    let first = engine.agent_with(speaker(3, 400));
    let mut reply = first.ask("Tell me a story.");
    working("a delta", &clock, reply.next()).await.unwrap().unwrap();
    drop(first);
    assert_eq!(soon("the end", reply.finish()).await.unwrap().reason, FinishReason::Cancelled);
    let second = engine.agent_with(speaker(3, 5));
    let end = working("the end", &clock, second.ask("Hello").finish()).await.unwrap();
    assert_eq!(end.usage.reply_tokens, 5);
}

#[tokio::test]
async fn an_agent_without_a_slot_gets_the_next_free_one() {
    let full = EngineOptions { max_agents: Some(1), wait_for_slot: false, ..options() };
    let engine = on(FaultPlan::new(0), full).0.start().await.unwrap();
    let first = engine.agent_with(speaker(1, 5));
    let second = engine.agent("You are nobody yet.");
    second.change(AgentSpec { persona: "You are Greta, the smith.".into(), ..speaker(9, 12) });
    second.set_conversation(turns());
    let refused = soon("the end", second.ask("Hello").finish()).await;
    assert_eq!(refused, Err(ReplyError::TooManyAgents { max_agents: 1 }));
    drop(first);
    let said = soon("the end", second.ask("Hello").finish()).await.unwrap();
    drop(second);
    let persona = "You are Greta, the smith.".into();
    let spec = AgentSpec { persona, turns: turns(), ..speaker(9, 12) };
    let third = engine.agent_with(spec);
    let expected = soon("the end", third.ask("Hello").finish()).await.unwrap();
    assert_eq!(
        (said.text, said.usage.prompt_tokens),
        (expected.text, expected.usage.prompt_tokens)
    );
}

#[tokio::test]
async fn agents_beyond_the_slots_share_them_and_keep_conversations() {
    let few = EngineOptions { max_agents: Some(2), ..options() };
    let engine = on(FaultPlan::new(0), few).0.start().await.unwrap();
    let agents: Vec<_> = (0..30).map(|seed| engine.agent_with(speaker(seed, 5))).collect();
    let mut prompt_tokens = Vec::new();
    for question in ["Who are you?", "And then?"] {
        let replies: Vec<_> = agents.iter().map(|agent| agent.ask(question)).collect();
        for reply in replies {
            let end = soon("the end", reply.finish()).await.unwrap();
            assert_eq!((end.reason, end.usage.reply_tokens), (FinishReason::Length, 5));
            prompt_tokens.push(end.usage.prompt_tokens);
        }
    }
    assert!(prompt_tokens[30..].iter().all(|tokens| *tokens > prompt_tokens[0] + 10));
    assert_eq!((engine.stats().agents, engine.stats().agents_parked), (30, 28));
}

#[tokio::test]
async fn a_reply_of_no_tokens_is_empty() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(1, 0));
    let end = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    assert_eq!((end.text.as_str(), end.reason), ("", FinishReason::Length));
    assert!(end.usage.prompt_tokens > 0 && engine.stats().tokens == 0);
}

#[tokio::test]
async fn a_pause_keeps_all_state() {
    for with_budget in [false, true] {
        // The replies go on only while the clock does.
        let (engine, clock) = held(options()).await;
        let pause = |is_paused: bool| {
            if with_budget {
                engine.set_budget(is_paused.then_some(std::time::Duration::ZERO));
            } else {
                engine.set_paused(is_paused);
            }
        };
        let agents = [1, 2].map(|seed| engine.agent_with(speaker(seed, 300)));
        let mut replies = agents.each_ref().map(|agent| agent.ask("Tell me a story."));
        working("a delta", &clock, replies[0].next()).await.unwrap().unwrap();
        pause(true);
        let steps = || engine.stats().steps;
        let mut before = steps();
        eventually("it stands still", || {
            for _ in 0..50 {
                clock.advance(1);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            std::mem::replace(&mut before, steps()) == steps()
        })
        .await;
        replies[1].cancel();
        let mut waiting = agents[1].ask("And then?");
        let [first, second] = replies;
        let end = soon("the end", second.finish()).await.unwrap();
        assert_eq!(end.reason, FinishReason::Cancelled, "a cancel counts in a pause");
        let next = working("no event in a pause", &clock, waiting.next_event());
        assert!(tokio::time::timeout(std::time::Duration::from_millis(50), next).await.is_err());
        assert_eq!(steps(), before);
        pause(false);
        let end = working("the end", &clock, first.finish()).await.unwrap();
        assert_eq!(end.usage.reply_tokens, 300);
        let end = working("the end", &clock, waiting.finish()).await.unwrap();
        assert_eq!(end.usage.reply_tokens, 300);
    }
}

#[tokio::test]
async fn an_interrupted_reply_is_remembered_as_far_as_heard() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(1, 40));
    let mut first = agent.ask("Who are you?");
    let mut said = String::new();
    while let Some(delta) = soon("a delta", first.next()).await {
        said.push_str(delta.unwrap().text());
    }
    // The reply is complete; five bytes of it were heard.
    first.cancel_heard(5);
    first.cancel_heard(30); // Without effect.
    let second = soon("the end", agent.ask("And then?").finish()).await.unwrap();
    let heard = |text: &str, speaker| Turn::new(speaker, text);
    let history = vec![heard("Who are you?", Speaker::User), heard(&said[..5], Speaker::Agent)];
    let other = engine.agent_with(AgentSpec { turns: history, ..speaker(1, 40) });
    let expected = soon("the end", other.ask("And then?").finish()).await.unwrap();
    assert_eq!(
        (second.text, second.usage.prompt_tokens),
        (expected.text, expected.usage.prompt_tokens)
    );
}

#[tokio::test]
async fn the_reason_names_the_stop_string() {
    let engine = engine().await;
    let stop_strings = ["!", "a", "e", "i", "o", "u"].map(str::to_owned).to_vec();
    let agent = engine.agent_with(AgentSpec { stop_strings, ..speaker(1, 300) });
    let end = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    let FinishReason::Stop { index } = end.reason else { panic!("{end:?}") };
    assert!((1..=5).contains(&index) && !end.text.contains(['a', 'e', 'i', 'o', 'u']));
}

#[tokio::test]
async fn the_ninth_waiting_ask_is_refused() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(4, 2));
    let mut speaking = agent.ask("Hello");
    begun(&mut speaking).await;
    let waiting: Vec<_> = (0..8).map(|_| agent.ask("And then?")).collect();
    let refused = soon("the end", agent.ask("And then?").finish()).await;
    assert_eq!(refused, Err(ReplyError::Busy { waiting: 8 }));
    for reply in waiting {
        working("it ends", &clock, reply.finish()).await.unwrap();
    }
    assert_eq!(speaking.finish().await.unwrap().usage.reply_tokens, 2);
}

/// Agents that speak first and users that speak twice, with templates that refuse both.
#[tokio::test]
async fn any_history_is_answered() {
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    for template in ["gemma", "mistral", "chatml", "llama3"] {
        let builder =
            on(FaultPlan::new(0), EngineOptions { template: Some(template.into()), ..options() }).0;
        let engine = builder.start().await.unwrap();
        assert_eq!(engine.model().unwrap().template, TemplateState::Chosen(template.into()));
        for (persona, history) in [
            ("You are Greta.", vec![turn(Speaker::Agent, "Welcome to my smithy!")]),
            ("", vec![turn(Speaker::User, "Hi"), turn(Speaker::User, "Anyone?")]),
            ("", vec![turn(Speaker::Observation, "Odo leaves the room.")]),
        ] {
            let spec = AgentSpec { persona: persona.into(), turns: history, ..speaker(1, 12) };
            let agent = engine.agent_with(spec);
            for question in ["Hi", "And then?"] {
                let end = soon("the end", agent.ask(question).finish()).await;
                assert_eq!(end.unwrap().usage.reply_tokens, 12, "{template}");
            }
        }
    }
}

#[tokio::test]
async fn a_broken_template_is_reported_and_can_be_replaced() {
    let missing = EngineOptions { template: Some("no/such.jinja".into()), ..options() };
    let error = on(FaultPlan::new(0), missing.clone()).0.start().await.unwrap_err();
    let EngineError::NotLoaded(error) = error else { panic!("{error}") };
    assert!(matches!(*error, EngineError::Template { .. }), "{error}");
    let error = missing.tokenizer().unwrap_err();
    assert!(error.to_string().contains("no/such.jinja"), "{error}");

    // The same model with a broken template: the first byte of its tag is replaced.
    let mut bytes = crate::host::model().to_vec();
    let tag = b"{% for message in messages %}";
    let at = bytes.windows(tag.len()).position(|window| window == tag).unwrap();
    bytes[at] = b'x';
    let broken: &'static [u8] = Vec::leak(bytes);
    let model = walla::ModelSource::Static(broken);
    let options = EngineOptions { model, ..options() };
    let engine = on(FaultPlan::new(0), options.clone()).0.start().await.unwrap();
    assert!(matches!(engine.model().unwrap().template, TemplateState::Unusable(_)));
    let agent = engine.agent_with(speaker(1, 5));
    let error = soon("the end", agent.ask("Hi").finish()).await.unwrap_err();
    assert!(matches!(error, ReplyError::NoTemplate(_)), "{error}");
    let raw = soon("the end", agent.ask(Prompt::Raw("Hi".into())).finish()).await.unwrap();
    assert_eq!(raw.usage.reply_tokens, 5);
    let options = EngineOptions { template: Some("chatml".into()), ..options };
    let engine = on(FaultPlan::new(0), options).0.start().await.unwrap();
    let agent = engine.agent_with(speaker(1, 5));
    assert_eq!(soon("the end", agent.ask("Hi").finish()).await.unwrap().usage.reply_tokens, 5);
}

#[tokio::test]
async fn a_fork_has_the_conversation_and_its_own_future() {
    let engine = engine().await;
    let agent = engine.agent_with(AgentSpec { turns: turns(), ..speaker(3, 12) });
    let first = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    let copy = soon("the fork", agent.fork()).await.unwrap();
    // Its source may go at once.
    let both = [soon("the end", copy.ask("And?").finish()).await.unwrap(), {
        let reply = soon("the end", agent.ask("And?").finish()).await.unwrap();
        drop(agent);
        reply
    }];
    assert_eq!(both[0].text, both[1].text, "the same conversation and seed");
    assert_eq!(both[0].usage.prompt_tokens, both[1].usage.prompt_tokens);
    // All of the first exchange is in the cache.
    let cached = both[0].usage.cached_tokens;
    assert!(cached >= first.usage.prompt_tokens, "{cached} of {:?}", first.usage);
    let grandchild = soon("the fork", copy.fork()).await.unwrap();
    drop(copy);
    assert!(soon("the end", grandchild.ask("So?").finish()).await.is_ok());
}

#[tokio::test]
async fn a_reply_is_regenerated_and_turns_are_removed_and_edited() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(3, 12));
    let first = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    let prompt_tokens = first.usage.prompt_tokens;
    let mut texts = vec![first.text];
    for _ in 0..3 {
        let again = soon("the end", agent.regenerate().finish()).await.unwrap();
        assert_eq!(again.usage.prompt_tokens, prompt_tokens);
        assert_eq!(again.usage.cached_tokens, prompt_tokens - 1);
        texts.push(again.text);
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 4, "other words each time");
    let same = || agent.ask(Prompt::Again);
    let [one, two] = [same().finish().await.unwrap(), same().finish().await.unwrap()];
    assert_eq!(one.text, two.text, "the agent's seed");
    // Back to the beginning.
    agent.rewind(2).unwrap();
    let restarted = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    assert_eq!((&restarted.text, restarted.usage.prompt_tokens), (&one.text, prompt_tokens));
    agent.edit_turn(0, "Hi.").unwrap();
    let other = engine.agent_with(AgentSpec {
        turns: vec![Turn::new(Speaker::User, "Hello"), Turn::new(Speaker::Agent, "Hi.")],
        ..speaker(3, 12)
    });
    let third = engine.agent_with(speaker(3, 12));
    soon("the copy", third.copy_conversation(&agent)).await.unwrap();
    let asked = [&agent, &other, &third].map(|agent| agent.ask("And?"));
    let mut heard = Vec::new();
    for reply in asked {
        heard.push(soon("the end", reply.finish()).await.unwrap().text);
    }
    assert!(heard[0] == heard[1] && heard[1] == heard[2], "{heard:?}");
    agent.rewind(usize::MAX).unwrap();
    let none = soon("the end", agent.regenerate().finish()).await;
    assert_eq!(none.unwrap_err(), ReplyError::NoReply);
}

#[tokio::test]
async fn an_edit_that_a_later_conversation_replaces_has_no_effect() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(2, 8));
    for _ in 0..50 {
        agent.rewind(1).unwrap();
        agent.set_conversation(turns());
        agent.rewind(1).unwrap();
        agent.set_conversation(turns());
    }
    let restored = engine.agent_with(AgentSpec { turns: turns(), ..speaker(2, 8) });
    let both = async {
        (
            agent.ask("Go on.").finish().await.unwrap(),
            restored.ask("Go on.").finish().await.unwrap(),
        )
    };
    let (one, other) = working("both end", &clock, both).await;
    assert_eq!((&one.text, one.usage.prompt_tokens), (&other.text, other.usage.prompt_tokens));
}

#[tokio::test]
async fn forks_count_as_agents() {
    let (builder, _) = on(FaultPlan::new(0), EngineOptions { max_agents_parked: 1, ..options() });
    let engine = builder.start().await.unwrap();
    let agent = engine.agent_with(speaker(1, 4));
    let mut copies = Vec::new();
    let refused = loop {
        match soon("the fork", agent.fork()).await {
            Ok(copy) => copies.push(copy),
            Err(error) => break error,
        }
        assert!(copies.len() < 5_000, "no bound");
    };
    assert!(matches!(refused, ReplyError::TooManyAgents { .. }), "{refused}");
    // A fork whose future is dropped leaves no agent.
    copies.clear();
    eventually("the copies are gone", || engine.stats().agents == 1).await;
    for _ in 0..10 {
        drop(agent.fork());
        _ = poll(agent.fork(), Waker::noop());
    }
    eventually("there is one agent", || engine.stats().agents == 1).await;
    // The copies of dropped futures count until the engine's thread has taken them.
    let fork = async {
        loop {
            match agent.fork().await {
                Err(ReplyError::TooManyAgents { .. }) => tokio::task::yield_now().await,
                result => break result,
            }
        }
    };
    let copy = soon("the fork", fork).await.unwrap();
    assert!(soon("the end", copy.ask("?").finish()).await.is_ok());
}
