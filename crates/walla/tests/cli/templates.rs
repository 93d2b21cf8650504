//! Chat templates that do not work, and `--template`.

use crate::command::{Ran, json_line, reference, run, run_with_input, scratch, succeed, tiny};
use walla_reference_test::reference_test;

/// A copy of the tiny model with another template, padded with spaces.
pub fn with_template(name: &str, template: &str) -> String {
    const BEGIN: &[u8] = b"{% for message in messages %}";
    const END: &[u8] = b"assistant\\n' }}{% endif %}";
    let mut bytes = std::fs::read(tiny()).unwrap();
    let find = |bytes: &[u8], wanted: &[u8]| {
        bytes.windows(wanted.len()).position(|window| window == wanted).expect("ChatML")
    };
    let start = find(&bytes, BEGIN);
    let end = start + find(&bytes[start..], END) + END.len();
    let other = format!("{template:<width$}", width = end - start);
    assert_eq!(other.len(), end - start, "no place for {template:?}");
    bytes.splice(start..end, other.bytes());
    let path = scratch(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

const OPTIONS: [&str; 5] = ["-n", "4", "--greedy", "--device", "cpu"];

/// Talks to a model, with more arguments.
fn chat(model: &str, more: &[&str]) -> Ran {
    run_with_input(&[&["chat", model], &OPTIONS[..], more].concat(), "Hello\n")
}

/// Checks that a chat is refused: the command ends before it reads its input.
fn refused(model: &str, more: &[&str]) -> Ran {
    let ran = run(&[&["chat", model], &OPTIONS[..], more].concat());
    assert_eq!((ran.code, &*ran.out), (Some(1), ""), "{model}");
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    ran
}

#[test]
fn a_broken_template_is_an_error_that_names_the_alternatives() {
    check_alternatives(&[
        (with_template("broken.gguf", "{% for m in messages %}{{ m.content }"), "invalid"),
        (with_template("empty.gguf", ""), "is empty"),
        (with_template("name.gguf", "chatml"), "only the text \"chatml\""),
        (with_template("deaf.gguf", "{{ bos_token }}"), "the user's messages"),
    ]);
}

#[reference_test]
fn the_reference_cases_name_the_alternatives() {
    let cases = [("06-template-does-not-compile", "invalid"), ("07-template-empty", "is empty")];
    check_alternatives(&cases.map(|(case, reason)| {
        let path = reference(&format!("cases/{case}.gguf"));
        (path.to_str().unwrap().to_owned(), reason)
    }));
}

/// Models whose template does not work, each with a part of the reason.
fn check_alternatives(models: &[(String, &str)]) {
    for (model, reason) in models {
        let refused = refused(model, &[]);
        for words in [model, *reason, "--template chatml, llama3, gemma, mistral", "walla generate"]
        {
            assert!(refused.err.contains(words), "no {words:?} in {:?}", refused.err);
        }
        let inspected = json_line(&succeed(&["inspect", model, "--json"]));
        let template = &inspected["chat_template"];
        assert!(template["error"].as_str().unwrap().contains(reason), "{template}");
        assert!(template["ways_out"].as_str().unwrap().contains("--template"), "{template}");
        let chosen = chat(model, &["--template", "chatml"]);
        assert_eq!((chosen.code, &*chosen.err), (Some(0), ""), "{model}");
        let raw =
            ["generate", model, "--prompt", "Hello", "-n", "4", "--greedy", "--device", "cpu"];
        assert_eq!(run(&raw).code, Some(0), "{model}");
    }
}

#[test]
fn a_template_is_chosen_by_name_or_file() {
    let file = scratch("mine.jinja");
    let mine = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>";
    std::fs::write(&file, mine).unwrap();
    for template in ["chatml", "llama3", "gemma", "mistral", &file] {
        let ran = chat(tiny(), &["--template", template]);
        assert_eq!(ran.code, Some(0), "{template}");
        let report = succeed(&["inspect", tiny(), "--template", template, "--json"]);
        let report = json_line(&report);
        let used = report["chat_template"]["used"].as_str().unwrap();
        assert!(used.contains(template), "{used}");
        // This vocabulary has only the markers of ChatML, and the file's template has no known
        // ones.
        let warnings = report["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), usize::from(template != "chatml"), "{warnings:?}");
        let lines = warnings.iter().map(|w| format!("walla: warning: {}\n", w.as_str().unwrap()));
        assert_eq!(ran.err, lines.collect::<String>(), "{template}");
        assert!(warnings.is_empty() || ran.err.contains("no tokens for the markers"));
    }
    // ChatML is also the model's template.
    assert_eq!(chat(tiny(), &["--template", "chatml"]).out, chat(tiny(), &[]).out);
}

#[test]
fn a_chosen_template_that_does_not_work_is_refused() {
    let broken = scratch("broken.jinja");
    std::fs::write(&broken, "{% for").unwrap();
    let deaf = scratch("deaf.jinja");
    std::fs::write(&deaf, "{{ bos_token }}").unwrap();
    let folder = crate::command::folder().to_str().unwrap();
    for (template, words) in [
        (&*broken, "invalid"),
        (&*deaf, "the user's messages"),
        (folder, "not a file"),
        ("vicuna", "the built-in templates are chatml, llama3, gemma and mistral"),
    ] {
        let ran = refused(tiny(), &["--template", template]);
        assert!(ran.err.contains(words) && ran.err.contains(template), "{}", ran.err);
        let report = json_line(&succeed(&["inspect", tiny(), "--template", template, "--json"]));
        let error = report["chat_template"]["error"].as_str().unwrap();
        assert!(error.contains(words), "{error}");
        // The rest of the report does not depend on it.
        assert_eq!(report["tokenizer"]["tokens"], 300);
    }
}

#[test]
fn inspect_shows_what_a_template_takes() {
    let report = json_line(&succeed(&["inspect", tiny(), "--json"]));
    let template = &report["chat_template"];
    assert_eq!(template["observations_are"], "system messages");
    assert_eq!(template["takes_system_messages"], true);
    assert_eq!(report["warnings"], serde_json::json!([]));
    let report = json_line(&succeed(&["inspect", tiny(), "--template", "gemma", "--json"]));
    let template = &report["chat_template"];
    assert_eq!(template["observations_are"], "user messages");
    assert_eq!(template["takes_system_messages"], false);
}

/// The last tokens of the tiny model are its markers.
#[test]
fn inspect_names_markers_that_are_stored_as_ordinary_tokens() {
    let mut bytes = std::fs::read(tiny()).unwrap();
    let key = b"tokenizer.ggml.token_type";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    // Type of the value, type of the items, number of items, then 300 items of 4 bytes.
    let markers = at + 4 + 4 + 8 + 298 * 4;
    assert_eq!(bytes[markers..][..8], [3, 0, 0, 0, 3, 0, 0, 0]);
    bytes[markers] = 1;
    bytes[markers + 4] = 1;
    let path = scratch("ordinary-markers.gguf");
    std::fs::write(&path, bytes).unwrap();
    let report = json_line(&succeed(&["inspect", &path, "--json"]));
    let markers = &report["tokenizer"]["reserved_markers"];
    let expected = serde_json::json!([
        {"token": 298, "text": "<|im_start|>"},
        {"token": 299, "text": "<|im_end|>"},
    ]);
    assert_eq!(*markers, expected);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("<|im_start|>") && warnings.contains("ordinary"), "{warnings}");
    assert!(succeed(&["inspect", &path]).contains("ordinary tokens"));
    // Both models get the same prompt.
    assert_eq!(chat(&path, &[]).out, chat(tiny(), &[]).out);
}
