//! A headless app with agents from a script, where ambiguous system order is an error.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod dice;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::{LogLevel, ScheduleBuildSettings};
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{Capabilities, Command, EngineClient, EngineState, Event, TrySendError};
use bevy_walla::engines::EngineSetup;
use bevy_walla::prelude::*;
use bevy_walla::reply::{FinishReason, FirstTokenTimes, ReplyId, ReplyReasoning, Usage};
use bevy_walla::scripted::ScriptedEngine;

/// All events of replies, one line each, in order.
#[derive(Resource, Default)]
pub struct Log(pub Vec<String>);

/// Agents answer `<persona>: <question>`.
pub fn echo() -> ScriptedEngine {
    ScriptedEngine::new(|persona, question| format!("{persona}: {question}"))
}

/// Timeout of the engine in a test.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs frames until `done`.
pub fn run_until(app: &mut App, mut done: impl FnMut(&App) -> bool) {
    let start = Instant::now();
    while !done(app) {
        assert!(start.elapsed() < TIMEOUT, "no end: {:?}", log(app).0);
        app.update();
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A client whose engine evaluates ten tokens in the background each time its counters are read.
pub struct BackgroundClient {
    engine: ScriptedEngine,
    tokens: AtomicU64,
}

impl BackgroundClient {
    pub fn plugin(engine: &ScriptedEngine) -> WallaPlugin {
        let engine = engine.clone();
        WallaPlugin::new(EngineSetup::client(move || {
            Box::new(Self { engine: engine.clone(), tokens: AtomicU64::new(0) })
        }))
    }
}

impl EngineClient for BackgroundClient {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.engine.try_send(command)
    }

    fn try_recv(&self) -> Option<Event> {
        self.engine.try_recv()
    }

    fn frame(&self) {
        self.engine.frame();
    }

    fn stop(&self) {
        self.engine.stop();
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn state(&self) -> EngineState {
        self.engine.state()
    }

    fn stats(&self) -> EngineStats {
        let background_tokens = self.tokens.fetch_add(10, Ordering::Relaxed) + 10;
        EngineStats { background_tokens, ..self.engine.stats() }
    }
}

/// Usage of a reply with these parts of the time to its first token, in microseconds: waiting,
/// encoding, prefill, decode.
pub fn usage_with(
    [waiting_micros, encoding_micros, prefill_micros, decode_micros]: [u64; 4],
) -> Usage {
    let first_token =
        FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros };
    let first_token_micros = waiting_micros + encoding_micros + prefill_micros + decode_micros;
    Usage { first_token_micros, first_token, ..Usage::default() }
}

/// Publishes the end of a reply, as the plugin does.
pub fn end_reply(app: &mut App, usage: Usage) {
    let (agent, reply_id) = (Entity::PLACEHOLDER, ReplyId(1));
    let reason = FinishReason::EndOfTurn;
    app.world_mut().write_message(ReplyFinished { agent, reply_id, tag: 0, reason, usage });
}

pub fn app(engine: &ScriptedEngine) -> App {
    app_with(WallaPlugin::new(engine))
}

pub fn app_with(plugin: WallaPlugin) -> App {
    let mut app = App::new();
    app.add_plugins(plugin).init_resource::<Log>();
    app.configure_schedules(ScheduleBuildSettings {
        ambiguity_detection: LogLevel::Error,
        hierarchy_detection: LogLevel::Error,
        ..ScheduleBuildSettings::default()
    });
    app.add_observer(|e: On<ReplyStarted>, mut log: ResMut<Log>| log.add("started", e.agent, ""))
        .add_observer(|e: On<ReplyDelta>, mut log: ResMut<Log>| log.add("delta", e.agent, &e.text))
        .add_observer(|e: On<ReplyReasoning>, mut log: ResMut<Log>| {
            log.add("reasoning", e.agent, &e.text);
        })
        .add_observer(|e: On<ReplySentence>, mut log: ResMut<Log>| {
            log.add("sentence", e.agent, &e.text);
        })
        .add_observer(|e: On<ReplyFinished>, mut log: ResMut<Log>| {
            log.add("finished", e.agent, &format!("{:?}", e.reason));
        })
        .add_observer(|e: On<ReplyFailed>, mut log: ResMut<Log>| {
            log.add("failed", e.agent, &e.error.to_string());
        });
    app
}

impl Log {
    fn add(&mut self, what: &str, _agent: Entity, text: &str) {
        self.0.push(format!("{what} {text}").trim_end().to_owned());
    }

    /// The lines with this prefix, without it.
    pub fn only(&self, what: &str) -> Vec<&str> {
        self.0.iter().filter_map(|line| line.strip_prefix(what)).map(str::trim).collect()
    }

    /// How many replies have ended.
    pub fn ends(&self) -> usize {
        self.only("finished").len() + self.only("failed").len()
    }
}

pub fn updates(app: &mut App, frames: usize) {
    for _ in 0..frames {
        app.update();
    }
}

pub fn spawn(app: &mut App, persona: &str) -> Entity {
    app.world_mut().spawn(Agent::persona(persona)).id()
}

pub fn ask(app: &mut App, agent: Entity, text: &str) {
    app.world_mut().trigger(Ask::new(agent, text));
}

pub fn turns(app: &App, agent: Entity) -> Vec<String> {
    let talk = app.world().get::<Conversation>(agent).expect("an agent has a conversation");
    talk.turns().iter().map(|turn| turn.text.clone()).collect()
}

pub fn speech(app: &App, agent: Entity) -> &Speech {
    app.world().get::<Speech>(agent).expect("an agent has a speech")
}

pub fn log(app: &App) -> &Log {
    app.world().resource::<Log>()
}

pub fn messages<M: Message>(app: &App) -> usize {
    app.world().resource::<Messages<M>>().len()
}
