//! Hostile and extreme constraints are compiled or refused within the limits: typed errors, no
//! panic, no long wait.

use std::time::{Duration, Instant};

use serde_json::json;
use walla_grammar::{Compiler, Constraint, ConstraintError, MatchError};
use walla_types::TokenId;

use crate::common::{Random, compiler, mask, small};

/// Time for one compilation or mask. The longest one takes 0.3 s in a build with little
/// optimisation; the rest is for busy machines. Without limits some take hours.
const MAX_TIME: Duration = Duration::from_secs(60);

fn compiled(compiler: &Compiler, constraint: &Constraint) -> Result<Duration, ConstraintError> {
    let start = Instant::now();
    let result = compiler.compile(constraint);
    let elapsed = start.elapsed();
    let source = format!("{constraint:?}");
    let source: String = source.chars().take(120).collect();
    assert!(elapsed < MAX_TIME, "{source}: {elapsed:?}");
    if let Err(ConstraintError::Internal { message }) = &result {
        panic!("{source}: {message}");
    }
    let grammar = result?;
    // A few masks of a random reply.
    let (mut matcher, mut random) = (grammar.matcher(), Random(9));
    for _ in 0..12 {
        if matcher.has_ended() {
            break;
        }
        let start = Instant::now();
        let mut words = vec![0; compiler.vocabulary().mask_words()];
        let result = matcher.mask(&mut words);
        assert!(start.elapsed() < MAX_TIME, "{source}: a mask takes {:?}", start.elapsed());
        match result {
            Ok(_) => {}
            Err(MatchError::Internal { message }) => panic!("{source}: {message}"),
            Err(error) => {
                assert!(error.is_final());
                assert_eq!(matcher.accept(TokenId(0)), Err(error.clone()));
                assert_eq!(matcher.mask(&mut words), Err(error));
                assert!(!matcher.has_ended() && !matcher.is_complete());
                break;
            }
        }
        let tokens = crate::common::allowed(&words);
        if let Err(error) = matcher.accept(tokens[random.below(tokens.len())]) {
            assert!(matches!(error, MatchError::TooComplex { .. }), "{source}: {error:?}");
            break;
        }
    }
    Ok(elapsed)
}

fn nested(open: &str, close: &str, depth: usize, middle: &str) -> String {
    format!("{}{middle}{}", open.repeat(depth), close.repeat(depth))
}

#[test]
fn deep_sources_are_refused() {
    let compiler = compiler(small("llama32-q4_0"));
    for depth in [20, 33, 100, 127, 200, 5_000, 20_000] {
        let schemas = [
            nested("{\"items\":", "}", depth, "{}"),
            nested("{\"properties\":{\"a\":", "}}", depth, "{}"),
            nested("{\"anyOf\":[{\"type\":\"null\"},", "]}", depth, "{}"),
            nested("{\"allOf\":[", "]}", depth, "{}"),
            nested("{\"oneOf\":[{\"type\":\"null\"},", "]}", depth, "{\"type\":\"string\"}"),
            nested("[", "]", depth, ""),
            format!("{{\"const\":{}}}", nested("[", "]", depth, "")),
            format!("{{\"const\":{}}}", nested("{\"a\":", "}", depth, "1")),
        ];
        for schema in schemas {
            let result = compiled(&compiler, &Constraint::json_schema(schema.clone()));
            assert!(depth < 30 || result.is_err() || schema.contains("const"), "{schema}");
        }
        for regex in [
            nested("(", ")", depth, "a"),
            nested("(?:a|", ")", depth, "a"),
            nested("(", "){1,9}", depth, "a"),
        ] {
            let result = compiled(&compiler, &Constraint::regex(regex));
            assert!(depth < 64 || result.is_err());
        }
        for lark in [
            format!("start: {}", nested("(", ")", depth, "\"a\"")),
            format!("start: {}", nested("[", "]", depth, "\"a\"")),
            nested("start: %lark { ", " }", depth, "start: \"a\"\n"),
            format!("start: /{}/", nested("(", ")", depth, "a")),
            format!("start: %json {}", nested("{\"items\":", "}", depth, "{}")),
        ] {
            let result = compiled(&compiler, &Constraint::lark(lark));
            assert!(depth < 5_000 || result.is_err());
        }
    }
}

