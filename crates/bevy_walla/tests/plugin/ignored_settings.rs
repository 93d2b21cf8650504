//! Settings and components without effect, and engines that do not start, are reported in the log.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use bevy_app::App;
use bevy_walla::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::common::echo;

/// Collects warnings and errors with their fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Fields<'a>(&'a mut String);
        impl Visit for Fields<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                write!(self.0, "{field}={value:?};").unwrap();
            }
        }
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The warnings of an app with this plugin.
fn warnings(plugin: WallaPlugin) -> String {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut app = App::new();
        app.add_plugins(plugin);
        app.world_mut().spawn(Memory::default());
        app.world_mut().spawn(Memory::default());
        app.update();
        app.update();
    });
    warnings.0.lock().unwrap().clone()
}

#[test]
fn an_engine_that_does_not_start_is_an_error() {
    for plugin in [WallaPlugin::model("no such file.gguf"), WallaPlugin::recording("no such file")]
    {
        let text = warnings(plugin);
        assert!(text.contains("no such file"), "{text}");
        assert_eq!(text.matches("there is no engine").count(), 1, "{text}");
    }
}

#[test]
fn memories_without_their_plugin_are_a_warning() {
    let text = warnings(WallaPlugin::with_engine_client(echo().new_client()));
    assert_eq!(text.matches("Memory has no effect without WallaMemoryPlugin").count(), 1, "{text}");
}

#[test]
fn settings_without_effect_are_a_warning() {
    let scripted = || WallaPlugin::with_engine_client(echo().new_client());
    let text = warnings(scripted().device("cpu").max_agents(4).free_running());
    assert!(text.contains("device, max_agents, free_running"), "{text}");
    assert!(text.contains("without effect"), "{text}");
    let text = warnings(scripted().settings(WallaSettings::default()));
    assert!(!text.contains("without effect"), "{text}");
}

/// Misuse without effect is reported once: an action without its type, a route without engines, and
/// an app that ends before the model has answered.
#[test]
fn silent_misuse_is_reported_once() {
    /// Waves.
    #[derive(serde::Deserialize, bevy_walla::schemars::JsonSchema)]
    #[schemars(crate = "bevy_walla::schemars")]
    struct Wave;

    let warned = |is_correct: bool, frames: usize| {
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            let mut app = App::new();
            app.add_plugins(WallaPlugin::with_engine_client(echo().new_client()));
            if is_correct {
                app.add_action::<Wave>();
            }
            for _ in 0..2 {
                let actions = Actions::new().allow::<Wave>();
                let mut agent = app.world_mut().spawn((Agent::persona("A"), actions));
                if !is_correct {
                    agent.insert(AgentEngine::named("cloud"));
                }
                let agent = agent.id();
                app.world_mut().trigger(Ask::new(agent, "Hello"));
            }
            (0..frames).for_each(|_| app.update());
        });
        let text = warnings.0.lock().unwrap().clone();
        ["no add_action", "AgentEngine has no effect", "needs a runner"]
            .map(|part| text.matches(part).count())
    };
    assert_eq!(warned(false, 1), [1, 1, 1]);
    assert_eq!(warned(false, 5), [1, 1, 0]);
    assert_eq!(warned(true, 5), [0, 0, 0]);
}

#[test]
fn memories_before_the_other_plugin_are_no_warning() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut app = App::new();
        app.add_plugins(WallaMemoryPlugin::default());
        app.world_mut().spawn(Memory::default());
        app.add_plugins(WallaPlugin::with_engine_client(echo().new_client()));
        app.finish();
        app.update();
    });
    assert_eq!(*warnings.0.lock().unwrap(), "");
}
