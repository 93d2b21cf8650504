//! Agents that come and go, full mailboxes, bounds, several apps.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::engine::EngineState;
use bevy_walla::prelude::*;
use bevy_walla::reply::Usage;
use bevy_walla::scripted::ScriptedEngine;

#[test]
fn despawning_cancels_and_frees() {
    let engine = echo().endless();
    let mut app = app(&engine);
    let agents: Vec<_> = (0..3).map(|_| spawn(&mut app, "A")).collect();
    for &agent in &agents {
        ask(&mut app, agent, "x");
        ask(&mut app, agent, "y");
    }
    updates(&mut app, 5);
    app.world_mut().despawn(agents[0]);
    app.world_mut().entity_mut(agents[1]).remove::<Agent>();
    assert!(speech(&app, agents[1]).is_silent());
    updates(&mut app, 5);
    assert_eq!(engine.agents(), 1);
    assert_eq!(log(&app).only("finished"), ["Cancelled"; 4]);
}

#[test]
fn an_agent_component_can_be_inserted_again() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 3);
    app.world_mut().entity_mut(odo).remove::<Agent>().insert(Agent::persona("New Odo"));
    ask(&mut app, odo, "y");
    updates(&mut app, 10);
    assert_eq!(engine.agents(), 1);
    assert_eq!(turns(&app, odo), ["y", "New Odo: y"]);
    assert_eq!(log(&app).ends(), 2);
}

#[test]
fn an_agent_despawned_in_its_first_frame_sends_no_command() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "x");
    app.world_mut().despawn(odo);
    updates(&mut app, 3);
    assert!(engine.commands().is_empty());
    assert_eq!(log(&app).only("finished"), ["Cancelled"]);
    assert_eq!(log(&app).ends(), 1);
}

#[test]
fn an_ask_and_a_despawn_in_one_frame_are_a_cancelled_reply() {
    for state in [EngineState::Ready, EngineState::Loading { fraction: 0.5 }] {
        let engine = echo().starting_in(state);
        let mut app = app(&engine);
        let [despawned, removed] = ["A", "B"].map(|name| spawn(&mut app, name));
        updates(&mut app, 2);
        for agent in [despawned, removed] {
            ask(&mut app, agent, "one");
            app.world_mut().write_message(Ask::new(agent, "two"));
        }
        app.world_mut().despawn(despawned);
        app.world_mut().entity_mut(removed).remove::<Agent>();
        updates(&mut app, 3);
        engine.set_state(EngineState::Ready);
        updates(&mut app, 3);
        assert_eq!(log(&app).only("finished"), ["Cancelled"; 4]);
        assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
        assert_eq!(engine.agents(), 0);
    }
}

#[test]
fn asks_of_a_removed_agent_are_not_sent_to_its_successor() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    updates(&mut app, 2);
    ask(&mut app, odo, "the old one");
    app.world_mut().entity_mut(odo).remove::<Agent>();
    ask(&mut app, odo, "nobody");
    app.world_mut().entity_mut(odo).insert(Agent::persona("New Odo"));
    ask(&mut app, odo, "the new one");
    updates(&mut app, 20);
    assert_eq!(log(&app).only("finished"), ["Cancelled", "EndOfTurn", "EndOfTurn"]);
    let expected = ["nobody", "New Odo: nobody", "the new one", "New Odo: the new one"];
    assert_eq!(turns(&app, odo), expected, "an ask of the same frame waits for the insertion");
    app.world_mut().entity_mut(odo).remove::<Agent>();
    ask(&mut app, odo, "nobody");
    updates(&mut app, 3);
    assert_eq!(log(&app).only("failed").len(), 1, "it was no agent when it was asked");
}

#[test]
fn a_full_mailbox_loses_nothing() {
    // One command per frame for 20 agents with two asks each. Half of the agents are despawned
    // before their asks could be sent.
    let engine = echo().command_queue(1);
    let mut app = app(&engine);
    let agents: Vec<_> = (0..20).map(|_| spawn(&mut app, "A")).collect();
    for &agent in &agents {
        ask(&mut app, agent, "x");
        ask(&mut app, agent, "y");
    }
    updates(&mut app, 7);
    for &agent in agents.iter().step_by(2) {
        app.world_mut().despawn(agent);
    }
    updates(&mut app, 200);
    assert_eq!(log(&app).ends(), 40);
    assert_eq!(engine.agents(), 10);
    for &agent in agents.iter().skip(1).step_by(2) {
        assert_eq!(turns(&app, agent), ["x", "A: x", "y", "A: y"]);
    }
}

#[test]
fn events_and_commands_per_frame_are_bounded() {
    let settings = WallaSettings {
        max_events_per_frame: 2,
        max_commands_per_frame: 3,
        ..WallaSettings::default()
    };
    let engine = echo();
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    let agents: Vec<_> = (0..6).map(|_| spawn(&mut app, "A")).collect();
    for &agent in &agents {
        ask(&mut app, agent, "x");
    }
    let (mut sent, mut heard) = (0, 0);
    for _ in 0..100 {
        app.update();
        assert!(engine.commands().len() - sent <= 3);
        let replies = log(&app).0.iter().filter(|line| !line.starts_with("sentence")).count();
        assert!(replies - heard <= 2);
        (sent, heard) = (engine.commands().len(), replies);
    }
    for agent in agents {
        assert_eq!(turns(&app, agent), ["x", "A: x"]);
    }
}

#[test]
fn an_app_without_asks_lets_the_engine_sleep() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    updates(&mut app, 10);
    assert_eq!(engine.frames(), 0);
    ask(&mut app, odo, "x");
    updates(&mut app, 10);
    let frames = engine.frames();
    assert!((1..10).contains(&frames), "{frames}");
    updates(&mut app, 10);
    assert_eq!(engine.frames(), frames);
}

