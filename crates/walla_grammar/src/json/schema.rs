//! A parsed schema. The order of its parts is the order of the source.

use std::borrow::Cow;

use serde_json::Value;

use super::place::At;

/// Maximum absolute value of a number: the integers up to 2^53 - 1 are exact in every JSON parser.
pub(super) const MAX_NUMBER: f64 = 9_007_199_254_740_991.0;

/// Maximum number of decimals, and of the decimals of `multipleOf`. Without a limit a model can
/// write decimals until the reply is cut. The library computes decimals of up to six digits exactly
/// and without an overflow of 32 bits, also in the common multiple with a number of `multipleOf`.
pub(super) const MAX_DECIMALS: u32 = 6;

/// Number of decimal digits that every JSON parser distinguishes.
pub(super) const DIGITS_EXACT: u32 = 15;

/// A schema and the schemas that it refers to.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) root: Schema,
    /// Targets of [`Part::Ref`].
    pub(super) definitions: Vec<Schema>,
}

/// A schema: all parts must hold. Without parts it allows any value.
#[derive(Clone, Debug, Default)]
pub(super) struct Schema {
    pub(super) parts: Vec<Part>,
    /// Where it is in the source; of a combined schema, where the first part of it is.
    pub(super) at: At,
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    /// No value is valid, with the reason.
    Never(Cow<'static, str>),
    /// One of these types.
    Types(Vec<Type>),
    /// `anyOf`.
    Any(Vec<Schema>),
    /// `oneOf`.
    One(Vec<Schema>),
    /// `$ref` to a definition.
    Ref(usize),
    /// `const` and `enum`.
    Values(Vec<Value>),
}

/// A type with the keywords that apply to it.
#[derive(Clone, Debug)]
pub(super) enum Type {
    Null,
    Boolean,
    Integer(Range),
    Number(Range),
    String(Text),
    Array(Items),
    Object(Fields),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Range {
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) above: Option<f64>,
    pub(super) below: Option<f64>,
    /// Positive, see [`scale`](super::values::scale).
    pub(super) multiple_of: Option<f64>,
}

/// Lengths are counted in characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Text {
    pub(super) min: u64,
    pub(super) max: Option<u64>,
    pub(super) patterns: Vec<String>,
    /// Formats of the library.
    pub(super) formats: Vec<&'static str>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    pub(super) prefix: Vec<Schema>,
    pub(super) rest: Option<Box<Schema>>,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub(super) properties: Vec<(String, Schema)>,
    pub(super) patterns: Vec<(String, Schema)>,
    pub(super) rest: Option<Box<Schema>>,
    pub(super) required: Vec<String>,
    pub(super) min: u64,
    pub(super) max: Option<u64>,
}

impl Schema {
    pub(super) fn never(at: At, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { parts: vec![Part::Never(reason.into())], at }
    }

    pub(super) fn is_never(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Never(_)))
    }

    /// The schemas directly within it, without targets of references.
    pub(super) fn children(&self) -> Vec<&Self> {
        self.parts.iter().flat_map(Part::children).collect()
    }
}

impl Part {
    fn children(&self) -> Vec<&Schema> {
        match self {
            Self::Any(all) | Self::One(all) => all.iter().collect(),
            Self::Types(types) => types.iter().flat_map(Type::children).collect(),
            Self::Never(_) | Self::Ref(_) | Self::Values(_) => Vec::new(),
        }
    }
}

impl Type {
    fn children(&self) -> Vec<&Schema> {
        match self {
            Self::Array(items) => items.prefix.iter().chain(items.rest.as_deref()).collect(),
            Self::Object(fields) => {
                let named = fields.properties.iter().chain(&fields.patterns);
                named.map(|(_, schema)| schema).chain(fields.rest.as_deref()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Its name in a schema.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer(_) => "integer",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }
}

impl Items {
    /// The schema of an item, if it has one.
    pub(super) fn item(&self, index: usize) -> Option<&Schema> {
        self.prefix.get(index).or(self.rest.as_deref())
    }
}

impl Fields {
    /// Whether no property is allowed beyond the named ones.
    pub(super) fn is_closed(&self) -> bool {
        self.patterns.is_empty() && self.rest.as_ref().is_some_and(|rest| rest.is_never())
    }

    /// The schema of a named property, and the one of properties without a name.
    pub(super) fn property(&self, name: &str) -> (Option<&Schema>, Option<&Schema>) {
        let own = self.properties.iter().find(|(own, _)| own == name);
        (own.map(|(_, schema)| schema), self.rest.as_deref())
    }

    /// Number of properties that an object can have, if there is a limit.
    pub(super) fn possible(&self) -> Option<u64> {
        let allowed = self.properties.iter().filter(|(_, schema)| !schema.is_never());
        self.is_closed().then(|| allowed.count() as u64)
    }
}
