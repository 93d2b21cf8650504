//! Detection of call formats.

use std::collections::BTreeMap;

use crate::common::{data, plain, special, with_tokens};
use walla_grammar::{CallFormat, CallMarkers, Delimiter};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_reference_test::reference_test;

/// Characteristic parts of published templates, written for this test.
#[test]
fn templates_name_their_format() {
    let tokenizer = plain();
    for (source, format) in [
        ("{{ '<tool_call>\\n{\"name\": \"' }}", CallFormat::HermesJson),
        ("{{ '<tool_call>\\n<function=' + f.name }}", CallFormat::QwenXml),
        ("{{ '[TOOL_CALLS][' }}", CallFormat::MistralList),
        ("{{ '[TOOL_CALLS]' + f.name + '[ARGS]' }}", CallFormat::MistralNamed),
        ("{{ '<|tool_call_start|>[' }}", CallFormat::Lfm2),
        ("{{ '<|tool_call>call:' }}", CallFormat::Gemma4),
        ("{{ '<|tool_call|>' }}{{ '<|/tool_call|>' }}", CallFormat::Phi4),
        ("{{ '<|python_tag|>' }} parameters", CallFormat::LlamaJson),
        ("{{ messages[0].content }}", CallFormat::Plain),
    ] {
        assert_eq!(CallFormat::of(Some(source), &tokenizer), format, "{source}");
    }
    assert_eq!(CallFormat::of(None, &tokenizer), CallFormat::Plain);
}

#[test]
fn special_tokens_name_the_format_if_the_template_does_not() {
    for (tokens, format) in [
        (&["<tool_call>", "</tool_call>"][..], CallFormat::HermesJson),
        (&["[TOOL_CALLS]"], CallFormat::MistralList),
        (&["[TOOL_CALLS]", "[ARGS]"], CallFormat::MistralNamed),
        (&["<|tool_call_start|>", "<|tool_call_end|>"], CallFormat::Lfm2),
        (&["<|tool_call>", "<tool_call|>", "<|\"|>"], CallFormat::Gemma4),
        (&["<|tool_call|>", "<|/tool_call|>"], CallFormat::Phi4),
        (&["<|python_tag|>"], CallFormat::LlamaJson),
    ] {
        let tokenizer = with_tokens(tokens);
        assert_eq!(CallFormat::of(None, &tokenizer), format);
        let template = Some("{{ messages }}");
        let expected = if format == CallFormat::LlamaJson { CallFormat::Plain } else { format };
        assert_eq!(CallFormat::of(template, &tokenizer), expected);
        let markers = CallMarkers::new(format, &tokenizer);
        for text in tokens {
            let token = tokenizer.special_token(text).unwrap();
            assert!(markers.of_token(token).is_some(), "{text}");
        }
    }
    let llama = with_tokens(&["<|python_tag|>"]);
    let source = "{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' }}";
    assert_eq!(CallFormat::of(Some(source), &llama), CallFormat::LlamaJson);
}

#[test]
fn markers_are_tokens_where_the_vocabulary_has_them() {
    let tokenizer = special();
    let markers = CallMarkers::new(CallFormat::Gemma4, &tokenizer);
    for (text, delimiter) in [
        ("<|tool_call>", Delimiter::Open),
        ("<tool_call|>", Delimiter::Close),
        ("<|\"|>", Delimiter::Quote),
    ] {
        let token = tokenizer.special_token(text).unwrap();
        assert_eq!(markers.of_token(token), Some(delimiter));
        assert_eq!((markers.token(delimiter), markers.text(delimiter)), (Some(token), None));
    }
    assert_eq!(markers.open_text(), None);
    let markers = CallMarkers::new(CallFormat::Plain, &tokenizer);
    assert_eq!(markers.token(Delimiter::Open), None, "plain markers are always text");
    assert_eq!(markers.open_text(), Some("<tool_call>"));
    let markers = CallMarkers::new(CallFormat::LlamaJson, &plain());
    assert_eq!(markers.open_text(), None);
    assert!(markers.opens_with_brace());
}

/// Templates and vocabularies as published. A template is combined with the vocabulary of the
/// demo model, which has no delimiters. The file of SmolLM 3 is a version without tools.
#[reference_test]
fn published_templates_and_vocabularies() {
    let expected = BTreeMap::from([
        ("HuggingFaceTB-SmolLM3-3B.jinja", CallFormat::Plain),
        ("LFM2-8B-A1B.jinja", CallFormat::Lfm2),
        ("Qwen-Qwen2.5-7B-Instruct.jinja", CallFormat::HermesJson),
        ("Qwen-Qwen3-0.6B.jinja", CallFormat::HermesJson),
        ("google-gemma-2-2b-it.jinja", CallFormat::Plain),
        ("meta-llama-Llama-3.2-3B-Instruct.jinja", CallFormat::LlamaJson),
        ("microsoft-Phi-3.5-mini-instruct.jinja", CallFormat::Plain),
        ("mistralai-Mistral-Nemo-Instruct-2407.jinja", CallFormat::MistralList),
    ]);
    let mut found = BTreeMap::new();
    let llama = with_tokens(&["<|python_tag|>"]);
    for entry in std::fs::read_dir(data("templates")).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let tokenizer = if name.contains("Llama") { &llama } else { &*plain() };
        found.insert(name, CallFormat::of(Some(&source), tokenizer));
    }
    for (name, format) in &expected {
        assert_eq!(found.get(*name), Some(format), "{name}");
    }
    for (name, format) in [
        ("gpt-2", CallFormat::Plain),
        ("llama-bpe", CallFormat::Plain),
        ("llama-spm", CallFormat::Plain),
        ("qwen2", CallFormat::Plain),
    ] {
        let file = Gguf::open(data("tokenizers").join(format!("{name}.gguf"))).unwrap();
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        assert_eq!(CallFormat::of(None, &tokenizer), format, "{name}");
    }
}
