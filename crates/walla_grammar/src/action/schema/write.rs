//! Prints a schema: with descriptions for a model, or with limits for a grammar.

use serde_json::{Map, Value, json};

use super::{ITEMS_DEFAULT, Kind, Limits, MAX_EXACT, Property, Range, Schema, TEXT_CHARS_DEFAULT};

/// The schema for a model or a server, as JSON schema 2020-12 without references.
pub(crate) fn for_model(schema: &Schema) -> Value {
    Value::Object(write(schema, false))
}

/// The schema for a grammar: texts and lists have limits, numbers are within ±(2^53 - 1).
pub(crate) fn for_grammar(schema: &Schema) -> Value {
    Value::Object(write(schema, true))
}

fn write(schema: &Schema, is_grammar: bool) -> Map<String, Value> {
    let mut object = kind(&schema.kind, is_grammar);
    if !is_grammar {
        // Behind the type, as in the examples of most vendors.
        let description = schema.description.as_ref();
        let at = usize::from(object.contains_key("type"));
        if let Some(text) = description {
            object.shift_insert(at, "description".to_owned(), json!(text));
        }
        object.extend(schema.default.iter().map(|value| ("default".to_owned(), value.clone())));
    }
    object
}

fn typed(name: &str) -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!(name))])
}

fn kind(kind: &Kind, is_grammar: bool) -> Map<String, Value> {
    match kind {
        Kind::Null => typed("null"),
        Kind::Boolean => typed("boolean"),
        Kind::Integer(range) => number("integer", range, is_grammar),
        Kind::Number(range) => number("number", range, is_grammar),
        Kind::Text(limits) => {
            let mut object = typed("string");
            let max = if is_grammar { Some(limits.max_or(TEXT_CHARS_DEFAULT)) } else { limits.max };
            add_limits(&mut object, ("minLength", "maxLength"), Limits { max, ..*limits });
            object
        }
        Kind::Values(values) => {
            let mut object = Map::new();
            if values.iter().all(Value::is_string) && !is_grammar {
                object.insert("type".to_owned(), json!("string"));
            }
            object.insert("enum".to_owned(), json!(values));
            object
        }
        Kind::List(items, limits) => {
            let mut object = typed("array");
            object.insert("items".to_owned(), Value::Object(write(items, is_grammar)));
            let max = if is_grammar { Some(limits.max_or(ITEMS_DEFAULT)) } else { limits.max };
            add_limits(&mut object, ("minItems", "maxItems"), Limits { max, ..*limits });
            object
        }
        Kind::Tuple(items) => {
            let mut object = typed("array");
            let schemas: Vec<_> = items.iter().map(|item| write(item, is_grammar)).collect();
            object.insert("prefixItems".to_owned(), json!(schemas));
            let limits = Limits { min: items.len(), max: Some(items.len()) };
            add_limits(&mut object, ("minItems", "maxItems"), limits);
            object
        }
        Kind::Object(properties) => object_of(properties, is_grammar),
        Kind::Any(options) => any(options, is_grammar),
    }
}

fn object_of(properties: &[Property], is_grammar: bool) -> Map<String, Value> {
    let mut object = typed("object");
    let schemas: Map<String, Value> = properties
        .iter()
        .map(|p| (p.name.clone(), Value::Object(write(&p.schema, is_grammar))))
        .collect();
    object.insert("properties".to_owned(), Value::Object(schemas));
    let required: Vec<&str> =
        properties.iter().filter(|p| p.is_required).map(|p| p.name.as_str()).collect();
    if !required.is_empty() {
        object.insert("required".to_owned(), json!(required));
    }
    object.insert("additionalProperties".to_owned(), json!(false));
    object
}

/// An optional value of one type has a list of types, which templates read more often than `anyOf`.
fn any(options: &[Schema], is_grammar: bool) -> Map<String, Value> {
    if let [one, Schema { kind: Kind::Null, description: None, default: None }] = options
        && !is_grammar
    {
        let mut object = write(one, is_grammar);
        let is_values = object.contains_key("enum");
        if let Some(name) = object.get("type").cloned().filter(|_| !is_values) {
            object.insert("type".to_owned(), json!([name, "null"]));
            return object;
        }
    }
    let schemas: Vec<_> = options.iter().map(|option| write(option, is_grammar)).collect();
    Map::from_iter([("anyOf".to_owned(), json!(schemas))])
}

fn add_limits(object: &mut Map<String, Value>, names: (&str, &str), limits: Limits) {
    if limits.min > 0 {
        object.insert(names.0.to_owned(), json!(limits.min));
    }
    object.extend(limits.max.map(|max| (names.1.to_owned(), json!(max))));
}

fn number(name: &str, range: &Range, is_grammar: bool) -> Map<String, Value> {
    let mut object = typed(name);
    let bounds = if is_grammar {
        let exact = |bound: f64| (bound.abs() <= MAX_EXACT).then_some(bound);
        (exact(range.low()), exact(range.high()))
    } else {
        object.extend(range.format.map(|format| ("format".to_owned(), json!(format))));
        (range.min, range.max)
    };
    for (keyword, bound) in [
        ("minimum", bounds.0),
        ("maximum", bounds.1),
        ("exclusiveMinimum", range.above),
        ("exclusiveMaximum", range.below),
    ] {
        object.extend(bound.map(|bound| (keyword.to_owned(), whole(bound))));
    }
    object
}

/// A bound, without decimals if it is an integer.
fn whole(bound: f64) -> Value {
    if bound.fract() == 0.0 && bound.abs() <= MAX_EXACT {
        json!(bound as i64)
    } else {
        json!(bound)
    }
}
