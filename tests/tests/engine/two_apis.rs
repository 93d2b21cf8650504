//! The plugin and the async API together: one engine for both.

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::engine::Pacing;
use bevy_walla::prelude::*;
use walla::{AgentSpec, EngineOptions, FrameBudget, ModelSource};
use walla_doubles::synth::{self, Mixture, Model};

/// Timeout, longer than any reply takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn options() -> EngineOptions {
    let model = synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).expect("a model");
    EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(4),
        context_tokens: 256,
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(Vec::leak(model)))
    }
}

fn app(engine: walla::RuntimeEngine) -> App {
    let mut app = App::new();
    app.add_plugins(WallaPlugin::new(engine));
    app
}

fn ask(app: &mut App) -> Entity {
    let agent = (Agent::persona("You are Greta."), ReplyLimits::tokens(30));
    let agent = app.world_mut().spawn(agent).id();
    app.world_mut().trigger(Ask::new(agent, "What does a horseshoe cost?"));
    agent
}

/// Runs frames until the agent is silent; other tasks run in between.
async fn answered(app: &mut App, agent: Entity) {
    let start = Instant::now();
    loop {
        app.update();
        if app.world().get::<Speech>(agent).is_some_and(Speech::is_silent) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "no end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn end(reply: walla::Reply) -> walla::Finished {
    tokio::time::timeout(TIMEOUT, reply.finish()).await.expect("an end").expect("no failure")
}

fn robot() -> AgentSpec {
    AgentSpec { max_reply_tokens: 30, ..AgentSpec::new("You are a robot.") }
}

/// An ask through each API, at the same time.
async fn both_reply(engine: &walla::Engine, app: &mut App) {
    let robot = engine.agent_with(robot());
    let reply = robot.ask("Bring this to the kitchen.");
    let greta = ask(app);
    let (finished, ()) = tokio::join!(end(reply), answered(app, greta));
    assert!(finished.usage.prompt_tokens > 0);
    let conversation = app.world().get::<Conversation>(greta).expect("an agent has one");
    assert_eq!(conversation.turns().len(), 2);
    assert_eq!(engine.stats().agents, 2, "both are agents of one engine");
    app.world_mut().despawn(greta);
    app.update();
}

#[tokio::test]
async fn an_engine_of_the_async_api_also_serves_an_app() {
    let engine = walla::Engine::start(options()).await.expect("a model");
    let mut app = app(engine.runtime().unwrap().clone());
    both_reply(&engine, &mut app).await;
    // The app continues without the async API.
    drop(engine);
    let greta = ask(&mut app);
    answered(&mut app, greta).await;
    assert_eq!(app.world().get::<Conversation>(greta).map(|talk| talk.turns().len()), Some(2));
    assert!(app.world().resource::<Walla>().is_ready());
}

#[tokio::test]
async fn the_async_api_continues_without_the_app() {
    let engine = walla::Engine::start(options()).await.expect("a model");
    let mut app = app(engine.runtime().unwrap().clone());
    both_reply(&engine, &mut app).await;
    ask(&mut app);
    app.update();
    drop(app);
    let robot = engine.agent_with(robot());
    assert!(end(robot.ask("And back.")).await.usage.prompt_tokens > 0);
    assert!(matches!(engine.state(), walla::EngineState::Ready));
}

#[tokio::test]
async fn an_engine_of_an_app_also_serves_the_async_api() {
    let mut app = App::new();
    app.add_plugins(WallaPlugin::new(options()).pacing(Pacing::FreeRunning));
    let engine = app.world().resource::<Walla>().engine().expect("an engine").clone();
    // The model is still being loaded: the ask waits.
    let engine = walla::Engine::join(engine).expect("it runs");
    both_reply(&engine, &mut app).await;
    drop(app);
    let robot = engine.agent_with(robot());
    assert!(end(robot.ask("And back.")).await.usage.prompt_tokens > 0);
    engine.stop().await;
    assert!(walla::Engine::join(engine.runtime().unwrap().clone()).is_err());
}
