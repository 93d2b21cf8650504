//! Prints a schema of arguments: with descriptions for a model, or with limits for a grammar.

use serde_json::{Map, Value, json};

use super::arguments::{ITEMS_DEFAULT, TEXT_CHARS_DEFAULT};
use super::document::{Fields, Items, Kind, MAX_NUMBER, Range, Schema, Text, Type};

/// The arguments for a model or a server, as JSON schema 2020-12 without references.
pub(crate) fn for_model(arguments: &Fields) -> Value {
    Value::Object(object(arguments, false))
}

/// A schema for a grammar: texts and lists have limits, numbers are within ±(2^53 - 1).
pub(crate) fn for_grammar(schema: &Schema) -> Value {
    Value::Object(write(schema, true))
}

/// As [`for_grammar`], for one type.
pub(crate) fn of_type(ty: &Type) -> Value {
    Value::Object(typed(ty, true))
}

fn write(schema: &Schema, is_grammar: bool) -> Map<String, Value> {
    let mut map = match schema.kind() {
        Kind::Type(ty) => typed(ty, is_grammar),
        Kind::Values(values) => {
            let is_text = values.iter().all(Value::is_string) && !is_grammar;
            let mut map = if is_text { named("string") } else { Map::new() };
            map.insert("enum".to_owned(), json!(values));
            map
        }
        Kind::Any(options) => any(options, is_grammar),
    };
    if !is_grammar {
        // Behind the type, as in the examples of most vendors.
        let at = usize::from(map.contains_key("type"));
        if let Some(text) = &schema.description {
            map.shift_insert(at, "description".to_owned(), json!(text));
        }
        map.extend(schema.default.iter().map(|value| ("default".to_owned(), value.clone())));
    }
    map
}

fn named(name: &str) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!(name))])
}

fn typed(ty: &Type, is_grammar: bool) -> Map<String, Value> {
    let mut map = named(ty.name());
    match ty {
        Type::Null | Type::Boolean => {}
        Type::Integer(range) | Type::Number(range) => bounds(&mut map, range, is_grammar),
        Type::String(Text { min, max, .. }) => {
            let max = if is_grammar { Some(max_or(*min, *max, TEXT_CHARS_DEFAULT)) } else { *max };
            lengths(&mut map, ("minLength", *min), ("maxLength", max));
        }
        Type::Array(Items { prefix, rest, min, max }) => {
            let mut max = *max;
            if let Some(item) = rest {
                map.insert("items".to_owned(), Value::Object(write(item, is_grammar)));
                max = if is_grammar { Some(max_or(*min, max, ITEMS_DEFAULT)) } else { max };
            } else {
                map.insert("prefixItems".to_owned(), all(prefix, is_grammar));
            }
            lengths(&mut map, ("minItems", *min), ("maxItems", max));
        }
        Type::Object(fields) => return object(fields, is_grammar),
    }
    map
}

/// A maximum for a grammar.
pub(crate) fn max_or(min: u64, max: Option<u64>, default: u64) -> u64 {
    max.unwrap_or(default.max(min))
}

fn object(fields: &Fields, is_grammar: bool) -> Map<String, Value> {
    let schemas = fields.properties.iter();
    let schemas: Map<String, Value> = schemas
        .map(|(name, schema)| (name.clone(), Value::Object(write(schema, is_grammar))))
        .collect();
    let mut map = named("object");
    map.insert("properties".to_owned(), Value::Object(schemas));
    let names = fields.properties.iter().map(|(name, _)| name);
    let required: Vec<&String> = names.filter(|name| fields.is_required(name)).collect();
    if !required.is_empty() {
        map.insert("required".to_owned(), json!(required));
    }
    map.insert("additionalProperties".to_owned(), json!(false));
    map
}

fn all(schemas: &[Schema], is_grammar: bool) -> Value {
    schemas.iter().map(|schema| Value::Object(write(schema, is_grammar))).collect()
}

/// An optional value of one type has a list of types, which templates read more often than `anyOf`.
fn any(options: &[Schema], is_grammar: bool) -> Map<String, Value> {
    if let [one, null @ Schema { description: None, default: None, .. }] = options
        && null.is_null()
        && !is_grammar
    {
        let mut map = write(one, is_grammar);
        let is_values = map.contains_key("enum");
        if let Some(name) = map.get("type").cloned().filter(|_| !is_values) {
            map.insert("type".to_owned(), json!([name, "null"]));
            return map;
        }
    }
    Map::from_iter([("anyOf".to_owned(), all(options, is_grammar))])
}

fn lengths(map: &mut Map<String, Value>, min: (&str, u64), max: (&str, Option<u64>)) {
    if min.1 > 0 {
        map.insert(min.0.to_owned(), json!(min.1));
    }
    map.extend(max.1.map(|value| (max.0.to_owned(), json!(value))));
}

fn bounds(map: &mut Map<String, Value>, range: &Range, is_grammar: bool) {
    let (min, max) = if is_grammar {
        let exact = |bound: f64| (bound.abs() <= MAX_NUMBER).then_some(bound);
        (exact(range.low()), exact(range.high()))
    } else {
        map.extend(range.format.map(|format| ("format".to_owned(), json!(format))));
        (range.min, range.max)
    };
    for (keyword, bound) in [
        ("minimum", min),
        ("maximum", max),
        ("exclusiveMinimum", range.above),
        ("exclusiveMaximum", range.below),
    ] {
        map.extend(bound.map(|bound| (keyword.to_owned(), whole(bound))));
    }
}

/// A bound, without decimals if it is an integer.
fn whole(bound: f64) -> Value {
    if bound.fract() == 0.0 && bound.abs() <= MAX_NUMBER {
        json!(bound as i64)
    } else {
        json!(bound)
    }
}
