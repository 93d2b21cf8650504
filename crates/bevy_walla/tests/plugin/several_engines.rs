//! Several engines in an app.

use std::time::Duration;

use bevy_app::prelude::*;
use bevy_diagnostic::DiagnosticsStore;
use bevy_ecs::prelude::*;
use bevy_walla::agent::AgentEngine;
use bevy_walla::engine::EngineState;
use bevy_walla::engines::{
    EngineSet, EngineSetup, EnginesError, Health, ReplyInProgress, Route, WallaEngineFailed,
    WallaEngineReady, WallaEngines,
};
use bevy_walla::lod::{LodRoutes, RoutedByLod, WallaLodRoutingPlugin};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use bevy_walla::{EngineOptions, WallaError};

use crate::common::{app_with, ask, log, messages, run_until, spawn, turns, updates};

/// Agents answer `<name>: <question>`.
fn named(name: &'static str) -> ScriptedEngine {
    ScriptedEngine::new(move |_, question| format!("{name}: {question}"))
}

struct Rig {
    app: App,
    small: ScriptedEngine,
    large: ScriptedEngine,
}

fn rig() -> Rig {
    let (small, large) = (named("small"), named("large"));
    let engines = EngineSet::new("small", &small).with("large", &large);
    Rig { app: app_with(WallaPlugin::engines(engines)), small, large }
}

impl Rig {
    /// The answer to a question.
    fn answer(&mut self, agent: Entity, question: &str) -> String {
        let ends = log(&self.app).ends();
        ask(&mut self.app, agent, question);
        run_until(&mut self.app, |app| log(app).ends() > ends);
        turns(&self.app, agent).last().cloned().unwrap_or_default()
    }

    fn agent(&mut self, engine: AgentEngine) -> Entity {
        self.app.world_mut().spawn((Agent::persona("p"), engine)).id()
    }

    fn engines(&mut self) -> Mut<'_, WallaEngines> {
        self.app.world_mut().resource_mut::<WallaEngines>()
    }
}

#[test]
fn a_component_chooses_the_engine_and_the_conversation_moves_along() {
    let mut rig = rig();
    let greta = spawn(&mut rig.app, "Greta");
    assert_eq!(rig.answer(greta, "a"), "small: a");
    rig.app.world_mut().entity_mut(greta).insert(AgentEngine::named("large"));
    assert_eq!(rig.answer(greta, "b"), "large: b");
    rig.app.world_mut().entity_mut(greta).remove::<AgentEngine>();
    assert_eq!(rig.answer(greta, "c"), "small: c");
    assert_eq!(turns(&rig.app, greta), ["a", "small: a", "b", "large: b", "c", "small: c"]);
    assert_eq!((rig.small.agents(), rig.large.agents()), (1, 0));
    rig.app.world_mut().despawn(greta);
    updates(&mut rig.app, 2);
    assert_eq!((rig.small.agents(), rig.large.agents()), (0, 0));
}

#[test]
fn a_substitute_answers_when_the_engine_is_gone() {
    let mut rig = rig();
    let agent = rig.agent(AgentEngine::named("large").or("small", Duration::from_secs(5)));
    assert_eq!(rig.answer(agent, "a"), "large: a");
    rig.large.set_state(EngineState::Stopped);
    assert_eq!(rig.answer(agent, "b"), "small: b");
    updates(&mut rig.app, 2);
    assert_eq!(messages::<WallaEngineFailed>(&rig.app), 0, "a stop is no failure");
    // Without a substitute the ask fails, and other agents go on.
    let alone = rig.agent(AgentEngine::named("large"));
    rig.answer(alone, "c");
    assert_eq!(log(&rig.app).only("failed").len(), 1);
    assert!(rig.app.world().resource::<Walla>().is_ready());
}

