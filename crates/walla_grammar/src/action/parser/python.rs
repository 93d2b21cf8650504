//! Calls of LFM 2, `[f(k="v")]`, and of Gemma 4, `call:f{k:<|"|>v<|"|>}`.

use serde_json::Map;

use super::literal::Reader;
use super::{Calls, json};
use crate::ParsedCall;

/// A list of calls, or one call without brackets. LFM 2 also writes JSON, if the system message
/// requests it.
pub(super) fn list(text: &[u8]) -> Calls {
    let text = text.trim_ascii();
    let inner = text.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    if text.starts_with(b"{") || inner.is_some_and(|inner| inner.starts_with(b"{")) {
        return json::calls(text);
    }
    let mut reader = Reader::new(text);
    let mut calls = Vec::new();
    if reader.take(b'[') {
        reader.until(b']', "the list is not closed", |reader| {
            calls.push(call(reader)?);
            Ok(())
        })?;
    } else {
        calls.push(call(&mut reader)?);
    }
    match reader.peek() {
        _ if calls.is_empty() => Err("no call"),
        Some(_) => Err("text behind the call"),
        None => Ok(calls),
    }
}

/// `f(k="v")`. The outer error concerns the whole list.
fn call(reader: &mut Reader<'_>) -> Result<Result<ParsedCall, &'static str>, &'static str> {
    let name = reader.name()?;
    reader.expect(b'(', "no arguments")?;
    let mut arguments = Map::new();
    reader.until(b')', "the arguments are not closed", |reader| {
        let key = reader.name()?;
        reader.expect(b'=', "an argument without a name")?;
        match arguments.insert(key.to_owned(), reader.value(0)?) {
            Some(_) => Err("an argument occurs twice"),
            None => Ok(()),
        }
    })?;
    Ok(json::named(name, arguments))
}

/// `call:f{k:v}`, once or several times.
pub(super) fn gemma(text: &[u8]) -> Calls {
    let mut reader = Reader::new(text);
    let mut calls = Vec::new();
    while reader.peek().is_some() {
        let rest = reader.rest().strip_prefix(b"call:").ok_or("no call")?;
        reader = Reader::new(rest);
        let name = reader.name()?;
        calls.push(json::named(name, reader.object(0)?));
    }
    if calls.is_empty() { Err("no call") } else { Ok(calls) }
}
