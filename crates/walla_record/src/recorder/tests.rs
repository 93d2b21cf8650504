//! Tests with silent engines and stalled disks.

use super::*;
use crate::writer;
use walla_runtime::{AgentId, Speaker, Turn};

/// An engine that takes every command and has no replies.
struct Silent;

impl EngineClient for Silent {
    fn try_send(&self, _command: Command) -> Result<(), TrySendError<Command>> {
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        None
    }

    fn frame(&self) {}

    fn state(&self) -> EngineState {
        EngineState::Ready
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn stop(&self) {}
}

fn turns(bytes: usize) -> Command {
    let turns = vec![Turn::new(Speaker::User, "x".repeat(bytes))];
    Command::AppendTurns { agent: AgentId(1), turns }
}

/// A recorder on a disk that takes nothing.
fn stalled() -> Recorder {
    let file = RecordingFile::start(PathBuf::new(), |shared| {
        while !shared.is_closing.load(Ordering::Acquire) {
            thread::park_timeout(Duration::from_millis(1));
        }
    });
    Recorder::with_file(file.expect("a thread"), Box::new(Silent))
}

/// A copy of a cache changes no text: a replay needs none.
#[test]
fn copies_of_caches_are_not_recorded() {
    let recorder = stalled();
    let before = recorder.lock().mark().0;
    let (ticket, _job) = walla_runtime::CacheTicket::save("x");
    recorder.try_send(Command::CopyCache { agent: AgentId(1), ticket }).expect("passed on");
    assert_eq!(recorder.lock().mark().0, before);
    recorder.try_send(turns(1)).expect("passed on");
    assert_ne!(recorder.lock().mark().0, before);
}

#[test]
fn a_disk_that_stalls_ends_the_recording_and_not_the_session() {
    let recorder = stalled();
    for sent in 0..=MAX_BUFFERS {
        assert!(recorder.status().is_recording(), "{sent} buffers wait");
        recorder.try_send(turns(BUFFER_BYTES)).expect("the engine takes it");
    }
    let status = recorder.status();
    let bytes_min = MAX_BUFFERS * BUFFER_BYTES;
    assert!(matches!(status.error(), Some(RecordError::Behind { bytes }) if *bytes >= bytes_min));
    recorder.try_send(turns(1)).expect("the session goes on");
}

/// A few large commands count as many small ones.
#[test]
fn bytes_that_wait_for_the_disk_are_limited() {
    let recorder = stalled();
    let mut sent = 0;
    while recorder.status().is_recording() {
        recorder.try_send(turns(7 << 20)).expect("the engine takes it");
        sent += 7 << 20;
    }
    assert!((MAX_WAITING_BYTES..MAX_WAITING_BYTES + (8 << 20)).contains(&sent), "{sent}");
}

#[test]
fn a_disk_that_fails_ends_the_recording_and_not_the_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    std::fs::write(&path, "").expect("a file");
    // Each write fails, because the file is open for reading only.
    let read_only = std::fs::File::open(&path).expect("a file");
    let file = RecordingFile::start(path, move |shared| writer::run(shared, read_only));
    let recorder = Recorder::with_file(file.expect("a thread"), Box::new(Silent));
    let begun = Instant::now();
    while recorder.status().is_recording() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(recorder.status().error(), Some(RecordError::Io { .. })));
    recorder.try_send(turns(1)).expect("the session goes on");
}