#[test]
fn large_sources_are_bounded() {
    let compiler = compiler(small("llama32-q4_0"));
    let many = |count: usize, of: &dyn Fn(usize) -> String| {
        (0..count).map(of).collect::<Vec<_>>().join(",")
    };
    let sources = [
        Constraint::json_schema(format!(
            "{{\"enum\":[{}]}}",
            many(9_000, &|i| format!("\"v{i}\""))
        )),
        Constraint::json_schema(format!("{{\"enum\":[{}]}}", many(9_000, &|i| i.to_string()))),
        Constraint::json_schema(format!(
            "{{\"properties\":{{{}}}}}",
            many(5_000, &|i| format!("\"p{i}\":{{}}"))
        )),
        Constraint::json_schema(format!(
            "{{\"properties\":{{{}}},\"additionalProperties\":false}}",
            many(4_000, &|i| format!("\"p{i}\":{{\"type\":\"integer\",\"maximum\":{i}}}"))
        )),
        Constraint::json_schema(format!(
            "{{\"required\":[{}]}}",
            many(9_000, &|i| format!("\"p{i}\""))
        )),
        Constraint::json_schema(format!(
            "{{\"patternProperties\":{{{}}}}}",
            many(200, &|i| format!("\"^p{i}$\":{{}}"))
        )),
        Constraint::json_schema(format!(
            "{{\"anyOf\":[{}]}}",
            many(3_000, &|i| format!("{{\"minLength\":{i}}}"))
        )),
        Constraint::json_schema(format!(
            "{{\"oneOf\":[{}]}}",
            many(2_000, &|i| format!("{{\"const\":\"{i}\"}}"))
        )),
        Constraint::json_schema(format!(
            "{{\"allOf\":[{}]}}",
            many(3_000, &|i| format!("{{\"minimum\":{i}}}"))
        )),
        Constraint::json_schema(format!(
            "{{\"allOf\":[{}]}}",
            many(20, &|i| format!("{{\"anyOf\":[{{\"minimum\":{i}}},{{\"maximum\":{i}}}]}}"))
        )),
        Constraint::json_schema("{\"type\":\"array\",\"minItems\":65535}"),
        Constraint::json_schema("{\"type\":\"string\",\"minLength\":65535}"),
        Constraint::json_schema("{\"type\":\"object\",\"maxProperties\":65535}"),
        Constraint::choice((0..9_000).map(|index| format!("choice number {index}"))),
        Constraint::choice((0..100).map(|index| format!("{index}{}", "x".repeat(2_000)))),
        Constraint::regex("a{1,65000}b"),
        Constraint::regex("x".repeat(100_000)),
        Constraint::lark(format!("start: {}", vec!["\"a\""; 20_000].join(" | "))),
        Constraint::lark(
            (0..5_000).map(|i| format!("r{i}: r{} \"a\"\n", i + 1)).collect::<String>()
                + "r5000: \"b\"\nstart: r0",
        ),
    ];
    for source in sources {
        drop(compiled(&compiler, &source));
    }
    let error = compiler.compile(&Constraint::regex("x".repeat(300_000))).unwrap_err();
    assert!(matches!(error, ConstraintError::TooLarge { value: 300_000, .. }), "{error}");
    let error = compiler.compile(&Constraint::choice((0..11_000).map(|i| i.to_string())));
    assert!(matches!(error, Err(ConstraintError::TooLarge { value: 11_000, .. })));
    let values: Vec<u32> = (0..20_000).collect();
    let error = compiler.compile(&crate::common::schema(&json!({"enum": values}))).unwrap_err();
    assert!(matches!(error, ConstraintError::TooLarge { value: 10_001, .. }), "{error}");
}