#[test]
fn engines_are_loaded_replaced_and_unloaded_at_run_time() {
    let mut rig = rig();
    updates(&mut rig.app, 1);
    assert_eq!(messages::<WallaEngineReady>(&rig.app), 2);
    let agent = rig.agent(AgentEngine::named("new"));
    rig.answer(agent, "a");
    assert_eq!(log(&rig.app).only("failed"), [r#"no engine has the name "new""#]);
    let taken = rig.engines().load("large", &named("x"));
    assert!(matches!(taken, Err(EnginesError::Exists(_))), "{taken:?}");
    rig.engines().load("new", &named("one")).unwrap();
    assert_eq!(rig.answer(agent, "b"), "one: b");
    rig.engines().replace("new", &named("two")).unwrap();
    assert_eq!(rig.answer(agent, "c"), "two: c");
    assert!(rig.engines().replace("other", &named("x")).is_err());
    rig.engines().remove("new", ReplyInProgress::Finish).unwrap();
    assert!(rig.engines().remove("new", ReplyInProgress::Finish).is_err());
    rig.answer(agent, "d");
    assert_eq!(log(&rig.app).only("failed").len(), 2);
    assert_eq!(turns(&rig.app, agent), ["b", "one: b", "c", "two: c"]);
    let names: Vec<_> = rig.engines().list().iter().map(|engine| engine.name.clone()).collect();
    assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), ["small", "large"]);
    run_until(&mut rig.app, |app| app.world().resource::<WallaEngines>().unloading() == 0);
}

#[test]
fn an_engine_that_cannot_start_is_reported_and_the_others_go_on() {
    let small = named("small");
    let engines = EngineSet::new("default", &small)
        .with("large", EngineOptions::model("no such file"))
        .with("default", &small);
    let app = app_with(WallaPlugin::engines(engines));
    let mut rig = Rig { app, large: small.clone(), small };
    updates(&mut rig.app, 1);
    assert_eq!(messages::<WallaEngineFailed>(&rig.app), 2, "a missing file and a name in use");
    let agent = rig.agent(AgentEngine::named("large").or("default", None));
    assert_eq!(rig.answer(agent, "a"), "small: a");
}

/// Whether a defect is found at once or by the thread that loads, is chance.
#[test]
fn each_failure_of_a_load_is_one_event() {
    #[derive(Resource, Default)]
    struct Failed(Vec<(String, WallaError)>);
    let mut rig = rig();
    rig.app.init_resource::<Failed>().add_observer(
        |failed: On<WallaEngineFailed>, mut all: ResMut<Failed>| {
            all.0.push((failed.name.to_string(), failed.error.clone()));
        },
    );
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, "GGUF, but broken").unwrap();
    let agent = rig.agent(AgentEngine::named("new").or("small", None));
    for round in 0..30 {
        let path = match round % 3 {
            0 => "no such file".into(),
            1 => folder.path().join("missing.gguf"),
            _ => broken.clone(),
        };
        let is_replacement = round % 2 == 1;
        let name = if is_replacement { "large" } else { "new" };
        if is_replacement {
            rig.engines().replace(name, EngineOptions::model(&path)).unwrap();
        } else {
            rig.engines().load(name, EngineOptions::model(&path)).unwrap();
        }
        run_until(&mut rig.app, |app| !app.world().resource::<Failed>().0.is_empty());
        assert_eq!(rig.answer(agent, "a"), "small: a");
        updates(&mut rig.app, 2);
        let failed = std::mem::take(&mut rig.app.world_mut().resource_mut::<Failed>().0);
        let [(of, error)] = &failed[..] else { panic!("{path:?}: {failed:?}") };
        assert_eq!(
            (&**of, matches!(error, WallaError::ModelNotFound { .. })),
            (name, round % 3 == 0)
        );
        if is_replacement {
            assert!(matches!(rig.engines().get(name).unwrap().state, EngineState::Ready));
            assert!(rig.engines().get(name).unwrap().successor.is_none());
        } else {
            // It stays in the list until it is unloaded.
            assert!(matches!(rig.engines().get(name).unwrap().state, EngineState::Failed(_)));
            rig.engines().remove(name, ReplyInProgress::Finish).unwrap();
        }
    }
}

