//! A schema without a value is refused with the place and the reason. Parts that may be absent do
//! not matter.

use serde_json::{Map, Value, json};
use walla_grammar::{Compiler, ConstraintError};

use crate::common::{accepts, compiler, exact_compiler, schema, small};

fn reason(compiler: &Compiler, value: &Value) -> String {
    match compiler.compile(&schema(value)) {
        Err(ConstraintError::Unsatisfiable { reason }) => reason,
        other => panic!("{value}: {:?}", other.map(drop)),
    }
}

/// Schemas without a value, the place of the defect below the schema, and the reason.
fn empty() -> Vec<(Value, &'static str, &'static str)> {
    vec![
        (
            json!({"type": "integer", "minimum": 1.2, "maximum": 1.8}),
            "",
            "no integer is at least 1.2 and at most 1.8",
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6}),
            "",
            "no integer is above 5 and below 6",
        ),
        (
            json!({"type": "integer", "minimum": 5, "exclusiveMaximum": 5}),
            "",
            "no integer is at least 5 and below 5",
        ),
        (
            json!({"type": "number", "minimum": 5, "exclusiveMaximum": 5}),
            "",
            "no number is at least 5 and below 5",
        ),
        (
            json!({"type": "number", "minimum": 3, "maximum": 2.5}),
            "",
            "no number is at least 3 and at most 2.5",
        ),
        (
            json!({"type": "integer", "minimum": 4, "maximum": 5, "multipleOf": 3}),
            "",
            "no integer is at least 4 and at most 5 and a multiple of 3",
        ),
        (
            json!({"type": "integer", "format": "uint8", "minimum": 300}),
            "",
            "no integer is at least 300 and at most 255",
        ),
        (
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            "",
            "minLength, 3, is more than maxLength, 2",
        ),
        (
            json!({"type": "string", "pattern": "^a$", "minLength": 2}),
            "",
            "no string matches its pattern, format and length",
        ),
        (
            json!({"type": "array", "minItems": 3, "maxItems": 2}),
            "",
            "minItems, 3, is more than maxItems, 2",
        ),
        (json!({"type": "array", "items": false, "minItems": 1}), "/items", "the schema is false"),
        (
            json!({"type": "array", "prefixItems": [true, {"type": "integer", "minimum": 2,
                "maximum": 1}], "minItems": 2}),
            "/prefixItems/1",
            "no integer is at least 2 and at most 1",
        ),
        (
            json!({"type": "object", "required": ["a", "b"], "maxProperties": 1}),
            "",
            "the number of required properties, 2, is more than maxProperties, 1",
        ),
        (
            json!({"type": "object", "minProperties": 2, "maxProperties": 1, "required": ["a"]}),
            "",
            "minProperties, 2, is more than maxProperties, 1",
        ),
        (
            json!({"type": "object", "properties": {"a": true}, "minProperties": 2,
                "additionalProperties": false, "required": ["a"]}),
            "",
            "minProperties, 2, is more than the number of possible properties, 1",
        ),
        (
            json!({"type": "object", "required": ["a"], "additionalProperties": false}),
            "",
            "the required property \"a\" is not allowed",
        ),
        (
            json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
            "/properties/a",
            "the schema is false",
        ),
        (
            json!({"type": "object", "required": ["x"],
                "additionalProperties": {"type": "integer", "minimum": 2, "maximum": 1}}),
            "/additionalProperties",
            "no integer is at least 2 and at most 1",
        ),
        (json!({"const": 1, "enum": [2, 3]}), "", "\"const\" is no value of \"enum\""),
        (
            json!({"const": 1, "type": "string"}),
            "",
            "other keywords exclude the value of \"const\" or \"enum\"",
        ),
        (
            json!({"enum": [1, 2], "minimum": 3}),
            "",
            "other keywords exclude all values of \"enum\"",
        ),
        (
            json!({"enum": [[1], [2]], "items": {"minimum": 3}}),
            "",
            "other keywords exclude all values of \"enum\"",
        ),
        (
            json!({"allOf": [{"type": "string"}, {"type": ["integer", "null"]}]}),
            "",
            "the types string and null, integer exclude each other",
        ),
        (
            json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 2}]}),
            "",
            "no integer is at least 3 and at most 2",
        ),
        (
            json!({"allOf": [{"type": "object", "properties": {"a": {"minimum": 3}}},
                {"properties": {"a": {"type": "integer", "maximum": 2}}, "required": ["a"]}]}),
            "/allOf/0/properties/a",
            "no integer is at least 3 and at most 2",
        ),
        (json!({"allOf": [{"type": "null"}, false]}), "", "the schema is false"),
    ]
}

