//! Damaged and hostile files.

use walla_record::{End, Entry, Limits, Pace, Player, ReadError, Record, Recording, Session};
use walla_runtime::{
    AgentId, AgentSpec, Command, EngineClient, Event, FinishReason, InlineText, Prompt, ReplyEvent,
    ReplyId, Usage,
};
use walla_types::{FNV1A, fnv1a};

use crate::kit::Dice;
use crate::round_trip::{bytes, recording};

fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    Recording::read(bytes, Limits { max_records: 10_000, max_bytes: 1 << 20 })
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

/// A recording with this number of chunks.
fn with_chunks(count: usize) -> Recording {
    let mut whole = recording(4, 40);
    let per_chunk = whole.entries.len() / count;
    for (at, entry) in whole.entries.iter_mut().enumerate() {
        // A chunk has at most a second.
        entry.micros = (at / per_chunk).min(count - 1) as u64 * 2_000_000;
    }
    whole.micros = whole.entries.last().map_or(0, |last| last.micros);
    whole
}

/// Positions of the chunks of a file.
fn chunks(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut chunks, mut at) = (Vec::new(), 11);
    while at < bytes.len() {
        let length = bytes[at..at + 4].try_into().expect("four bytes");
        let end = at + 16 + u32::from_le_bytes(length) as usize;
        chunks.push(at..end);
        at = end;
    }
    chunks
}

#[test]
fn the_first_damage_is_named_whatever_follows_it() {
    for count in 1..=4 {
        let whole = with_chunks(count);
        let bytes = bytes(&whole);
        let chunks = chunks(&bytes);
        assert_eq!(chunks.len(), count);
        for (at, chunk) in chunks.iter().enumerate() {
            // Damage behind the first one changes nothing.
            for more in [false, true] {
                let mut damaged = bytes.clone();
                for chunk in chunks.iter().skip(at).take(1 + usize::from(more)) {
                    damaged[(chunk.start + 16 + chunk.end) / 2] ^= 1;
                }
                match read(&damaged) {
                    Ok(part) => {
                        assert!(at > 0 && at + 1 == count, "chunk {at} of {count}");
                        assert!(!part.entries.is_empty() && !part.is_complete());
                        assert!(whole.entries.starts_with(&part.entries));
                    }
                    Err(error) => {
                        let place = format!("chunk {at} at byte {} is damaged: ", chunk.start);
                        let before =
                            if at == 0 { "no part of the recording is complete: " } else { "" };
                        let error = error.to_string();
                        assert!(error.starts_with(&format!("{before}{place}")), "{error}");
                    }
                }
            }
        }
    }
    // A chunk whose records are damaged, though its checksum is right.
    let sound = [3, 7, 1];
    for (chunks, chunk) in [(vec![&[99][..]], 0), (vec![&sound, &[99], &sound], 1)] {
        let file = sealed_chunks(&chunks);
        let error = read(&file).expect_err("no such record");
        let begin = self::chunks(&file)[chunk as usize].start as u64;
        let is_named = matches!(
            error, ReadError::Damaged { chunk: named, at, .. } if (named, at) == (chunk, begin)
        );
        assert!(is_named, "{error}");
    }
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
    let records = Recording::read(&*bytes, Limits { max_records: 100, ..Limits::default() });
    assert!(matches!(records, Err(ReadError::TooLarge { what: "records", max: 100 })));
    let limits = Limits { max_bytes: 100, ..Limits::default() };
    let size = Recording::read(&*bytes, limits);
    assert!(matches!(size, Err(ReadError::TooLarge { max: 100, .. })), "{size:?}");
}

#[test]
fn other_files_and_versions_are_errors() {
    assert!(matches!(read(b""), Err(ReadError::NotARecording)));
    assert!(matches!(read(b"GGUF and more bytes"), Err(ReadError::NotARecording)));
    for found in [0, 1, 2, 3, 4, 6] {
        let error = read(&[b"walla rec", &[found, 0][..]].concat()).expect_err("another version");
        assert!(matches!(error, ReadError::Version { known: 5, .. }), "{error}");
        assert!(error.to_string().contains(&format!("of format {found};")), "{error}");
    }
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

/// The body of the fuzz target.
#[path = "../../../../fuzz/src/bodies/recording.rs"]
mod body;

#[test]
fn damaged_records_never_panic() {
    // Events in a form that no writer uses: logged ones, and a part of speech.
    for event in [&[7, 0][..], &[7, 1], &[7, 2, 1, 9], &[1, 1, b'x', 1]] {
        let records = [&[8, 0, 2], event].concat();
        assert_eq!(read(&sealed(&records)).expect("an event").entries.len(), 1);
        body::check(&[&[1], &*records].concat());
    }
    // The records themselves, as a program could write them.
    let mut dice = Dice(7);
    for seed in 0..20 {
        let records = records_of(&recording(seed, 30));
        body::check(&[&[1], &*records].concat());
        for _ in 0..60 {
            let mut damaged = records.clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(damaged.len() as u64) as usize;
                match dice.below(3) {
                    0 => damaged[at] = dice.roll() as u8,
                    1 => _ = damaged.remove(at),
                    _ => damaged.insert(at, dice.roll() as u8),
                }
            }
            body::check(&[&[1], &*damaged].concat());
        }
        body::check(&[&[0], &*bytes(&recording(seed, 30))].concat());
    }
}

