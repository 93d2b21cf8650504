//! The supported subset of JSON schema as a tree, with all references replaced by their targets.
//!
//! [`parse`] reads a schema strictly: a keyword is supported or refused by name. [`write`] prints
//! the tree as a schema, [`check`] validates and converts arguments.

mod check;
mod disjoint;
mod parse;
mod write;

use serde_json::Value;

pub(crate) use check::check_arguments;
pub(crate) use parse::parse;
#[cfg(feature = "serde")]
pub(crate) use parse::parse_stored;
pub(crate) use write::{for_grammar, for_model};

/// Maximum length of a text that the grammar allows if the schema has no `maxLength`, in
/// characters.
pub(crate) const TEXT_CHARS_DEFAULT: usize = 200;

/// Maximum number of items that the grammar allows if the schema has no `maxItems`.
pub(crate) const ITEMS_DEFAULT: usize = 16;

/// Maximum of `minLength`, `maxLength`, `minItems` and `maxItems`.
pub(crate) const MAX_LENGTH: usize = 4_096;

/// Numbers that every JSON parser reads exactly: ±(2^53 - 1).
pub(crate) const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// A schema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schema {
    pub description: Option<String>,
    pub default: Option<Value>,
    pub kind: Kind,
}

/// The condition of a schema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Integer(Range),
    Number(Range),
    Text(Limits),
    /// One of several scalar values.
    Values(Vec<Value>),
    List(Box<Schema>, Limits),
    Tuple(Vec<Schema>),
    Object(Vec<Property>),
    /// One of several schemas. They are not `Any` themselves.
    Any(Vec<Schema>),
}

/// Bounds of a number, inclusive and exclusive, with the name of its format.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Range {
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub above: Option<f64>,
    pub below: Option<f64>,
    pub format: Option<&'static str>,
}

/// Minimum and maximum number of characters or items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub min: usize,
    pub max: Option<usize>,
}

impl Limits {
    /// The maximum for a grammar.
    pub fn max_or(self, default: usize) -> usize {
        self.max.unwrap_or(default.max(self.min))
    }
}

/// A property of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Property {
    pub name: String,
    pub schema: Schema,
    pub is_required: bool,
}

impl Schema {
    pub fn plain(kind: Kind) -> Self {
        Self { description: None, default: None, kind }
    }

    /// The properties of an object.
    pub fn properties(&self) -> &[Property] {
        match &self.kind {
            Kind::Object(properties) => properties,
            _ => &[],
        }
    }

    /// Whether a value exists. Choices may be empty.
    pub fn is_possible(&self) -> bool {
        match &self.kind {
            Kind::Values(values) => !values.is_empty(),
            Kind::List(items, _) => items.is_possible(),
            Kind::Tuple(items) => items.iter().all(Self::is_possible),
            Kind::Object(properties) => properties.iter().all(|p| p.schema.is_possible()),
            Kind::Any(options) => options.iter().all(Self::is_possible),
            _ => true,
        }
    }

    /// The schema of the texts that choices replace: a text, the items of a list of texts, or
    /// the text of an optional value.
    pub fn text_mut(&mut self) -> Option<&mut Self> {
        match &self.kind {
            Kind::Text(_) => Some(self),
            Kind::Values(values) if values.iter().all(Value::is_string) => Some(self),
            Kind::List(..) => match &mut self.kind {
                Kind::List(items, _) if !matches!(items.kind, Kind::List(..)) => items.text_mut(),
                _ => None,
            },
            Kind::Any(options) if options.iter().any(|o| o.kind == Kind::Null) => {
                match &mut self.kind {
                    Kind::Any(options) if options.len() == 2 => {
                        options.iter_mut().find(|o| o.kind != Kind::Null)?.text_mut()
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Whether a text is a name of an action or a property: `[A-Za-z0-9_-]{1,64}`, as in
/// the chat completions protocol.
pub(crate) fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(is_part)
}
