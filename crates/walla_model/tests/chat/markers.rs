//! Markers that a file stores as ordinary tokens become one token each in template text, and never
//! in untrusted text.

use crate::reference_data::data;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use walla_model::Gguf;
use walla_model::chat::{
    BuiltInTemplate, LoadedText, Message, RenderOptions, Role, TemplateChoice,
};
use walla_model::gguf::{Integers, Writer};
use walla_model::tokenizer::{EncodeOptions, SpecialIds, Tokenizer, Vocabulary};
use walla_reference_test::reference_test;
use walla_types::TokenId;

/// A copy of a file in which these tokens have another type.
fn retyped(file: &Gguf, texts: &[&str], kind: i32, template: Option<&str>) -> Gguf {
    let vocabulary = Vocabulary::from_gguf(file).unwrap();
    let types = file.require::<Integers<'_>>("tokenizer.ggml.token_type").unwrap();
    let types: Vec<i32> = vocabulary
        .tokens
        .iter()
        .zip(types.iter())
        .map(|(text, old)| if texts.contains(text) { kind } else { i32::try_from(old).unwrap() })
        .collect();
    let mut writer = Writer::new();
    for (key, value) in file.metadata() {
        match key {
            "tokenizer.ggml.token_type" => writer.i32s(key, &types),
            "tokenizer.chat_template" if template.is_some() => continue,
            _ => writer.value(key, value),
        };
    }
    if let Some(template) = template {
        writer.str("tokenizer.chat_template", template);
    }
    let mut bytes = Vec::new();
    writer.begin(&mut bytes).unwrap().finish().unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

fn talk<'a>(text: &'a str) -> [Message<'a>; 3] {
    let message = |role, content| Message::new(role, content);
    [message(Role::User, text), message(Role::Assistant, text), message(Role::User, text)]
}

/// Tokens of a conversation in which every message is `text`.
fn encode(loaded: &LoadedText, text: &str) -> Vec<TokenId> {
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let template = loaded.template.as_ref().expect("it works");
    let prompt = template.render(&talk(text), &options).unwrap();
    loaded.tokenizer.encode_prompt(&prompt).unwrap()
}

fn published(name: &str) -> String {
    std::fs::read_to_string(data(&format!("templates/{name}"))).unwrap()
}

/// Real vocabularies: the correct file, and copies with markers of other types.
#[reference_test]
fn markers_of_any_type_are_one_token_each() {
    for (file, template, markers) in [
        ("qwen2.gguf", "Qwen-Qwen2.5-7B-Instruct.jinja", &["<|im_start|>", "<|im_end|>"][..]),
        (
            "llama-bpe.gguf",
            "meta-llama-Llama-3.2-3B-Instruct.jinja",
            &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"],
        ),
    ] {
        let file = Gguf::open(data(&format!("tokenizers/{file}"))).unwrap();
        let template = published(template);
        let sound =
            LoadedText::from_gguf(&retyped(&file, &[], 1, Some(&template)), None, None).unwrap();
        assert_eq!(sound.reserved_markers, []);
        let hello = encode(&sound, "Hello");
        for kind in [1, 5, 0] {
            let copy = retyped(&file, markers, kind, Some(&template));
            let loaded = LoadedText::from_gguf(&copy, None, None).unwrap();
            assert_eq!(encode(&loaded, "Hello"), hello, "{kind}");
            assert_eq!(loaded.reserved_markers.len(), markers.len(), "{kind}");
            for marker in markers {
                let token = loaded.tokenizer.special_token(marker).expect("a control token");
                assert!(loaded.reserved_markers.contains(&token));
                assert!(loaded.tokenizer.is_reserved(token) && loaded.tokenizer.is_control(token));
                assert!(loaded.warnings.iter().any(|w| w.contains(marker)), "{marker}");
            }
            // Untrusted markers are text, with the same tokens as for the correct file.
            for text in markers {
                assert_eq!(encode(&loaded, text), encode(&sound, text), "{text}");
                let raw = loaded.tokenizer.encode(text, EncodeOptions::default()).unwrap();
                assert!(raw.iter().all(|token| !loaded.reserved_markers.contains(token)));
            }
        }
    }
}

