//! Vocabularies, random schemas and random arguments.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};
use walla_grammar::{
    ActionSet, ActionSpec, CallFormat, CallMarkers, CallParser, Delimiter, Input, MalformedCall,
    ParsedCall, Progress,
};
use walla_model::Gguf;
use walla_model::tokenizer::{Tokenizer, Vocabulary};

const USER_DEFINED: i64 = 4;

/// Delimiters of all formats.
pub const MARKERS: [&str; 12] = [
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

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// The vocabulary of the demo model with these special tokens instead of its delimiters.
pub fn with_tokens(texts: &[&str]) -> Arc<Tokenizer> {
    let file = Gguf::from_static(walla_demo_model::GGUF).unwrap();
    let mut vocabulary = Vocabulary::from_gguf(&file).unwrap();
    for token in &mut vocabulary.tokens {
        match *token {
            "<tool_call>" => *token = "<unused 1>",
            "</tool_call>" => *token = "<unused 2>",
            _ => {}
        }
    }
    add_tokens(vocabulary, texts)
}

/// The vocabulary of a file with more special tokens.
pub fn extended<'a>(file: &'a Gguf, texts: &[&'a str]) -> Arc<Tokenizer> {
    add_tokens(Vocabulary::from_gguf(file).unwrap(), texts)
}

fn add_tokens<'a>(mut vocabulary: Vocabulary<'a>, texts: &[&'a str]) -> Arc<Tokenizer> {
    let types = vocabulary.token_types.get_or_insert_default();
    for text in texts {
        if !vocabulary.tokens.contains(text) {
            vocabulary.tokens.push(text);
            types.push(USER_DEFINED);
            vocabulary.scores.iter_mut().for_each(|scores| scores.push(0.0));
        }
    }
    Arc::new(Tokenizer::new(&vocabulary).unwrap())
}

/// A vocabulary whose delimiters are ordinary text.
pub fn plain() -> Arc<Tokenizer> {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| with_tokens(&[]));
    TOKENIZER.clone()
}

/// A vocabulary with all delimiters as special tokens.
pub fn special() -> Arc<Tokenizer> {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| with_tokens(&MARKERS));
    TOKENIZER.clone()
}

/// Markers of a format in both vocabularies.
pub fn markers(format: CallFormat) -> [CallMarkers; 2] {
    [plain(), special()].map(|tokenizer| CallMarkers::new(format, &tokenizer))
}

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name)
}

