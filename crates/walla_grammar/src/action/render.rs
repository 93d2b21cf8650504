//! Writes calls.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::{CallFormat, ParsedCall};

/// A call as text of a format, with its delimiters, as the vendor's chat template prints it: for
/// templates that cannot print calls, and for tests.
///
/// Delimiters are written as text; encode the result as trusted text only if the arguments cannot
/// contain delimiters. In the formats without escapes ([`CallFormat::QwenXml`],
/// [`CallFormat::Gemma4`]) a text that contains a delimiter or `</parameter>` is not read back as
/// the same call.
#[must_use]
pub fn render(format: CallFormat, call: &ParsedCall) -> String {
    let texts = format.texts();
    let (open, close) = (texts.open.unwrap_or_default(), texts.close.unwrap_or_default());
    let name = &call.name;
    let arguments = &call.arguments;
    let object = || {
        let mut text = String::new();
        write_object(arguments, &mut text);
        text
    };
    match format {
        CallFormat::HermesJson | CallFormat::Plain => {
            format!("{open}\n{}\n{close}", call_json(name, arguments))
        }
        CallFormat::LlamaJson => format!("{{\"name\": \"{name}\", \"parameters\": {}}}", object()),
        CallFormat::MistralList | CallFormat::Phi4 => {
            format!("{open}[{{\"name\": \"{name}\", \"arguments\": {}}}]{close}", object())
        }
        CallFormat::MistralNamed => {
            format!("{open}{name}{}{}", texts.args.unwrap_or_default(), object())
        }
        CallFormat::QwenXml => {
            let values = arguments
                .iter()
                .map(|(key, value)| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value)));
            let values: String = values.collect();
            format!("{open}\n<function={name}>\n{values}</function>\n{close}")
        }
        CallFormat::Lfm2 => {
            let values: Vec<String> =
                arguments.iter().map(|(key, value)| format!("{key}={}", python(value))).collect();
            format!("{open}[{name}({})]{close}", values.join(", "))
        }
        CallFormat::Gemma4 => {
            let quote = texts.quote.unwrap_or_default();
            format!("{open}call:{name}{}{close}", gemma_object(arguments, quote))
        }
    }
}

/// A call as a JSON object of its name and arguments: [`CallFormat::Plain`] without delimiters.
#[must_use]
pub fn call_json(name: &str, arguments: &Map<String, Value>) -> String {
    let mut text = String::with_capacity(128);
    text.push_str("{\"name\": \"");
    text.push_str(name);
    text.push_str("\", \"arguments\": ");
    write_object(arguments, &mut text);
    text.push('}');
    text
}

/// JSON with a space after each comma and colon, as Python's `json.dumps` writes it.
pub(crate) fn json(value: &Value) -> String {
    let mut text = String::new();
    write_value(value, &mut text);
    text
}

fn write_value(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                write_value(item, text);
            }
            text.push(']');
        }
        Value::Object(fields) => write_object(fields, text),
        Value::String(string) => write_string(string, text),
        _ => {
            let _ = write!(text, "{value}");
        }
    }
}

fn write_object(fields: &Map<String, Value>, text: &mut String) {
    text.push('{');
    for (at, (name, value)) in fields.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { ", " });
        write_string(name, text);
        text.push_str(": ");
        write_value(value, text);
    }
    text.push('}');
}

fn write_string(string: &str, text: &mut String) {
    if string.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        let _ = write!(text, "{}", Value::from(string));
    } else {
        text.extend(["\"", string, "\""]);
    }
}

fn bracketed(
    open: &str,
    items: impl Iterator<Item = String>,
    close: &str,
    separator: &str,
) -> String {
    format!("{open}{}{close}", items.collect::<Vec<_>>().join(separator))
}

/// A value of the XML format: texts as they are, constants as Python writes them.
fn raw(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) => python(value),
        _ => json(value),
    }
}

/// A value as Python writes it, with double quotes.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(value) => if *value { "True" } else { "False" }.to_owned(),
        Value::Array(items) => bracketed("[", items.iter().map(python), "]", ", "),
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(k, v)| format!("{}: {}", Value::from(&**k), python(v)));
            bracketed("{", fields, "}", ", ")
        }
        _ => value.to_string(),
    }
}

fn gemma(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            bracketed("[", items.iter().map(|item| gemma(item, quote)), "]", ",")
        }
        Value::Object(fields) => gemma_object(fields, quote),
        _ => value.to_string(),
    }
}

/// Names are sorted without regard to case, as the template's `dictsort` does.
fn gemma_object(fields: &Map<String, Value>, quote: &str) -> String {
    let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
    sorted.sort_by_key(|(name, _)| name.to_lowercase());
    let fields = sorted.into_iter().map(|(name, value)| format!("{name}:{}", gemma(value, quote)));
    bracketed("{", fields, "}", ",")
}