/// The records of a recording, not compressed.
fn records_of(recording: &Recording) -> Vec<u8> {
    let bytes = bytes(recording);
    let chunks = chunks(&bytes).into_iter().map(|chunk| &bytes[chunk.start + 16..chunk.end]);
    let records = chunks.map(miniz_oxide::inflate::decompress_to_vec);
    records.flat_map(|records| records.expect("a chunk")).collect()
}

/// One chunk with these records.
fn sealed(records: &[u8]) -> Vec<u8> {
    sealed_chunks(&[records])
}

/// Chunks with these records.
fn sealed_chunks(chunks: &[&[u8]]) -> Vec<u8> {
    let mut file = b"walla rec\x05\x00".to_vec();
    for (number, records) in (0..).zip(chunks) {
        let data = miniz_oxide::deflate::compress_to_vec(records, 6);
        let lengths = [data.len() as u32, records.len() as u32];
        let head = [number, lengths[0], lengths[1]].map(u32::to_le_bytes);
        let hash = fnv1a(fnv1a(FNV1A, head.as_flattened()), &data);
        file.extend(lengths.into_iter().flat_map(u32::to_le_bytes));
        file.extend(hash.to_le_bytes().into_iter().chain(data));
    }
    file
}

/// A list of 0xffff items whose bytes are all 0, behind these bytes, which may need none behind it.
fn list(before: &[u8], item_bytes: usize) -> Vec<u8> {
    [before, &[0xff, 0xff, 3], &vec![0; item_bytes * 0xffff + 8]].concat()
}

/// Items of one byte become up to fifty: a small file must not fill the memory.
#[test]
fn the_memory_of_lists_is_limited() {
    let notes = list(&[3, 8, 0, 1, 1, 0, 0, 0, 1, 0], 1);
    let choices = list(&[3, 8, 0, 1, 1, 1, 2], 1);
    let turns = list(&[3, 4, 0], 4);
    let numbers = format!("[{}0]", "0,".repeat(0xffff));
    let call = [&[8, 0, 2, 3, 1, 0, 0][..], &[0x86, 0x80, 8], br#"{"":"#, numbers.as_bytes(), b"}"]
        .concat();
    for (name, records) in
        [("notes", notes), ("choices", choices), ("turns", turns), ("call", call)]
    {
        let file = sealed(&records);
        assert!(records.len() < 1 << 20, "the limit of bytes holds");
        let read = read(&file);
        let is_limited =
            matches!(read, Err(ReadError::TooLarge { what: "bytes in memory", max: 1_048_576 }));
        assert!(is_limited, "{name}: {read:?}");
    }
    // Commands without content, which are larger than their bytes.
    let removals = sealed(&[3, 7, 1].repeat(0xffff));
    let limits = Limits { max_records: 100_000, max_bytes: 1 << 20 };
    let read = Recording::read(&*removals, limits);
    assert!(matches!(read, Err(ReadError::TooLarge { what: "bytes in memory", .. })), "{read:?}");
}

/// An asked agent whose reply has these events.
fn replied(events: &[ReplyEvent], at: (u64, u64)) -> Recording {
    let (agent, reply_id) = (AgentId(0), ReplyId(1));
    let spec = Box::new(AgentSpec::new("a smith"));
    let ask = Command::ask(agent, reply_id, Prompt::Chat("Hello!".into()));
    let commands =
        [Command::AddAgent { agent, spec }, ask].map(|command| Record::Command(Box::new(command)));
    let events = events.iter().map(|what| Event { agent, reply_id, what: what.clone() });
    let commands = commands.into_iter().map(|record| Entry { frame: 0, micros: 0, record });
    let events =
        events.map(|event| Entry { frame: at.0, micros: at.1, record: Record::Event(event) });
    Recording { entries: commands.chain(events).collect(), end: End::Complete, micros: at.1 }
}

/// Numbers that no session has, in a valid file.
#[test]
fn impossible_numbers_overflow_nothing() {
    let delta = ReplyEvent::Delta { text: InlineText::new(), tokens: u32::MAX };
    let usage = Usage {
        reply_tokens: u32::MAX,
        reasoning_tokens: u32::MAX,
        call_tokens: u32::MAX,
        ..Usage::default()
    };
    let end = ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage };
    let written = replied(&[delta.clone(), delta, end], (u64::MAX, u64::MAX));
    let recording = read(&bytes(&written)).expect("a recording");
    assert_eq!(recording, written);
    assert_eq!(Session::new(&recording).tokens(), u64::from(u32::MAX));
    for pace in [Pace::Frames, Pace::Time, Pace::Immediate] {
        let client = Player::new(recording.clone()).pace(pace).client();
        client.frame();
        let (agent, reply_id) = (AgentId::unique(), ReplyId::unique());
        let spec = Box::new(AgentSpec::new("a smith"));
        client.try_send(Command::AddAgent { agent, spec }).expect("room");
        let ask = Command::ask(agent, reply_id, Prompt::Chat("Hello!".into()));
        client.try_send(ask).expect("room");
        client.frame();
        assert_eq!(client.try_recv().is_some(), pace == Pace::Immediate, "{pace:?}");
        let _far = client.max_wait();
    }
}
