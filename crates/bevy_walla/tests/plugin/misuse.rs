//! Settings and components that contradict the app, and engines that do not start, are reported in
//! the log.

use bevy_app::App;
use bevy_ecs::message::Messages;
use bevy_walla::agent::AgentEngine;
use bevy_walla::engine::Pacing;
use bevy_walla::engines::{EngineSet, EngineSetup};
use bevy_walla::memories::AgentMemory;
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyError;
use bevy_walla::{EngineOptions, WallaError};
use walla_doubles::warnings;

use crate::common::echo;

/// The warnings of an app with this plugin.
fn warnings_of(plugin: WallaPlugin) -> String {
    warnings(|| {
        let mut app = App::new();
        app.add_plugins(plugin);
        app.world_mut().spawn(AgentMemory::default());
        app.world_mut().spawn(AgentMemory::default());
        app.update();
        app.update();
    })
}

#[test]
fn an_engine_that_does_not_start_is_an_error() {
    for plugin in [
        WallaPlugin::model("no such file.gguf"),
        WallaPlugin::new(EngineSetup::replay_from("no such file")),
    ] {
        let text = warnings_of(plugin);
        assert!(text.contains("no such file"), "{text}");
        assert_eq!(text.matches("there is no engine").count(), 1, "{text}");
    }
}

#[test]
fn memories_without_their_plugin_are_a_warning() {
    let text = warnings_of(WallaPlugin::new(&echo()));
    assert_eq!(
        text.matches("AgentMemory has no effect without WallaMemoryPlugin").count(),
        1,
        "{text}"
    );
}

/// Settings of an engine that the app does not have are refused, not ignored.
#[test]
fn a_pace_without_a_local_engine_is_an_error() {
    let app = |plugin: WallaPlugin| {
        let mut app = App::new();
        app.add_plugins(plugin);
        app.update();
        app.world().resource::<Walla>().state().clone()
    };
    let engine = echo();
    for pacing in [Pacing::FreeRunning, Pacing::PerFrame { steps: 2 }] {
        let state = app(WallaPlugin::new(&engine).pacing(pacing));
        assert!(matches!(state, WallaState::Failed(WallaError::NotPaced)), "{state:?}");
        let recording = WallaPlugin::new(EngineSetup::replay_from("no such file"));
        let state = app(recording.pacing(pacing));
        // A replay has the recorded pace, so the setting may stay.
        assert!(matches!(state, WallaState::Failed(WallaError::ModelNotFound { .. })), "{state:?}");
    }
    assert!(app(WallaPlugin::new(&engine)).is_ready());
    // Other engines may follow.
    let several = WallaPlugin::engines(EngineSet::new("default", &engine));
    assert!(app(several.pacing(Pacing::FreeRunning)).is_ready());
}

/// A route to an engine that an app with one engine cannot have.
#[test]
fn a_named_engine_in_an_app_with_one_is_an_error() {
    let errors = |route: Option<AgentEngine>| {
        let mut app = App::new();
        app.add_plugins(WallaPlugin::new(EngineOptions::new(ModelSource::Static(b"no model"))));
        let mut agent = app.world_mut().spawn(Agent::persona("A"));
        agent.insert_if_new(route.unwrap_or_default());
        let agent = agent.id();
        app.world_mut().trigger(Ask::new(agent, "Hello"));
        app.update();
        app.update();
        let mut failed = app.world_mut().resource_mut::<Messages<ReplyFailed>>();
        failed.drain().map(|failed| failed.error).collect::<Vec<_>>()
    };
    for route in [AgentEngine::named("cloud"), AgentEngine::named("cloud").or("default", None)] {
        let errors = errors(Some(route));
        assert!(matches!(&errors[..], [ReplyError::NoEngine { name }] if &**name == "cloud"));
    }
    assert!(!errors(None).iter().any(|error| matches!(error, ReplyError::NoEngine { .. })));
}

/// Misuse is reported once: an action without its type, and an app that ends before the model has
/// answered.
#[test]
fn silent_misuse_is_reported_once() {
    /// Waves.
    #[derive(serde::Deserialize, bevy_walla::actions::schemars::JsonSchema)]
    #[schemars(crate = "bevy_walla::actions::schemars")]
    struct Wave;

    let warned = |is_correct: bool, frames: usize| {
        let text = warnings(|| {
            let mut app = App::new();
            app.add_plugins(WallaPlugin::new(&echo()));
            if is_correct {
                app.add_action::<Wave>();
            }
            for _ in 0..2 {
                let actions = AgentActions::new().allow::<Wave>();
                let agent = app.world_mut().spawn((Agent::persona("A"), actions)).id();
                app.world_mut().trigger(Ask::new(agent, "Hello"));
            }
            (0..frames).for_each(|_| app.update());
        });
        ["no add_action", "needs a runner"].map(|part| text.matches(part).count())
    };
    assert_eq!(warned(false, 1), [1, 1]);
    assert_eq!(warned(false, 5), [1, 0]);
    assert_eq!(warned(true, 5), [0, 0]);
}

#[test]
fn memories_before_the_other_plugin_are_no_warning() {
    let text = warnings(|| {
        let mut app = App::new();
        app.add_plugins(WallaMemoryPlugin::default());
        app.world_mut().spawn(AgentMemory::default());
        app.add_plugins(WallaPlugin::new(&echo()));
        app.finish();
        app.update();
    });
    assert_eq!(text, "");
}
