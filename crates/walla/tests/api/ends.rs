//! Engines that end: no text of a reply is lost, and the reason is reported.

use std::sync::Arc;

use walla::{EngineError, EngineOptions, EngineState, Reply, ReplyError};
use walla_doubles::{FaultPlan, VirtualClock};

use crate::host::{
    BlockingWaker, begun, block_dispatcher, engine, eventually, held, on, options, soon, speaker,
    working,
};

/// The tokens that the reply still produces, and its error.
async fn rest(mut reply: Reply) -> (u64, Option<ReplyError>) {
    let mut tokens = 0;
    while let Some(delta) = soon("the end", reply.next()).await {
        match delta {
            Ok(delta) => tokens += u64::from(delta.tokens()),
            Err(error) => return (tokens, Some(error)),
        }
    }
    (tokens, None)
}

#[tokio::test]
async fn a_lost_device_is_the_reason_of_every_reply() {
    for _ in 0..5 {
        // No reply ends before the device is lost.
        let clock = VirtualClock::new();
        let plan = FaultPlan::new(0).delay_micros(1..=1).clock(&clock);
        let (builder, device) = on(plan, options());
        let engine = builder.start().await.unwrap();
        let agents: Vec<_> = (0..3).map(|seed| engine.agent_with(speaker(seed, 400))).collect();
        let mut replies: Vec<_> = agents.iter().map(|agent| agent.ask("Hello")).collect();
        replies.extend(agents.iter().map(|agent| agent.ask("And then?")));
        working("a delta", &clock, replies[0].next()).await.unwrap().unwrap();
        device.lose();
        // The first may fail by the engine's event, the second by its closed queue.
        replies.push(agents[0].ask("Are you there?"));
        for reply in replies {
            let (_, end) = working("the end", &clock, rest(reply)).await;
            let Some(ReplyError::EngineGone(reason)) = end else { panic!("{end:?}") };
            assert!(reason.starts_with("device lost in"), "{reason}");
        }
        let EngineState::Failed(error) = engine.state() else { panic!("{:?}", engine.state()) };
        let late = soon("the end", agents[1].ask("And now?").finish()).await;
        assert_eq!(late, Err(ReplyError::EngineGone(error.to_string())));
    }
}

/// The engine ends long before its last events are passed on, which do not fit in its queue of two
/// events.
#[tokio::test]
async fn all_events_before_the_end_are_delivered() {
    let (engine, clock) = held(EngineOptions { event_queue: 2, ..options() }).await;
    let (one, two) = (engine.agent_with(speaker(1, 400)), engine.agent_with(speaker(2, 400)));
    let mut replies = [one.ask("Hello"), two.ask("Hello")];
    for reply in &mut replies {
        begun(reply).await;
    }
    let blocker = Arc::new(BlockingWaker::default());
    block_dispatcher(&mut replies[0], &blocker, &clock).await;
    eventually("the queue is full", || {
        clock.advance(1);
        engine.stats().queue_full > 0
    })
    .await;
    let stop = tokio::spawn({
        let engine = engine.clone();
        async move { engine.stop().await }
    });
    eventually("it is over", || {
        clock.advance(1);
        matches!(engine.state(), EngineState::Stopped)
    })
    .await;
    // An agent that is dropped now finds a closed queue.
    drop(one);
    blocker.release();
    let mut tokens = 0;
    for reply in replies {
        let (said, end) = rest(reply).await;
        assert_eq!(end, Some(ReplyError::EngineGone("the engine was stopped".into())));
        tokens += said;
    }
    assert_eq!(tokens, engine.stats().tokens);
    soon("it has stopped", stop).await.unwrap();
}

