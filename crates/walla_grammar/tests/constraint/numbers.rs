//! Numbers have a longest text, are valid by an independent validator, and have exact bounds.

use serde_json::{Value, json};
use walla_grammar::{Compiler, Constraint, ConstraintError};
use walla_types::TokenId;

use crate::common::{Random, accepts, compiler, exact_compiler, mask, schema, small};

/// Longest text of a number without `enum` and `const`: a sign, the 16 digits of 2^53 - 1, a
/// decimal point and six decimals.
const MAX_NUMBER_CHARS: usize = 24;

/// Schemas of numbers, and the number of characters of the longest text.
fn numbers() -> Vec<(Value, usize)> {
    vec![
        (json!({"type": "number"}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "format": "float"}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "format": "double"}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "minimum": 0, "maximum": 10}), 9), // 10.000000
        (json!({"type": "number", "minimum": -10, "maximum": 10}), 10),
        (json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), 8),
        (json!({"type": "number", "minimum": 0}), 23),
        (json!({"type": "number", "exclusiveMinimum": 0}), 23),
        (json!({"type": "number", "maximum": 0}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "maximum": -1.5}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "exclusiveMaximum": -1.5}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "minimum": 0.1, "maximum": 0.30000000000000004}), 8),
        (json!({"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.3}), 8),
        (json!({"type": "number", "minimum": 1e-7, "maximum": 7e-6}), 8),
        (json!({"type": "number", "exclusiveMaximum": 1e9}), MAX_NUMBER_CHARS),
        (json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}), 16),
        (json!({"type": "number", "minimum": 0, "exclusiveMaximum": 9007199254740991_u64}), 16),
        (json!({"type": "number", "minimum": 9007199254740000_u64}), 23),
        (json!({"type": "number", "multipleOf": 0.25, "minimum": -1e9, "maximum": 1e9}), 13),
        (json!({"type": "number", "multipleOf": 0.000001, "minimum": 0, "maximum": 1}), 8),
        (json!({"type": "number", "multipleOf": 5}), 17),
        (json!({"type": "integer"}), 17),
        (json!({"type": "integer", "minimum": 0}), 16),
        (json!({"type": "integer", "minimum": -10, "maximum": 1000}), 4),
        (json!({"type": "integer", "multipleOf": 7}), 17),
        (json!({"type": ["number", "integer"]}), MAX_NUMBER_CHARS),
        (json!({"minimum": 3, "type": "number"}), 23),
        (json!({"allOf": [{"type": "number", "minimum": -1}, {"maximum": 1}]}), 9),
        (json!({"anyOf": [{"type": "number", "maximum": 3}, {"type": "null"}]}), MAX_NUMBER_CHARS),
        (json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "number", "minimum": 0}}}), 23),
    ]
}

/// A reply that does not end while another token is allowed, and prefers digits.
fn longest(compiler: &Compiler, value: &Value, seed: u64) -> String {
    let tokenizer = small("llama32-q4_0");
    let grammar = compiler.compile(&schema(value)).unwrap_or_else(|e| panic!("{value}: {e}"));
    let (mut matcher, mut random) = (grammar.matcher(), Random(seed * 0x9e37_79b9 + 1));
    let mut bytes = Vec::new();
    for _ in 0..100 {
        let (_, tokens) = mask(&mut matcher, compiler.vocabulary());
        let continues = |token: &TokenId| !tokenizer.is_end_of_generation(*token);
        let open: Vec<TokenId> = tokens.into_iter().filter(continues).collect();
        if open.is_empty() || matcher.has_ended() {
            return String::from_utf8(bytes).unwrap();
        }
        let short = |token: &&TokenId| tokenizer.token_bytes(**token).len() == 1;
        let digits: Vec<TokenId> = open.iter().filter(short).copied().collect();
        let from = if digits.is_empty() || random.below(4) == 0 { &open } else { &digits };
        let token = from[random.below(from.len())];
        matcher.accept(token).unwrap();
        bytes.extend_from_slice(tokenizer.token_bytes(token));
    }
    panic!("{value}: the reply does not end: {}", String::from_utf8_lossy(&bytes));
}

#[test]
fn the_longest_text_of_a_number_is_bounded() {
    let compiler = compiler(small("llama32-q4_0"));
    for (value, max_chars) in numbers() {
        let validator = jsonschema::validator_for(&value).unwrap();
        let mut longest_chars = 0;
        for seed in 1..=30 {
            let text = longest(&compiler, &value, seed);
            let found: Value = serde_json::from_str(&text).unwrap();
            assert!(validator.is_valid(&found), "{value}: {text}");
            assert!(text.len() <= max_chars, "{value}: {text}");
            longest_chars = longest_chars.max(text.len());
        }
        // The bound is not much too high.
        assert!(longest_chars + 3 >= max_chars, "{value}: {longest_chars} of {max_chars}");
    }
}

