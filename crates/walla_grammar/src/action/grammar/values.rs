//! Values in the formats that are not JSON.

use serde_json::Value;

use super::rules::{Rules, json_rule};
use super::{find_text, spelled};
use crate::action::error::shown;
use crate::action::markers::Spelling;
use crate::lark::quote;
use crate::schema::{
    self, At, Fields, ITEMS_DEFAULT, Items, Kind, Schema, TEXT_CHARS_DEFAULT, Text, Type, max_or,
};
use crate::{ActionError, CallFormat, CallMarkers, Delimiter};

/// Characters that no free text has: control characters other than tab and line feed.
const CONTROL: &str = r"\x00-\x08\x0b-\x1f\x7f";

/// End of a parameter in the XML format.
const PARAMETER_END: &str = "\n</parameter>\n";

/// Writes rules for values.
pub(super) struct Values<'r> {
    format: CallFormat,
    quote: Option<Spelling>,
    rules: &'r mut Rules,
}

type Rule = Result<String, ActionError>;

impl<'r> Values<'r> {
    pub fn new(markers: &CallMarkers, rules: &'r mut Rules) -> Self {
        Self { format: markers.format(), quote: markers.spelling(Delimiter::Quote), rules }
    }

    /// Parameters of the XML format.
    pub fn parameters(&mut self, fields: &Fields) -> Rule {
        let start = |name: &str| quote(&format!("<parameter={name}>\n"));
        let rules = self.fields(fields, "", start, Self::parameter)?;
        let optional = |(rule, is_required)| if is_required { rule } else { format!("{rule}?") };
        let rules: Vec<String> = rules.into_iter().map(optional).collect();
        let text = if rules.is_empty() { "\"\"".to_owned() } else { rules.join(" ") };
        Ok(self.rules.add(&text))
    }

    /// The rules of fields, and whether they are required.
    fn fields(
        &mut self,
        fields: &Fields,
        at: &str,
        start: impl Fn(&str) -> String,
        value: fn(&mut Self, &Schema, &str) -> Rule,
    ) -> Result<Vec<(String, bool)>, ActionError> {
        let mut sorted: Vec<&(String, Schema)> = fields.properties.iter().collect();
        if self.format == CallFormat::Gemma4 {
            sorted.sort_by_key(|(name, _)| name.to_lowercase());
        }
        let rules = sorted.into_iter().map(|(name, schema)| {
            let value = value(self, schema, &format!("{at}/properties/{name}"))?;
            let rule = self.rules.add(&format!("{} {value}", start(name)));
            Ok((rule, fields.is_required(name)))
        });
        rules.collect()
    }

    /// The value of a parameter and the end of its element. A free text and the end are one
    /// lexeme: a text may contain line feeds.
    fn parameter(&mut self, schema: &Schema, at: &str) -> Rule {
        let is_syntax = |text: &str| text.contains("</") || text.contains('\r');
        if let Some(text) = find_text(schema, &is_syntax) {
            return Err(ActionError::Unwritable { text: shown(text), at: at.to_owned() });
        }
        let options = options(schema);
        let free = options.iter().find_map(|option| match option.kind() {
            Kind::Type(Type::String(text)) => Some(text),
            _ => None,
        });
        if let Some(Text { min, max, .. }) = free {
            let is_nested =
                |o: &Schema| matches!(o.kind(), Kind::Type(Type::Array(_) | Type::Object(_)));
            if options.iter().copied().any(is_nested) {
                let reason = "in this call format a text may look like a list or an object";
                Err(At::pointer(at).unsupported("anyOf", reason))?;
            }
            // Other scalar values are spelled by texts, too.
            let max = max_or(*min, *max, TEXT_CHARS_DEFAULT);
            let end = r"\n<\/parameter>\n";
            return Ok(self.rules.add(&format!("/[^<{CONTROL}]{{{min},{max}}}{end}/")));
        }
        let mut rules = Vec::new();
        for option in options {
            rules.push(match option.kind() {
                Kind::Type(Type::Array(_) | Type::Object(_)) => {
                    let mut schema = schema::for_grammar(option);
                    exclude_tags(&mut schema);
                    json_rule(&schema)
                }
                Kind::Type(ty) => self.scalar(ty),
                Kind::Values(values) => {
                    let text = |value: &Value| match value {
                        Value::String(text) => quote(text),
                        value => self.constant(value),
                    };
                    values.iter().map(text).collect::<Vec<_>>().join(" | ")
                }
                Kind::Any(_) => String::new(),
            });
        }
        let rule = self.rules.add(&rules.join(" | "));
        Ok(self.rules.add(&format!("{rule} {}", quote(PARAMETER_END))))
    }

