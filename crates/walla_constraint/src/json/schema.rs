//! A parsed schema. The order of its parts is the order of the source.

use serde_json::Value;

/// Maximum absolute value of a number: the integers up to 2^53 - 1 are exact in every JSON parser.
pub(super) const NUMBER_MAX: f64 = 9_007_199_254_740_991.0;

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
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    /// No value is valid.
    Never,
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
    pub(super) fn never() -> Self {
        Self { parts: vec![Part::Never] }
    }

    pub(super) fn is_never(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Never))
    }
}

impl Fields {
    /// Whether no property is allowed beyond the named ones.
    pub(super) fn is_closed(&self) -> bool {
        self.patterns.is_empty() && self.rest.as_ref().is_some_and(|rest| rest.is_never())
    }
}
