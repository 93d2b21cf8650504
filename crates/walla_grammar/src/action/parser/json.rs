//! Calls as JSON objects.

use serde_json::{Map, Value};

use super::literal::Reader;
use super::{ARGS, Calls};
use crate::ParsedCall;
use crate::schema::is_name;

/// An object, or a list of objects.
pub(super) fn calls(text: &[u8]) -> Calls {
    let value: Value = serde_json::from_slice(text).map_err(|_| "not JSON")?;
    calls_of(value)
}

/// Like [`calls`]; quotes and names of values may also be in the syntax of Python.
pub(super) fn lenient(text: &[u8]) -> Calls {
    let strict = calls(text);
    if strict.is_ok() {
        return strict;
    }
    let mut reader = Reader::new(text);
    let value = reader.value(0)?;
    match reader.peek() {
        Some(_) => Err("text behind the call"),
        None => calls_of(value),
    }
}

fn calls_of(value: Value) -> Calls {
    match value {
        Value::Array(values) if values.is_empty() => Err("no call"),
        Value::Array(values) => Ok(values.into_iter().map(call).collect()),
        value => Ok(vec![call(value)]),
    }
}

/// A list of objects, or a name and its arguments.
pub(super) fn mistral(text: &[u8]) -> Calls {
    let text = text.trim_ascii();
    if text.starts_with(b"[") || text.starts_with(b"{") {
        return calls(text);
    }
    let split = text.iter().position(|&byte| byte == ARGS || byte == b'{');
    let (name, rest) = split.and_then(|at| text.split_at_checked(at)).ok_or("no arguments")?;
    let rest = rest.strip_prefix(&[ARGS]).unwrap_or(rest);
    let arguments: Map<String, Value> =
        serde_json::from_slice(rest).map_err(|_| "the arguments are not a JSON object")?;
    let name = std::str::from_utf8(name.trim_ascii()).map_err(|_| "no name")?;
    Ok(vec![named(name, arguments)])
}

pub(super) fn named(name: &str, arguments: Map<String, Value>) -> Result<ParsedCall, &'static str> {
    if is_name(name) { Ok(ParsedCall::new(name, arguments)) } else { Err("not a name") }
}

/// `{"name": …, "arguments": …}`, with `parameters` as another name of the arguments. The
/// arguments may be JSON in a text, as in OpenAI's API, or absent. `id` and `type` are ignored.
fn call(value: Value) -> Result<ParsedCall, &'static str> {
    let Value::Object(mut fields) = value else { return Err("a call must be an object") };
    // The form of a tool in OpenAI's API.
    if let Some(Value::Object(function)) = fields.remove("function") {
        fields = function;
    }
    let Some(Value::String(name)) = fields.remove("name") else { return Err("no name") };
    let arguments = match (fields.remove("arguments"), fields.remove("parameters")) {
        (Some(_), Some(_)) => return Err("arguments and parameters"),
        (arguments, parameters) => arguments.or(parameters).unwrap_or_default(),
    };
    if fields.keys().any(|key| !matches!(key.as_str(), "id" | "type")) {
        return Err("an unknown key next to the name");
    }
    let arguments = match arguments {
        Value::Object(arguments) => arguments,
        Value::Null => Map::new(),
        Value::String(text) => {
            serde_json::from_str(&text).map_err(|_| "the arguments are not an object")?
        }
        _ => return Err("the arguments are not an object"),
    };
    named(&name, arguments)
}
