//! Damaged and hostile files.

use walla_record::{End, Limits, ReadError, Recording};

use crate::kit::Dice;
use crate::round_trip::{bytes, recording};

fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    Recording::read(bytes, Limits { records_max: 10_000, bytes_max: 1 << 20 })
}

#[test]
fn every_truncation_is_a_shorter_recording() {
    let whole = recording(3, 40);
    let bytes = bytes(&whole);
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Ok(part) => {
                assert!(!part.is_complete(), "{length}");
                assert!(whole.entries.starts_with(&part.entries), "{length}");
            }
            Err(error) => assert!(length < 11, "{length}: {error}"),
        }
    }
}

#[test]
fn every_flipped_byte_is_an_error_or_a_shorter_recording() {
    let whole = recording(4, 40);
    let bytes = bytes(&whole);
    let mut shorter = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        for mask in [0x01, 0x80, 0xff] {
            damaged[at] = bytes[at] ^ mask;
            if let Ok(part) = read(&damaged) {
                shorter += 1;
                assert!(!part.is_complete(), "byte {at}");
                assert!(part.entries.len() < whole.entries.len(), "byte {at}");
                assert!(whole.entries.starts_with(&part.entries), "byte {at}");
            }
        }
    }
    assert!(shorter > 0, "damage in the last chunk ends the recording");
}

#[test]
fn a_length_allocates_nothing() {
    let begin = &bytes(&recording(1, 1))[..11];
    for lengths in [[u32::MAX, 5], [5, u32::MAX], [u32::MAX; 2], [0, 5], [5, 0]] {
        let mut bytes = begin.to_vec();
        bytes.extend(lengths.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend([0; 64]);
        let error = read(&bytes).expect_err("no such chunk");
        assert!(matches!(error, ReadError::Damaged { chunk: 0, at: 11, .. }), "{error}");
    }
}

#[test]
fn limits_hold() {
    let bytes = bytes(&recording(5, 200));
    let records = Recording::read(&*bytes, Limits { records_max: 100, ..Limits::default() });
    assert!(matches!(records, Err(ReadError::TooLarge { what: "records", max: 100 })));
    let limits = Limits { bytes_max: 100, ..Limits::default() };
    let size = Recording::read(&*bytes, limits);
    assert!(matches!(size, Err(ReadError::TooLarge { what: "bytes", max: 100 })), "{size:?}");
}

#[test]
fn other_files_and_versions_are_errors() {
    assert!(matches!(read(b""), Err(ReadError::NotARecording)));
    assert!(matches!(read(b"GGUF and more bytes"), Err(ReadError::NotARecording)));
    let error = read(b"walla rec\x02\x00").expect_err("another version");
    assert!(matches!(error, ReadError::Version { found: 2, known: 1 }), "{error}");
    let missing = Recording::open("/nowhere/session.walla").expect_err("no file");
    assert!(missing.to_string().starts_with("/nowhere/session.walla: "), "{missing}");
}

#[test]
fn a_tail_of_zeros_ends_the_recording() {
    let whole = recording(6, 30);
    let mut bytes = bytes(&Recording { end: End::CutOff, ..whole.clone() });
    bytes.extend([0; 5_000]);
    let read = read(&bytes).expect("a recording");
    assert_eq!((read.entries.len(), read.is_complete()), (whole.entries.len(), false));
}

#[test]
fn random_bytes_behind_a_valid_checksum_never_panic() {
    // Damage of the records themselves, as a program could write them.
    let whole = recording(7, 30);
    let mut dice = Dice(7);
    for _ in 0..300 {
        let mut records = records_of(&whole);
        for _ in 0..=dice.below(4) {
            let at = dice.below(records.len() as u64) as usize;
            records[at] = dice.roll() as u8;
        }
        let _any = read(&sealed(&records));
    }
}

/// The records of a recording, not compressed.
fn records_of(recording: &Recording) -> Vec<u8> {
    let bytes = bytes(recording);
    let mut records = Vec::new();
    let mut at = 11;
    while at < bytes.len() {
        let number = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let end = at + 16 + number(at);
        let chunk = miniz_oxide::inflate::decompress_to_vec(&bytes[at + 16..end]);
        records.extend(chunk.expect("a chunk"));
        at = end;
    }
    records
}

/// A file with these records in one chunk.
fn sealed(records: &[u8]) -> Vec<u8> {
    let data = miniz_oxide::deflate::compress_to_vec(records, 1);
    let lengths = [data.len() as u32, records.len() as u32];
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let head = [0, lengths[0], lengths[1]].into_iter().flat_map(u32::to_le_bytes);
    let hash = data.iter().copied().fold(head.fold(0xcbf2_9ce4_8422_2325, mix), mix);
    let mut bytes = b"walla rec\x01\x00".to_vec();
    bytes.extend(lengths.into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(hash.to_le_bytes());
    bytes.extend(data);
    bytes
}
