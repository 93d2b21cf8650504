//! Calls of Qwen 3.5 and Qwen 3 Coder: `<function=…>` with elements `<parameter=…>`.

use serde_json::{Map, Value};

use super::{Calls, INVALID};
use crate::ParsedCall;
use crate::schema::is_name;

const END: &str = "</parameter>";

/// The functions of a block.
pub(super) fn calls(text: &[u8]) -> Calls {
    if text.iter().any(|&byte| byte > INVALID) {
        return Err("a delimiter of another format");
    }
    let text = String::from_utf8_lossy(text);
    let mut rest = text.trim();
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let (call, behind) = function(rest)?;
        calls.push(Ok(call));
        rest = behind.trim_start();
    }
    if calls.is_empty() { Err("no call") } else { Ok(calls) }
}

fn function(text: &str) -> Result<(ParsedCall, &str), &'static str> {
    let (name, mut rest) = element(text, "<function=")?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix("</function>") {
            return Ok((ParsedCall::untyped(name.to_owned(), arguments), behind));
        }
        let (key, behind) = element(rest, "<parameter=")?;
        let (value, behind) = behind.split_once(END).ok_or("a parameter is not closed")?;
        let value = value.strip_prefix("\r\n").or(value.strip_prefix('\n')).unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let value = value.strip_suffix('\r').unwrap_or(value);
        if arguments.insert(key.to_owned(), Value::from(value)).is_some() {
            return Err("a parameter occurs twice");
        }
        rest = behind;
    }
}

/// The name of an opening element, and the text behind it.
fn element<'t>(text: &'t str, start: &str) -> Result<(&'t str, &'t str), &'static str> {
    let rest = text.strip_prefix(start).ok_or("an element is missing")?;
    let end = rest.bytes().take(80).position(|byte| byte == b'>').ok_or("no name")?;
    let (name, rest) = rest.split_at_checked(end).ok_or("no name")?;
    let name = name.trim().trim_matches('"');
    let rest = rest.strip_prefix('>').ok_or("no name")?;
    if is_name(name) { Ok((name, rest)) } else { Err("not a name") }
}
