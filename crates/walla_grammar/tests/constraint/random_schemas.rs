//! Texts of 3,000 random schemas are valid by validators that do not share code with the grammar:
//! numbers by exact decimals, the rest by a JSON Schema library. Numbers are tried at their bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use walla_grammar::{Compiler, CompilerOptions, Vocabulary, VocabularyOptions};
use walla_model::tokenizer::Tokenizer;

use crate::common::{Random, accepts, reply, schema, small};

const NUMBERS: usize = 1_800;
const OTHERS: usize = 1_200;

/// A decimal as a whole number of 10^-22. Further decimals count as one of the last.
fn exact(text: &str) -> i128 {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let (decimals, further) = decimals.split_at(decimals.len().min(22));
    let number: i128 = format!("{whole}{decimals:0<22}").parse().unwrap();
    let number = number + i128::from(further.bytes().any(|digit| digit != b'0'));
    if is_negative { -number } else { number }
}

/// The text of 10^-22 times a number.
fn text_of(number: i128) -> String {
    let digits = format!("{:023}", number.unsigned_abs());
    let (whole, decimals) = digits.split_at(digits.len() - 22);
    let decimals = decimals.trim_end_matches('0');
    let sign = if number < 0 { "-" } else { "" };
    let dot = if decimals.is_empty() { "" } else { "." };
    format!("{sign}{whole}{dot}{decimals}")
}

/// A random number with few digits: whole ones and neighbours of them are frequent.
fn number(random: &mut Random) -> String {
    let sign = if random.below(2) == 0 { "-" } else { "" };
    let whole = [0, 0, 1, 3, 9, 10, 99, 100, 255, 1_000, 123_456][random.below(11)];
    let decimals = ["", "", "", ".5", ".1", ".96", ".000001", ".999999", ".25", ".0000004"];
    let text = format!("{sign}{whole}{}", decimals[random.below(10)]);
    if exact(&text) == 0 { "0".to_owned() } else { text }
}

/// The keywords of a number with their values as they are written.
fn number_keywords(random: &mut Random) -> Vec<(&'static str, String)> {
    let mut keywords = Vec::new();
    let low = number(random);
    // Often near the other bound.
    let near = ["0.5", "0.96", "1", "0.000002", "0.00001", "0.0000001", "7", "0.1"];
    let high = match random.below(3) {
        0 => number(random),
        _ => text_of(exact(&low) + exact(near[random.below(near.len())])),
    };
    let (low, high) = if exact(&low) > exact(&high) { (high, low) } else { (low, high) };
    match random.below(5) {
        0 | 1 => keywords.push(("exclusiveMinimum", low)),
        2 | 3 => keywords.push(("minimum", low)),
        _ => {}
    }
    match random.below(5) {
        0 | 1 => keywords.push(("exclusiveMaximum", high)),
        2 | 3 => keywords.push(("maximum", high)),
        _ => {}
    }
    if random.below(4) == 0 {
        let steps = ["1", "0.5", "0.25", "3", "0.1", "0.01", "0.000001", "7", "1000"];
        keywords.push(("multipleOf", steps[random.below(steps.len())].to_owned()));
    }
    keywords
}