/// An action with arguments of all kinds.
pub fn give() -> ActionSpec {
    let schema = json!({"type": "object", "properties": {
        "item": {"enum": ["nails", "a \"big\" sword", "l'or"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "note": {"type": "string", "maxLength": 40},
        "gift": {"type": "boolean"},
        "price": {"type": ["number", "null"]},
        "to": {"type": "array", "items": {"enum": ["Odo", "Ida"]}, "maxItems": 3},
        "at": {"type": "object", "properties": {"x": {"type": "number"}, "Y": {"type": "string"}},
            "required": ["x"]},
    }, "required": ["item", "count"]});
    ActionSpec::new("give", "Hands an item over.", &schema).unwrap()
}

pub fn set() -> ActionSet {
    let wave = ActionSpec::new("wave", "", &json!({"type": "object"})).unwrap();
    let give_all = ActionSpec::new(
        "give_all",
        "",
        &json!({"type": "object", "properties":
        {"why": {"type": "string"}}, "required": ["why"]}),
    );
    ActionSet::new([give(), wave, give_all.unwrap()]).unwrap()
}

/// A random schema of a value.
pub fn schema(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 7 } else { 11 };
    match random.below(kinds) {
        0 => json!({"type": "boolean"}),
        1 => {
            let low = random.below(200) as i64 - 100;
            json!({"type": "integer", "minimum": low, "maximum": low + random.below(50) as i64})
        }
        2 => json!({"type": "number", "minimum": -5, "maximum": 1000}),
        3 => {
            let min = random.below(3);
            json!({"type": "string", "minLength": min, "maxLength": min + random.below(12)})
        }
        4 => json!({"type": "string"}),
        5 => {
            let count = 1 + random.below(4);
            let words = ["nails", "nail", "two words", "é", "it's", "\"q\"", "a,b", "x{y}", "7"];
            let start = random.below(words.len());
            let picked: Vec<&str> =
                (0..count).map(|index| words[(start + index) % words.len()]).collect();
            json!({"type": "string", "enum": picked})
        }
        6 => match random.below(3) {
            0 => json!({"type": ["integer", "null"]}),
            1 => json!({"anyOf": [{"enum": ["on", "off"]}, {"type": "null"}]}),
            _ => json!({"type": ["string", "null"], "maxLength": 9}),
        },
        7 => {
            let items = schema(random, depth - 1);
            json!({"type": "array", "items": items, "maxItems": random.below(4)})
        }
        8 => {
            let items: Vec<Value> =
                (0..1 + random.below(2)).map(|_| schema(random, depth - 1)).collect();
            let count = items.len();
            json!({"type": "array", "prefixItems": items, "minItems": count, "maxItems": count})
        }
        9 => object(random, depth - 1),
        _ => json!({"type": "array", "items": schema(random, depth - 1), "minItems": 1,
            "maxItems": 3}),
    }
}

/// A random schema of an object.
pub fn object(random: &mut Random, depth: usize) -> Value {
    let names = ["item", "To", "count-2", "_x", "who", "b"];
    let mut properties = Map::new();
    let mut required = Vec::new();
    for name in names.iter().take(random.below(names.len())) {
        properties.insert((*name).to_owned(), schema(random, depth));
        if random.flag() {
            required.push(*name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

pub fn action(random: &mut Random, name: &str) -> ActionSpec {
    let schema = object(random, 2);
    ActionSpec::new(name, "Does it.", &schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// A text that every format can write: without tags, control characters and line ends of Windows.
fn text(random: &mut Random, min: usize, max: usize) -> String {
    let characters =
        ['a', ' ', 'é', '日', '"', '\'', '\\', '\n', '{', ']', ',', ':', '7', '(', '|'];
    (0..min + random.below(max - min + 1)).map(|_| random.pick(&characters)).collect()
}

/// A value that is valid by a schema of [`schema`].
pub fn value(random: &mut Random, schema: &Value) -> Value {
    if let Some(options) = schema["anyOf"].as_array() {
        let option = random.pick(options);
        return value(random, &option);
    }
    if let Some(values) = schema["enum"].as_array() {
        return random.pick(values);
    }
    let name = match &schema["type"] {
        Value::Array(types) => random.pick(types),
        name => name.clone(),
    };
    let number = |key: &str, default: i64| schema[key].as_i64().unwrap_or(default);
    match name.as_str().unwrap_or_default() {
        "null" => Value::Null,
        "boolean" => json!(random.flag()),
        "integer" => {
            let (low, high) = (number("minimum", -1000), number("maximum", 1000));
            json!(low + random.below((high - low + 1) as usize) as i64)
        }
        "number" => match random.below(3) {
            0 => json!(random.below(900)),
            1 => json!(0.25),
            _ => json!(-1.5),
        },
        "string" => {
            let min = number("minLength", 0) as usize;
            json!(text(random, min, number("maxLength", 20) as usize))
        }
        "array" => {
            if let Some(items) = schema["prefixItems"].as_array() {
                return items.iter().map(|item| value(random, item)).collect();
            }
            let (min, max) = (number("minItems", 0), number("maxItems", 3));
            let count = min + random.below((max - min + 1) as usize) as i64;
            (0..count).map(|_| value(random, &schema["items"])).collect()
        }
        _ => Value::Object(arguments(random, schema)),
    }
}

/// Arguments that are valid by a schema of [`object`].
pub fn arguments(random: &mut Random, schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut fields = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if required.contains(&json!(name)) || random.flag() {
            fields.insert(name.clone(), value(random, property));
        }
    }
    fields
}

pub type Parsed = Vec<Result<ParsedCall, MalformedCall>>;

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(Vec<u8>),
    Delimiter(Delimiter),
}

/// The pieces of a text: delimiters of the vocabulary become tokens.
pub fn pieces(markers: &CallMarkers, text: &str) -> Vec<Piece> {
    let all = [
        ("<tool_call>", Delimiter::Open),
        ("</tool_call>", Delimiter::Close),
        ("<|python_tag|>", Delimiter::Open),
        ("[TOOL_CALLS]", Delimiter::Open),
        ("[ARGS]", Delimiter::Args),
        ("<|tool_call_start|>", Delimiter::Open),
        ("<|tool_call_end|>", Delimiter::Close),
        ("<|tool_call>", Delimiter::Open),
        ("<tool_call|>", Delimiter::Close),
        ("<|\"|>", Delimiter::Quote),
        ("<|tool_call|>", Delimiter::Open),
        ("<|/tool_call|>", Delimiter::Close),
    ];
    let tokenizer = special();
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut plain = Vec::new();
    while let Some(first) = rest.chars().next() {
        let found = all.iter().find(|(text, delimiter)| {
            rest.starts_with(text)
                && markers.token(*delimiter).is_some()
                && markers.token(*delimiter) == tokenizer.special_token(text)
        });
        if let Some((text, delimiter)) = found {
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Delimiter(*delimiter));
            rest = &rest[text.len()..];
        } else {
            plain.extend_from_slice(&rest.as_bytes()[..first.len_utf8()]);
            rest = &rest[first.len_utf8()..];
        }
    }
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    pieces
}

/// Reads a reply as the runtime does. Returns the calls and the speech.
pub fn read(
    markers: &CallMarkers,
    pieces: &[Piece],
    random: Option<&mut Random>,
    limits: usize,
) -> (Parsed, Vec<u8>) {
    let mut parser = CallParser::new(markers, limits);
    let (mut calls, mut speech) = (Vec::new(), Vec::new());
    let mut random = random;
    let open = markers.open_text().unwrap_or_default().as_bytes();
    for piece in pieces {
        match piece {
            Piece::Delimiter(delimiter) => {
                parser.push(Input::Delimiter(*delimiter));
            }
            Piece::Text(text) => {
                let mut rest = text.as_slice();
                while !rest.is_empty() {
                    if !parser.is_open() {
                        let is_brace = markers.opens_with_brace()
                            && speech.trim_ascii().is_empty()
                            && rest[0] == b'{';
                        if is_brace {
                            parser.begin();
                        } else {
                            speech.push(rest[0]);
                            rest = &rest[1..];
                            if !open.is_empty() && speech.ends_with(open) {
                                speech.truncate(speech.len() - open.len());
                                parser.begin();
                            }
                            continue;
                        }
                    }
                    let end = match &mut random {
                        Some(random) => 1 + random.below(rest.len().min(9)),
                        None => rest.len(),
                    };
                    rest = match parser.push(Input::Text(&rest[..end])) {
                        Progress::Open => &rest[end..],
                        Progress::Closed { consumed } => &rest[consumed..],
                    };
                    calls.extend(parser.take_calls());
                }
            }
        }
        calls.extend(parser.take_calls());
    }
    parser.finish();
    assert!(!parser.is_open());
    calls.extend(parser.take_calls());
    (calls, speech)
}
