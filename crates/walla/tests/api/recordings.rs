//! A recorded session of the async API, and its player.

use walla::record::{Recording, Replay};
use walla::{Engine, EngineError, EngineOptions, ReplyError};

use crate::host::{options, soon, speaker};

#[tokio::test]
async fn a_session_is_recorded_verified_and_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session.walla");
    let engine = Engine::builder(options()).record_to(&path).start().await.unwrap();
    let agent = engine.agent_with(speaker(1, 30));
    let first = soon("it ends", agent.ask("Who are you?").finish()).await.unwrap();
    let copy = agent.fork().await.unwrap();
    let again = soon("it ends", agent.regenerate().finish()).await.unwrap();
    let other = soon("it ends", copy.ask("And you?").finish()).await.unwrap();
    assert!(engine.recorder().unwrap().is_recording());
    soon("it stops", engine.stop()).await;
    // The stop has waited for the file.
    let recording = Recording::open(&path).unwrap();
    assert!(recording.is_complete());
    drop((agent, copy, engine));

    let options = EngineOptions { threads: Some(2), max_agents: Some(1), ..options() };
    let engine = Engine::start(options).await.unwrap();
    let client = engine.runtime().unwrap().client(walla_runtime::Pacing::default()).unwrap();
    let report = tokio::task::spawn_blocking(move || Replay::new(&recording).run(&client));
    let report = soon("a report", report).await.unwrap().unwrap();
    assert!(report.is_equal(), "{:?}", report.first);
    assert_eq!(report.replies, 3);

    let player = Engine::replay_from(&path).unwrap();
    let agent = player.agent_with(speaker(1, 30));
    let played = soon("it ends", agent.ask("Who are you?").finish()).await.unwrap();
    assert_eq!((&played.text, played.reason), (&first.text, first.reason));
    let copy = agent.fork().await.unwrap();
    let played = soon("it ends", agent.regenerate().finish()).await.unwrap();
    assert_eq!(played.text, again.text);
    let played = soon("it ends", copy.ask("And you?").finish()).await.unwrap();
    assert_eq!(played.text, other.text);
    let error = soon("it ends", copy.ask("More?").finish()).await.unwrap_err();
    assert_eq!(error, ReplyError::NotRecorded { expected: None, asked: "More?".into() });
}

#[tokio::test]
async fn a_recording_that_cannot_begin_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "my notes").unwrap();
    let refused = Engine::builder(options()).record_to(&path).start().await;
    assert!(matches!(refused, Err(EngineError::Recording(_))));
    assert!(matches!(Engine::replay_from(&path), Err(EngineError::Recording(_))));
}