#[test]
fn two_apps_run_in_one_process() {
    // Each has its own engine; `end_to_end.rs` lets two share one.
    let shared = echo();
    let other = ScriptedEngine::new(|_, _| "Beep.".into());
    let mut tavern = app(&shared);
    let mut robot = app(&other);
    let odo = spawn(&mut tavern, "Odo");
    let r2 = spawn(&mut robot, "R2");
    ask(&mut tavern, odo, "x");
    ask(&mut robot, r2, "x");
    for _ in 0..8 {
        tavern.update();
        robot.update();
    }
    assert_eq!(turns(&tavern, odo), ["x", "Odo: x"]);
    assert_eq!(turns(&robot, r2), ["x", "Beep."]);
    drop(tavern);
    updates(&mut robot, 3);
}

#[test]
#[should_panic(expected = "plugin was already added")]
fn adding_the_plugin_twice_is_bevys_error() {
    let engine = echo();
    let mut app = app(&engine);
    app.add_plugins(WallaPlugin::new(&engine));
}

#[test]
fn systems_can_be_ordered_around_the_sets() {
    #[derive(Resource, Default)]
    struct SeenInUpdate(Option<u32>);
    let mut app = app(&echo());
    app.init_resource::<SeenInUpdate>();
    app.add_systems(PostUpdate, (|| ()).before(WallaSystems::Collect))
        .add_systems(PostUpdate, (|| ()).after(WallaSystems::Submit))
        .add_systems(
            Update,
            (|mut seen: ResMut<SeenInUpdate>| seen.0 = Some(seen.0.unwrap_or(0) + 1))
                .run_if(walla_ready),
        );
    updates(&mut app, 3);
    assert_eq!(app.world().resource::<SeenInUpdate>().0, Some(3), "ready from the first frame");
}

#[test]
fn diagnostics_are_measured() {
    use bevy_diagnostic::{Diagnostic, DiagnosticPath, DiagnosticsStore};
    let mut app = app(&echo().endless());
    app.add_plugins(WallaDiagnosticsPlugin);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 10);
    let store = app.world().resource::<DiagnosticsStore>();
    let value = |path: DiagnosticPath| store.get(&path).and_then(Diagnostic::value);
    assert!(value(WallaDiagnosticsPlugin::TOKENS_PER_SECOND).is_some_and(|v| v > 0.0));
    assert!(value(WallaDiagnosticsPlugin::FRAME_MICROS).is_some_and(|v| v > 0.0));
    assert_eq!(value(WallaDiagnosticsPlugin::AGENTS_ACTIVE), Some(1.0));
    assert_eq!(value(WallaDiagnosticsPlugin::ASKS_WAITING), Some(0.0));
    assert_eq!(value(WallaDiagnosticsPlugin::BACKGROUND_TOKENS_PER_SECOND), Some(0.0));
    assert_eq!(value(WallaDiagnosticsPlugin::FIRST_TOKEN_MS), None, "no reply has ended");
}

#[test]
fn the_latest_first_token_of_a_frame_is_measured_with_its_parts() {
    use bevy_diagnostic::{Diagnostic, DiagnosticPath, DiagnosticsStore};
    let mut app = app_with(BackgroundClient::plugin(&echo()));
    app.add_plugins(WallaDiagnosticsPlugin);
    updates(&mut app, 2);
    let value = |app: &App, path: DiagnosticPath| {
        app.world().resource::<DiagnosticsStore>().get(&path).and_then(Diagnostic::value)
    };
    let rate = value(&app, WallaDiagnosticsPlugin::BACKGROUND_TOKENS_PER_SECOND);
    assert!(rate.is_some_and(|rate| rate > 0.0), "{rate:?}");
    end_reply(&mut app, usage_with([2_000, 500, 0, 9_000]));
    end_reply(&mut app, usage_with([300_000, 1_500, 90_000, 10_000]));
    end_reply(&mut app, Usage::default()); // a reply without a token
    app.update();
    let parts = [
        WallaDiagnosticsPlugin::FIRST_TOKEN_WAITING_MS,
        WallaDiagnosticsPlugin::FIRST_TOKEN_ENCODING_MS,
        WallaDiagnosticsPlugin::FIRST_TOKEN_PREFILL_MS,
        WallaDiagnosticsPlugin::FIRST_TOKEN_DECODE_MS,
    ];
    let parts = parts.map(|path| value(&app, path));
    assert_eq!(parts, [300.0, 1.5, 90.0, 10.0].map(Some));
    assert_eq!(value(&app, WallaDiagnosticsPlugin::FIRST_TOKEN_MS), Some(401.5));
    updates(&mut app, 5);
    let store = app.world().resource::<DiagnosticsStore>();
    let measured = store.get(&WallaDiagnosticsPlugin::FIRST_TOKEN_MS).unwrap().values().count();
    assert_eq!(measured, 1, "frames without an end are not measured");
}

#[test]
fn settings_that_the_game_has_inserted_are_kept() {
    let max_asks = |settings: Option<WallaSettings>| {
        let mut plugin = WallaPlugin::new(&echo());
        if let Some(settings) = settings {
            plugin = plugin.settings(settings);
        }
        let mut app = App::new();
        app.insert_resource(WallaSettings { max_asks_per_agent: 3, ..Default::default() });
        app.add_plugins(plugin);
        app.world().resource::<WallaSettings>().max_asks_per_agent
    };
    assert_eq!(max_asks(None), 3);
    assert_eq!(max_asks(Some(WallaSettings::default())), 8);
    let mut app = App::new();
    app.add_plugins(WallaPlugin::new(&echo()));
    assert_eq!(app.world().resource::<WallaSettings>(), &WallaSettings::default());
}
