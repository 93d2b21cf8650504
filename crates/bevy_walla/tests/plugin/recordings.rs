//! An app that is recorded, and apps that play its recording.

use std::path::Path;

use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_walla::WallaRecorder;
use bevy_walla::agent::AgentEngine;
use bevy_walla::ask::Cancel;
use bevy_walla::engines::{EngineSet, EngineSetup};
use bevy_walla::prelude::*;
use bevy_walla::record::{Recording, Session};
use bevy_walla::reply::ReplyError;
use bevy_walla::scripted::ScriptedEngine;

/// What an app has heard, with the frame.
#[derive(Resource, Default, Debug, PartialEq)]
struct Heard(Vec<(u64, Entity, String)>);

#[derive(Resource, Default)]
struct Frame(u64);

fn app(plugin: WallaPlugin) -> (App, [Entity; 2]) {
    let mut app = App::new();
    app.add_plugins(plugin)
        .init_resource::<Heard>()
        .init_resource::<Frame>()
        .add_observer(|delta: On<ReplyDelta>, frame: Res<Frame>, mut heard: ResMut<Heard>| {
            heard.0.push((frame.0, delta.agent, delta.text.to_string()));
        })
        .add_observer(|end: On<ReplyFinished>, frame: Res<Frame>, mut heard: ResMut<Heard>| {
            heard.0.push((frame.0, end.agent, format!("{:?}", end.reason)));
        })
        .add_observer(|end: On<ReplyFailed>, frame: Res<Frame>, mut heard: ResMut<Heard>| {
            heard.0.push((frame.0, end.agent, end.error.to_string()));
        });
    let agents = ["I am Odo.", "I am Greta."];
    let agents = agents.map(|persona| app.world_mut().spawn(Agent::persona(persona)).id());
    (app, agents)
}

fn ask(app: &mut App, agent: Entity, question: &str) {
    app.world_mut().trigger(Ask::new(agent, question));
}

fn run(app: &mut App, frames: u64) {
    for _ in 0..frames {
        app.world_mut().resource_mut::<Frame>().0 += 1;
        app.update();
    }
}

/// Frame, index of the agent, and text.
type Played = Vec<(u64, usize, String)>;

/// A dialogue of 60 frames, with a cancel.
fn play(plugin: WallaPlugin) -> (App, Played) {
    let (mut app, [odo, greta]) = app(plugin);
    run(&mut app, 3);
    ask(&mut app, odo, "Hello!");
    run(&mut app, 2);
    ask(&mut app, greta, "What does a horseshoe cost?");
    run(&mut app, 20);
    ask(&mut app, odo, "Tell me everything.");
    run(&mut app, 3);
    app.world_mut().trigger(Cancel::new(odo));
    run(&mut app, 32);
    let heard = std::mem::take(&mut app.world_mut().resource_mut::<Heard>().0);
    let heard =
        heard.into_iter().map(|(frame, agent, text)| (frame, usize::from(agent != odo), text));
    let heard = heard.collect();
    (app, heard)
}

fn engine() -> ScriptedEngine {
    ScriptedEngine::new(|persona, question| format!("{persona} You said: {question}"))
}

fn script() -> WallaPlugin {
    WallaPlugin::new(&engine())
}

fn recorded(path: &Path) -> Played {
    let (app, heard) = play(script().record_to(path));
    let recording = app.world().resource::<WallaRecorder>();
    assert!(recording.is_recording() && recording.error().is_none());
    heard
}

#[test]
fn a_played_recording_gives_the_same_events_in_the_same_frames() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session.walla");
    let heard = recorded(&path);
    assert_eq!(heard, play(script()).1, "a recorder changes nothing");
    let session = Session::new(&Recording::open(&path).unwrap());
    assert_eq!((session.agents.len(), session.asks.len()), (2, 3));
    assert_eq!(session.asks[1].reply.speech, "I am Greta. You said: What does a horseshoe cost?");
    for plugin in [
        WallaPlugin::new(EngineSetup::replay_from(&path)),
        // Behind a router.
        WallaPlugin::engines(EngineSet::new("default", EngineSetup::replay_from(&path))),
    ] {
        let (app, played) = play(plugin);
        assert_eq!(played, heard);
        assert!(app.world().resource::<Walla>().state().is_ready());
    }
    // As one of several engines.
    let engines =
        EngineSet::new("default", &engine()).with("scene", EngineSetup::replay_from(&path));
    let (mut app, [odo, _]) = app(WallaPlugin::engines(engines));
    app.world_mut().entity_mut(odo).insert(AgentEngine::named("scene"));
    ask(&mut app, odo, "Hello!");
    run(&mut app, 20);
    let talk = app.world().get::<Conversation>(odo).unwrap();
    assert_eq!(talk.last_reply(), Some("I am Odo. You said: Hello!"));
}

#[test]
fn another_question_fails_with_both_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session.walla");
    recorded(&path);
    let (mut app, [odo, _]) = app(WallaPlugin::new(EngineSetup::replay_from(&path)));
    ask(&mut app, odo, "Goodbye!");
    run(&mut app, 3);
    let expected =
        ReplyError::NotRecorded { expected: Some("Hello!".into()), asked: "Goodbye!".into() };
    let heard = &app.world().resource::<Heard>().0;
    assert_eq!(heard.last().unwrap().2, expected.to_string());
}

#[test]
fn a_missing_or_damaged_recording_is_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.walla");
    std::fs::write(&path, "no recording").unwrap();
    for path in [path, folder.path().join("missing.walla")] {
        let (mut app, [odo, _]) = app(WallaPlugin::new(EngineSetup::replay_from(&path)));
        ask(&mut app, odo, "Hello!");
        run(&mut app, 3);
        let state = app.world().resource::<Walla>().state().clone();
        let WallaState::Failed(error) = state else { panic!("{state:?}") };
        assert!(error.to_string().starts_with("the recording cannot be read"), "{error}");
        assert_eq!(app.world().resource::<Heard>().0.len(), 1, "the ask has failed");
    }
}

#[test]
fn a_recording_that_cannot_be_written_does_not_stop_the_game() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "my notes").unwrap();
    let (app, heard) = play(script().record_to(&notes));
    assert_eq!(heard, play(script()).1);
    let recording = app.world().resource::<WallaRecorder>();
    assert!(!recording.is_recording());
    assert!(recording.error().unwrap().to_string().contains("not replaced"));
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "my notes");
}
