//! Every command and every event is read as it was written.

use walla_record::{End, Entry, Limits, Recording};

use crate::generator::entries;
use crate::kit::Dice;

pub fn recording(seed: u64, count: usize) -> Recording {
    let entries: Vec<Entry> = entries(&mut Dice(seed), count);
    let micros = entries.last().map_or(0, |last| last.micros);
    Recording { entries, end: End::Complete, micros }
}

pub fn bytes(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.write(&mut bytes).expect("a vector takes everything");
    bytes
}

#[test]
fn every_record_survives() {
    for seed in 0..60 {
        let written = recording(seed, 80);
        let bytes = bytes(&written);
        let read = Recording::read(&*bytes, Limits::default()).expect("a recording");
        for (read, written) in read.entries.iter().zip(&written.entries) {
            assert_eq!(read, written, "seed {seed}");
        }
        assert_eq!(read, written, "seed {seed}");
    }
}

#[test]
fn ends_survive() {
    for end in [End::Complete, End::CutOff, End::GivenUp("the disk is full".into())] {
        let written = Recording { end, ..recording(1, 5) };
        let read = Recording::read(&*bytes(&written), Limits::default()).expect("a recording");
        assert_eq!(read, written);
        assert_eq!(read.is_complete(), written.end == End::Complete);
    }
}
