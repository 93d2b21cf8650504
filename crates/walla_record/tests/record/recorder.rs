//! The recorder: files, status, and its effect on a session.

use walla_record::{RecordError, Recorder, Recording};
use walla_runtime::{Command, EngineClient, Pacing, Prompt, ReplyId, Speaker, Turn};

use crate::kit::{Host, client, ended, options, recorder, speaker};

#[test]
fn only_recordings_are_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "my notes").expect("a file");
    let refused = Recorder::new(&other, client(options(), Pacing::default()));
    assert!(matches!(refused, Err(RecordError::NotARecording { .. })));
    assert_eq!(std::fs::read_to_string(&other).expect("a file"), "my notes");
    let nowhere = folder.path().join("no folder").join("session.walla");
    let refused = Recorder::new(&nowhere, client(options(), Pacing::default()));
    assert!(matches!(refused, Err(RecordError::Io { path, .. }) if path == nowhere));
    let path = folder.path().join("session.walla");
    for _ in 0..2 {
        drop(recorder(&path, options()));
        let recording = ended(&path);
        assert!(recording.is_complete() && recording.commands().next().is_none());
    }
}

#[test]
fn a_record_that_is_too_large_ends_the_recording_and_not_the_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client = recorder(&path, options());
    let mut host = Host::new(&client, 1);
    let agent = host.add(speaker(1));
    host.chat(agent, "Hello!");
    host.finish();
    let turns = vec![Turn::new(Speaker::User, "x".repeat(9 << 20))];
    host.send(Command::AppendTurns { agent, turns });
    let status = client.status();
    assert!(!status.is_recording());
    assert!(matches!(status.error(), Some(RecordError::TooLarge { .. })));
    let reply = host.chat(agent, "Still there?");
    host.finish();
    assert!(host.events.iter().any(|event| event.reply_id == reply));
    drop(host);
    drop(client);
    let recording = ended(&path);
    assert!(!recording.is_complete());
    let walla_record::End::GivenUp(reason) = &recording.end else { panic!("{:?}", recording.end) };
    assert!(reason.contains("at most"), "{reason}");
    assert_eq!(recording.commands().count(), 2, "everything before it");
}

#[test]
fn a_refused_command_is_not_recorded_and_a_stopped_engine_ends_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client = recorder(&path, options());
    client.stop();
    let begun = std::time::Instant::now();
    // The end includes the end of the recording, which follows the last event.
    while !client.is_ended() {
        assert!(begun.elapsed() < crate::kit::TIMEOUT);
        assert_eq!(client.try_recv(), None);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let agent = walla_runtime::AgentId::unique();
    assert!(client.try_send(Command::RemoveAgent { agent }).is_err());
    let recording = Recording::open(&path).expect("a recording");
    assert_eq!((recording.commands().count(), recording.is_complete()), (0, true));
}

#[test]
fn a_recording_in_progress_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let first = recorder(&path, options());
    let mut host = Host::new(&first, 1);
    let agent = host.add(speaker(1));
    host.chat(agent, "Hello!");
    host.finish();
    let second = Recorder::new(&path, client(options(), Pacing::default()));
    assert!(matches!(second, Err(RecordError::InUse { path: of }) if of == path));
    host.chat(agent, "And now?");
    host.finish();
    drop(host);
    drop(first);
    let recording = ended(&path);
    assert_eq!((recording.commands().count(), recording.is_complete()), (3, true));
    drop(recorder(&path, options()));
    assert_eq!(ended(&path).commands().count(), 0);
}

/// A host may give a reply any id.
#[test]
fn a_reply_with_the_id_of_no_reply_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client = recorder(&path, options());
    let mut host = Host::new(&client, 1);
    let agent = host.add(speaker(1));
    host.open.insert(ReplyId::NONE, agent);
    host.send(Command::ask(agent, ReplyId::NONE, Prompt::Chat("Hello!".into())));
    host.finish();
    host.chat(agent, "And now?");
    host.finish();
    drop(host);
    drop(client);
    let recording = ended(&path);
    assert_eq!((recording.commands().count(), recording.is_complete()), (3, true));
}

#[test]
#[cfg(unix)]
fn a_fifo_is_no_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    if made.is_ok_and(|status| status.success()) {
        let opened = Recording::open(&fifo);
        assert!(matches!(opened, Err(walla_record::ReadError::NotARecording)), "{opened:?}");
        let refused = Recorder::new(&fifo, client(options(), Pacing::default()));
        assert!(matches!(refused, Err(RecordError::NotARecording { .. })));
    }
}