/// Whether a number is valid, by exact decimals.
fn is_valid(keywords: &[(&'static str, String)], is_integer: bool, text: &str) -> bool {
    let number = exact(text);
    let is_in = keywords.iter().all(|(keyword, value)| {
        let value = exact(value);
        match *keyword {
            "minimum" => number >= value,
            "maximum" => number <= value,
            "exclusiveMinimum" => number > value,
            "exclusiveMaximum" => number < value,
            _ => number % value == 0,
        }
    });
    is_in && (!is_integer || number % exact("1") == 0)
}

/// Texts at and next to the bounds.
fn candidates(keywords: &[(&'static str, String)]) -> Vec<String> {
    let mut texts = vec!["0".to_owned(), "-0".to_owned(), "-0.0".to_owned(), "0.000000".to_owned()];
    for (_, bound) in keywords {
        let value = exact(bound);
        for step in ["0", "1", "-1", "0.000001", "-0.000001", "0.1", "-0.1", "0.0000001"] {
            texts.push(text_of(value + exact(step)));
        }
        let dot = if bound.contains('.') { "" } else { "." };
        texts.extend(["0", "000", "000000"].map(|zeros| format!("{bound}{dot}{zeros}")));
        if let Some((whole, _)) = bound.split_once('.') {
            texts.push(whole.to_owned());
        }
    }
    texts
}

fn check_number(compiler: &(Compiler, Arc<Tokenizer>), random: &mut Random, seed: usize) -> bool {
    let keywords = number_keywords(random);
    let is_integer = random.below(5) == 0;
    let ty = if is_integer { "integer" } else { "number" };
    let written = keywords.iter().map(|(keyword, value)| format!(",\"{keyword}\":{value}"));
    let text = format!("{{\"type\":\"{ty}\"{}}}", written.collect::<String>());
    let value: Value = serde_json::from_str(&text).unwrap();
    let Ok(grammar) = compiler.0.compile(&schema(&value)) else { return false };
    for candidate in candidates(&keywords) {
        let is_allowed = accepts(&grammar, &candidate);
        assert!(!is_allowed || is_valid(&keywords, is_integer, &candidate), "{text}: {candidate}");
    }
    if let Some(found) = reply(&grammar, &compiler.1, seed as u64, 40) {
        assert!(is_valid(&keywords, is_integer, &found), "{text}: {found}");
    }
    true
}

/// A random schema of other keywords.
fn other(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 4 } else { 9 };
    let count = random.below(4);
    match random.below(kinds) {
        0 => {
            let patterns = ["^[a-c]+$", "b", "^a?b{2,4}", "[0-9]{2}", "^(x|yz)*$", "é", "^.{1,3}$"];
            let mut value = json!({"type": "string"});
            if random.below(2) == 0 {
                value["minLength"] = json!(count);
            }
            if random.below(2) == 0 {
                value["maxLength"] = json!(count + random.below(5));
            }
            if random.below(2) == 0 {
                value["pattern"] = json!(patterns[random.below(patterns.len())]);
            }
            value
        }
        1 => [
            json!({"enum": ["a", 1, null, [1, 2], {"b": 2.5}]}),
            json!({"const": {"a": [1]}}),
            json!({"type": ["boolean", "null"]}),
            json!({"type": "string", "enum": ["x", "y"], "maxLength": 1}),
        ][random.below(4)]
        .clone(),
        2 | 3 => {
            let ty = ["integer", "number"][random.below(2)];
            let mut value = json!({"type": ty});
            for (keyword, number) in number_keywords(random) {
                value[keyword] = serde_json::from_str(&number).unwrap();
            }
            value
        }
        4 => {
            let mut value = json!({"type": "array", "items": other(random, depth - 1),
                "maxItems": count + random.below(3), "minItems": count});
            if random.below(3) == 0 {
                value["prefixItems"] = json!([other(random, depth - 1)]);
                value["uniqueItems"] = json!(false);
            }
            value
        }
        5 | 6 => {
            let names = ["a", "b", "long name", "é"];
            let all = names[..=count].iter();
            let all = all.map(|name| ((*name).to_owned(), other(random, depth - 1)));
            let properties: serde_json::Map<_, _> = all.collect();
            let required = &names[..random.below(count + 2)];
            let mut value =
                json!({"type": "object", "properties": properties, "required": required});
            match random.below(4) {
                0 => value["additionalProperties"] = other(random, depth - 1),
                1 => {}
                _ => value["additionalProperties"] = json!(false),
            }
            value
        }
        7 => json!({"anyOf": [other(random, depth - 1), other(random, depth - 1)]}),
        _ => json!({"allOf": [other(random, depth - 1), {"$ref": "#/$defs/d"}],
            "$defs": {"d": other(random, depth - 1)}}),
    }
}

fn check_other(compiler: &(Compiler, Arc<Tokenizer>), random: &mut Random, seed: usize) -> bool {
    let mut value = other(random, 2);
    if value.to_string().contains("$ref") && value.get("$defs").is_none() {
        value = json!({"allOf": [value], "$defs": {"d": {"type": "string"}}});
    }
    let Ok(grammar) = compiler.0.compile(&schema(&value)) else { return false };
    let validator = jsonschema::validator_for(&value).unwrap();
    if let Some(text) = reply(&grammar, &compiler.1, seed as u64, 60) {
        let found = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{value}: {text}: {e}"));
        assert!(validator.is_valid(&found), "{value}: {text}");
    }
    true
}

#[test]
fn texts_of_random_schemas_are_valid() {
    let options = VocabularyOptions { forced_tokens: false };
    let tokenizer = small("tinystories-260k");
    let vocabulary = Vocabulary::with_options(tokenizer.clone(), options).unwrap();
    let options = CompilerOptions { max_cache_entries: 8, ..CompilerOptions::default() };
    let compiler = (Compiler::new(vocabulary, options), tokenizer);
    let (next, compiled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let mut random = Random((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    let is_compiled = match index {
                        _ if index < NUMBERS => check_number(&compiler, &mut random, index + 1),
                        _ if index < NUMBERS + OTHERS => {
                            check_other(&compiler, &mut random, index + 1)
                        }
                        _ => return,
                    };
                    compiled.fetch_add(usize::from(is_compiled), Ordering::Relaxed);
                }
            });
        }
    });
    let compiled = compiled.into_inner();
    println!("{compiled} of {} schemas have texts", NUMBERS + OTHERS);
    assert!(compiled > (NUMBERS + OTHERS) * 7 / 10, "{compiled}");
}
