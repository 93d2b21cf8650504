//! Writes a schema in the subset that the library enforces exactly:
//!
//! - `$ref` points to numbered definitions, because the library does not decode pointers.
//! - A schema with keywords of several types becomes one schema per type.
//! - Integers are bounded and split at zero, because the library allows `-0`, and programs cannot
//!   read this as an integer. Numbers are bounded: without bounds they have exponents, such as
//!   `1e999`, which programs cannot read.
//! - Strings have no escape `\u`: the library would allow it as a second spelling of a property
//!   name, and so two properties of one name.

use serde_json::{Map, Number, Value, json};

use super::JsonWhitespace;
use super::schema::{Document, Fields, Items, NUMBER_MAX, Part, Range, Schema, Text, Type};

/// Name of the definition that allows any value.
const ANY: &str = "any";

/// Maximum number of definitions that are written in place of their references.
const INLINED_MAX: usize = 200;

pub(super) fn emit(document: &Document, whitespace: JsonWhitespace) -> Value {
    let mut emitter = Emitter { document, inlined: 0, stack: Vec::new() };
    let root = emitter.schema(&document.root);
    let mut definitions = Map::new();
    for (index, schema) in document.definitions.iter().enumerate() {
        definitions.insert(index.to_string(), emitter.schema(schema));
    }
    definitions.insert(ANY.to_owned(), any_value());
    let mut object = match root {
        Value::Object(object) => object,
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    object.insert("$defs".to_owned(), Value::Object(definitions));
    object.insert("x-guidance".to_owned(), settings(whitespace));
    Value::Object(object)
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

struct Emitter<'d> {
    document: &'d Document,
    inlined: usize,
    /// Definitions that are being written in place.
    stack: Vec<usize>,
}

impl Emitter<'_> {
    fn schema(&mut self, schema: &Schema) -> Value {
        match schema.parts.as_slice() {
            [] => reference(ANY),
            [part] => self.part(part),
            parts => {
                let all: Vec<Value> = parts.iter().map(|part| self.part(part)).collect();
                json!({"allOf": all})
            }
        }
    }

    fn optional(&mut self, schema: Option<&Schema>) -> Value {
        match schema {
            Some(schema) => self.schema(schema),
            None => reference(ANY),
        }
    }

    fn part(&mut self, part: &Part) -> Value {
        match part {
            Part::Never => Value::Bool(false),
            Part::Types(types) => any_of(types.iter().flat_map(|ty| self.typed(ty)).collect()),
            Part::Any(schemas) => any_of(schemas.iter().map(|s| self.schema(s)).collect()),
            Part::One(schemas) => {
                let alternatives: Vec<Value> =
                    schemas.iter().map(|schema| self.alternative(schema)).collect();
                json!({"oneOf": alternatives})
            }
            Part::Ref(target) => reference(&target.to_string()),
            Part::Values(values) => match values.as_slice() {
                [value] => json!({"const": value}),
                values => json!({"enum": values}),
            },
        }
    }

    /// A reference in `oneOf` is written in place, because the library does not compare
    /// references.
    fn alternative(&mut self, schema: &Schema) -> Value {
        let [Part::Ref(target)] = schema.parts.as_slice() else { return self.schema(schema) };
        let definition = self.document.definitions.get(*target);
        let (Some(definition), false) = (definition, self.stack.contains(target)) else {
            return self.schema(schema);
        };
        if self.inlined == INLINED_MAX {
            return self.schema(schema);
        }
        self.inlined += 1;
        self.stack.push(*target);
        let written = self.alternative(definition);
        self.stack.pop();
        written
    }

    fn typed(&mut self, ty: &Type) -> Vec<Value> {
        match ty {
            Type::Null => vec![json!({"type": "null"})],
            Type::Boolean => vec![json!({"type": "boolean"})],
            Type::Integer(range) => integer(range),
            Type::Number(range) if range.is_empty(false) => Vec::new(),
            Type::Number(range) => vec![number(range)],
            Type::String(text) => vec![string(text)],
            Type::Array(items) => vec![self.array(items)],
            Type::Object(fields) => vec![self.object(fields)],
        }
    }

    fn array(&mut self, items: &Items) -> Value {
        let prefix: Vec<Value> = items.prefix.iter().map(|schema| self.schema(schema)).collect();
        let mut object = Map::new();
        object.insert("type".to_owned(), json!("array"));
        if !prefix.is_empty() {
            object.insert("prefixItems".to_owned(), json!(prefix));
        }
        let rest = self.optional(items.rest.as_deref());
        object.insert("items".to_owned(), rest);
        object.insert("minItems".to_owned(), json!(items.min));
        object.extend(items.max.map(|max| ("maxItems".to_owned(), json!(max))));
        Value::Object(object)
    }

    fn object(&mut self, fields: &Fields) -> Value {
        let mut map = |list: &[(String, Schema)]| {
            let schemas = list.iter().map(|(name, schema)| (name.clone(), self.schema(schema)));
            schemas.collect::<Map<String, Value>>()
        };
        let (properties, patterns) = (map(&fields.properties), map(&fields.patterns));
        let mut object = Map::new();
        object.insert("type".to_owned(), json!("object"));
        object.insert("properties".to_owned(), json!(properties));
        if !patterns.is_empty() {
            object.insert("patternProperties".to_owned(), json!(patterns));
        }
        let rest = self.optional(fields.rest.as_deref());
        object.insert("additionalProperties".to_owned(), rest);
        object.insert("required".to_owned(), json!(fields.required));
        // Counts that other keywords imply are left out: the library refuses some of them.
        if fields.min > fields.required.len() as u64 {
            object.insert("minProperties".to_owned(), json!(fields.min));
        }
        let named = fields.properties.len() as u64;
        if let Some(max) = fields.max.filter(|&max| !fields.is_closed() || max < named) {
            object.insert("maxProperties".to_owned(), json!(max));
        }
        Value::Object(object)
    }
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
        let mut object = Map::new();
        object.insert("type".to_owned(), json!("integer"));
        object.insert("minimum".to_owned(), json!(low as i64));
        object.insert("maximum".to_owned(), json!(high as i64));
        object.extend(range.multiple_of.map(|multiple| ("multipleOf".to_owned(), exact(multiple))));
        Value::Object(object)
    });
    written.collect()
}

fn number(range: &Range) -> Value {
    let mut object = Map::new();
    object.insert("type".to_owned(), json!("number"));
    object.insert("minimum".to_owned(), exact(range.min.unwrap_or(-NUMBER_MAX)));
    object.insert("maximum".to_owned(), exact(range.max.unwrap_or(NUMBER_MAX)));
    let others = [
        ("exclusiveMinimum", range.above),
        ("exclusiveMaximum", range.below),
        ("multipleOf", range.multiple_of),
    ];
    for (keyword, value) in others {
        object.extend(value.map(|value| (keyword.to_owned(), exact(value))));
    }
    Value::Object(object)
}

/// A number as JSON.
fn exact(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// A schema has one keyword `pattern` and one keyword `format`.
fn string(text: &Text) -> Value {
    let mut object = Map::new();
    object.insert("type".to_owned(), json!("string"));
    object.insert("minLength".to_owned(), json!(text.min));
    object.extend(text.max.map(|max| ("maxLength".to_owned(), json!(max))));
    let mut all = vec![Value::Object(object)];
    all.extend(text.patterns.iter().map(|pattern| json!({"type": "string", "pattern": pattern})));
    all.extend(text.formats.iter().map(|format| json!({"type": "string", "format": format})));
    if all.len() == 1 { all.remove(0) } else { json!({"allOf": all}) }
}
