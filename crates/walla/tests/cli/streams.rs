//! Standard streams that cannot be written, and input of any size and bytes.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::command::{run_with_input, scratch, succeed, tiny, walla};
use crate::refusals::refused;

/// A device that accepts no byte, and a pipe without a reader.
fn unwritable() -> [Stdio; 2] {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    [File::options().write(true).open("/dev/full").unwrap().into(), writer.into()]
}

/// Every verb with arguments that write to standard error or standard output, and its exit code.
fn noisy(model: &str) -> Vec<(Vec<&str>, i32)> {
    let of_generate = ["generate", model, "--prompt", "Hi", "-n", "3", "--device", "cpu"];
    vec![
        (of_generate.to_vec(), 0),
        (vec!["chat", model, "--thinking", "on", "-n", "3", "--device", "cpu"], 0),
        (vec!["tokenize", model, "x"], 0),
        (vec!["tokenize", model, "--pre", "none", "x"], 1),
        (vec!["inspect", "/no/such/model.gguf"], 1),
        (vec!["logits", model, "--tokens", "x", "--out", "/dev/null"], 2),
        (vec!["no-such-verb"], 2),
        (vec![], 2),
        (vec!["--help"], 0),
    ]
}

fn code(command: &mut Command) -> Option<i32> {
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that reads no input may have ended already.
    let _ignored = child.stdin.take().unwrap().write_all(b"Hi\n");
    child.wait_with_output().unwrap().status.code()
}

#[test]
fn an_unwritable_standard_error_changes_no_result() {
    // A file with a warning.
    let model = scratch("warned.gguf");
    let mut bytes = std::fs::read(tiny()).unwrap();
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at] = b'T';
    std::fs::write(&model, bytes).unwrap();
    let with_warning = vec!["tokenize", model.as_str(), "x"];
    for (arguments, expected) in noisy(tiny()).into_iter().chain([(with_warning, 0)]) {
        for err in unwritable() {
            let found = code(walla(&arguments).stdout(Stdio::null()).stderr(err));
            // Help without arguments is written to standard error.
            let is_help = arguments.is_empty() && found == Some(1);
            assert!(found == Some(expected) || is_help, "{arguments:?}: {found:?}");
        }
    }
}

#[test]
fn an_unwritable_standard_output_is_no_panic() {
    for (arguments, expected) in noisy(tiny()) {
        let [full, closed] = unwritable();
        for (out, kind) in [(full, "full"), (closed, "closed")] {
            let found = code(walla(&arguments).stdout(out).stderr(Stdio::null()));
            let is_reported = expected != 0 || kind == "full";
            assert!(found == Some(expected) || is_reported && found == Some(1), "{arguments:?}");
        }
    }
    // Both at once.
    let [out, err] = unwritable();
    let generate = ["generate", tiny(), "--prompt", "Hi", "-n", "3", "--device", "cpu"];
    assert_eq!(code(walla(&generate).stdout(out).stderr(err)), Some(1));
}

#[test]
fn an_endless_text_is_refused() {
    refused(&["tokenize", tiny(), "--file", "/dev/zero"], &["/dev/zero", "1048576"]);
    let path = scratch("long.txt");
    let mut text = vec![b'x'; 1 << 20];
    std::fs::write(&path, &text).unwrap();
    assert!(succeed(&["tokenize", tiny(), "--file", &path]).len() > 1 << 20);
    text.push(b'x');
    std::fs::write(&path, &text).unwrap();
    refused(&["tokenize", tiny(), "--file", &path], &[&path, "1048576"]);
    let ran = run_with_input(&["tokenize", tiny(), "--file", "/dev/stdin"], "Az");
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "[65,122]\n"), "{}", ran.err);
    std::fs::write(&path, b"A\xff").unwrap();
    refused(&["tokenize", tiny(), "--file", &path], &[&path, "UTF-8", "byte 1"]);
}

#[test]
fn chat_accepts_any_bytes() {
    let chat = ["chat", tiny(), "-n", "3", "--greedy", "--device", "cpu"];
    let said = run_with_input(&chat, b"Hello\n\xff\xfe\x80\nHello again\n");
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let readable = run_with_input(&chat, "Hello\n\u{fffd}\u{fffd}\u{fffd}\r\nHello again\n");
    assert_eq!(said.out, readable.out);
    assert_eq!(said.out.matches("> ").count(), 4, "{}", said.out);
}

#[test]
fn an_endless_line_is_skipped() {
    let chat = ["chat", tiny(), "-n", "3", "--greedy", "--device", "cpu"];
    let long = "x".repeat((1 << 20) + 1);
    let ran = run_with_input(&chat, format!("{long}\nHello\n"));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("1048576") && ran.err.lines().count() == 1, "{}", ran.err);
    assert_eq!(ran.out, format!("> {}", run_with_input(&chat, "Hello\n").out));
}
