//! The plugin and the async API together: one engine for both, and the same settings.

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
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
    app.add_plugins(WallaPlugin::with_engine(engine));
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
    let engine = walla::Engine::with_options(options()).start().await.expect("a model");
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
    let engine = walla::Engine::with_options(options()).start().await.expect("a model");
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
    app.add_plugins(WallaPlugin::with_options(options()).free_running());
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

/// Both APIs have the same defaults, except for the budget.
#[test]
fn defaults_are_the_same() {
    let plugin = WallaPlugin::model("m.gguf");
    let builder = walla::Engine::open("m.gguf");
    let expected = EngineOptions::new(ModelSource::Path("m.gguf".into()));
    assert_eq!(plugin.options(), Some(&expected));
    // A host without frames has no budget of a frame.
    assert_eq!(builder.options(), &EngineOptions { budget: FrameBudget::Unlimited, ..expected });
}

/// Every setting of the plugin is a setting of the builder, with the same effect.
#[test]
fn settings_are_the_same() {
    macro_rules! through_both {
        ($($setting:ident($value:expr)),* $(,)?) => {{
            let plugin = WallaPlugin::model("m.gguf")$(.$setting($value))*;
            let builder = walla::Engine::open("m.gguf")$(.$setting($value))*;
            (plugin.options().expect("it starts an engine").clone(), builder.options().clone())
        }};
    }
    let deadlines = bevy_walla::Deadlines { reply: Some(TIMEOUT), ..Default::default() };
    let millis = Duration::from_millis;
    let (of_plugin, of_builder) = through_both! {
        template("chatml"), device("cpu"), threads(3), gpu_context(walla::GpuContext::Separate),
        context_tokens(77), max_agents(5), wait_for_slot(false), max_agents_parked(6),
        kv_tokens(700), state_snapshots(8), max_prefill_tokens(9),
        kv_type(walla::KvType::Q8), budget(millis(3)),
        budget_carry(2), background_prefill(false), context_shift(true),
        prepare_constraints(false), max_launch(millis(1)), cost_cache("costs"), pre_tokenizer("qwen2"), fallback(false),
        deadlines(deadlines),
    };
    // Only free-running clients of the builder need this.
    assert_eq!(of_builder, EngineOptions { budget_free_running: true, ..of_plugin.clone() });
    // A new option is a setting of both, or is added to the last lines here.
    let EngineOptions {
        model: _,
        template,
        device,
        threads,
        gpu_context: _,
        context_tokens,
        max_agents,
        wait_for_slot,
        max_agents_parked,
        kv_tokens,
        state_snapshots,
        max_prefill_tokens,
        kv_type,
        budget,
        budget_carry,
        background_prefill,
        context_shift,
        prepare_constraints,
        max_launch,
        cost_cache,
        pre_tokenizer,
        fallback,
        deadlines: set_deadlines,
        // Only through `with_options`: for tests and special hosts.
        max_rows: _,
        command_queue: _,
        event_queue: _,
        budget_free_running: _,
        inline_text: _,
    } = of_plugin;
    assert_eq!(template, Some("chatml".into()));
    assert_eq!((device.as_str(), threads), ("cpu", Some(3)));
    assert_eq!((context_tokens, max_agents, max_agents_parked), (77, Some(5), 6));
    assert_eq!((wait_for_slot, fallback, background_prefill), (false, false, false));
    assert!(context_shift && !prepare_constraints);
    let sizes = (kv_tokens, state_snapshots, max_prefill_tokens);
    assert_eq!(sizes, (Some(700), Some(8), Some(9)));
    assert_eq!((kv_type, set_deadlines), (walla::KvType::Q8, deadlines));
    assert_eq!((budget, budget_carry), (FrameBudget::Time(millis(3)), Some(2)));
    assert_eq!(max_launch, Some(millis(1)));
    assert_eq!(cost_cache, Some("costs".into()));
    assert_eq!(pre_tokenizer.as_deref(), Some("qwen2"));
}