#[test]
fn the_place_and_the_reason_are_named() {
    let compiler = compiler(small("llama32-q4_0"));
    let filler: Map<String, Value> =
        (0..200).map(|index| (format!("p{index}"), json!({"type": "integer"}))).collect();
    for (value, place, expected) in empty() {
        let found = reason(&compiler, &value);
        let at = |place: &str| format!("at \"{place}\": {expected}");
        let root = if place.is_empty() { expected.to_owned() } else { at(place) };
        assert_eq!(found, root, "{value}");
        // A required property of a large schema.
        let mut properties = filler.clone();
        properties.insert("a/b".to_owned(), value.clone());
        let large = json!({"type": "object", "properties": properties, "required": ["p3", "a/b"],
            "additionalProperties": false});
        assert_eq!(reason(&compiler, &large), at(&format!("/properties/a~1b{place}")), "{value}");
        // A definition.
        let named = json!({"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1,
            "$defs": {"x": value}});
        assert_eq!(reason(&compiler, &named), at(&format!("/$defs/x{place}")), "{value}");
        // The only alternative.
        let only = json!({"anyOf": [value]});
        assert_eq!(reason(&compiler, &only), at(&format!("/anyOf/0{place}")), "{value}");
    }
}

#[test]
fn alternatives_and_depth_are_named() {
    let compiler = compiler(small("llama32-q4_0"));
    let none = json!({"anyOf": [{"type": "integer", "minimum": 2, "maximum": 1}, false]});
    let expected = "no alternative allows a value; the first one, at \"/anyOf/0\": no integer is at \
                    least 2 and at most 1";
    assert_eq!(reason(&compiler, &none), expected);
    let types = json!({"type": ["integer", "string"], "minimum": 2, "maximum": 1, "minLength": 1,
        "maxLength": 0});
    let expected =
        "no integer is at least 2 and at most 1; minLength, 1, is more than maxLength, 0";
    assert_eq!(reason(&compiler, &types), expected);
    let deep = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    let expected = "at \"/properties/a\": the reference leads to values of infinite depth";
    assert_eq!(reason(&compiler, &deep), expected);
}

/// Each definition refers twice to the next one: the search for a reason takes no exponential time.
#[test]
fn reasons_behind_many_references_are_found() {
    let compiler = compiler(small("llama32-q4_0"));
    let next = |index: usize| json!({"$ref": format!("#/$defs/d{index}")});
    let types = |next: Value| {
        json!({"type": ["array", "object"], "minItems": 1, "items": next,
            "properties": {"a": next}, "required": ["a"]})
    };
    let any = |next: Value| {
        json!({"anyOf": [next, {"type": "array", "prefixItems": [next],
        "minItems": 1}]})
    };
    for (wrap, expected) in [
        (&types as &dyn Fn(Value) -> Value, "the reference allows no value"),
        (&any, "no integer is at least 2 and at most 1"),
    ] {
        let mut definitions: Map<String, Value> =
            (0..60).map(|index| (format!("d{index}"), wrap(next(index + 1)))).collect();
        let none = json!({"type": "integer", "minimum": 2, "maximum": 1});
        definitions.insert("d60".to_owned(), none);
        let schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
        let found = reason(&compiler, &schema);
        assert!(found.contains(expected), "{found}");
    }
}

/// A part that may be absent is absent; the other alternatives remain.
#[test]
fn parts_that_may_be_absent_do_not_matter() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    for (value, ..) in empty() {
        // The library finds these, in any position.
        let is_text = value.get("pattern").is_some();
        let optional = json!({"type": "object", "properties": {"a": value, "b": {"type": "null"}},
            "additionalProperties": false});
        let grammar = compiler.compile(&schema(&optional));
        let grammar = grammar.unwrap_or_else(|error| panic!("{optional}: {error}"));
        assert!(accepts(&grammar, "{}") && accepts(&grammar, "{\"b\":null}"), "{optional}");
        for text in ["{\"a\":1}", "{\"a\":\"a\"}", "{\"a\":[1]}", "{\"a\":{}}"] {
            assert!(!accepts(&grammar, text), "{optional}: {text}");
        }
        for keyword in ["anyOf", "oneOf"] {
            let either = json!({keyword: [value, {"type": "boolean"}]});
            let grammar = compiler.compile(&schema(&either));
            let grammar = grammar.unwrap_or_else(|error| panic!("{either}: {error}"));
            assert!(accepts(&grammar, "true") && !accepts(&grammar, "1"), "{either}");
        }
        let list = json!({"type": "array", "items": value});
        if !is_text {
            let grammar = compiler.compile(&schema(&list));
            let grammar = grammar.unwrap_or_else(|error| panic!("{list}: {error}"));
            assert!(accepts(&grammar, "[]") && !accepts(&grammar, "[1]"), "{list}");
        }
    }
}
