//! Writes a schema in the subset that the library enforces exactly:
//!
//! - `$ref` points to numbered definitions, because the library does not decode pointers.
//! - A schema with keywords of several types becomes one schema per type.
//! - Integers are bounded and split at zero, because the library allows `-0`, and programs cannot
//!   read this as an integer. Numbers are bounded: without bounds they have exponents, such as
//!   `1e999`, which programs cannot read. The decimals of a number are bounded by `multipleOf`: the
//!   library allows no digit behind the last decimal of the multiple, not even a zero.
//! - Strings have no escape `\u`: the library would allow it as a second spelling of a property
//!   name, and so two properties of one name.

use std::collections::HashMap;

use serde_json::{Map, Number, Value, json};

use super::document::{
    Document, Fields, Items, MAX_DECIMALS, MAX_NUMBER, Part, Range, Schema, Text, Type,
};
use super::{JsonWhitespace, values};

/// Name of the definition that allows any value.
const ANY: &str = "any";

pub(super) fn emit(document: &Document, whitespace: JsonWhitespace) -> Value {
    let root = write(&document.root);
    let numbered = document.definitions.iter().enumerate();
    let mut definitions: Map<String, Value> =
        numbered.map(|(index, schema)| (index.to_string(), write(schema))).collect();
    definitions.insert(ANY.to_owned(), any_value());
    let mut object = match root {
        Value::Object(object) => object,
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    object.insert("$defs".to_owned(), Value::Object(definitions));
    share_numbers(&mut object);
    object.insert("x-guidance".to_owned(), settings(whitespace));
    Value::Object(object)
}

/// Writes equal schemas of numbers once, as definitions. The library builds the expression of a
/// range, of some 1,600 steps, for each schema: 700 integers would exceed the limit of its work.
fn share_numbers(document: &mut Map<String, Value>) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for_numbers(document, &mut |schema| *counts.entry(schema.to_string()).or_default() += 1);
    counts.retain(|_, count| *count > 1);
    let mut names: HashMap<String, String> = HashMap::new();
    // In the order of the document: equal schemas are equal texts for the library.
    let mut shared = Map::new();
    for_numbers(document, &mut |schema| {
        let text = schema.to_string();
        if counts.contains_key(&text) {
            let name = names.entry(text).or_insert_with(|| {
                let name = format!("number{}", shared.len());
                shared.insert(name.clone(), schema.clone());
                name
            });
            *schema = reference(name);
        }
    });
    if let Some(Value::Object(definitions)) = document.get_mut("$defs") {
        definitions.extend(shared);
    }
}

/// Calls a function for each schema of numbers in a schema.
fn for_numbers(schema: &mut Map<String, Value>, call: &mut impl FnMut(&mut Value)) {
    for (keyword, value) in schema {
        // Values, and names of properties, are no schemas.
        match (keyword.as_str(), value) {
            ("const" | "enum" | "required" | "x-guidance", _) => {}
            ("properties" | "patternProperties" | "$defs", Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| for_number(schema, call));
            }
            (_, Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| for_number(schema, call));
            }
            (_, schema) => for_number(schema, call),
        }
    }
}

fn for_number(schema: &mut Value, call: &mut impl FnMut(&mut Value)) {
    let ty = schema.get("type").and_then(Value::as_str);
    if matches!(ty, Some("integer" | "number")) {
        call(schema);
    } else if let Value::Object(map) = schema {
        for_numbers(map, call);
    }
}

/// Settings of the library.
fn settings(whitespace: JsonWhitespace) -> Value {
    let (comma, colon) = match whitespace {
        JsonWhitespace::Spaced => (", ", ": "),
        JsonWhitespace::Compact | JsonWhitespace::Flexible => (",", ":"),
    };
    let pattern = (whitespace == JsonWhitespace::Flexible).then_some(" {1,16}|\\n {0,16}");
    json!({
        "item_separator": comma,
        "key_separator": colon,
        "whitespace_flexible": false,
        "whitespace_pattern": pattern,
        "json_allowed_escapes": "nrbtf\\\"",
    })
}