/// The library recurses along chains of rules, terminals, definitions and parentheses.
#[test]
fn chains_end_in_a_grammar_or_an_error() {
    let compiler = compiler(small("llama32-q4_0"));
    let rules = |count: usize, of: &dyn Fn(usize) -> String, end: &str| {
        (0..count).map(of).collect::<String>() + end
    };
    let open = "(".repeat(20);
    let close = ")".repeat(20);
    for count in [190, 1_000, 3_900, 9_000, 14_000] {
        let wide = rules(
            count,
            &|i| format!("r{i}: {open}r{}{close}\n", i + 1),
            &format!("r{count}: \"b\"\nstart: r0"),
        );
        let narrow = rules(
            count,
            &|i| format!("r{i}:r{} \"a\"\n", i + 1),
            &format!("r{count}:\"b\"\nstart:r0"),
        );
        let terminals =
            rules(count, &|i| format!("R{i}:R{}\n", i + 1), &format!("R{count}:\"b\"\nstart:R0"));
        for (lark, levels) in [(wide, 21), (narrow, 1), (terminals, 1)] {
            let result = compiled(&compiler, &Constraint::lark(lark));
            assert!(levels * count < 4_000 || result.is_err(), "{count}");
        }
        for schema in ["{\"$ref\":\"#/$defs/I\"}", "{\"items\":{\"$ref\":\"#/$defs/I\"}}"] {
            let definition =
                |i: usize| format!("\"d{i}\":{},", schema.replace('I', &format!("d{}", i + 1)));
            let schema = format!(
                "{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{}}}}}",
                rules(count, &definition, &format!("\"d{count}\":{{}}"))
            );
            drop(compiled(&compiler, &Constraint::json_schema(schema)));
        }
    }
}

#[test]
fn exponential_expressions_are_bounded() {
    let compiler = compiler(small("llama32-q4_0"));
    let sources = [
        "(a|aa)*b(a|b){30}",
        "(.*a){20}",
        "(a*)*b",
        "((a{1,100}){1,100}){1,100}",
        ".*a.{200}",
        "(x+x+)+y",
        "([ab]*a[ab]{16})&",
        "(\\w{1,50} ){1,50}\\p{L}*",
        "\\p{L}{100}\\p{Greek}{1,50}",
        "(?i)(straße|ſ){1,40}",
    ];
    for source in sources {
        drop(compiled(&compiler, &Constraint::regex(source)));
        let pattern = json!({"type": "string", "pattern": source, "maxLength": 500});
        drop(compiled(&compiler, &crate::common::schema(&pattern)));
    }
    let both = json!({"allOf": [{"type": "string", "pattern": "(a|b)*a(a|b){20}"},
        {"pattern": "(a|b)*b(a|b){21}"}, {"pattern": "(a|b){3}*"}]});
    drop(compiled(&compiler, &crate::common::schema(&both)));
}

#[test]
fn schemas_without_a_value_are_refused() {
    let compiler = compiler(small("llama32-q4_0"));
    let schemas = [
        json!(false),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/b"}],
            "minItems": 1}, "b": {"type": "object", "required": ["x"], "additionalProperties": {"$ref": "#/$defs/a"}}}}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "integer", "minimum": 1.2, "maximum": 1.8}),
        json!({"type": "integer", "minimum": 4, "maximum": 5, "multipleOf": 3}),
        json!({"type": "number", "exclusiveMinimum": 1, "maximum": 1}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "array", "minItems": 3, "maxItems": 2}),
        json!({"type": "object", "required": ["a"], "maxProperties": 0}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "array", "items": false, "minItems": 1}),
        json!({"const": 1, "type": "string"}),
        json!({"enum": [1, 2], "minimum": 3}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"anyOf": [false, false]}),
        json!({"type": "string", "pattern": "^a$", "minLength": 2}),
        json!({"type": "string", "allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a$", "minLength": 2}},
            "required": ["a"], "additionalProperties": false}),
    ];
    for schema in schemas {
        let error =
            compiled(&compiler, &crate::common::schema(&schema)).expect_err(&schema.to_string());
        assert!(matches!(error, ConstraintError::Unsatisfiable { .. }), "{schema}: {error}");
    }
}

