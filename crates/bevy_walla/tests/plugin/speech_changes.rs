//! `Changed<Speech>` reports only changes of the speech.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::agent::AgentReasoning;
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{
    Capabilities, Command, EngineClient, EngineState, Event as EngineEvent, ReplyEvent,
    TrySendError,
};
use bevy_walla::engines::EngineSetup;
use bevy_walla::prelude::*;
use bevy_walla::reply::{ReplyToken, SpeechState, TokenLogprobs};
use bevy_walla::scripted::ScriptedEngine;
use bevy_walla::tokens::TokenId;

/// Number of changes of speeches that systems in `Update` have seen.
#[derive(Resource, Default)]
struct Changes(usize);

/// An agent that reasons for a hundred words, after the first of them.
fn reasoning(plugin: impl Fn(&ScriptedEngine) -> WallaPlugin) -> (App, ScriptedEngine, Entity) {
    let engine =
        ScriptedEngine::new(|_, _| "Three silver.".into()).reasoning(|_, _| "Hm. ".repeat(100));
    let settings = WallaSettings { max_asks_per_agent: 1, ..WallaSettings::default() };
    let mut app = app_with(plugin(&engine).settings(settings));
    app.init_resource::<Changes>().add_systems(
        Update,
        |speeches: Query<(), Changed<Speech>>, mut changes: ResMut<Changes>| {
            changes.0 += speeches.iter().count();
        },
    );
    let greta = app.world_mut().spawn((Agent::persona("Greta"), AgentReasoning::thinking(99))).id();
    ask(&mut app, greta, "How much?");
    updates(&mut app, 4);
    assert_eq!(speech(&app, greta).state(), SpeechState::Thinking);
    app.world_mut().resource_mut::<Changes>().0 = 0;
    (app, engine, greta)
}

#[test]
fn reasoning_and_refused_asks_are_no_change() {
    let scripted = |engine: &ScriptedEngine| WallaPlugin::new(engine);
    let (mut app, _, greta) = reasoning(scripted);
    let before = log(&app).only("reasoning").len();
    ask(&mut app, greta, "And a sword?");
    updates(&mut app, 10);
    assert_eq!(log(&app).only("failed").len(), 1);
    assert_eq!(log(&app).only("reasoning").len(), before + 10);
    assert_eq!(app.world().resource::<Changes>().0, 0);
    updates(&mut app, 120);
    assert_eq!(app.world().resource::<Changes>().0, 3, "two deltas and the end");
    assert!(speech(&app, greta).is_silent());
}

/// Events that a test adds to the engine's.
type Added = Arc<Mutex<VecDeque<EngineEvent>>>;

struct Adding(Box<dyn EngineClient>, Added);

impl EngineClient for Adding {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.0.try_send(command)
    }

    fn try_recv(&self) -> Option<EngineEvent> {
        self.1.lock().unwrap().pop_front().or_else(|| self.0.try_recv())
    }

    fn frame(&self) {
        self.0.frame();
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn state(&self) -> EngineState {
        self.0.state()
    }

    fn stats(&self) -> EngineStats {
        self.0.stats()
    }
}

#[test]
fn tokens_are_no_change() {
    let added = Added::default();
    let (mut app, engine, _) = reasoning(|engine| {
        let (scripted, added) = (engine.new_client(), Arc::clone(&added));
        WallaPlugin::new(EngineSetup::client(move || -> Box<dyn EngineClient> {
            Box::new(Adding(scripted(), Arc::clone(&added)))
        }))
    });
    let commands = engine.commands();
    let Some(&Command::Ask { agent, reply_id, .. }) = commands.last() else {
        panic!("{commands:?}")
    };
    let logprobs =
        TokenLogprobs { token: TokenId(1), log_probability: 0.0, candidates: Vec::new() };
    let what = ReplyEvent::Token(Box::new(logprobs));
    added.lock().unwrap().push_back(EngineEvent { agent, reply_id, what });
    updates(&mut app, 1);
    assert_eq!(messages::<ReplyToken>(&app), 1);
    assert_eq!(app.world().resource::<Changes>().0, 0);
}
