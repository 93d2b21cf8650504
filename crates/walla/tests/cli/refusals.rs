//! Failures are reported in one line on standard error and by the exit code.

use std::process::Stdio;
use walla_reference_test::reference_test;

use crate::command::{NULL, reference, run, scratch, succeed, tiny, walla};

/// One line that contains all of `words`, no output, a failure.
pub fn refused(arguments: &[&str], words: &[&str]) {
    let ran = run(arguments);
    assert!(matches!(ran.code, Some(code) if code != 0), "{arguments:?} succeeded");
    assert_eq!(ran.out, "", "{arguments:?}");
    assert_eq!(ran.err.trim_end().lines().count(), 1, "{arguments:?}: {:?}", ran.err);
    for word in words {
        assert!(ran.err.contains(word), "{arguments:?}: {:?} lacks {word:?}", ran.err);
    }
}

/// Every verb that reads a model, with its required arguments.
fn on(model: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["inspect", model],
        vec!["tokenize", model, "x"],
        vec!["detokenize", model, "1"],
        vec!["logits", model, "--tokens", "1", "--out", NULL],
        vec!["generate", model, "--prompt", "x"],
        vec!["chat", model],
        vec!["bench", model],
        vec!["fit", model],
    ]
}

#[test]
fn a_missing_file_is_refused() {
    // In the words of the system.
    let reason = std::fs::metadata("/no/such/model.gguf").unwrap_err().to_string();
    for arguments in on("/no/such/model.gguf") {
        refused(&arguments, &["/no/such/model.gguf", &reason]);
    }
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    let path = scratch("no-model.gguf");
    std::fs::write(&path, "These are not the bytes of a model.").unwrap();
    for arguments in on(&path) {
        refused(&arguments, &[&path]);
    }
    let folder = crate::command::folder().to_str().unwrap();
    refused(&["inspect", folder], &[folder, "directory"]);
}

/// No engine ever ran, so none has failed.
#[test]
fn a_load_that_fails_names_the_model_and_the_reason() {
    let folder = crate::command::folder().to_str().unwrap();
    let text = scratch("no-model-either.gguf");
    std::fs::write(&text, "These are not the bytes of a model.").unwrap();
    for (model, device, reason) in [
        ("/", "cpu", "directory"),
        (folder, "cpu", "directory"),
        (&text, "cpu", "not a GGUF"),
        (tiny(), "tpu", "tpu"),
    ] {
        for arguments in on(model) {
            if matches!(arguments[0], "inspect" | "tokenize" | "detokenize") && device != "cpu" {
                continue;
            }
            let has_device =
                matches!(arguments[0], "logits" | "generate" | "chat" | "bench" | "fit");
            let device: &[&str] = if has_device { &["--device", device] } else { &[] };
            let ran = run(&[&arguments, device].concat());
            assert_eq!(ran.code, Some(1), "{arguments:?}");
            let has_name = ran.err.contains(&format!(" {model}: ")) || device.contains(&"tpu");
            assert!(has_name && ran.err.contains(reason), "{arguments:?}: {}", ran.err);
            assert!(!ran.err.contains("engine"), "{arguments:?}: {}", ran.err);
            if arguments[0] == "generate" {
                let expected = format!("walla: the model cannot be loaded: {model}: ");
                assert!(ran.err.starts_with(&expected), "{}", ran.err);
            }
        }
    }
}

