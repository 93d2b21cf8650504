//! Recordings: any bytes are a recording or an error, and what was read is written and read again.

use walla_record::{Limits, Recording, Session};

/// Small, so that hostile lengths are found.
const LIMITS: Limits = Limits { max_records: 20_000, max_bytes: 1 << 20 };

/// `bytes`: a switch, then a file, or the records of one, which get a valid frame around them.
pub fn check(bytes: &[u8]) {
    let [kind, rest @ ..] = bytes else { return };
    let file = if kind % 2 == 0 { rest.to_vec() } else { sealed(rest) };
    let Ok(recording) = Recording::read(&*file, LIMITS) else { return };
    let session = Session::new(&recording);
    assert!(session.asks.len() <= recording.entries.len());
    let mut written = Vec::new();
    recording.write(&mut written).expect("it was read");
    let again = Recording::read(&*written, Limits::default()).expect("it was written");
    assert_eq!(again.end, recording.end);
    assert_eq!(again.entries.len(), recording.entries.len());
    for (again, entry) in again.entries.iter().zip(&recording.entries) {
        // As text, because a NaN differs from itself.
        let [again, entry] = [again, entry].map(|entry| format!("{entry:?}"));
        assert_eq!(again, entry);
    }
}

/// A file with these records in one chunk.
fn sealed(records: &[u8]) -> Vec<u8> {
    let data = miniz_oxide::deflate::compress_to_vec(records, 1);
    let lengths = [data.len() as u32, records.len() as u32];
    let head = [0, lengths[0], lengths[1]].map(u32::to_le_bytes);
    let hash =
        walla_types::fnv1a(walla_types::fnv1a(walla_types::FNV1A, head.as_flattened()), &data);
    let mut file = b"walla rec\x04\x00".to_vec();
    file.extend(lengths.into_iter().flat_map(u32::to_le_bytes));
    file.extend(hash.to_le_bytes());
    file.extend(data);
    file
}