/// Any value, with bounded numbers.
fn any_value() -> Value {
    let this = reference(ANY);
    json!({"anyOf": [
        {"type": "null"},
        {"type": "boolean"},
        number(&Range::default()),
        {"type": "string"},
        {"type": "array", "items": this},
        {"type": "object", "additionalProperties": this},
    ]})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

fn write(schema: &Schema) -> Value {
    match schema.parts.as_slice() {
        [] => reference(ANY),
        [part] => write_part(part),
        parts => {
            let all: Vec<Value> = parts.iter().map(write_part).collect();
            json!({"allOf": all})
        }
    }
}

fn optional(schema: Option<&Schema>) -> Value {
    match schema {
        Some(schema) => write(schema),
        None => reference(ANY),
    }
}

fn write_part(part: &Part) -> Value {
    match part {
        Part::Never(_) => Value::Bool(false),
        Part::Types(types) => any_of(types.iter().flat_map(typed).collect()),
        // The alternatives of `oneOf` do not overlap.
        Part::Any(schemas) | Part::One(schemas) => any_of(schemas.iter().map(write).collect()),
        Part::Ref(target) => reference(&target.to_string()),
        Part::Values(values) => match values.as_slice() {
            [value] => json!({"const": value}),
            values => json!({"enum": values}),
        },
    }
}

fn typed(ty: &Type) -> Vec<Value> {
    match ty {
        Type::Null => vec![json!({"type": "null"})],
        Type::Boolean => vec![json!({"type": "boolean"})],
        Type::Integer(range) => integer(range),
        Type::Number(range) if range.is_empty(false) => Vec::new(),
        Type::Number(range) => vec![number(range)],
        Type::String(text) => vec![string(text)],
        Type::Array(items) => vec![array(items)],
        Type::Object(fields) => vec![object(fields)],
    }
}

/// An object of the keywords that have a value.
fn keywords<const COUNT: usize>(all: [(&str, Option<Value>); COUNT]) -> Value {
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn array(items: &Items) -> Value {
    let prefix: Value = items.prefix.iter().map(write).collect();
    keywords([
        ("type", Some("array".into())),
        ("prefixItems", Some(prefix).filter(|_| !items.prefix.is_empty())),
        ("items", Some(optional(items.rest.as_deref()))),
        ("minItems", Some(items.min.into())),
        ("maxItems", items.max.map(Value::from)),
    ])
}

fn object(fields: &Fields) -> Value {
    let map = |list: &[(String, Schema)]| -> Value {
        list.iter().map(|(name, schema)| (name.clone(), write(schema))).collect()
    };
    // Counts that other keywords imply are left out: the library refuses some of them.
    let min = Some(fields.min).filter(|&min| min > fields.required.len() as u64);
    let named = fields.properties.len() as u64;
    let max = fields.max.filter(|&max| !fields.is_closed() || max < named);
    keywords([
        ("type", Some("object".into())),
        ("properties", Some(map(&fields.properties))),
        ("patternProperties", Some(map(&fields.patterns)).filter(|_| !fields.patterns.is_empty())),
        ("additionalProperties", Some(optional(fields.rest.as_deref()))),
        ("required", Some(json!(fields.required))),
        ("minProperties", min.map(Value::from)),
        ("maxProperties", max.map(Value::from)),
    ])
}

fn any_of(mut options: Vec<Value>) -> Value {
    match options.len() {
        0 => Value::Bool(false),
        1 => options.remove(0),
        _ => json!({"anyOf": options}),
    }
}

/// Negative and other integers apart: together the library allows `-0`.
fn integer(range: &Range) -> Vec<Value> {
    let (low, high) = range.whole();
    let halves = [(low, high.min(-1.0)), (low.max(0.0), high)];
    let halves = halves.into_iter().filter(|&(low, high)| {
        let half = Range { min: Some(low), max: Some(high), ..range.clone() };
        low <= high && !half.is_empty(true)
    });
    let written = halves.map(|(low, high)| {
        keywords([
            ("type", Some("integer".into())),
            ("minimum", Some(json!(low as i64))),
            ("maximum", Some(json!(high as i64))),
            ("multipleOf", range.multiple_of.map(exact)),
        ])
    });
    written.collect()
}

fn number(range: &Range) -> Value {
    let (decimals, step) = match range.multiple_of {
        Some(multiple) => (values::scale(multiple).map_or(MAX_DECIMALS, |(_, own)| own), multiple),
        None => {
            if let Some(values) = range.few() {
                return json!({"enum": values});
            }
            let decimals = range.decimals();
            (decimals, values::step(decimals))
        }
    };
    let range = range.closed(decimals);
    if range.min > range.max {
        // Two bounds of many digits, which no parser distinguishes from the numbers between.
        return Value::Bool(false);
    }
    json!({
        "type": "number",
        "minimum": exact(range.min.unwrap_or(-MAX_NUMBER)),
        "maximum": exact(range.max.unwrap_or(MAX_NUMBER)),
        "multipleOf": exact(step),
    })
}

/// A number as JSON.
fn exact(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// A schema has one keyword `pattern` and one keyword `format`.
fn string(text: &Text) -> Value {
    let mut all = vec![keywords([
        ("type", Some("string".into())),
        ("minLength", Some(text.min.into())),
        ("maxLength", text.max.map(Value::from)),
    ])];
    all.extend(text.patterns.iter().map(|pattern| json!({"type": "string", "pattern": pattern})));
    all.extend(text.formats.iter().map(|format| json!({"type": "string", "format": format})));
    if all.len() == 1 { all.remove(0) } else { json!({"allOf": all}) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::parse::{Limits, parse};

    #[test]
    fn equal_schemas_have_equal_texts() {
        let number = |index: u32| json!({"type": "integer", "maximum": index / 2});
        let all: Vec<Value> = (0..40).map(number).collect();
        let text = || {
            let document = parse(&json!({"anyOf": all}), Limits::constraint(1_000)).unwrap();
            emit(&document, JsonWhitespace::Compact).to_string()
        };
        let first = text();
        assert!(first.contains("number19") && (0..5).all(|_| text() == first), "{first}");
    }
}
