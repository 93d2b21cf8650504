//! Values of templates as lists and as text, charged to the [budget](super::budget).

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::{ITEM_BYTES, MAX_NESTING, charge, too_deep};
use super::taint;

/// Items as a list. A text becomes its characters; untrusted characters stay whole.
pub(super) fn list(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        charge(taint::characters(text).saturating_mul(ITEM_BYTES))?;
        return Ok(taint::split(text).into_iter().map(Value::from).collect());
    }
    // Before the list exists: the budget bounds memory too.
    charge(value.len().unwrap_or(0).saturating_mul(ITEM_BYTES))?;
    Ok(Value::from(value.try_iter()?.collect::<Vec<Value>>()))
}

/// Charges for a newly created value and returns it.
pub(super) fn checked(value: &Value) -> Result<Value, Error> {
    pay(value, 0)?;
    Ok(value.clone())
}

fn pay(value: &Value, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => charge(value.as_str().map_or(0, str::len)),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            if depth == MAX_NESTING {
                return Err(too_deep());
            }
            // The length first: a lazy list may be too long to iterate.
            charge(value.len().unwrap_or(0).saturating_mul(ITEM_BYTES))?;
            for item in value.try_iter()? {
                charge(ITEM_BYTES)?;
                if value.kind() == ValueKind::Map {
                    pay(&value.get_item(&item)?, depth + 1)?;
                }
                pay(&item, depth + 1)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A value as text, as Python's `str` formats it.
pub(super) fn printed(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut text = String::new();
            write(value, Style::Python, 0, &mut text)?;
            Ok(text)
        }
    }
}

/// How a value is written.
#[derive(Clone, Copy)]
enum Style {
    /// As Python's `repr`.
    Python,
    /// As Python's `json.dumps` with `ensure_ascii=False`; with line breaks if there is an indent.
    Json(Option<usize>),
}

/// A value in JSON.
pub(super) fn json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut text = String::new();
    write(value, Style::Json(indent), 0, &mut text)?;
    Ok(text)
}

fn write(value: &Value, style: Style, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_NESTING {
        return Err(too_deep());
    }
    let is_json = matches!(style, Style::Json(_));
    let indent = if let Style::Json(indent) = style { indent } else { None };
    let new_line = |depth: usize, out: &mut String| {
        if let Some(width) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(width * depth));
        }
    };
    charge(16 + indent.unwrap_or(0) * (depth + 1))?;
    match value.kind() {
        ValueKind::Undefined if !is_json => out.push_str("Undefined"),
        ValueKind::Undefined | ValueKind::None => {
            out.push_str(if is_json { "null" } else { "None" });
        }
        ValueKind::Bool if is_json => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            charge(2 * text.len())?; // escapes
            taint::push_quoted(text, is_json, out);
        }
        kind @ (ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) => {
            let is_map = kind == ValueKind::Map;
            out.push(if is_map { '{' } else { '[' });
            let mut is_empty = true;
            for item in value.try_iter()? {
                out.push_str(match indent {
                    _ if is_empty => "",
                    Some(_) => ",",
                    None => ", ",
                });
                is_empty = false;
                new_line(depth + 1, out);
                // Keys of JSON are texts.
                let is_text = is_map && is_json;
                let own = if is_text { Value::from(printed(&item)?) } else { item.clone() };
                write(&own, style, depth + 1, out)?;
                if is_map {
                    out.push_str(": ");
                    write(&value.get_item(&item)?, style, depth + 1, out)?;
                }
            }
            if !is_empty {
                new_line(depth, out);
            }
            out.push(if is_map { '}' } else { ']' });
        }
        kind if is_json => {
            let what = format!("a value of type {kind} cannot be JSON");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Items as text, with a separator between them.
pub(super) fn join_text(
    items: &Value,
    separator: &str,
    attribute: Option<&Value>,
) -> Result<String, Error> {
    let mut joined = String::new();
    for (nth, item) in items.try_iter()?.enumerate() {
        let item = attribute.map_or_else(|| Ok(item.clone()), |name| item.get_item(name))?;
        let text = printed(&item)?;
        charge(text.len() + separator.len())?;
        joined.push_str(if nth > 0 { separator } else { "" });
        joined.push_str(&text);
    }
    Ok(joined)
}
