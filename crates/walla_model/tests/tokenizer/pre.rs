//! Vocabularies without a pre-tokenizer, or with an unsupported one.

use crate::tokenizer_common::{Lists, byte_level, data, sentence_piece};
use walla_model::Gguf;
use walla_model::gguf::Writer;
use walla_model::tokenizer::{EncodeOptions, PreTokenizer, Tokenizer, Vocabulary};
use walla_reference_test::reference_test;

const ALL: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

/// A file with these lists and an optional pre-tokenizer name.
fn file(lists: &Lists, pre: Option<&str>) -> Gguf {
    let mut writer = Writer::new();
    writer.str("tokenizer.ggml.model", lists.model);
    writer.strings("tokenizer.ggml.tokens", lists.tokens.iter().map(String::as_str));
    writer.strings("tokenizer.ggml.merges", lists.merges.iter().map(String::as_str));
    writer.f32s("tokenizer.ggml.scores", &lists.scores);
    let types: Vec<i32> = lists.types.iter().map(|&code| code as i32).collect();
    writer.i32s("tokenizer.ggml.token_type", &types);
    if let Some(bos) = lists.special.bos {
        writer.u32("tokenizer.ggml.bos_token_id", bos);
    }
    if let Some(pre) = pre {
        writer.str("tokenizer.ggml.pre", pre);
    }
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
    Gguf::from_bytes(bytes.as_slice()).unwrap()
}

#[test]
fn a_missing_pre_tokenizer_is_a_warning_and_can_be_named() {
    let lists = byte_level("");
    let text = "12345 the";
    let own = Tokenizer::from_gguf(&file(&lists, Some("llama-bpe"))).unwrap();
    assert!(own.warnings().is_empty());
    for missing in [file(&lists, None), file(&lists, Some(""))] {
        let tokenizer = Tokenizer::from_gguf(&missing).unwrap();
        let [warning] = tokenizer.warnings() else { panic!("{:?}", tokenizer.warnings()) };
        assert!(warning.contains("no tokenizer.ggml.pre") && warning.ends_with("options)"));
        assert_ne!(tokenizer.encode(text, ALL), own.encode(text, ALL), "other tokens, no BOS");
        let named = Tokenizer::from_gguf_with(&missing, Some("llama-bpe")).unwrap();
        assert!(named.warnings().is_empty());
        assert_eq!(named.encode(text, ALL), own.encode(text, ALL));
    }
    // The name "default" in a file is intentional.
    assert!(Tokenizer::from_gguf(&file(&lists, Some("default"))).unwrap().warnings().is_empty());
}

#[test]
fn an_unknown_pre_tokenizer_can_be_replaced() {
    let unknown = file(&byte_level(""), Some("kimi-k2"));
    let message = Tokenizer::from_gguf(&unknown).unwrap_err().to_string();
    assert!(message.contains("\"kimi-k2\"") && message.contains("--pre NAME"), "{message}");
    let named = Tokenizer::from_gguf_with(&unknown, Some("qwen2")).unwrap();
    let qwen = byte_level("qwen2").tokenizer();
    assert_eq!(named.encode("12345 the", ALL), qwen.encode("12345 the", ALL));
    for wrong in ["kimi-k2", ""] {
        let message = Tokenizer::from_gguf_with(&unknown, Some(wrong)).unwrap_err().to_string();
        let expected = format!("pre-tokenizer {wrong:?} is not known, expected one of default, ");
        assert!(message.starts_with(&expected), "{message}");
    }
    for name in PreTokenizer::NAMES {
        assert!(Tokenizer::from_gguf_with(&unknown, Some(name)).is_ok(), "{name}");
    }
}

#[test]
fn other_kinds_of_vocabularies_have_none() {
    let pieces = file(&sentence_piece(), None);
    assert!(Tokenizer::from_gguf(&pieces).unwrap().warnings().is_empty());
    let named = Tokenizer::from_gguf_with(&pieces, Some("qwen2")).unwrap();
    let [warning] = named.warnings() else { panic!("{:?}", named.warnings()) };
    assert!(warning.to_string().contains("\"qwen2\" has no effect"), "{warning}");
}

/// The real vocabulary of Llama 3 without its pre-tokenizer.
#[reference_test]
fn the_markers_of_a_family_point_to_its_pre_tokenizer() {
    for (name, expected) in [("llama-bpe", Some("llama-bpe")), ("gpt-2", None)] {
        let gguf = Gguf::open(data(&format!("tokenizers/{name}.gguf"))).unwrap();
        let vocabulary = Vocabulary { pre: "", ..Vocabulary::from_gguf(&gguf).unwrap() };
        let tokenizer = Tokenizer::new(&vocabulary).unwrap();
        let [warning] = tokenizer.warnings() else { panic!("{:?}", tokenizer.warnings()) };
        let likely = warning.split_once("options)").unwrap().1;
        let named = |name| format!("; the markers are those of {name:?}");
        assert_eq!(likely, expected.map(named).unwrap_or_default());
        assert!(Tokenizer::from_gguf(&gguf).unwrap().warnings().is_empty());
    }
}

#[test]
fn split_parts_without_a_vocabulary_are_named() {
    let mut writer = Writer::new();
    writer.u32("split.count", 3).u32("split.no", 1);
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let message = Tokenizer::from_gguf(&Gguf::from_bytes(bytes).unwrap()).unwrap_err().to_string();
    assert!(message.starts_with("this is part 2 of 3 of a split model"), "{message}");
}
