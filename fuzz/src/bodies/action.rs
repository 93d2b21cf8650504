//! Calls: any text of a reply is a call or an error, and the result does not depend on the cut.

use std::sync::LazyLock;

use serde_json::json;
use walla_grammar::{
    ActionSet, ActionSpec, CallFormat, CallMarkers, CallParser, Delimiter, Input, MalformedCall,
    ParsedCall, Progress, check as check_call, render,
};
use walla_model::Gguf;
use walla_model::tokenizer::{Tokenizer, Vocabulary};

const USER_DEFINED: i64 = 4;

/// The tokens of all formats.
const TOKENS: [&str; 12] = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|tool_call|>",
    "<|/tool_call|>",
];

/// Bytes of the input that are delimiters. UTF-8 does not have them.
const DELIMITERS: [(u8, Delimiter); 4] = [
    (0xf8, Delimiter::Open),
    (0xf9, Delimiter::Close),
    (0xfa, Delimiter::Args),
    (0xfb, Delimiter::Quote),
];

struct Setup {
    /// Delimiters as text, and as tokens.
    tokenizers: [Tokenizer; 2],
    actions: ActionSet,
}

fn setup() -> &'static Setup {
    static SETUP: LazyLock<Setup> = LazyLock::new(|| {
        let file = Gguf::from_static(walla_demo_model::GGUF).expect("the demo model");
        let tokenizers = [&[][..], &TOKENS].map(|tokens| {
            let mut vocabulary = Vocabulary::from_gguf(&file).expect("the demo model");
            vocabulary.tokens.extend(tokens);
            let types = vocabulary.token_types.get_or_insert_default();
            types.extend(tokens.iter().map(|_| USER_DEFINED));
            Tokenizer::new(&vocabulary).expect("the demo model")
        });
        let schema = json!({"type": "object", "properties": {
            "item": {"type": "string", "maxLength": 20},
            "n": {"type": ["integer", "null"], "minimum": -9, "maximum": 99},
            "to": {"type": "array", "items": {"enum": ["Odo", "Ida", 1]}, "maxItems": 3},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}},
            "any": {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
        }});
        let give = ActionSpec::new("give", "", &schema).expect("a schema");
        Setup { tokenizers, actions: ActionSet::new([give]).expect("a set") }
    });
    &SETUP
}

type Calls = Vec<Result<ParsedCall, MalformedCall>>;

/// The calls of a reply whose texts are cut after `piece` bytes.
fn read(markers: &CallMarkers, max_bytes: usize, reply: &[u8], piece: usize) -> Calls {
    let mut parser = CallParser::new(markers, max_bytes);
    let mut calls = Vec::new();
    parser.begin();
    let is_delimiter = |byte: &u8| DELIMITERS.iter().any(|(mark, _)| mark == byte);
    let mut rest = reply;
    while let Some(first) = rest.first() {
        if let Some((_, delimiter)) = DELIMITERS.iter().find(|(mark, _)| mark == first) {
            parser.push(Input::Delimiter(*delimiter));
            rest = &rest[1..];
        } else {
            let end = rest.iter().position(is_delimiter).unwrap_or(rest.len());
            let text = &rest[..end.min(piece)];
            let consumed = match parser.push(Input::Text(text)) {
                Progress::Open => text.len(),
                // The rest of the text is speech; here the next call follows.
                Progress::Closed { consumed } => {
                    assert!(consumed <= text.len());
                    parser.begin();
                    consumed
                }
            };
            rest = &rest[consumed..];
        }
        calls.extend(parser.take_calls());
        if !parser.is_open() {
            parser.begin();
        }
    }
    parser.finish();
    calls.extend(parser.take_calls());
    calls
}

/// The input: format and vocabulary, the limit in units of 8 bytes, then the reply.
pub fn check(bytes: &[u8]) {
    let [kind, limit, reply @ ..] = bytes else { return };
    let format = CallFormat::ALL[usize::from(*kind) % CallFormat::ALL.len()];
    let tokenizer = &setup().tokenizers[usize::from(*kind) / CallFormat::ALL.len() % 2];
    let markers = CallMarkers::new(format, tokenizer);
    let max_bytes = 8 * usize::from(*limit);
    let calls = read(&markers, max_bytes, reply, usize::MAX);
    for piece in [1, 3] {
        assert_eq!(calls, read(&markers, max_bytes, reply, piece));
    }
    for call in calls {
        match call {
            Ok(call) => check_arguments(call),
            Err(call) => assert!(call.text.len() <= MalformedCall::MAX_TEXT_BYTES),
        }
    }
}

/// Valid arguments are valid again, and JSON with them is the same call.
fn check_arguments(call: ParsedCall) {
    let actions = &setup().actions;
    let Ok(valid) = check_call(actions, call) else { return };
    assert_eq!(check_call(actions, valid.clone()), Ok(valid.clone()));
    let text = render(CallFormat::LlamaJson, &valid);
    let markers = CallMarkers::new(CallFormat::LlamaJson, &setup().tokenizers[0]);
    let mut parser = CallParser::new(&markers, CallParser::MAX_BYTES);
    parser.begin();
    assert_eq!(
        parser.push(Input::Text(text.as_bytes())),
        Progress::Closed { consumed: text.len() }
    );
    assert_eq!(parser.take_calls().next(), Some(Ok(valid)));
}

/// A call of every format in both vocabularies.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let arguments = json!({"item": "a \"b\" é\n", "n": 3, "to": ["Odo", 1], "at": {"x": 0.5},
        "any": true});
    let serde_json::Value::Object(arguments) = arguments else { return Vec::new() };
    let call = ParsedCall::new("give", arguments);
    let marks = [0xf8, 0xf9, 0xf8, 0xf8, 0xfa, 0xf8, 0xf9, 0xf8, 0xf9, 0xfb, 0xf8, 0xf9];
    let mut seeds = Vec::new();
    for (index, format) in CallFormat::ALL.into_iter().enumerate() {
        let text = render(format, &call).into_bytes();
        for has_tokens in [false, true] {
            let mut reply = Vec::new();
            let mut rest = text.as_slice();
            while let Some((&first, behind)) = rest.split_first() {
                let found = TOKENS.iter().zip(marks).find(|(t, _)| rest.starts_with(t.as_bytes()));
                match found.filter(|_| has_tokens) {
                    Some((token, mark)) => {
                        reply.push(mark);
                        rest = &rest[token.len()..];
                    }
                    None => {
                        reply.push(first);
                        rest = behind;
                    }
                }
            }
            let kind = index + CallFormat::ALL.len() * usize::from(has_tokens);
            seeds.push([&[kind as u8, 200][..], &reply].concat());
        }
    }
    seeds
}