    /// Arguments of Python's syntax.
    pub fn arguments(&mut self, fields: &Fields) -> Rule {
        let start = |name: &str| quote(&format!("{name}="));
        let rules = self.fields(fields, "", start, Self::value)?;
        Ok(self.chain(&rules))
    }

    /// An object. Optional properties may be left out.
    pub fn object(&mut self, fields: &Fields, at: &str) -> Rule {
        let is_gemma = self.format == CallFormat::Gemma4;
        let start = |name: &str| match is_gemma {
            true => quote(&format!("{name}:")),
            false => {
                let [double, single] = ['"', '\''].map(|mark| format!("{mark}{name}{mark}: "));
                format!("({} | {})", quote(&double), quote(&single))
            }
        };
        let rules = self.fields(fields, at, start, Self::value)?;
        let fields = self.chain(&rules);
        Ok(self.rules.add(&format!("\"{{\" {fields} \"}}\"")))
    }

    fn separator(&self) -> &'static str {
        if self.format == CallFormat::Gemma4 { "\",\"" } else { "\", \"" }
    }

    /// Fields in this order with separators; optional ones may be absent. Two rules per field: the
    /// first field has no separator before it.
    fn chain(&mut self, fields: &[(String, bool)]) -> String {
        let (mut first, mut next) = (String::new(), String::new());
        let separator = self.separator();
        for (field, is_required) in fields.iter().rev() {
            let or = |rule: &str| match rule {
                _ if *is_required => String::new(),
                "" => " | \"\"".to_owned(),
                rule => format!(" | {rule}"),
            };
            let texts = [
                format!("{field} {next}{}", or(&first)),
                format!("{separator} {field} {next}{}", or(&next)),
            ];
            [first, next] = texts.map(|text| self.rules.add(&text));
        }
        if first.is_empty() { "\"\"".to_owned() } else { first }
    }

    /// A value of Python's syntax or Gemma's.
    fn value(&mut self, schema: &Schema, at: &str) -> Rule {
        let mut rules = Vec::new();
        for option in options(schema) {
            let rule = match option.kind() {
                Kind::Type(Type::String(text)) => self.text(text),
                Kind::Type(Type::Array(Items { rest: Some(item), min, max, .. })) => {
                    let item = self.value(item, &format!("{at}/items"))?;
                    self.list(&item, *min, max_or(*min, *max, ITEMS_DEFAULT))
                }
                Kind::Type(Type::Array(Items { prefix, .. })) => {
                    let mut rules = Vec::new();
                    for (index, item) in prefix.iter().enumerate() {
                        rules.push(self.value(item, &format!("{at}/prefixItems/{index}"))?);
                    }
                    format!("\"[\" {} \"]\"", rules.join(&format!(" {} ", self.separator())))
                }
                Kind::Type(Type::Object(fields)) => self.object(fields, at)?,
                Kind::Type(ty) => self.scalar(ty),
                Kind::Values(values) => self.choices(values, at)?,
                Kind::Any(_) => String::new(),
            };
            rules.push(rule);
        }
        Ok(self.rules.add(&rules.join(" | ")))
    }

    fn list(&mut self, item: &str, min: u64, max: u64) -> String {
        let separator = self.separator();
        let text = match (min, max) {
            (_, 0) => "\"[]\"".to_owned(),
            (0, 1) => format!("\"[\" {item}? \"]\""),
            (_, 1) => format!("\"[\" {item} \"]\""),
            (min, max) => {
                let (fewest, most) = (min.saturating_sub(1), max - 1);
                let empty = if min == 0 { " | \"[]\"" } else { "" };
                format!("\"[\" {item} ({separator} {item}){{{fewest},{most}}} \"]\"{empty}")
            }
        };
        self.rules.add(&text)
    }

    /// A value that is neither text nor nested.
    fn scalar(&self, ty: &Type) -> String {
        match ty {
            Type::Null => self.constant(&Value::Null),
            Type::Boolean => {
                format!("{} | {}", self.constant(&true.into()), self.constant(&false.into()))
            }
            ty => json_rule(&schema::of_type(ty)),
        }
    }

    /// A constant that is not a text. Templates print constants of Python, models of Gemma those
    /// of JSON; both are allowed.
    fn constant(&self, value: &Value) -> String {
        match value {
            Value::Bool(value) if self.format == CallFormat::Gemma4 => quote(&value.to_string()),
            Value::Bool(true) => "\"true\" | \"True\"".to_owned(),
            Value::Bool(false) => "\"false\" | \"False\"".to_owned(),
            Value::Null => "\"null\" | \"None\"".to_owned(),
            value => quote(&value.to_string()),
        }
    }

    fn choices(&mut self, values: &[Value], at: &str) -> Rule {
        let (texts, others): (Vec<&Value>, Vec<&Value>) =
            values.iter().partition(|value| value.is_string());
        let texts: Vec<&str> = texts.into_iter().filter_map(Value::as_str).collect();
        let mut rules: Vec<String> = others.into_iter().map(|v| self.constant(v)).collect();
        if self.format == CallFormat::Gemma4 && !texts.is_empty() {
            let mark = self.quote.map_or("", Spelling::text);
            let is_syntax =
                |text: &&&str| text.contains(mark) && matches!(self.quote, Some(Spelling::Text(_)));
            if let Some(text) = texts.iter().find(is_syntax) {
                return Err(ActionError::Unwritable { text: shown(text), at: at.to_owned() });
            }
            let mark = spelled(self.quote);
            let texts: Vec<String> = texts.into_iter().map(quote).collect();
            rules.push(format!("{mark} ({}) {mark}", texts.join(" | ")));
        } else {
            for text in texts {
                let double = Value::from(text).to_string();
                let inner = double.get(1..double.len().saturating_sub(1)).unwrap_or_default();
                let single = inner.replace("\\\"", "\"").replace('\'', "\\'");
                rules.push(format!("{} | {}", quote(&double), quote(&format!("'{single}'"))));
            }
        }
        Ok(self.rules.add(&rules.join(" | ")))
    }

    fn text(&mut self, text: &Text) -> String {
        let (min, max) = (text.min, max_or(text.min, text.max, TEXT_CHARS_DEFAULT));
        let text = match self.quote {
            Some(Spelling::Token { .. }) => {
                let mark = spelled(self.quote);
                let text = format!("/[^{CONTROL}]{{{},{max}}}/", min.max(1));
                let text = match (min, max) {
                    (_, 0) => String::new(),
                    (0, _) => format!("{}?", self.rules.add(&text)),
                    _ => text,
                };
                format!("{mark} {text} {mark}")
            }
            Some(Spelling::Text(mark)) => {
                let mark = mark.replace('|', r"\|");
                format!("/{mark}[^<{CONTROL}]{{{min},{max}}}{mark}/")
            }
            None => {
                // One character or one escape.
                let part = |mark: char| {
                    format!(r#"{mark}([^{mark}\\\x00-\x1f\x7f]|\\["'\\nrt]){{{min},{max}}}{mark}"#)
                };
                format!("/{}/ | /{}/", part('"'), part('\''))
            }
        };
        self.rules.add(&text)
    }
}

/// The alternatives of a schema.
fn options(schema: &Schema) -> Vec<&Schema> {
    match schema.kind() {
        Kind::Any(options) => options.iter().collect(),
        _ => vec![schema],
    }
}

/// Texts within JSON have no `<`, so that they do not end a parameter.
fn exclude_tags(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_text = fields.get("type").is_some_and(|name| name == "string");
            fields.values_mut().for_each(exclude_tags);
            if is_text {
                fields.insert("pattern".to_owned(), Value::from("^[^<]*$"));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(exclude_tags),
        _ => {}
    }
}
