//! Writes calls.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::{CallFormat, Delimiter, ParsedCall};

/// A call as text of a format, with its delimiters, as the vendor's chat template prints it: for
/// templates that cannot print calls, and for tests.
///
/// Delimiters are written as text; encode the result as trusted text only if the arguments cannot
/// contain delimiters. In the formats without escapes ([`CallFormat::QwenXml`],
/// [`CallFormat::Gemma4`]) a text that contains a delimiter or `</parameter>` is not read back as
/// the same call.
#[must_use]
pub fn render(format: CallFormat, call: &ParsedCall) -> String {
    let [open, close, args, quote] =
        Delimiter::ALL.map(|delimiter| format.text(delimiter).unwrap_or_default());
    let arguments = &call.arguments;
    let (start, end) = format.around(&call.name);
    let values = match format {
        CallFormat::QwenXml => {
            let element =
                |(key, value)| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value));
            arguments.iter().map(element).collect()
        }
        CallFormat::Lfm2 => {
            let named = |(key, value)| format!("{key}={}", Style::Python.value(value));
            arguments.iter().map(named).collect::<Vec<_>>().join(", ")
        }
        CallFormat::Gemma4 => Style::Gemma(quote).object(arguments),
        _ => Style::Json.object(arguments),
    };
    // A reply of Llama is its call.
    let open = if format == CallFormat::LlamaJson { "" } else { open };
    let (first, last) = if format.is_list() { ("[", "]") } else { ("", "") };
    format!("{open}{first}{start}{args}{values}{end}{last}{close}")
}

/// A call as a JSON object of its name and arguments: [`CallFormat::Plain`] without delimiters.
#[must_use]
pub fn call_json(name: &str, arguments: &Map<String, Value>) -> String {
    format!("{{\"name\": \"{name}\", \"arguments\": {}}}", Style::Json.object(arguments))
}

/// How values are written.
#[derive(Clone, Copy)]
pub(crate) enum Style {
    /// With a space after each comma and colon, as Python's `json.dumps` writes them.
    Json,
    /// As JSON, with the constants of Python.
    Python,
    /// With this quotation mark, without escapes. Names have no quotes and are sorted without
    /// regard to case, as the template's `dictsort` does.
    Gemma(&'static str),
}

impl Style {
    fn value(self, value: &Value) -> String {
        let mut text = String::new();
        self.write(value, &mut text);
        text
    }

    pub(crate) fn object(self, fields: &Map<String, Value>) -> String {
        let mut text = String::with_capacity(128);
        self.write_object(fields, &mut text);
        text
    }

    fn write(self, value: &Value, text: &mut String) {
        match (value, self) {
            (Value::Null, Self::Python) => text.push_str("None"),
            (Value::Bool(value), Self::Python) => {
                text.push_str(if *value { "True" } else { "False" });
            }
            (Value::String(string), Self::Gemma(quote)) => text.extend([quote, string, quote]),
            (Value::String(string), _) => write_string(string, text),
            (Value::Array(items), _) => {
                text.push('[');
                for (at, item) in items.iter().enumerate() {
                    text.push_str(if at == 0 { "" } else { self.signs().0 });
                    self.write(item, text);
                }
                text.push(']');
            }
            (Value::Object(fields), _) => self.write_object(fields, text),
            _ => {
                let _ = write!(text, "{value}");
            }
        }
    }

    fn write_object(self, fields: &Map<String, Value>, text: &mut String) {
        let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
        let is_gemma = matches!(self, Self::Gemma(_));
        if is_gemma {
            fields.sort_by_key(|(name, _)| name.to_lowercase());
        }
        text.push('{');
        for (at, (name, value)) in fields.into_iter().enumerate() {
            text.push_str(if at == 0 { "" } else { self.signs().0 });
            if is_gemma {
                text.push_str(name);
            } else {
                write_string(name, text);
            }
            text.push_str(self.signs().1);
            self.write(value, text);
        }
        text.push('}');
    }

    /// What separates two values, and a name and its value.
    fn signs(self) -> (&'static str, &'static str) {
        match self {
            Self::Json | Self::Python => (", ", ": "),
            Self::Gemma(_) => (",", ":"),
        }
    }
}

fn write_string(string: &str, text: &mut String) {
    if string.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        let _ = write!(text, "{}", Value::from(string));
    } else {
        text.extend(["\"", string, "\""]);
    }
}

/// A value of the XML format: texts as they are, constants as Python writes them.
fn raw(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) => Style::Python.value(value),
        _ => Style::Json.value(value),
    }
}