/// Each kind of file is reported by every verb, and no verb waits for the writer of a FIFO.
#[test]
fn files_of_other_kinds_are_named() {
    for (name, bytes, expected) in [
        ("empty.gguf", &b""[..], "empty file"),
        (
            "pointer.gguf",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "git lfs pull",
        ),
        ("page.gguf", b"<!doctype html><html></html>", "web page"),
        ("weights.gguf", b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", "safetensors"),
        ("archive.gguf", b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
    ] {
        let path = scratch(name);
        std::fs::write(&path, bytes).unwrap();
        for arguments in on(&path) {
            refused(&arguments, &[&path, expected]);
        }
    }
    #[cfg(unix)]
    {
        let path = scratch("fifo.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for arguments in on(&path) {
            refused(&arguments, &[&path, "FIFO"]);
        }
        refused(&["inspect", "/dev/null"], &["/dev/null", "device"]);
    }
}

#[test]
fn tensors_of_types_without_kernels_are_named() {
    let mut model = std::fs::read(tiny()).unwrap();
    let name = b"blk.0.attn_q.weight";
    let place = model.windows(name.len()).position(|part| part == name).unwrap();
    // The name is followed by the number of dimensions, two dimensions and the type: 21 is IQ3_S.
    model[place + name.len() + 4 + 2 * 8] = 21;
    let path = scratch("iq3_s.gguf");
    std::fs::write(&path, &model).unwrap();
    for arguments in [vec!["generate", &*path, "--prompt", "x"], vec!["bench", &*path]] {
        refused(&arguments, &[&path, "IQ3_S"]);
    }
}

#[reference_test]
fn a_model_of_iq4_xs_generates() {
    let model = reference("cases/10-type-iq4_xs.gguf");
    succeed(&["generate", model.to_str().unwrap(), "--prompt", "x"]);
}

#[test]
fn a_truncated_model_is_refused() {
    let whole = std::fs::read(tiny()).unwrap();
    let path = scratch("short.gguf");
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    for arguments in on(&path) {
        refused(&arguments, &[&path]);
    }
}

#[test]
fn a_missing_device_is_refused() {
    let model = tiny();
    let out = scratch("device.f32");
    for device in ["tpu", "cuda:99"] {
        for arguments in [
            vec!["logits", model, "--tokens", "1", "--out", &out, "--device", device],
            vec!["generate", model, "--prompt", "x", "--device", device],
            vec!["chat", model, "--device", device],
            vec!["bench", model, "--device", device],
        ] {
            refused(&arguments, &[device]);
        }
    }
    // The error contains the reason. A build with the feature may find a GPU here, but none with
    // this number.
    let reason = if cfg!(feature = "cuda") { "cuda:99" } else { "feature `cuda`" };
    refused(&["generate", model, "--prompt", "x", "--device", "cuda:99"], &["cpu", reason]);
}

#[test]
fn unknown_flags_are_refused() {
    let model = tiny();
    for arguments in on(model) {
        let arguments = [arguments, vec!["--no-such-flag"]].concat();
        refused(&arguments, &["--no-such-flag"]);
    }
    refused(&["devices", "--no-such-flag"], &["--no-such-flag"]);
    refused(&["no-such-verb"], &["no-such-verb"]);
}

#[test]
fn missing_or_invalid_arguments_are_refused() {
    let model = tiny();
    refused(&["tokenize", model], &["<TEXT>"]);
    refused(&["tokenize", model, "--file", "/no/such/text"], &["/no/such/text"]);
    refused(&["detokenize", model], &["<IDS>"]);
    refused(&["detokenize", model, "many"], &["many"]);
    refused(&["detokenize", model, "300"], &["300", "vocabulary"]);
    refused(&["logits", model, "--tokens", "1"], &["--out"]);
    refused(&["logits", model, "--out", NULL], &["--tokens"]);
    refused(&["logits", model, "--tokens", "1,x", "--out", NULL], &["\"x\""]);
    refused(
        &["logits", model, "--tokens", "1", "--out", "/no/such/folder/f"],
        &["/no/such/folder/f"],
    );
    refused(&["generate", model], &["--prompt"]);
    refused(&["generate", model, "--prompt", "x", "--temperature", "-1"], &["temperature"]);
    refused(&["generate", model, "--prompt", "x", "--temperature", "nan"], &["temperature"]);
    refused(&["generate", model, "--prompt", "x", "--top-p", "7"], &["top"]);
    refused(&["generate", model, "--prompt", "x", "--greedy", "--temperature", "1"], &["--greedy"]);
    refused(&["generate", model, "--prompt", "x", "-n", "0"], &["-n"]);
    refused(&["generate", model, "--prompt", ""], &["prompt is empty"]);
    refused(&["generate", model, "--prompt", "x", "--context", "0"], &["context"]);
    refused(&["generate", model, "--prompt", "x", "--threads", "0"], &["--threads"]);
    refused(&["bench", model, "--agents", "0"], &["agents"]);
    refused(&["bench", model, "--context", "4294967295"], &["context"]);
    refused(&["bench", model, "--json", "/no/such/folder/f"], &["/no/such/folder/f"]);
    refused(&["bench", model, "--tokens", "0"], &["tokens"]);
    refused(&["bench", model, "--prefill-rows", "513"], &["--prefill-rows"]);
    refused(
        &["bench", model, "--llama", "/bin/true", "--gpu-share", "50"],
        &["--llama", "--gpu-share"],
    );
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    refused(&["logits", tiny(), "--tokens", "1,300", "--out", &scratch("unfit.f32")], &["300"]);
}

/// A closed pipe in `walla … | head` is neither a failure nor reported.
#[test]
fn a_closed_output_pipe_is_no_failure() {
    let model = tiny();
    for arguments in [vec!["inspect", model], vec!["devices"], vec!["tokenize", model, "x"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output =
            walla(&arguments).stdout(Stdio::from(writer)).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}
