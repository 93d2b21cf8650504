//! A process that is killed while it records.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use walla_record::{Recording, Replay, Session};
use walla_runtime::{AgentSpec, Pacing};

use crate::kit::{Host, TIMEOUT, client, options, other_options, recorder, speaker};

/// Path of the recording, for the process that is killed.
const PATH: &str = "WALLA_RECORD_TEST_PATH";

/// The process that is killed: it records until then.
#[test]
#[ignore = "a child process of the other test"]
fn child_that_records() {
    let path = PathBuf::from(std::env::var_os(PATH).expect("set by the parent"));
    let begun = Instant::now();
    let client = recorder(&path, options());
    let mut host = Host::new(&client, 1);
    let agents: Vec<_> =
        (0..4).map(|seed| host.add(AgentSpec { max_reply_tokens: 100, ..speaker(seed) })).collect();
    while begun.elapsed() < TIMEOUT {
        for agent in &agents {
            host.chat(*agent, "Tell me more.");
        }
        while !host.open.is_empty() {
            host.frame();
            let lived = begun.elapsed().as_micros().to_string();
            // Renamed, so that the file always has a number.
            let (new, beat) = (path.with_extension("new"), path.with_extension("beat"));
            std::fs::write(&new, lived).expect("a file");
            // Windows may refuse it while the other process reads: the next frame tries again.
            assert!(std::fs::rename(new, beat).is_ok() || cfg!(windows), "a file");
        }
    }
}

#[test]
fn a_recording_is_readable_after_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["crash::child_that_records", "--exact", "--ignored"])
        .env(PATH, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    let wait_until_recorded = |micros: u64| {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < TIMEOUT, "nothing was written");
            std::thread::sleep(Duration::from_millis(20));
            let recording = Recording::open(&path);
            if recording.is_ok_and(|recording| recording.micros > micros) {
                return;
            }
        }
    };
    // Until two chunks are on the disk, and all that happened until then.
    wait_until_recorded(1_000_000);
    let begun = Instant::now();
    let beat = loop {
        // Windows may refuse it while the other process renames.
        match std::fs::read_to_string(path.with_extension("beat")) {
            Ok(beat) => break beat,
            Err(_) if cfg!(windows) && begun.elapsed() < TIMEOUT => {}
            Err(error) => panic!("{error}"),
        }
    };
    wait_until_recorded(beat.parse().expect("a number"));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let recording = Recording::open(&path).expect("readable");
    assert!(!recording.is_complete());
    let session = Session::new(&recording);
    assert!(session.tokens() > 50, "{}", session.tokens());
    let report = Replay::new(&recording)
        .run(&client(other_options(), Pacing::PerFrame { steps: 3 }))
        .expect("an engine");
    assert!(report.is_equal() && report.tokens > 50, "{report:?}");
}
