//! `walla chat --record` and `walla replay`.

use super::command::{run, run_with_input, scratch, succeed, tiny};

/// A recorded chat with the demo model.
fn recorded(name: &str) -> String {
    let path = scratch(name);
    let chat = ["chat", "--persona", "You are Greta, the smith.", "-n", "20", "--record", &path];
    let ran = run_with_input(&chat, "What does a horseshoe cost?\nAnd nails?\n");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    path
}

#[test]
fn a_recorded_chat_is_shown_and_verified() {
    let path = recorded("chat.walla");
    for threads in ["1", "2"] {
        let out = succeed(&["replay", &path, "--threads", threads, "--agents", threads]);
        assert!(out.contains("agents      1\n") && out.contains("replies     2\n"), "{out}");
        assert!(out.contains(" per minute, ") && out.contains("equal       yes\n"), "{out}");
    }
    let out = succeed(&["replay", &path, "--play"]);
    assert!(out.contains(" agent 0 < What does a horseshoe cost?\n"), "{out}");
    assert_eq!(out.matches(" agent 0 > ").count(), 2, "{out}");
}

#[test]
fn a_changed_recording_fails_at_its_token() {
    use walla::record::{Record, Recording};
    let path = recorded("changed.walla");
    let mut recording = Recording::open(&path).unwrap();
    for entry in &mut recording.entries {
        if let Record::Command(command) = &mut entry.record
            && let walla_runtime::Command::Ask { options, .. } = &mut **command
        {
            options.seed = Some(99);
        }
    }
    let file = std::fs::File::create(&path).unwrap();
    recording.write(file).unwrap();
    let ran = run(&["replay", &path]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("equal       no"), "{}", ran.out);
    assert!(ran.err.contains("the first difference: agent 0, reply 1 to"), "{}", ran.err);
}

#[test]
fn other_models_and_other_files_are_refused() {
    let path = recorded("other.walla");
    let ran = run(&["replay", &path, "--model", tiny()]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("the recording is of the model"), "{}", ran.err);
    let ran = run(&["replay", tiny()]);
    let expected = format!("walla: {}: no recording of walla", tiny());
    assert_eq!((ran.code, ran.err.trim()), (Some(1), &*expected));
    let ran = run(&["replay", "/nowhere/session.walla"]);
    assert_eq!(ran.err.matches("/nowhere/session.walla: ").count(), 1, "{}", ran.err);
}

/// A recorded chat with this number of chunks, and their positions in its file.
fn with_chunks(name: &str, count: usize) -> (String, Vec<u8>, Vec<std::ops::Range<usize>>) {
    use walla::record::Recording;
    let path = recorded(name);
    let mut recording = Recording::open(&path).unwrap();
    let per_chunk = recording.entries.len() / count;
    for (at, entry) in recording.entries.iter_mut().enumerate() {
        // A chunk has at most a second.
        entry.micros = (at / per_chunk).min(count - 1) as u64 * 2_000_000;
    }
    let mut bytes = Vec::new();
    recording.write(&mut bytes).unwrap();
    let (mut chunks, mut at) = (Vec::new(), 11);
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        chunks.push(at..at + 16 + length as usize);
        at = chunks.last().unwrap().end;
    }
    assert_eq!(chunks.len(), count);
    (path, bytes, chunks)
}

fn refused(path: &str, bytes: &[u8]) -> String {
    std::fs::write(path, bytes).unwrap();
    let ran = run(&["replay", path]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    let played = run(&["replay", path, "--play"]);
    assert_eq!((played.code, &played.err), (Some(1), &ran.err), "{}", played.out);
    ran.err
}

/// A recording without a readable part is no success, with or without parts behind the damage.
#[test]
fn a_recording_without_a_readable_part_is_refused() {
    for count in 1..=3 {
        let (path, bytes, chunks) = with_chunks("damaged.walla", count);
        let mut damaged = bytes.clone();
        damaged[(chunks[0].start + 16 + chunks[0].end) / 2] ^= 1;
        let error = refused(&path, &damaged);
        let what = "no part of the recording is complete: chunk 0 at byte 11 is damaged: wrong";
        assert!(error.contains(what), "{count}: {error}");
        // Cut off within the first part, or before it.
        for length in [chunks[0].end - 1, 11] {
            let error = refused(&path, &bytes[..length]);
            let what = format!("complete: the file ends at byte {length}, in chunk 0");
            assert!(error.contains(&what), "{error}");
        }
    }
}

#[test]
fn the_part_before_the_damage_is_verified_or_the_damage_is_named() {
    let (path, bytes, chunks) = with_chunks("part.walla", 3);
    let middle = |chunk: usize| (chunks[chunk].start + 16 + chunks[chunk].end) / 2;
    // Behind the damage is a readable part: the file is damaged, not cut off.
    let mut damaged = bytes.clone();
    damaged[middle(1)] ^= 1;
    let error = refused(&path, &damaged);
    let named = format!("chunk 1 at byte {} is damaged: wrong checksum", chunks[1].start);
    assert!(error.contains(&named) && !error.contains("no part"), "{error}");
    // The last part may have been written in a crash.
    let mut damaged = bytes;
    damaged[middle(2)] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let out = succeed(&["replay", &path]);
    assert!(out.contains("end         missing"), "{out}");
}