/// Tokens with the shape of a marker that the template does not print stay ordinary.
#[reference_test]
fn other_tokens_keep_their_types() {
    let file = Gguf::open(data("tokenizers/qwen2.gguf")).unwrap();
    // This vocabulary has `<s>`, `</s>` and `<unk>` as ordinary tokens.
    for template in [BuiltInTemplate::Chatml, BuiltInTemplate::Gemma] {
        let choice = TemplateChoice::from(template);
        let loaded = LoadedText::from_gguf(&file, Some(&choice), None).unwrap();
        assert_eq!(loaded.reserved_markers, [], "{template}");
        for text in ["</s>", "<s>", "<unk>"] {
            let tokens = loaded.tokenizer.encode(text, EncodeOptions::default()).unwrap();
            let plain = Tokenizer::from_gguf(&file).unwrap();
            assert_eq!(Ok(tokens), plain.encode(text, EncodeOptions::default()), "{text}");
        }
    }
    // A template that prints them reserves them.
    let mistral = "{{ '<s>' }}{% for m in messages %}{% if m.role == 'user' %}[INST]\
     {{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}";
    let choice = TemplateChoice::Source(mistral.into());
    let loaded = LoadedText::from_gguf(&file, Some(&choice), None).unwrap();
    let text = |token: &TokenId| loaded.tokenizer.token_bytes(*token);
    let texts: Vec<_> = loaded.reserved_markers.iter().map(text).collect();
    assert_eq!(texts, [&b"<s>"[..], b"</s>"]);
}

const MARKERS: [&str; 6] =
    ["<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"];

/// GPT-2's letter for a byte.
fn letter(byte: u8) -> char {
    let is_visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_visible(byte) {
        return byte.into();
    }
    let earlier = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
    char::from_u32(0x100 + earlier).unwrap()
}

/// A vocabulary in which every marker is an ordinary token that merges spell letter by letter from
/// the left. `None`: with scores; otherwise byte-level.
fn spelling(pre: Option<&'static str>, template: &str) -> Gguf {
    let mut tokens: Vec<String> = match pre {
        Some(_) => (0..=u8::MAX).map(|byte| letter(byte).to_string()).collect(),
        None => (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect(),
    };
    let mut kinds = vec![if pre.is_some() { 1 } else { 6 }; 256];
    let mut merges = Vec::new();
    if pre.is_none() {
        tokens.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string()));
    }
    for marker in MARKERS {
        for end in 2..=marker.len() {
            let (left, right) = marker[..end].split_at(end - 1);
            let token = [left, right].concat();
            if !tokens.contains(&token) {
                tokens.push(token);
                merges.push(format!("{left} {right}"));
            }
        }
    }
    tokens.push("▁".into());
    kinds.resize(tokens.len(), 1);
    let scores: Vec<f32> = (0..tokens.len()).map(|id| id as f32).collect();
    let mut writer = Writer::new();
    writer
        .str("tokenizer.ggml.model", if pre.is_some() { "gpt2" } else { "llama" })
        .str("tokenizer.ggml.pre", pre.unwrap_or_default())
        .strings("tokenizer.ggml.tokens", tokens.iter().map(String::as_str))
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
        .strings("tokenizer.ggml.merges", merges.iter().map(String::as_str))
        .str("tokenizer.chat_template", template);
    let mut bytes = Vec::new();
    writer.begin(&mut bytes).unwrap().finish().unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

/// One marker per role, all printed.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>[INST]\
 {{ m.content }}[/INST]<|im_end|>{% else %}<start_of_turn>{{ m.content }}<end_of_turn>\
 {% endif %}{% endfor %}";