#[tokio::test]
async fn asks_of_a_stopped_engine_fail_with_stopped() {
    let (engine, _clock) = held(options()).await;
    let agent = engine.agent_with(speaker(1, 400));
    let asked = agent.ask("Hello");
    soon("it stops", engine.stop()).await;
    let expected = ReplyError::EngineGone("the engine was stopped".into());
    assert_eq!(rest(asked).await.1, Some(expected.clone()));
    assert_eq!(soon("the end", agent.ask("Hello").finish()).await, Err(expected));
    soon("it stops again", engine.stop()).await;
}

#[tokio::test]
async fn a_failed_load_has_a_reason() {
    let (builder, _device) = on(FaultPlan::new(0).max_memory_bytes(10_000), options());
    let error = soon("it fails", builder.start()).await.unwrap_err();
    assert!(matches!(&error, EngineError::NotLoaded(_)), "{error}");
    assert!(error.to_string().contains("10000") || error.to_string().contains("memory"), "{error}");
    let (builder, _device) =
        on(FaultPlan::new(0), EngineOptions { max_agents: Some(0), ..options() });
    let error = soon("it fails", builder.start()).await.unwrap_err();
    assert!(error.to_string().contains("max_agents"), "{error}");
}

#[tokio::test]
async fn commands_beyond_the_queue_are_delivered_in_order() {
    let small = EngineOptions { command_queue: 2, event_queue: 2, ..options() };
    let engine = on(FaultPlan::new(0), small).0.start().await.unwrap();
    let agents: Vec<_> = (0..4).map(|seed| engine.agent_with(speaker(seed, 3))).collect();
    let mut replies = Vec::new();
    for round in 0..6 {
        for (n, agent) in agents.iter().enumerate() {
            agent.change(speaker(n as u64, 3 + round));
            replies.push((3 + round, agent.ask("Go on.")));
        }
    }
    for (tokens, reply) in replies {
        // A change applies to every reply that has not begun, so a reply may have the length of a
        // later one.
        let said = soon("the end", reply.finish()).await.unwrap().usage.reply_tokens;
        assert!((tokens..9).contains(&said), "{said} of {tokens}");
    }
}

struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the host");
    }
}

/// A host's waker that panics runs on the thread that passes events on. Its own reply loses a
/// wake-up; everything else continues.
/// A silent engine: no event wakes the dispatcher, which finds its queue full again and again.
#[tokio::test]
async fn asks_beyond_a_small_queue_arrive_without_further_events() {
    let options = EngineOptions { command_queue: 2, max_agents: Some(1), ..options() };
    let (engine, _clock) = held(options).await;
    for round in 1..=5 {
        let agents: Vec<_> = (0..100).map(|seed| engine.agent_with(speaker(seed, 300))).collect();
        let ask = |n: usize| agents[n % agents.len()].ask("What do you sell?");
        let replies: Vec<_> = (0..700).map(ask).collect();
        let waiting = || engine.stats().asks_waiting;
        eventually("the engine has them", || waiting() >= 699).await;
        drop((replies, agents));
        eventually(&format!("they are cancelled in round {round}"), || waiting() == 0).await;
    }
}

#[tokio::test]
async fn a_panicking_waker_does_not_affect_other_replies() {
    let engine = engine().await;
    let agents = [engine.agent_with(speaker(1, 12)), engine.agent_with(speaker(2, 12))];
    for _ in 0..3 {
        let (mut hostile, other) = (agents[0].ask("Hello"), agents[1].ask("Hello"));
        let waker = std::task::Waker::from(Arc::new(Panics));
        let mut context = std::task::Context::from_waker(&waker);
        let polled = std::pin::pin!(hostile.next()).as_mut().poll(&mut context);
        assert!(polled.is_pending() || matches!(polled, std::task::Poll::Ready(Some(Ok(_)))));
        soon("the other reply", other.finish()).await.unwrap();
        // No text of the reply itself is lost.
        let (_, end) = rest(hostile).await;
        assert_eq!(end, None);
    }
    assert!(engine.state().is_ready());
    soon("the end", engine.stop()).await;
    assert!(matches!(engine.state(), EngineState::Stopped));
}
