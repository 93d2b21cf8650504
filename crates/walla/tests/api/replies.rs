//! Replies as streams.

use walla::{FinishReason, Prompt, ReplyError, ReplyEvent};

use crate::host::{begun, engine, held, options, soon, speaker, working};

#[tokio::test]
async fn two_at_once_say_what_each_says_alone() {
    let engine = engine().await;
    let say = async |seed| {
        let agent = engine.agent_with(speaker(seed, 40));
        soon("it ends", agent.ask("Who are you?").finish()).await.unwrap()
    };
    let alone = [say(1).await.text, say(2).await.text];
    let (one, two) = tokio::join!(say(1), say(2));
    assert_eq!([one.text, two.text], alone);
    assert_ne!(alone[0], alone[1]);
    assert_eq!(
        (one.reason, one.usage.reply_tokens, alone[0].len()),
        (FinishReason::Length, 40, 40)
    );
}

#[tokio::test]
async fn finish_returns_what_next_has_not() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(3, 30));
    let whole = agent.ask_with(Prompt::Raw("Once".into())).finish().await.unwrap().text;
    let mut reply = agent.ask_with(Prompt::Raw("Once".into()));
    let first = soon("a delta", reply.next()).await.unwrap().unwrap();
    assert!(!first.text().is_empty() && first.tokens() > 0);
    assert_eq!(reply.end(), None);
    let rest = soon("the end", reply.finish()).await.unwrap();
    assert_eq!(format!("{}{}", first.text(), rest.text), whole);
}

#[tokio::test]
async fn cancel_keeps_what_was_said() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(4, 400));
    let mut reply = agent.ask("Tell me a story.");
    let first = working("a delta", &clock, reply.next()).await.unwrap().unwrap();
    let mut tokens = first.tokens();
    reply.cancel();
    while let Some(delta) = soon("the end", reply.next()).await {
        tokens += delta.unwrap().tokens();
    }
    let (reason, usage) = reply.end().unwrap();
    assert_eq!((reason, usage.reply_tokens), (FinishReason::Cancelled, tokens));
    assert!(tokens < 400);
    reply.cancel(); // Without effect.
    assert!(soon("the end", reply.next()).await.is_none());
}

/// The device stands still, so the first reply cannot have ended by itself when the second begins.
#[tokio::test]
async fn a_dropped_reply_is_cancelled() {
    let (engine, clock) = held(options()).await;
    let agent = engine.agent_with(speaker(5, 400));
    let mut first = agent.ask("Tell me a story.");
    working("a delta", &clock, first.next()).await.unwrap().unwrap();
    let mut second = agent.ask("Stop that.");
    drop(first);
    begun(&mut second).await;
    assert!(engine.stats().tokens < 400);
}

#[tokio::test]
async fn each_token_comes_with_its_candidates_before_its_text() {
    let engine = engine().await;
    let mut spec = speaker(6, 20);
    let mask = spec.sampling.allowed_tokens().cloned();
    let sampling = walla::Sampling::builder().candidates(3).allowed_tokens(mask);
    spec.sampling = sampling.build().unwrap();
    let agent = engine.agent_with(spec);
    let mut reply = agent.ask("Who are you?");
    begun(&mut reply).await;
    let (mut drawn, mut said) = (0, 0);
    let end = loop {
        match soon("an event", reply.next_event()).await.unwrap() {
            ReplyEvent::Token(detail) => {
                drawn += 1;
                assert!(detail.log_probability <= 0.0 && detail.candidates.len() == 3);
            }
            ReplyEvent::Delta { tokens, .. } => {
                said += tokens;
                assert!(said <= drawn, "{said} of {drawn}");
            }
            ReplyEvent::Finished { usage, .. } => break usage,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((drawn, said, end.reply_tokens), (20, 20, 20));
    assert_eq!(reply.next_event().await, None);
    assert_eq!(reply.end().unwrap().1, end);
}

#[tokio::test]
async fn a_failure_is_told_once_by_next_and_again_by_finish() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(7, 5));
    let mut reply = agent.ask_with(Prompt::Raw(String::new()));
    let error = soon("the end", reply.next()).await.unwrap().unwrap_err();
    assert_eq!(error, ReplyError::Text("the prompt is empty".into()));
    assert!(reply.next().await.is_none());
    assert_eq!((reply.end(), reply.finish().await), (None, Err(error)));
}
