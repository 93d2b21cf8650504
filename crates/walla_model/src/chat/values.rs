//! Values of templates as lists and as text, charged to the [budget](super::budget).

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::budget::{ITEM_BYTES, MAX_NESTING, charge, too_deep};
use super::taint;

/// Items as a list. A text becomes its characters; untrusted characters stay whole.
pub(super) fn list(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        charge(taint::characters(text).saturating_mul(ITEM_BYTES))?;
        return Ok(taint::split(text).into_iter().map(Value::from).collect());
    }
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
            represent(value, 0, &mut text)?;
            Ok(text)
        }
    }
}

/// Appends a value as Python's `repr` formats it.
fn represent(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_NESTING {
        return Err(too_deep());
    }
    charge(16)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            charge(text.len())?;
            charge(text.len())?; // escapes
            taint::push_quoted(text, out);
        }
        ValueKind::Map => {
            let mut separator = "{";
            for key in value.try_iter()? {
                out.push_str(separator);
                separator = ", ";
                represent(&key, depth + 1, out)?;
                out.push_str(": ");
                represent(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push_str(if separator == "{" { "{}" } else { "}" });
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (nth, item) in value.try_iter()?.enumerate() {
                out.push_str(if nth > 0 { ", " } else { "" });
                represent(&item, depth + 1, out)?;
            }
            out.push(']');
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
