//! The reference vocabularies and models: ids must be those of llama.cpp.

use std::path::PathBuf;

use serde_json::Value;
use walla_model::{
    Gguf,
    tokenizer::{EncodeOptions, Tokenizer},
};
use walla_types::TokenId;

/// The shared reference data, if this checkout has it.
fn data(folder: &str) -> Option<PathBuf> {
    let path =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")).join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no reference data at {}", path.display());
    None
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let Some(folder) = data(folder) else { return Vec::new() };
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

fn load(path: &PathBuf) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(path).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

#[test]
fn every_case_of_every_real_vocabulary() {
    for path in files("tokenizers", "gguf") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let tokenizer = load(&path);
        let side = |extension: &str| {
            std::fs::read_to_string(format!("{}.{extension}", path.display())).unwrap()
        };
        let (inputs, outputs) = (side("inp"), side("out"));
        let mut inputs: Vec<_> = inputs.split("\n__ggml_vocab_test__\n").collect();
        inputs.pop(); // what follows the last separator is no case
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
    for path in files("models", "json") {
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
