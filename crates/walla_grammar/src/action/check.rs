//! Validates arguments by a schema and converts them to its types.
//!
//! Conversions that models need: a number or a list as text, an integer with decimals
//! `.0`, `True` and `None` of Python, null for an optional property.

use serde_json::{Map, Number, Value};

use super::error::shown;
use crate::CallError;
use crate::schema::{Fields, Items, Kind, Range, Schema, Text, Type, is_equal};

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
    fields: &Fields,
    arguments: Map<String, Value>,
    is_untyped: bool,
) -> Result<Map<String, Value>, CallError> {
    let checked = object(fields, arguments, is_untyped, 0);
    checked.map_err(|defect| {
        let path: Vec<String> = defect.path.into_iter().rev().collect();
        CallError::InvalidArgument { property: shown(&path.join("/")), reason: defect.reason }
    })
}

fn object(
    fields: &Fields,
    mut arguments: Map<String, Value>,
    is_untyped: bool,
    depth: usize,
) -> Result<Map<String, Value>, Defect> {
    let mut checked = Map::new();
    for (name, schema) in &fields.properties {
        let is_required = fields.is_required(name);
        let Some(value) = arguments.remove(name) else {
            if is_required {
                return Err(Defect::new("it is missing").under(name));
            }
            continue;
        };
        let is_absent = !is_required
            && (value.is_null() || is_untyped && is_null_text(&value))
            && !allows(schema, |ty| matches!(ty, Type::Null));
        // An untyped text may be a valid text of the property.
        if is_absent && !(is_untyped && allows(schema, |ty| matches!(ty, Type::String(_)))) {
            continue;
        }
        let value =
            convert(schema, value, is_untyped, depth + 1).map_err(|defect| defect.under(name))?;
        checked.insert(name.clone(), value);
    }
    match arguments.keys().next() {
        Some(name) => Err(Defect::new("the action has no such property").under(shown(name))),
        None => Ok(checked),
    }
}

fn is_null_text(value: &Value) -> bool {
    matches!(value.as_str(), Some("null" | "None" | "none"))
}

/// Whether a type is allowed.
fn allows(schema: &Schema, is: fn(&Type) -> bool) -> bool {
    match schema.kind() {
        Kind::Type(ty) => is(ty),
        Kind::Any(options) => options.iter().any(|option| allows(option, is)),
        Kind::Values(_) => false,
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
    match schema.kind() {
        Kind::Type(ty) => matches!(ty, Type::String(_)),
        Kind::Values(values) => values.iter().all(Value::is_string),
        Kind::Any(_) => false,
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
    let ty = match schema.kind() {
        Kind::Values(values) => return one_of(values, &value),
        Kind::Any(options) => return any(options, &value, depth),
        Kind::Type(ty) => ty,
    };
    let is_in = |min: u64, max: Option<u64>, length: usize| {
        let length = length as u64;
        length >= min && max.is_none_or(|max| length <= max)
    };
    match (ty, value) {
        (Type::Null, value @ Value::Null) | (Type::Boolean, value @ Value::Bool(_)) => Ok(value),
        (Type::Integer(range), Value::Number(number)) => integer(range, &number),
        (Type::Number(range), Value::Number(number)) => {
            if number.as_f64().is_some_and(|number| range.contains(number)) {
                Ok(Value::Number(number))
            } else {
                Err(Defect::new("the number is outside its bounds"))
            }
        }
        (Type::String(Text { min, max, .. }), Value::String(text)) => {
            if is_in(*min, *max, text.chars().count()) {
                Ok(Value::String(text))
            } else {
                Err(Defect::new("the text is too short or too long"))
            }
        }
        (Type::Array(items), Value::Array(values)) => {
            if !is_in(items.min, items.max, values.len()) {
                return Err(Defect::new("the list is too short or too long"));
            }
            list(items, values, depth)
        }
        (Type::Object(fields), Value::Object(values)) => {
            object(fields, values, false, depth).map(Value::Object)
        }
        _ => Err(Defect::new("it has another type")),
    }
}

fn list(items: &Items, values: Vec<Value>, depth: usize) -> Result<Value, Defect> {
    let checked = values.into_iter().enumerate().map(|(index, value)| match items.item(index) {
        Some(schema) => convert(schema, value, false, depth + 1)
            .map_err(|defect| defect.under(index.to_string())),
        None => Err(Defect::new("it has no schema")),
    });
    checked.collect()
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
    values
        .iter()
        .find(|other| is_equal(value, other))
        .cloned()
        .ok_or_else(|| Defect::new("it is not one of the choices"))
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
    if number.is_f64() && value.abs() <= crate::schema::MAX_NUMBER {
        return Ok(Value::from(value as i64));
    }
    Ok(Value::Number(number.clone()))
}