/// In a schema that allows any value, numbers have the same bound.
#[test]
fn numbers_of_any_value_are_bounded() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    for value in [json!(true), json!({}), json!({"minimum": 3})] {
        let grammar = compiler.compile(&schema(&value)).unwrap();
        assert!(accepts(&grammar, "9007199254740990.999999"), "{value}");
        assert!(accepts(&grammar, "[-1.5,{\"a\":0.000000}]"), "{value}");
        for text in ["10.0000000", "[1.0000000", "3.1234567", "1000000000000000000.1"] {
            assert!(!accepts(&grammar, text), "{value}: {text}");
        }
    }
}

#[test]
fn bounds_of_numbers_are_exact() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    let cases: [(Value, &[&str], &[&str]); 19] = [
        (
            json!({"minimum": 0, "maximum": 10}),
            &["0", "10", "10.0", "10.000000", "0.000001", "9.999999", "5.50"],
            &["-0", "-1", "-0.000001", "10.000001", "11", "10.0000000", "0.0000001", "1e1", "01"],
        ),
        (
            json!({"exclusiveMinimum": 0, "exclusiveMaximum": 10}),
            &["0.000001", "9.999999", "1", "1.000000"],
            &["0", "10", "0.0", "0.000000", "10.0", "9.9999999"],
        ),
        (json!({"minimum": -1.5}), &["-1.5", "-1.499999", "-1", "7"], &["-1.500001", "-1.6", "-2"]),
        (json!({"exclusiveMinimum": -1.5}), &["-1.499999", "0"], &["-1.5", "-1.50", "-2"]),
        (
            json!({"maximum": 0.1234567}),
            &["0.123456", "0.100000", "-1"],
            &["0.123457", "0.1234567"],
        ),
        (json!({"minimum": 0.1234567}), &["0.123457", "1"], &["0.123456", "0.1"]),
        (
            json!({"exclusiveMinimum": -0.1234567, "exclusiveMaximum": 0.1234567}),
            &["0.123456", "-0.123456", "0", "0.100000"],
            &["0.123457", "-0.123457"],
        ),
        (
            json!({"minimum": 0.10000000149011612, "maximum": 0.30000001192092896}),
            &["0.100001", "0.2", "0.3"],
            &["0.1", "0.100000", "0.300001"],
        ),
        (
            json!({"minimum": 0.0000011, "maximum": 0.0000031}),
            &["0.000002", "0.000003"],
            &["0.000004"],
        ),
        (json!({"minimum": 2.5, "maximum": 2.5}), &["2.5"], &["2.50", "2", "3"]),
        (json!({"minimum": 0, "maximum": 0}), &["0"], &["-0", "0.1", "1"]),
        // Too narrow for six decimals: the bounds and the middle.
        (
            json!({"minimum": 1e-9, "maximum": 3e-9}),
            &["0.000000001", "0.000000002", "0.000000003"],
            &["0", "0.000000004", "0.0000000025"],
        ),
        (json!({"exclusiveMinimum": 1e-9, "maximum": 3e-9}), &["0.000000002"], &["0.000000001"]),
        (
            json!({"minimum": -1e-9, "maximum": 1e-9}),
            &["-0.000000001", "0", "0.000000001"],
            &["-0", "1"],
        ),
        (
            json!({"minimum": 9007199254740990_u64, "maximum": 9007199254740991_u64}),
            &["9007199254740990", "9007199254740991"],
            &["9007199254740989", "9007199254740992"],
        ),
        // More digits would be read as the bound.
        (
            json!({"exclusiveMaximum": 1e9}),
            &["999999999.99999", "-999999999.99999"],
            &["1000000000", "999999999.999999"],
        ),
        (json!({"exclusiveMinimum": -1e13}), &["-9999999999999.9"], &["-9999999999999.99"]),
        (json!({"multipleOf": 0.25}), &["0.25", "0.50", "-7.75", "3", "3.00"], &["0.3", "0.250"]),
        (json!({"multipleOf": 0.000005}), &["0.000005", "1"], &["0.000001", "0.0000050"]),
    ];
    for (mut value, allowed, refused) in cases {
        value["type"] = json!("number");
        let grammar = compiler.compile(&schema(&value)).unwrap_or_else(|e| panic!("{value}: {e}"));
        let validator = jsonschema::validator_for(&value).unwrap();
        for text in allowed {
            assert!(accepts(&grammar, text), "{value}: {text}");
            assert!(validator.is_valid(&serde_json::from_str(text).unwrap()), "{value}: {text}");
        }
        for text in refused {
            assert!(!accepts(&grammar, text), "{value}: {text}");
        }
    }
}

