//! Prompts: template text and untrusted text are encoded separately, without an effect on ordinary
//! text.

use crate::tokenizer_common::{byte_level, ids, load, models, sentence_piece};
use proptest::prelude::*;
use serde_json::Value;
use walla_model::{
    chat::{Prompt, Segment},
    tokenizer::{EncodeOptions, Tokenizer},
};
use walla_types::TokenId;

const WHOLE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn template(text: &str) -> Segment {
    Segment::Template(text.to_owned())
}

fn untrusted(text: &str) -> Segment {
    Segment::Untrusted(text.to_owned())
}

fn prompt(segments: impl IntoIterator<Item = Segment>) -> Prompt {
    Prompt { segments: segments.into_iter().collect() }
}

/// ChatML messages, split by origin.
fn chatml(texts: &[(&str, &str)]) -> Prompt {
    let message = |(role, text): &(&str, &str)| {
        [template(&format!("<|im_start|>{role}\n")), untrusted(text), template("<|im_end|>\n")]
    };
    let end = [template("<|im_start|>assistant\n")];
    prompt(texts.iter().flat_map(message).chain(end))
}

fn reserved(tokenizer: &Tokenizer, tokens: &[TokenId]) -> Vec<TokenId> {
    tokens.iter().copied().filter(|&token| tokenizer.is_reserved(token)).collect()
}

/// The chat cases of the reference models: messages in segments give the ids of the whole rendered
/// text.
#[test]
fn chat_cases_of_every_model() {
    for path in models("json") {
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let Some(chat) = json.get("chat") else { continue };
        let messages = chat["messages"].as_array().unwrap();
        let texts: Vec<_> = messages
            .iter()
            .map(|message| {
                (message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
            })
            .collect();
        let prompt = chatml(&texts);
        assert_eq!(prompt.text(), chat["rendered"].as_str().unwrap(), "{}", path.display());
        let tokens = load(&path.with_extension("gguf")).encode_prompt(&prompt).unwrap();
        assert_eq!(tokens, ids(&chat["ids"]), "{}", path.display());
    }
}

#[test]
fn markers_come_from_template_text_only() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    let start = tokenizer.special_token("<|im_start|>").unwrap();
    let count = |segments: Vec<Segment>| {
        let tokens = tokenizer.encode_prompt(&prompt(segments)).unwrap();
        tokens.iter().filter(|&&token| token == start).count()
    };
    assert_eq!(count(vec![template("<|im_start|>")]), 1);
    assert_eq!(count(vec![untrusted("<|im_start|>")]), 0);
    // Nor in halves, from either side or across a border.
    assert_eq!(count(vec![template("<|im_"), untrusted("start|>")]), 0);
    assert_eq!(count(vec![untrusted("<|im_"), template("start|>")]), 0);
    assert_eq!(count(vec![untrusted("<|im_"), untrusted("start|>")]), 0);
    assert_eq!(count(vec![template("<|im_"), untrusted(""), template("start|>")]), 0);
    // Adjacent untrusted text does not hide a marker.
    assert_eq!(count(vec![untrusted("<|im_<"), template("<|im_start|>")]), 1);
}

#[test]
fn user_defined_markers_are_markers_and_line_breaks_are_not() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    let special = |segment| {
        let tokens = tokenizer.encode_prompt(&prompt([segment])).unwrap();
        let text = |&token: &TokenId| tokenizer.token_bytes(token).to_owned();
        tokens
            .iter()
            .map(text)
            .filter(|text| text == b"<think>" || text == b"\n\n\n")
            .collect::<Vec<_>>()
    };
    assert_eq!(special(template("<think>\n\n\n")), [b"<think>".to_vec(), b"\n\n\n".to_vec()]);
    assert_eq!(special(untrusted("<think>\n\n\n")), [b"\n\n\n".to_vec()]);
    // A line-break token may cross the border, as in the whole text.
    let tokens = tokenizer.encode_prompt(&prompt([untrusted("a\n"), template("\n\nb")])).unwrap();
    assert_eq!(tokens, tokenizer.encode("a\n\n\nb", WHOLE).unwrap());
}

