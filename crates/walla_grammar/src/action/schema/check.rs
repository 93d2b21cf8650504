//! Validates arguments by a schema and converts them to its types.
//!
//! Conversions that models need: a number or a list as text, an integer with decimals
//! `.0`, `True` and `None` of Python, null for an optional property.

use serde_json::{Map, Number, Value};

use super::{Kind, Limits, Property, Range, Schema};
use crate::CallError;
use crate::action::error::shown;

/// Maximum nesting depth of arguments: deeper values are not valid by any schema.
const MAX_DEPTH: usize = 64;

/// A defect, with the path of the property in reverse order.
struct Defect {
    reason: &'static str,
    path: Vec<String>,
}

impl Defect {
    fn new(reason: &'static str) -> Self {
        Self { reason, path: Vec::new() }
    }

    fn under(mut self, step: impl Into<String>) -> Self {
        self.path.push(step.into());
        self
    }
}

/// The arguments with the types of the schema.
///
/// `is_untyped`: all values are texts, as in the XML format.
///
/// # Errors
/// [`CallError::InvalidArgument`].
pub(crate) fn check_arguments(
    schema: &Schema,
    arguments: Map<String, Value>,
    is_untyped: bool,
) -> Result<Map<String, Value>, CallError> {
    let checked = object(schema.properties(), arguments, is_untyped, 0);
    checked.map_err(|defect| {
        let path: Vec<String> = defect.path.into_iter().rev().collect();
        CallError::InvalidArgument { property: shown(&path.join("/")), reason: defect.reason }
    })
}

fn object(
    properties: &[Property],
    mut arguments: Map<String, Value>,
    is_untyped: bool,
    depth: usize,
) -> Result<Map<String, Value>, Defect> {
    let mut checked = Map::new();
    for property in properties {
        let name = property.name.as_str();
        let Some(value) = arguments.remove(name) else {
            if property.is_required {
                return Err(Defect::new("it is missing").under(name));
            }
            continue;
        };
        let is_absent = !property.is_required
            && (value.is_null() || is_untyped && is_null_text(&value))
            && !allows_null(&property.schema);
        // An untyped text may be a valid text of the property.
        if is_absent && !(is_untyped && allows_text(&property.schema)) {
            continue;
        }
        let value = convert(&property.schema, value, is_untyped, depth + 1)
            .map_err(|defect| defect.under(name))?;
        checked.insert(name.to_owned(), value);
    }
    match arguments.keys().next() {
        Some(name) => Err(Defect::new("the action has no such property").under(shown(name))),
        None => Ok(checked),
    }
}

fn is_null_text(value: &Value) -> bool {
    matches!(value.as_str(), Some("null" | "None" | "none"))
}

fn allows_null(schema: &Schema) -> bool {
    match &schema.kind {
        Kind::Null => true,
        Kind::Any(options) => options.iter().any(allows_null),
        _ => false,
    }
}

fn allows_text(schema: &Schema) -> bool {
    match &schema.kind {
        Kind::Text(_) => true,
        Kind::Any(options) => options.iter().any(allows_text),
        _ => false,
    }
}

/// The value with the type of the schema.
fn convert(schema: &Schema, value: Value, is_untyped: bool, depth: usize) -> Result<Value, Defect> {
    if depth > MAX_DEPTH {
        return Err(Defect::new("it is nested too deeply"));
    }
    if is_untyped {
        // Other types first: a text that spells `3` is a number if the schema allows both.
        if !is_text_only(schema)
            && let Some(typed) = value.as_str().and_then(read).filter(|typed| !typed.is_string())
            && let Ok(valid) = typed_value(schema, typed, depth)
        {
            return Ok(valid);
        }
        return typed_value(schema, value, depth);
    }
    let text = value.as_str().map(str::to_owned);
    match typed_value(schema, value, depth) {
        Ok(valid) => Ok(valid),
        Err(defect) => {
            let read = text.as_deref().and_then(read).filter(|value| !value.is_string());
            let converted = read.and_then(|value| typed_value(schema, value, depth).ok());
            converted.ok_or(defect)
        }
    }
}