#[test]
fn sources_that_are_not_of_their_kind_are_refused() {
    let compiler = compiler(small("llama32-q4_0"));
    let error = |constraint| compiler.compile(&constraint).unwrap_err();
    match error(Constraint::json_schema("{\"type\":\n \"null\",}")) {
        ConstraintError::Json { line: 2, column: 9, .. } => {}
        other => panic!("{other:?}"),
    }
    for text in ["", "nul", "{", "1", "\"a\"", "[]", "null", "{\"type\":\"null\"} x"] {
        let error = error(Constraint::json_schema(text));
        let is_typed =
            matches!(error, ConstraintError::Json { .. } | ConstraintError::NoSchema { .. });
        assert!(is_typed, "{text}: {error:?}");
    }
    for (text, offset) in [("", 0), ("a(", 1), ("a[b", 1), ("a{2,1}", 1), ("é*+(", 4)] {
        match error(Constraint::regex(text)) {
            ConstraintError::Regex { offset: found, .. } => assert_eq!(found, offset, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    for text in ["a\\bc", "a$b", "a^", "(?m)^a$", "x(?=y)"] {
        let error = error(Constraint::regex(text));
        assert!(matches!(error, ConstraintError::Regex { .. }), "{text}: {error:?}");
    }
    for text in [
        "",
        "start",
        "start: (",
        "start: other",
        "start: \"a",
        "start: /(/",
        "begin: \"a\"",
        "start: %json",
        "start: %json {",
        "start: @other",
        "start: <none>",
        "%llguidance {}\nstart: \"a\"",
        "start: start",
    ] {
        let error = error(Constraint::lark(text));
        let is_typed = matches!(
            error,
            ConstraintError::Lark { .. }
                | ConstraintError::Json { .. }
                | ConstraintError::Unsatisfiable { .. }
        );
        assert!(is_typed, "{text}: {error:?}");
    }
    assert_eq!(error(Constraint::choice(Vec::<String>::new())), ConstraintError::EmptyChoice);
    assert_eq!(error(Constraint::choice(["a", ""])), ConstraintError::EmptyChoice);
}

/// A limit in the middle of a reply is a typed, final error.
#[test]
fn limits_end_a_reply() {
    let tokenizer = small("llama32-q4_0");
    let vocabulary = walla_grammar::Vocabulary::new(tokenizer).unwrap();
    let options = walla_grammar::CompilerOptions { max_lexer_states: 400, ..Default::default() };
    let compiler = Compiler::new(vocabulary, options);
    let grammar = compiler.compile(&Constraint::regex("(.*a.{12}b){3}")).unwrap();
    let mut ended = 0;
    for seed in 1..=5 {
        let (mut matcher, mut random) = (grammar.matcher(), Random(seed));
        let mut words = vec![0; compiler.vocabulary().mask_words()];
        for _ in 0..500 {
            match matcher.mask(&mut words) {
                Ok(_) => {
                    let tokens = crate::common::allowed(&words);
                    if let Err(error) = matcher.accept(tokens[random.below(tokens.len())]) {
                        assert!(matches!(error, MatchError::TooComplex { .. }), "{error:?}");
                    }
                }
                Err(error) => {
                    assert!(matches!(error, MatchError::TooComplex { .. }), "{error:?}");
                    ended += 1;
                    break;
                }
            }
        }
    }
    assert!(ended > 0);
    // The limit of one reply does not affect the next one.
    let mut matcher = grammar.matcher();
    assert!(!mask(&mut matcher, compiler.vocabulary()).1.is_empty());
}
