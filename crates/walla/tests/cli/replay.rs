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

/// A recording without a readable part is no success.
#[test]
fn a_recording_without_a_readable_part_is_refused() {
    let path = recorded("damaged.walla");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ran = run(&["replay", &path]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("no part of the recording is complete"), "{}", ran.err);
}
