//! The reference vocabularies and models: ids must equal llama.cpp's.

use crate::tokenizer_common::{all_files, ids, load, models};
use serde_json::Value;
use walla_model::tokenizer::EncodeOptions;
use walla_reference_test::reference_test;
use walla_types::TokenId;

#[reference_test]
fn every_case_of_every_real_vocabulary() {
    for path in all_files("tokenizers", "gguf") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let tokenizer = load(&path);
        let side = |extension: &str| {
            std::fs::read_to_string(format!("{}.{extension}", path.display())).unwrap()
        };
        let (inputs, outputs) = (side("inp"), side("out"));
        let mut inputs: Vec<_> = inputs.split("\n__ggml_vocab_test__\n").collect();
        inputs.pop(); // the text after the last separator is not a case
        let outputs: Vec<_> = outputs.lines().collect();
        assert_eq!((inputs.len(), outputs.len()), (46, 46), "{name}");
        for (text, line) in inputs.iter().zip(outputs) {
            let expected: Vec<_> =
                line.split_whitespace().map(|id| TokenId(id.parse().unwrap())).collect();
            let found = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            assert_eq!(found, expected, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&found).unwrap(), *text, "{name}: round trip");
        }
    }
}

#[test]
fn tokenize_cases_of_every_model() {
    for path in models("json") {
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let Some(cases) = json.get("tokenize").and_then(Value::as_array) else { continue };
        let tokenizer = load(&path.with_extension("gguf"));
        assert!(!cases.is_empty());
        for case in cases {
            let flag = |name: &str| case[name].as_bool().unwrap();
            let options = EncodeOptions {
                add_special: flag("add_special"),
                parse_special: flag("parse_special"),
            };
            let text = case["text"].as_str().unwrap();
            let found = tokenizer.encode(text, options).unwrap();
            assert_eq!(found, ids(&case["ids"]), "{}: {text:?} {options:?}", path.display());
        }
    }
}

/// The tokens that end a generation, equal to llama.cpp's for the same files.
#[reference_test]
fn ends_of_generation_of_real_vocabularies() {
    let expected: [(&str, &[u32]); 4] = [
        ("gpt-2", &[50256]),
        ("llama-bpe", &[128_001, 128_009]),
        ("llama-spm", &[2]),
        ("qwen2", &[128_247, 151_643, 151_645]),
    ];
    for path in all_files("tokenizers", "gguf") {
        let tokenizer = load(&path);
        let name = path.file_stem().unwrap().to_string_lossy();
        let found: Vec<_> = tokenizer.end_of_generation_tokens().map(|token| token.0).collect();
        let (_, expected) = expected.iter().find(|(n, _)| *n == name).unwrap();
        assert_eq!(found, *expected, "{name}");
    }
}
