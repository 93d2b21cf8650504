//! Replies as streams.

use walla::{
    AgentSpec, AskOptions, Constraint, Cues, EngineOptions, FinishReason, ModelSource, Prompt,
    ReplyError, ReplyEvent,
};
use walla_doubles::FaultPlan;
use walla_doubles::synth::{self, Dialect, Mixture, Model};

use crate::host::{begun, engine, held, on, options, soon, speaker, working};

#[tokio::test]
async fn two_concurrent_replies_equal_the_separate_ones() {
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
async fn finish_returns_the_rest_after_next() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(3, 30));
    let whole = agent.ask(Prompt::Raw("Once".into())).finish().await.unwrap().text;
    let mut reply = agent.ask(Prompt::Raw("Once".into()));
    let first = soon("a delta", reply.next()).await.unwrap().unwrap();
    assert!(!first.text().is_empty() && first.tokens() > 0);
    assert_eq!(reply.end(), None);
    let rest = soon("the end", reply.finish()).await.unwrap();
    assert_eq!(format!("{}{}", first.text(), rest.text), whole);
}

/// A reply of a local engine with a given text.
#[tokio::test]
async fn cues_are_apart_from_speech() {
    let engine = engine().await;
    let text = "*grins* Three silver (sighs), no less!";
    let constraint = Constraint::choice([text]);
    let agent = engine.agent_with(AgentSpec { constraint: Some(constraint), ..AgentSpec::new("") });
    let cues = Cues::new().with_cue("smile", ["grins"]).with_cue("sigh", ["sighs"]);
    let mut reply = agent.ask("Hello!").with_cues(cues.clone());
    let mut tokens = 0;
    let mut speech = String::new();
    while let Some(delta) = soon("a delta", reply.next()).await {
        let delta = delta.unwrap();
        speech.push_str(delta.text());
        tokens += delta.tokens();
    }
    assert_eq!(speech, "Three silver , no less!");
    let found: Vec<_> = reply.cues().iter().map(|cue| (&*cue.name, cue.at_bytes)).collect();
    assert_eq!(found, [("smile", 0), ("sigh", 13)]);
    assert_eq!(reply.spoken_reply_bytes("Three".len()), "*grins* Three".len());
    assert_eq!(reply.end().unwrap().1.reply_tokens, tokens);
    let again = agent.ask("Again?").with_cues(cues);
    let finished = soon("the end", again.finish()).await.unwrap();
    assert_eq!((&*finished.text, finished.cues.len()), (&*speech, 2));
    let whole = soon("the end", agent.ask("And?").finish()).await.unwrap();
    assert_eq!((&*whole.text, whole.cues.len()), (text, 0), "the conversation has them");
}