/// Values of `enum` and `const` may have more decimals than other numbers.
#[test]
fn listed_numbers_have_all_their_digits() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    let cases = [
        (json!({"const": 1.61803398874989}), "1.61803398874989"),
        (json!({"type": "number", "enum": [0.1234567891234, 7]}), "0.1234567891234"),
        (json!({"enum": [1e-9, 2], "minimum": 0}), "0.000000001"),
        (json!({"enum": [[0.123456789]], "items": {"type": "number"}}), "[0.123456789]"),
        (
            json!({"const": {"a": 0.123456789}, "properties": {"a": {"minimum": 0}}}),
            "{\"a\":0.123456789}",
        ),
        (
            json!({"anyOf": [{"const": 0.123456789}, {"type": "number", "maximum": 3}]}),
            "0.123456789",
        ),
    ];
    for (value, text) in cases {
        let grammar = compiler.compile(&schema(&value)).unwrap_or_else(|e| panic!("{value}: {e}"));
        assert!(accepts(&grammar, text), "{value}: {text}");
        assert!(!accepts(&grammar, &text.replacen("1", "10", 1)), "{value}");
    }
}

/// The library combines schemas of patterns with schemas of properties.
#[test]
fn numbers_with_patterns_of_properties_are_bounded() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    for multiple in [json!(1000), json!(0.5), json!(0.000001), json!(0.000999), json!(999)] {
        let value = json!({"type": "object", "properties": {"a": {"type": "number"}},
            "patternProperties": {"^a": {"multipleOf": multiple}}, "required": ["a"]});
        let grammar = compiler.compile(&schema(&value)).unwrap_or_else(|e| panic!("{value}: {e}"));
        assert!(accepts(
            &grammar,
            &format!(
                "{{\"a\":{}}}",
                if multiple.is_i64() { multiple.to_string() } else { "999".to_owned() }
            )
        ));
        assert!(!accepts(&grammar, "{\"a\":1.0000000}"), "{value}");
    }
}

/// Bounds beyond 2^53 - 1 are refused with their keyword; listed integers are exact or refused.
#[test]
fn integers_beyond_exact_numbers_are_exact_or_refused() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    let beyond = [9_007_199_254_740_993_i128, 1 << 60, i128::from(i64::MAX), i128::from(u64::MAX)];
    for ty in ["integer", "number"] {
        for keyword in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
            for bound in beyond.into_iter().chain(beyond.map(|bound| -bound)) {
                let text = format!("{{\"type\":\"{ty}\",\"{keyword}\":{bound}}}");
                let error = compiler.compile(&Constraint::json_schema(text.clone())).unwrap_err();
                let ConstraintError::UnsupportedKeyword { keyword: named, .. } = error else {
                    panic!("{text}: {error}");
                };
                assert_eq!(named, keyword, "{text}");
            }
        }
    }
    let spellings = |number: i128| [number - 1, number, number + 1].map(|n| n.to_string());
    for number in [1 << 53, (1 << 53) + 2, 1 << 60, (1 << 62) + (1 << 20), -(1 << 60)] {
        for schema in [
            format!("{{\"const\":{number}}}"),
            format!("{{\"type\":\"integer\",\"enum\":[1,{number}]}}"),
        ] {
            let grammar = compiler.compile(&Constraint::json_schema(schema.clone())).unwrap();
            let found = spellings(number).map(|text| accepts(&grammar, &text));
            assert_eq!(found, [false, true, false], "{schema}");
        }
    }
    for number in [(1_i128 << 53) + 1, i128::from(i64::MAX), i128::from(i64::MIN), 1 << 63] {
        for keyword in ["const", "enum"] {
            let value = if keyword == "enum" { format!("[{number}]") } else { number.to_string() };
            let text = format!("{{\"{keyword}\":{value}}}");
            let error = compiler.compile(&Constraint::json_schema(text.clone())).unwrap_err();
            let expected = format!("keyword \"{keyword}\" is not supported: {number} is beyond");
            assert!(error.to_string().starts_with(&expected), "{text}: {error}");
        }
    }
}
