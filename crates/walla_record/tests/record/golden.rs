//! A stored recording, which later versions must read.

use std::path::{Path, PathBuf};

use walla_record::{Record, Recording};

use crate::round_trip::{bytes, recording};

/// Replaces the stored recording: `WALLA_UPDATE_GOLDEN=1 cargo test -p walla_record golden`. Only
/// together with the version of the format.
const UPDATE: &str = "WALLA_UPDATE_GOLDEN";

fn stored(extension: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    folder.join("golden").with_extension(extension)
}

/// One line per record.
fn lines(recording: &Recording) -> String {
    recording.entries.iter().map(|entry| format!("{entry:?}\n")).collect()
}

#[test]
fn a_stored_recording_is_read() {
    if std::env::var_os(UPDATE).is_some() {
        let all = recording(2, 160);
        std::fs::write(stored("walla"), bytes(&all)).expect("a file");
        std::fs::write(stored("txt"), lines(&all)).expect("a file");
    }
    let read = Recording::open(stored("walla")).expect("a recording of this format");
    let expected = std::fs::read_to_string(stored("txt")).expect("a file");
    for (read, expected) in lines(&read).lines().zip(expected.lines()) {
        assert_eq!(read, expected);
    }
    assert_eq!(read.entries.len(), expected.lines().count());
    assert!(read.is_complete());
    let mut kinds = [0; 4];
    for entry in &read.entries {
        kinds[match entry.record {
            Record::Engine(_) => 0,
            Record::Paused(_) => 1,
            Record::Command(_) => 2,
            _ => 3,
        }] += 1;
    }
    assert!(kinds.iter().all(|kind| *kind > 2), "{kinds:?}");
}
