//! Harmless defects of a file, pre-tokenizers by name, and the reason for the end of a reply: all
//! on standard error.

use walla_doubles::synth;
use walla_model::Gguf;
use walla_model::gguf::Writer;
use walla_reference_test::reference_test;

use crate::command::{Ran, json_line, reference, run, run_with_input, scratch, succeed, tiny};

/// The tiny model without some keys, and with the keys that `more` writes.
fn rewritten(name: &str, without: &[&str], more: impl FnOnce(&mut Writer)) -> String {
    let path = scratch(name);
    let bytes = synth::rewrite(&Gguf::open(tiny()).unwrap(), without, more).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn warnings(ran: &Ran) -> Vec<&str> {
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran.err.lines().filter(|line| line.starts_with("walla: warning: ")).collect()
}

const SPEECH: [&str; 5] = ["-n", "3", "--greedy", "--device", "cpu"];

#[test]
fn a_missing_pre_tokenizer_is_a_warning_everywhere_and_a_name_ends_it() {
    let model = &*rewritten("no-pre.gguf", &["tokenizer.ggml.pre"], |_| ());
    let generate = [&["generate", model, "--prompt", "12345 x"][..], &SPEECH].concat();
    let tokenize = ["tokenize", model, "12345 x"];
    let chat = [&["chat", model][..], &SPEECH].concat();
    let ran = [run(&generate), run(&tokenize), run_with_input(&chat, "hi\n")];
    for ran in &ran {
        let found = warnings(ran);
        let is_it =
            |line: &&str| line.contains("tokenizer.ggml.pre") && line.contains("--pre NAME");
        assert!(found.len() == 1 && found.iter().all(is_it), "{}", ran.err);
    }
    let report = json_line(&succeed(&["inspect", model, "--json"]));
    assert!(report["warnings"][0].as_str().unwrap().contains("tokenizer.ggml.pre"), "{report}");
    assert!(succeed(&["inspect", model]).contains("warning: the file has no tokenizer.ggml.pre"));
    let named = run(&[&tokenize[..], &["--pre", "qwen2"]].concat());
    assert_eq!(warnings(&named), [""; 0]);
    assert_eq!(named.out, succeed(&["tokenize", tiny(), "12345 x"]));
    assert_eq!(warnings(&run(&[&generate[..], &["--pre", "qwen2"]].concat())), [""; 0]);
    let wrong = run(&[&tokenize[..], &["--pre", "no-such"]].concat());
    assert!(wrong.code != Some(0) && wrong.err.contains("llama-bpe, "), "{}", wrong.err);
    let sound = json_line(&succeed(&["inspect", tiny(), "--json"]));
    assert_eq!(sound["warnings"], serde_json::json!([]));
}

#[test]
fn an_unknown_pre_tokenizer_can_be_replaced() {
    let odd = |writer: &mut Writer| _ = writer.str("tokenizer.ggml.pre", "kimi-k2");
    let model = &*rewritten("odd-pre.gguf", &["tokenizer.ggml.pre"], odd);
    let ran = run(&["tokenize", model, "x"]);
    assert!(ran.code != Some(0) && ran.err.contains("--pre NAME"), "{}", ran.err);
    assert_eq!(succeed(&["tokenize", model, "x", "--pre", "qwen2"]), "[120]\n");
    assert_eq!(succeed(&["detokenize", model, "120", "--pre", "qwen2"]), "x\n");
}

#[reference_test]
fn metadata_that_cannot_be_read_is_a_warning_that_names_the_key() {
    let path = reference("cases/08-metadata-not-utf8.gguf");
    let model = path.to_str().unwrap();
    let generate = [&["generate", model, "--prompt", "x"][..], &SPEECH].concat();
    for arguments in [&generate[..], &["tokenize", model, "x"]] {
        let ran = run(arguments);
        let found = warnings(&ran);
        assert!(found.len() == 1 && found[0].contains("\"quantize.imatrix.file\""), "{}", ran.err);
    }
    let report = json_line(&succeed(&["inspect", model, "--json"]));
    assert!(report["warnings"][0].as_str().unwrap().contains("quantize.imatrix.file"));
    assert!(report["metadata"]["quantize.imatrix.file"].as_str().unwrap().contains("imatrix.dat"));
    let duplicates = reference("cases/05-duplicate-token-texts.gguf");
    let ran = run(&["tokenize", duplicates.to_str().unwrap(), "ed"]);
    assert!(warnings(&ran)[0].contains("duplicate texts"), "{}", ran.err);
}

/// Standard output contains only the reply.
#[test]
fn generate_reports_why_it_stopped() {
    let generate = |model: &str, more: &[&str]| {
        let all = ["generate", model, "--prompt", "Hi", "--greedy", "--device", "cpu"];
        let ran = run(&[&all[..], more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(!ran.out.contains("stopped"), "{}", ran.out);
        let stopped = ran.err.lines().find(|line| line.starts_with("stopped: "));
        (ran.out, stopped.unwrap_or_else(|| panic!("{}", ran.err)).to_owned())
    };
    let (reply, stopped) = generate(tiny(), &["-n", "1"]);
    assert_eq!(stopped, "stopped: 1 tokens, the limit of -n");
    let (_, stopped) = generate(tiny(), &["-n", "500", "--context", "16"]);
    assert_eq!(stopped, "stopped: the context of 16 tokens is full (see --context)");
    // The same model with another end-of-sequence token: the one that it samples first.
    let first = json_line(&succeed(&["tokenize", tiny(), reply.strip_suffix('\n').unwrap()]));
    let [first] = &first.as_array().unwrap()[..] else { panic!("{first} is one token") };
    let key = "tokenizer.ggml.eos_token_id";
    let first = u32::try_from(first.as_u64().unwrap()).unwrap();
    let model = rewritten("ends.gguf", &[key], |writer| _ = writer.u32(key, first));
    assert_eq!(
        generate(&model, &["-n", "9"]),
        ("\n".into(), "stopped: the model ended the text".into())
    );
}

#[test]
fn special_tokens_of_a_prompt_are_parsed_on_request() {
    let prompt_tokens = |more: &[&str]| {
        let arguments = ["generate", tiny(), "--prompt", "<|im_start|>hi<|im_end|>"];
        let ran = run(&[&arguments[..], &SPEECH, more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let at = ran.err.find(" prompt tokens").unwrap_or_else(|| panic!("{}", ran.err));
        let number = ran.err[..at].rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
        number.parse::<u32>().unwrap()
    };
    assert_eq!(prompt_tokens(&[]), "<|im_start|>hi<|im_end|>".len() as u32);
    assert_eq!(prompt_tokens(&["--special"]), 4);
}

/// `walla tokenize` matches user-defined tokens, as llama.cpp does. With `--untrusted` it encodes
/// like a raw prompt.
#[test]
fn user_defined_tokens_are_matched_unless_the_text_is_untrusted() {
    let key = "tokenizer.ggml.token_type";
    let mut types = vec![1; 300];
    types[297..].copy_from_slice(&[3, 4, 3]); // <|endoftext|>, <|im_start|>, <|im_end|>
    let model = &*rewritten("user-defined.gguf", &[key], |writer| _ = writer.i32s(key, &types));
    assert_eq!(succeed(&["tokenize", model, "<|im_start|>"]), "[298]\n");
    let untrusted = json_line(&succeed(&["tokenize", model, "<|im_start|>", "--untrusted"]));
    assert_eq!(untrusted.as_array().unwrap().len(), "<|im_start|>".len());
    let both = run(&["tokenize", model, "x", "--untrusted", "--special"]);
    assert_eq!(both.code, Some(2), "{}", both.err);
}

/// A wrong path in `WALLA_TRACE` overwrites no file; the program runs without a trace.
#[test]
fn a_trace_never_replaces_another_file() {
    let path = scratch("precious.txt");
    std::fs::write(&path, "precious").unwrap();
    let arguments = [&["generate", tiny(), "--prompt", "x"][..], &SPEECH].concat();
    let output = crate::command::walla(&arguments).env("WALLA_TRACE", &path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}