fn is_text_only(schema: &Schema) -> bool {
    match &schema.kind {
        Kind::Text(_) => true,
        Kind::Values(values) => values.iter().all(Value::is_string),
        _ => false,
    }
}

/// A value that is written as text: JSON, or a constant of Python.
fn read(text: &str) -> Option<Value> {
    match text.trim() {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" | "none" => Some(Value::Null),
        text => serde_json::from_str(text).ok(),
    }
}

fn typed_value(schema: &Schema, value: Value, depth: usize) -> Result<Value, Defect> {
    match (&schema.kind, value) {
        (Kind::Null, Value::Null) => Ok(Value::Null),
        (Kind::Boolean, Value::Bool(value)) => Ok(Value::Bool(value)),
        (Kind::Integer(range), Value::Number(number)) => integer(range, &number),
        (Kind::Number(range), Value::Number(number)) => {
            if number.as_f64().is_some_and(|number| range.contains(number)) {
                Ok(Value::Number(number))
            } else {
                Err(Defect::new("the number is outside its bounds"))
            }
        }
        (Kind::Text(limits), Value::String(text)) => {
            if is_within(*limits, text.chars().count()) {
                Ok(Value::String(text))
            } else {
                Err(Defect::new("the text is too short or too long"))
            }
        }
        (Kind::Values(values), value) => one_of(values, &value),
        (Kind::List(items, limits), Value::Array(values)) => {
            if !is_within(*limits, values.len()) {
                return Err(Defect::new("the list is too short or too long"));
            }
            list(values.into_iter().map(|value| (&**items, value)), depth)
        }
        (Kind::Tuple(items), Value::Array(values)) => {
            if items.len() != values.len() {
                return Err(Defect::new("the list is too short or too long"));
            }
            list(items.iter().zip(values), depth)
        }
        (Kind::Object(properties), Value::Object(values)) => {
            object(properties, values, false, depth).map(Value::Object)
        }
        (Kind::Any(options), value) => any(options, &value, depth),
        _ => Err(Defect::new("it has another type")),
    }
}

fn is_within(limits: Limits, length: usize) -> bool {
    length >= limits.min && limits.max.is_none_or(|max| length <= max)
}

fn list<'s>(
    items: impl Iterator<Item = (&'s Schema, Value)>,
    depth: usize,
) -> Result<Value, Defect> {
    let mut checked = Vec::new();
    for (index, (schema, value)) in items.enumerate() {
        let value = convert(schema, value, false, depth + 1)
            .map_err(|defect| defect.under(index.to_string()))?;
        checked.push(value);
    }
    Ok(Value::Array(checked))
}

/// The first alternative that allows the value. If none does, the defect of the only alternative
/// for its type.
fn any(options: &[Schema], value: &Value, depth: usize) -> Result<Value, Defect> {
    let mut defects = Vec::new();
    for option in options {
        match typed_value(option, value.clone(), depth) {
            Ok(valid) => return Ok(valid),
            Err(defect) => defects.push(defect),
        }
    }
    defects.retain(|defect| defect.reason != "it has another type");
    match defects.len() {
        1 => Err(defects.remove(0)),
        _ => Err(Defect::new("no alternative allows it")),
    }
}

/// The value of the schema that equals the value; numbers are compared by value.
fn one_of(values: &[Value], value: &Value) -> Result<Value, Defect> {
    let equals = |other: &&Value| match (value, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64().is_some() && one.as_f64() == other.as_f64()
        }
        (one, other) => one == *other,
    };
    values.iter().find(equals).cloned().ok_or_else(|| Defect::new("it is not one of the choices"))
}

/// An integer, also if it is written with decimals.
fn integer(range: &Range, number: &Number) -> Result<Value, Defect> {
    let value = number.as_f64().unwrap_or(f64::NAN);
    if value.fract() != 0.0 {
        return Err(Defect::new("it is not an integer"));
    }
    if !range.contains(value) {
        return Err(Defect::new("the number is outside its bounds"));
    }
    if number.is_f64() && value.abs() <= super::MAX_EXACT {
        return Ok(Value::from(value as i64));
    }
    Ok(Value::Number(number.clone()))
}
