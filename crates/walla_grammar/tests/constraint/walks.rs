//! Random replies satisfy their constraint by an independent validator, for every kind of
//! vocabulary.

use std::sync::Arc;

use serde_json::{Value, json};
use walla_grammar::{Compiler, CompilerOptions, Constraint, JsonWhitespace, Vocabulary};
use walla_model::tokenizer::Tokenizer;
use walla_reference_test::reference_test;

use crate::common::{compiler, demo, reference, reply, schema, small};

/// Schemas of games and of `schemars`.
fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"item": {"enum": ["horseshoe", "nails"]},
            "to": {"type": "string"}, "price": {"type": "integer", "format": "uint16", "minimum": 0,
            "maximum": 65535}}, "required": ["item", "to", "price"], "additionalProperties": false}),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Order",
            "oneOf": [{"type": "object", "properties": {"Move": {"$ref": "#/$defs/Place"}},
            "required": ["Move"], "additionalProperties": false}, {"type": "string", "const": "Wait"},
            {"type": "object", "properties": {"Say": {"type": ["string", "null"]}}, "required": ["Say"],
            "additionalProperties": false}], "$defs": {"Place": {"type": "object", "properties": {
            "x": {"type": "number", "format": "float"}, "y": {"type": "number", "format": "double"},
            "level": {"type": "integer", "format": "int32"}}, "required": ["x", "y", "level"]}}}),
        json!({"type": "object", "properties": {"tree": {"$ref": "#/$defs/tree"}}, "required": ["tree"],
            "$defs": {"tree": {"type": "object", "properties": {"name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["name"], "additionalProperties": false}}}),
        json!({"type": "object"}),
        json!({"type": "array"}),
        json!(true),
        json!({"type": "object", "properties": {"when": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"}}, "required": ["when"],
            "additionalProperties": {"type": "integer"}}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "pattern": "^[A-Z]+$"}],
            "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
        json!({"type": "object", "allOf": [{"properties": {"a": {"type": "number"}}},
            {"properties": {"b": {}}}], "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    ]
}

const REGEXES: [&str; 8] = [
    "[A-Z][a-z]+ [A-Z][a-z]+",
    "(yes|no)(, (please|thanks))?",
    "\\d{1,3}(\\.\\d{3})*",
    "^\\w+@\\w+\\.[a-z]{2,3}$",
    "(?i)hello|[^\\x00-\\x7f]{1,4}",
    ".{1,20}/[^/]*",
    "a*b?",
    "\"(?:[^\"\\\\]|\\\\.)*\"",
];

fn check(tokenizer: &Arc<Tokenizer>, seeds: u64) {
    let compiler = compiler(tokenizer.clone());
    let (mut replies, mut finished) = (0, 0);
    for value in schemas() {
        let grammar = compiler.compile(&schema(&value)).unwrap_or_else(|e| panic!("{value}: {e}"));
        let options = jsonschema::options().should_validate_formats(true);
        let validator = options.build(&value).unwrap();
        for seed in 1..=seeds {
            replies += 1;
            let Some(text) = reply(&grammar, tokenizer, seed, 400) else { continue };
            finished += 1;
            let found: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{value}: {text}: {e}"));
            assert!(validator.is_valid(&found), "{value}: {text}");
            assert!(!text.contains("\\u"), "{text}: one spelling of each string");
        }
    }
    for regex in REGEXES {
        let grammar = compiler.compile(&Constraint::regex(regex)).unwrap();
        let validator = regex::Regex::new(&format!("^(?:{regex})$")).unwrap();
        for seed in 1..=seeds {
            replies += 1;
            let Some(text) = reply(&grammar, tokenizer, seed, 200) else { continue };
            finished += 1;
            assert!(validator.is_match(&text), "{regex}: {text}");
        }
    }
    assert!(finished * 2 > replies, "{finished} of {replies} replies are finished");
}

#[test]
fn replies_of_the_demo_model_are_valid() {
    check(&demo(), 10);
}

#[test]
fn replies_of_small_vocabularies_are_valid() {
    for name in ["llama32-q4_0", "gemma3-q8_0", "tinystories-260k", "qwen2-q8_0", "lfm2-q8_0"] {
        check(&small(name), 4);
    }
}

#[reference_test]
fn replies_of_real_vocabularies_are_valid() {
    for name in ["llama-spm", "llama-bpe", "gpt-2", "qwen2"] {
        check(&reference(name), 2);
    }
}

#[test]
fn white_space_follows_the_settings() {
    let tokenizer = small("llama32-q4_0");
    let value = json!({"type": "object", "properties": {"a": {"const": [1, 2]}, "b": {"type": "null"}},
        "required": ["a", "b"], "additionalProperties": false});
    let texts = |whitespace, seeds: std::ops::RangeInclusive<u64>| {
        let options = CompilerOptions { whitespace, ..CompilerOptions::default() };
        let vocabulary = Vocabulary::new(tokenizer.clone()).unwrap();
        let grammar = Compiler::new(vocabulary, options).compile(&schema(&value)).unwrap();
        seeds.filter_map(|seed| reply(&grammar, &tokenizer, seed, 400)).collect::<Vec<_>>()
    };
    assert_eq!(texts(JsonWhitespace::Compact, 1..=1), ["{\"a\":[1,2],\"b\":null}"]);
    assert_eq!(texts(JsonWhitespace::Spaced, 1..=1), ["{\"a\": [1, 2], \"b\": null}"]);
    let flexible = texts(JsonWhitespace::Flexible, 1..=20);
    assert!(flexible.iter().any(|text| text.contains('\n')));
    for text in flexible {
        assert!(!text.contains(&" ".repeat(18)) && !text.contains("\n\n"), "{text:?}");
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found, json!({"a": [1, 2], "b": null}));
    }
}

#[test]
fn integers_have_one_spelling_and_fit_their_type() {
    let compiler = crate::common::exact_compiler(small("llama32-q4_0"));
    let accepts = |value: Value, text: &str| {
        crate::common::accepts(&compiler.compile(&schema(&value)).unwrap(), text)
    };
    for (format, low, high) in [
        ("int8", "-128", "127"),
        ("int16", "-32768", "32767"),
        ("int32", "-2147483648", "2147483647"),
        ("int64", "-9007199254740991", "9007199254740991"),
        ("uint8", "0", "255"),
        ("uint32", "0", "4294967295"),
        ("uint64", "0", "9007199254740991"),
    ] {
        let value = json!({"type": "integer", "format": format});
        assert!(accepts(value.clone(), low) && accepts(value.clone(), high), "{format}");
        for outside in [low, high] {
            let outside = outside.parse::<i64>().unwrap();
            let outside = outside + if outside > 0 { 1 } else { -1 };
            assert!(!accepts(value.clone(), &outside.to_string()), "{format}: {outside}");
        }
    }
    for text in ["-0", "00", "1.0", "1e3", "+1", "01"] {
        assert!(!accepts(json!({"type": "integer"}), text), "{text}");
        assert!(!accepts(json!({"type": "integer", "minimum": -5}), text), "{text}");
    }
    for text in ["1e999", "9007199254740992", "1e3"] {
        assert!(!accepts(json!({"type": "number"}), text), "{text}");
        assert!(!accepts(json!(true), text), "{text}");
    }
}

/// A property name has one spelling, so a second property of this name cannot be written.
#[test]
fn strings_have_one_spelling() {
    let compiler = crate::common::exact_compiler(small("llama32-q4_0"));
    let accepts = |value: &Value, text: &str| {
        crate::common::accepts(&compiler.compile(&schema(value)).unwrap(), text)
    };
    let open = json!({"type": "object", "properties": {"a": {"type": "integer"}, "\n": true}});
    for text in ["{\"a\":1,\"b\":\"x\"}", "{\"a\":1,\"\\n\":2,\"\\t\":3}"] {
        assert!(accepts(&open, text), "{text}");
    }
    for text in [
        "{\"a\":1,\"\\u0061\":\"x\"}",
        "{\"\\u0061\":\"x\"}",
        "{\"a\":1,\"a\":\"x\"}",
        "{\"\\n\":1,\"\\u000a\":2}",
        "{\"b\":\"\\u0041\"}",
    ] {
        assert!(!accepts(&open, text), "{text}");
    }
    for text in ["\"\\u0041\"", "\"\\/\"", "\"\\x\"", "\"\n\"", "\"\u{1}\"", "\"\\ud800\""] {
        assert!(!accepts(&json!({"type": "string"}), text), "{text}");
    }
}