#[tokio::test]
async fn cancel_keeps_the_generated_text() {
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

/// The device is held, so the first reply cannot have ended when the second begins.
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
            ReplyEvent::Token(logprobs) => {
                drawn += 1;
                assert!(logprobs.log_probability <= 0.0 && logprobs.candidates.len() == 3);
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
async fn a_failure_is_returned_once_by_next_and_again_by_finish() {
    let engine = engine().await;
    let agent = engine.agent_with(speaker(7, 5));
    let mut reply = agent.ask(Prompt::Raw(String::new()));
    let error = soon("the end", reply.next()).await.unwrap().unwrap_err();
    assert_eq!(error, ReplyError::Text("the prompt is empty".into()));
    assert!(reply.next().await.is_none());
    assert_eq!((reply.end(), reply.finish().await), (None, Err(error)));
}

/// Engine options for a model whose template opens a block of reasoning.
fn reasoning() -> EngineOptions {
    let template =
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}<|im_start|><think>\n";
    let dialect = Dialect { template, special: &["<think>", "</think>"] };
    let bytes = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
    EngineOptions { model: ModelSource::Static(bytes.unwrap().leak()), ..options() }
}

#[tokio::test]
async fn reasoning_is_an_event_and_a_field_but_no_delta() {
    let engine = on(FaultPlan::new(0), reasoning()).0.start().await.unwrap();
    assert!(engine.model().unwrap().reasoning && !engine.model().unwrap().thinking_switch);
    let agent = engine.agent_with(AgentSpec { max_reasoning_tokens: 9, ..speaker(3, 20) });
    let whole = soon("the end", agent.ask("Hi").finish()).await.unwrap();
    assert_eq!((whole.text.len(), whole.reasoning.len()), (20, 9));
    assert_eq!((whole.usage.reply_tokens, whole.usage.reasoning_tokens), (20, 9));
    assert_eq!(whole.reason, FinishReason::Length);

    // Event by event.
    let agent = engine.agent_with(AgentSpec { max_reasoning_tokens: 9, ..speaker(3, 20) });
    let mut reply = agent.ask("Hi");
    let (mut speech, mut reasoning) = (String::new(), String::new());
    while let Some(event) = soon("an event", reply.next_event()).await {
        match event {
            ReplyEvent::Delta { text, .. } => speech.push_str(&text),
            ReplyEvent::Reasoning { text, .. } => {
                assert_eq!(speech, "", "reasoning comes first");
                reasoning.push_str(&text);
                assert_eq!(reply.reasoning(), reasoning);
            }
            _ => {}
        }
    }
    assert_eq!((&speech, &reasoning), (&whole.text, &whole.reasoning));

    // Delta by delta.
    let agent = engine.agent_with(AgentSpec { max_reasoning_tokens: 9, ..speaker(3, 20) });
    let mut reply = agent.ask("Hi");
    let first = soon("a delta", reply.next()).await.unwrap().unwrap();
    assert!(whole.text.starts_with(first.text()) && !first.text().is_empty());
    assert_eq!(reply.reasoning(), whole.reasoning);
    let rest = soon("the end", reply.finish()).await.unwrap();
    assert_eq!(format!("{}{}", first.text(), rest.text), whole.text);
    assert_eq!(rest.reasoning, whole.reasoning);
}

#[tokio::test]
async fn a_reply_cancelled_during_reasoning_has_no_text() {
    let (engine, clock) = held(reasoning()).await;
    let agent = engine.agent_with(AgentSpec { max_reasoning_tokens: 200, ..speaker(4, 20) });
    let mut reply = agent.ask("Hi");
    let reasons = async {
        loop {
            if let Some(ReplyEvent::Reasoning { .. }) = reply.next_event().await {
                return;
            }
        }
    };
    working("reasoning", &clock, reasons).await;
    reply.cancel();
    let end = soon("the end", reply.finish()).await.unwrap();
    assert_eq!((end.reason, &*end.text), (FinishReason::Cancelled, ""));
    assert!(!end.reasoning.is_empty());
}

#[tokio::test]
async fn texts_are_scored_behind_prompts() {
    let engine = engine().await;
    let lines = ["Halt!", "Welcome.", "", "Halt! Who goes there?"];
    let scores = engine.score("The guard says: ", lines).await.unwrap();
    assert!(scores.iter().map(|score| score.index).eq(0..4));
    assert!(scores[3].log_probability < scores[0].log_probability && scores[2].tokens == 0);
    assert!(scores[0].per_token() < 0.0);

    let guard = engine.agent_with(speaker(1, 5));
    let question = || Prompt::Chat("Who are you?".into());
    let first = guard.score(question(), lines).await.unwrap();
    let reply = guard.ask("Who are you?").finish().await.unwrap();
    assert_eq!((reply.scores.len(), first.len()), (0, 4));
    let options = AskOptions::score(lines);
    let finished = guard.ask_with(Prompt::Continue, options).finish().await.unwrap();
    assert_eq!((finished.reason, finished.text.as_str()), (FinishReason::Scored, ""));
    assert_eq!(finished.scores.len(), 4);
    let refused = guard.score(Prompt::Again, lines).await.unwrap_err();
    assert_eq!(refused, ReplyError::Unsupported(walla::Unsupported::Scores));
    // Many texts are scored by several agents, with the same bits in the same order.
    let words: Vec<String> = (0..50).map(|n| format!("{}!", "halt ".repeat(n % 7))).collect();
    let many = engine.score("The guard says: ", &words).await.unwrap();
    let prompt = Prompt::Raw("The guard says: ".into());
    assert_eq!(many, engine.agent("").score(prompt, &words).await.unwrap());
    assert!(engine.score("Halt", [""; 0]).await.unwrap().is_empty());
    // A dropped future cancels.
    drop(guard.score(question(), ["x".repeat(300)]));
    assert_eq!(guard.ask("And now?").finish().await.unwrap().reason, FinishReason::Length);
}
