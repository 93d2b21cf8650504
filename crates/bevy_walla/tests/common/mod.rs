//! A headless app with agents from a script, where ambiguous system order is an error.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod dice;

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::{LogLevel, ScheduleBuildSettings};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

/// All events of replies, one line each, in order.
#[derive(Resource, Default)]
pub struct Log(pub Vec<String>);

/// Agents answer `<persona>: <question>`.
pub fn echo() -> ScriptedEngine {
    ScriptedEngine::new(|persona, question| format!("{persona}: {question}"))
}

/// Timeout of the engine in a test.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs frames until `done`.
pub fn run_until(app: &mut App, done: impl Fn(&App) -> bool) {
    let start = Instant::now();
    while !done(app) {
        assert!(start.elapsed() < TIMEOUT, "no end: {:?}", log(app).0);
        app.update();
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub fn app(engine: &ScriptedEngine) -> App {
    app_with(WallaPlugin::with_engine_client(engine.new_client()))
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