#[test]
fn prompts_have_one_bos_and_no_eos() {
    let mut lists = byte_level("gpt-2");
    lists.add_bos = Some(true);
    let tokenizer = lists.tokenizer();
    let bos = tokenizer.bos().unwrap();
    let first = |segment| tokenizer.encode_prompt(&prompt([segment])).unwrap();
    assert_eq!(first(template("a"))[..1], [bos]);
    assert_eq!(first(template("<|begin|>a")).iter().filter(|&&token| token == bos).count(), 1);
    // A player who types it does not replace it.
    let typed = first(untrusted("<|begin|>a"));
    assert_eq!(typed[0], bos);
    assert!(!typed[1..].contains(&bos));
}

#[test]
fn the_limit_counts_all_segments() {
    let tokenizer = byte_level("gpt-2").tokenizer().with_max_text_bytes(4);
    assert!(tokenizer.encode_prompt(&prompt([template("ab"), untrusted("cd")])).is_ok());
    assert!(tokenizer.encode_prompt(&prompt([template("ab"), untrusted("cde")])).is_err());
}

/// Possible attacks: markers, parts of markers, odd characters, whole words.
fn hostile() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("<|im_end|>"),
        Just("<|im_start|>"),
        Just("<|begin|>"),
        Just("<think>"),
        Just("</s>"),
        Just("<s>"),
        Just("<unk>"),
        Just("<|im_"),
        Just("end|>"),
        Just("start|>"),
        Just("<|"),
        Just("|>"),
        Just("<"),
        Just(">"),
        Just("</"),
        Just("s>"),
        Just("\n"),
        Just("\n\n\n"),
        Just(" "),
        Just("the "),
        Just("<0x41>"),
        Just("\0"),
        Just("\u{202e}"),
        Just("\u{10f03c}"),
        Just("\u{10f07c}"),
        Just("\u{2028}"),
        Just("▁"),
        Just("é"),
        Just("user"),
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4_000)
    })]

    /// For any contents of any field, the markers equal those in the same prompt with plain words.
    #[test]
    fn untrusted_text_is_no_marker(system in hostile(), user in hostile(), assistant in hostile()) {
        static TOKENIZERS: std::sync::LazyLock<[Tokenizer; 2]> =
            std::sync::LazyLock::new(|| [byte_level("llama-bpe").tokenizer(), sentence_piece().tokenizer()]);
        for tokenizer in &*TOKENIZERS {
            let tokens = |texts: [&str; 3]| {
                let [system, user, assistant] = texts;
                let prompt = chatml(&[("system", system), ("user", user), ("assistant", assistant)]);
                tokenizer.encode_prompt(&prompt).unwrap()
            };
            let typed = tokens([&system, &user, &assistant]);
            let plain = tokens(["a", "b", "c"]);
            prop_assert_eq!(reserved(tokenizer, &typed), reserved(tokenizer, &plain));
        }
    }

    /// Words without markers give the tokens of the whole text, for any borders.
    #[test]
    fn segment_borders_do_not_change_tokens(words in proptest::collection::vec("[a-z0-9 \n'é日]{0,6}", 1..8)) {
        static TOKENIZERS: std::sync::LazyLock<[Tokenizer; 2]> =
            std::sync::LazyLock::new(|| [byte_level("qwen2").tokenizer(), sentence_piece().tokenizer()]);
        for tokenizer in &*TOKENIZERS {
            let segments = words.iter().enumerate().map(|(nth, word)| {
                if nth % 2 == 0 { template(word) } else { untrusted(word) }
            });
            let marker = template("<|im_end|>");
            let prompt = prompt(segments.chain([marker, untrusted("the end")]));
            let whole = tokenizer.encode(&prompt.text(), WHOLE).unwrap();
            prop_assert_eq!(tokenizer.encode_prompt(&prompt).unwrap(), whole);
        }
    }
}
