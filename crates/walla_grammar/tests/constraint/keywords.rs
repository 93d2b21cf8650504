//! Every keyword of JSON Schema 2020-12 is enforced or refused by name, in every position.
//!
//! Two tables have the schemas. For a supported one:
//!
//! - Random replies are valid by an independent validator.
//! - No instance of a pool that the validator refuses can be written; some instances violate
//!   nothing but the keyword under test.
//! - Some valid instance can be written.

#[path = "../keyword_table/mod.rs"]
mod keyword_table;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use walla_grammar::{Compiler, ConstraintError};

use self::keyword_table::{INSTANCES, REFUSED, SUPPORTED};
use crate::common::{Random, accepts, compiler, exact_compiler, reply, schema, small};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn validator(schema: &Value) -> jsonschema::Validator {
    let options = jsonschema::options().should_validate_formats(true);
    options.build(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// A position of the schema under test, and an instance with a value at this position.
type Position = (&'static str, fn(Value) -> Value, fn(Value) -> Value);

const POSITIONS: [Position; 6] = [
    ("the root", |schema| schema, |value| value),
    (
        "a property",
        |schema| {
            json!({"type": "object", "properties": {"contains": schema}, "required": ["contains"],
                "additionalProperties": false})
        },
        |value| json!({"contains": value}),
    ),
    (
        "an item",
        |schema| json!({"type": "array", "items": schema, "minItems": 1, "maxItems": 2}),
        |value| json!([value]),
    ),
    ("an alternative", |schema| json!({"anyOf": [schema, {"const": "another"}]}), |value| value),
    (
        "a definition",
        |schema| json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": schema}}),
        |value| value,
    ),
    ("a part of allOf", |schema| json!({"allOf": [schema, true]}), |value| value),
];

/// The schema at a position; its definitions move to the root.
fn at(position: &Position, mut schema: Value) -> Value {
    let definitions = schema.as_object_mut().and_then(|map| map.remove("$defs"));
    let mut whole = position.1(schema);
    if let (Some(Value::Object(definitions)), Some(map)) = (definitions, whole.as_object_mut()) {
        let own = map.entry("$defs").or_insert_with(|| json!({}));
        own.as_object_mut().unwrap().extend(definitions);
    }
    whole
}

fn instances() -> &'static [Value] {
    static ALL: LazyLock<Vec<Value>> =
        LazyLock::new(|| INSTANCES.iter().map(|t| parse(t)).collect());
    &ALL
}

/// The schema without a keyword at its root.
fn without(schema: &Value, keyword: &str) -> Value {
    let mut map: Map<String, Value> = schema.as_object().cloned().unwrap_or_default();
    map.shift_remove(keyword);
    Value::Object(map)
}

struct Compilers {
    exact: Compiler,
    walk: Compiler,
}

fn compilers() -> &'static Compilers {
    static COMPILERS: LazyLock<Compilers> = LazyLock::new(|| Compilers {
        exact: exact_compiler(small("llama32-q4_0")),
        walk: compiler(small("llama32-q4_0")),
    });
    &COMPILERS
}

fn check_supported(keyword: &str, base: &Value, extra: &[Value], position: &Position) {
    let whole = at(position, base.clone());
    let case = format!("{keyword} at {}: {whole}", position.0);
    let Compilers { exact, walk } = compilers();
    let grammar = exact.compile(&schema(&whole)).unwrap_or_else(|error| panic!("{case}: {error}"));
    let (mut violations, mut written) = (0, 0);
    let [of_whole, of_base, relaxed] = [&whole, base, &without(base, keyword)].map(validator);
    for value in instances().iter().chain(extra) {
        let instance = position.2(value.clone());
        let text = instance.to_string();
        let can_be_written = accepts(&grammar, &text);
        if of_whole.is_valid(&instance) {
            written += usize::from(can_be_written);
        } else {
            assert!(!can_be_written, "{case}: {text} is not valid");
            violations += usize::from(of_base.is_valid(value) || relaxed.is_valid(value));
        }
    }
    let has_no_effect = matches!(
        keyword,
        "title"
            | "description"
            | "default"
            | "deprecated"
            | "$comment"
            | "examples"
            | "readOnly"
            | "writeOnly"
            | "$schema"
            | "$id"
            | "$defs"
            | "uniqueItems"
            | "$anchor"
    );
    assert!(violations > 0 || has_no_effect, "{case}: no instance violates only this keyword");
    assert!(written > 0, "{case}: no valid instance can be written");
    let grammar = walk.compile(&schema(&whole)).unwrap();
    let mut finished = 0;
    for seed in 1..=6 {
        let Some(text) = reply(&grammar, &small_tokenizer(), seed, 300) else { continue };
        finished += 1;
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{case}: {text}: {error}"));
        assert!(of_whole.is_valid(&value), "{case}: {text}");
    }
    assert!(finished > 0, "{case}: no random reply is finished");
}

fn small_tokenizer() -> std::sync::Arc<walla_model::tokenizer::Tokenizer> {
    static TOKENIZER: LazyLock<std::sync::Arc<walla_model::tokenizer::Tokenizer>> =
        LazyLock::new(|| small("llama32-q4_0"));
    TOKENIZER.clone()
}

/// Checks a part of the table: the test runner runs the parts in parallel.
fn check_part(part: usize) {
    for (index, (keyword, text, extra)) in SUPPORTED.iter().enumerate() {
        if index % 2 != part {
            continue;
        }
        let base = parse(text);
        let extra: Vec<Value> = extra.iter().map(|text| parse(text)).collect();
        for position in &POSITIONS {
            // These belong to the root.
            let is_of_root = ["$id", "$schema"].contains(keyword) || text.contains("\"#\"");
            if position.0 == "the root" || !is_of_root {
                check_supported(keyword, &base, &extra, position);
            }
        }
    }
}

#[test]
fn supported_keywords_are_enforced_first_half() {
    check_part(0);
}

#[test]
fn supported_keywords_are_enforced_second_half() {
    check_part(1);
}

#[test]
fn other_keywords_are_refused_by_name() {
    for (keyword, text) in REFUSED {
        let base = parse(text);
        for position in &POSITIONS {
            let whole = at(position, base.clone());
            let error = compilers().exact.compile(&schema(&whole));
            let error = error.expect_err(&format!("{keyword} at {}: {whole}", position.0));
            let message = error.to_string();
            assert!(message.contains(&format!("\"{keyword}\"")), "{whole}: {message}");
            let is_typed = matches!(
                &error,
                ConstraintError::UnsupportedKeyword { keyword: named, .. }
                | ConstraintError::InvalidKeyword { keyword: named, .. } if named == keyword
            );
            assert!(is_typed, "{whole}: {error:?}");
        }
    }
}

#[test]
fn the_tables_have_at_least_300_schemas() {
    assert!((SUPPORTED.len() + REFUSED.len()) * POSITIONS.len() >= 900);
    assert!(SUPPORTED.len() + REFUSED.len() >= 150);
}

/// Random combinations of supported schemas are enforced or refused.
#[test]
fn combinations_are_enforced() {
    let mut random = Random(0x5eed);
    let compiler = &compilers().walk;
    let (mut compiled, mut finished) = (0, 0);
    for _ in 0..300 {
        let mut one = || {
            let (_, text, _) = SUPPORTED[random.below(SUPPORTED.len())];
            parse(text)
        };
        let (mut left, mut right) = (one(), one());
        let mut definitions = Map::new();
        for schema in [&mut left, &mut right] {
            if schema.to_string().contains("\"#\"") || schema.get("$schema").is_some() {
                *schema = json!(true);
            }
            let map = schema.as_object_mut();
            if let Some(Value::Object(own)) = map.and_then(|map| map.remove("$defs")) {
                definitions.extend(own);
            }
            if let Some(map) = schema.as_object_mut() {
                map.remove("$id");
            }
        }
        let mut whole = match random.below(4) {
            0 => json!({"allOf": [left, right]}),
            1 => json!({"anyOf": [left, right]}),
            2 => json!({"oneOf": [left, right]}),
            _ => {
                json!({"type": "object", "properties": {"a": left, "b": right}, "required": ["b"]})
            }
        };
        whole["$defs"] = Value::Object(definitions);
        let Ok(grammar) = compiler.compile(&schema(&whole)) else { continue };
        compiled += 1;
        let validator = validator(&whole);
        let exact = compilers().exact.compile(&schema(&whole)).unwrap();
        for instance in instances() {
            let is_written = accepts(&exact, &instance.to_string());
            assert!(!is_written || validator.is_valid(instance), "{whole}: {instance}");
        }
        for seed in 1..=3 {
            let Some(text) = reply(&grammar, &small_tokenizer(), seed, 200) else { continue };
            finished += 1;
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{whole}: {text}: {error}"));
            assert!(validator.is_valid(&value), "{whole}: {text}");
        }
    }
    assert!(compiled > 150 && finished > 300, "{compiled} schemas, {finished} replies");
}