/// The last handle of an engine waits for the engine's thread.
#[test]
fn a_setup_is_never_dropped_by_the_frame() {
    struct Guard(std::thread::ThreadId, std::sync::mpsc::Sender<bool>);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _received = self.1.send(std::thread::current().id() == self.0);
        }
    }
    let mut rig = rig();
    let (dropped, was_here) = std::sync::mpsc::channel();
    let setup = || {
        let guard = Guard(std::thread::current().id(), dropped.clone());
        let new_client = named("x").new_client();
        EngineSetup::client(move || {
            let _kept = &guard;
            new_client()
        })
    };
    assert!(rig.engines().load("large", setup()).is_err());
    assert!(rig.engines().load("", setup()).is_err());
    assert!(rig.engines().replace("none", setup()).is_err());
    rig.engines().load("new", setup()).unwrap();
    rig.engines().replace("new", setup()).unwrap();
    for _ in 0..5 {
        assert_eq!(was_here.recv_timeout(crate::common::TIMEOUT), Ok(false));
    }
}

#[test]
fn a_loading_engine_is_waited_for_or_substituted() {
    let small = named("small");
    let large = named("large").starting_in(EngineState::Loading { fraction: 0.0 });
    let engines = EngineSet::new("default", &small).with("large", &large);
    let mut rig = Rig { app: app_with(WallaPlugin::engines(engines)), small, large };
    let waits = rig.agent(AgentEngine::named("large"));
    let moves = rig.agent(AgentEngine::named("large").or("default", Duration::from_millis(5)));
    ask(&mut rig.app, waits, "a");
    assert_eq!(rig.answer(moves, "b"), "small: b");
    assert!(matches!(rig.engines().get("large").unwrap().state, EngineState::Loading { .. }));
    assert_eq!(rig.engines().get("large").unwrap().moved, 1);
    rig.large.set_state(EngineState::Ready);
    run_until(&mut rig.app, |app| log(app).ends() == 2);
    assert_eq!(turns(&rig.app, waits), ["a", "large: a"]);
}

#[test]
fn levels_of_detail_choose_the_engine() {
    let mut rig = rig();
    let routes = LodRoutes([Route::engine("large"), Route::default(), Route::default()]);
    rig.app.insert_resource(routes).add_plugins(WallaLodRoutingPlugin);
    let agent = rig.app.world_mut().spawn((Agent::persona("p"), RoutedByLod)).id();
    let manual = rig.agent(AgentEngine::named("small"));
    assert_eq!(rig.answer(agent, "a"), "large: a");
    rig.app.world_mut().entity_mut(agent).insert(LevelOfDetail(2));
    assert_eq!(rig.answer(agent, "b"), "small: b");
    rig.app.insert_resource(LodRoutes([(); 3].map(|()| Route::engine("large"))));
    assert_eq!(rig.answer(agent, "c"), "large: c");
    assert_eq!(rig.answer(manual, "d"), "small: d");
}

#[test]
fn each_engine_has_diagnostics() {
    let mut rig = rig();
    rig.app.add_plugins(WallaDiagnosticsPlugin);
    rig.app.init_resource::<DiagnosticsStore>();
    let agent = rig.agent(AgentEngine::named("large"));
    rig.answer(agent, "a");
    let store = rig.app.world().resource::<DiagnosticsStore>();
    for (name, measurement, expected) in
        [("large", "moved", 0.0), ("small", "available", 1.0), ("large", "replies", 0.0)]
    {
        let path = WallaDiagnosticsPlugin::of_engine(name, measurement);
        let value = store.get(&path).and_then(bevy_diagnostic::Diagnostic::value);
        assert_eq!(value, Some(expected), "{path:?}");
    }
    let engine = rig.engines().get("large").unwrap();
    assert!(engine.health == Health::Available && engine.stats.tokens > 0);
    let stats = rig.app.world().resource::<Walla>().stats();
    assert_eq!(stats.tokens, engine.stats.tokens, "sums of all engines");
}