/// Neither words of the vocabulary nor merges convert untrusted text to a marker.
#[test]
fn untrusted_text_never_becomes_a_reserved_marker() {
    let fragment = prop_oneof![
        3 => prop::sample::select(MARKERS.to_vec()).prop_map(str::to_owned),
        3 => (prop::sample::select(MARKERS.to_vec()), any::<prop::sample::Index>()).prop_map(
            |(marker, at)| marker[at.index(marker.len())..].to_owned()
        ),
        3 => (prop::sample::select(MARKERS.to_vec()), any::<prop::sample::Index>()).prop_map(
            |(marker, at)| marker[..at.index(marker.len())].to_owned()
        ),
        2 => "[ a-z<>|\\[\\]▁\n]{0,4}",
    ];
    let text = prop::collection::vec(fragment, 0..6).prop_map(|parts| parts.concat());
    // The second pre-tokenizer uses whole words of the vocabulary before it merges.
    for pre in [Some("qwen2"), Some("llama-bpe"), None] {
        let loaded = LoadedText::from_gguf(&spelling(pre, TEMPLATE), None, None).unwrap();
        assert_eq!(loaded.reserved_markers.len(), MARKERS.len(), "{pre:?}");
        let reserved = |text: &str| {
            let mut tokens = encode(&loaded, text);
            tokens.retain(|token| loaded.reserved_markers.contains(token));
            tokens
        };
        let expected = reserved("x");
        assert_eq!(expected.len(), 10, "{pre:?}");
        let config = Config { cases: 1_000, failure_persistence: None, ..Config::default() };
        let result = TestRunner::new(config).run(&text, |text| {
            prop_assert_eq!(reserved(&text), expected.clone(), "{:?}", pre);
            let plain = loaded.tokenizer.encode(&text, EncodeOptions::default()).unwrap();
            prop_assert!(plain.iter().all(|token| !loaded.reserved_markers.contains(token)));
            let spaced = if pre.is_some() { text } else { text.replace('▁', " ") };
            prop_assert_eq!(loaded.tokenizer.decode(&plain).unwrap(), spaced);
            Ok(())
        });
        result.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Shows that the test above can fail: without the template, the same text becomes the marker.
/// Pre-tokenizers of byte-level vocabularies split words from punctuation, so a player could not
/// type it there in any case.
#[test]
fn without_a_template_markers_can_be_encoded_from_text() {
    let tokenizer = Tokenizer::from_gguf(&spelling(None, TEMPLATE)).unwrap();
    let tokens = tokenizer.encode("x<start_of_turn>", EncodeOptions::default()).unwrap();
    let last = tokens.last().map(|&token| tokenizer.token_bytes(token));
    assert_eq!(last, Some(&b"<start_of_turn>"[..]));
}

/// Phi 3's markers consume the white space after them, even if the file stores them as ordinary
/// tokens.
#[test]
fn reserved_markers_strip_white_space_as_their_family() {
    let tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["<|user|>", "<|end|>", "<|assistant|>", "▁", "x"].map(str::to_owned))
        .collect();
    let mut kinds = vec![6; 256];
    kinds.resize(tokens.len(), 1);
    let mut vocabulary = Vocabulary {
        model: "llama",
        model_name: "Phi 3 Mini (phi-3)",
        tokens: tokens.iter().map(String::as_str).collect(),
        token_types: Some(kinds),
        scores: Some(vec![0.0; tokens.len()]),
        special: SpecialIds { unknown: Some(255), ..SpecialIds::default() },
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    let changed = vocabulary.reserve_markers(["<|user|>\n", "<|end|>\n<|assistant|>\n"]);
    assert_eq!(changed, [TokenId(256), TokenId(257), TokenId(258)]);
    let tokenizer = Tokenizer::new(&vocabulary).unwrap();
    let options = EncodeOptions { add_special: false, parse_special: true };
    let ids = tokenizer.encode("<|user|>\nx<|end|>\n", options).unwrap();
    assert_eq!(ids, [TokenId(256), TokenId(260), TokenId(257)]);
}
