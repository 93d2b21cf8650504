//! Flags and verbs of comparable programs: the refusal names walla's equivalent.

use crate::command::{run, tiny};
use crate::refusals::refused;

#[test]
fn flags_of_other_programs_get_a_hint() {
    let model = tiny();
    let generate = ["generate", model, "--prompt", "x"];
    let cases: &[(&[&str], &str)] = &[
        (&["--max-tokens", "5"], "calls it -n"),
        (&["--max-tokens=5"], "calls it -n"),
        (&["--maxtokens", "5"], "calls it -n"),
        (&["--max_new_tokens", "5"], "calls it -n"),
        (&["--n-predict", "5"], "calls it -n"),
        (&["--num_predict", "5"], "calls it -n"),
        (&["--temp", "0.5"], "calls it --temperature"),
        (&["--ctx-size", "512"], "calls it --context"),
        (&["-c", "512"], "calls it --context"),
        (&["--num_ctx", "512"], "calls it --context"),
        (&["--max-model-len", "512"], "calls it --context"),
        (&["--top_k", "5"], "calls it --top-k"),
        (&["--repeat-penalty", "1.1"], "calls it --repetition-penalty"),
        (&["-t", "4"], "calls it --threads"),
        (&["-ngl", "99"], "calls it --device"),
        (&["--n-gpu-layers", "99"], "calls it --device"),
        (&["-s", "1"], "calls it --seed"),
        (&["--temperatur", "1"], "similar: --temperature"),
        (&["--stop", "x"], "no stop strings"),
        (&["--typical", "0.9"], "samples with"),
        (&["--no-mmap"], "memory that it owns"),
        (&["--mlock"], "memory that it owns"),
        (&["--flash-attn"], "needs no flag"),
        (&["-fa"], "needs no flag"),
        (&["--batch-size", "8"], "rows of a step"),
        (&["-ub", "8"], "rows of a step"),
        (&["--system", "x"], "--persona"),
    ];
    for (more, expected) in cases {
        refused(&[&generate[..], more].concat(), &[expected]);
    }
}

#[test]
fn models_and_texts_are_not_taken_for_flags() {
    let model = tiny();
    for flag in ["-m", "--model"] {
        refused(&["generate", flag, model, "-p", "x"], &["walla generate MODEL"]);
        refused(&["chat", flag, model], &["walla chat MODEL"]);
        refused(&["tokenize", flag, model, "x"], &["walla tokenize MODEL"]);
    }
    refused(&["generate", model, "-p", "x"], &["'-p'", "calls it --prompt"]);
    refused(&["generate", model, "Once upon a time"], &["behind --prompt"]);
    refused(&["tokenize", model, "-f", "text.txt"], &["calls it --file"]);
    refused(&["chat", model, "-p", "x"], &["walla chat reads what you type"]);
    refused(&["chat", model, "--system-prompt", "x"], &["calls it --persona"]);
    refused(&["chat", model, "-sys", "x"], &["calls it --persona"]);
    refused(&["chat", model, "--chat-template", "chatml"], &["calls it --template"]);
    refused(&["generate", model, "--prompt", "x", "-cnv"], &["walla chat talks"]);
    refused(&["bench", model, "--parallel", "4"], &["calls it --agents"]);
    refused(&["bench", model, "--cache-type-k", "q8_0"], &["calls it --kv"]);
    refused(&["logits", model, "--tokens", "1", "--output", "f"], &["calls it --out"]);
}

#[test]
fn verbs_of_other_programs_get_a_hint() {
    for (verb, expected) in [
        ("run", "walla chat"),
        ("server", "walla serve"),
        ("download", if cfg!(feature = "pull") { "walla pull" } else { "of this machine" }),
        ("show", "walla inspect"),
        (
            "eval",
            if cfg!(feature = "evaluate") { "walla evaluate" } else { "the feature evaluate" },
        ),
        ("say", if cfg!(feature = "voice") { "walla speak" } else { "the feature voice" }),
        ("stt", if cfg!(feature = "voice") { "walla transcribe" } else { "the feature voice" }),
        ("tokenise", "walla tokenize"),
        ("generat", "similar: generate"),
    ] {
        refused(&[verb, "model.gguf"], &[verb, expected]);
    }
}

/// A hint names only flags that the verb has.
#[test]
fn hints_name_only_existing_flags_and_verbs() {
    for arguments in [
        vec!["devices", "--max-tokens", "5"],
        vec!["inspect", tiny(), "--temp", "1"],
        vec!["inspect", tiny(), "--no-such-flag"],
    ] {
        let ran = run(&arguments);
        assert!(!ran.err.contains("calls it") && !ran.err.contains("similar"), "{}", ran.err);
    }
}
