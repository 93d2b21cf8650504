//! A parsed schema. The order of its parts is the order of the source.

use std::borrow::Cow;

use serde_json::Value;

use super::place::At;

/// Maximum absolute value of a number: the integers up to 2^53 - 1 are exact in every JSON parser.
pub(crate) const MAX_NUMBER: f64 = 9_007_199_254_740_991.0;

/// Maximum number of decimals, and of the decimals of `multipleOf`. Without a limit a model can
/// write decimals until the reply is cut. The library computes decimals of up to six digits exactly
/// and without an overflow of 32 bits, also in the common multiple with a number of `multipleOf`.
pub(crate) const MAX_DECIMALS: u32 = 6;

/// Number of decimal digits that every JSON parser distinguishes.
pub(crate) const DIGITS_EXACT: u32 = 15;

/// A schema and the schemas that it refers to.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: Schema,
    /// Targets of [`Part::Ref`].
    pub(crate) definitions: Vec<Schema>,
}

/// A schema: all parts must hold. Without parts it allows any value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schema {
    pub(crate) parts: Vec<Part>,
    /// Where it is in the source; of a combined schema, where the first part of it is.
    pub(crate) at: At,
    /// For a model; read of [arguments](mod@super::arguments) only.
    pub(crate) description: Option<String>,
    /// As [`description`](Self::description).
    pub(crate) default: Option<Value>,
}

/// The same schema may be at two places.
impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
            && self.description == other.description
            && self.default == other.default
    }
}

/// The condition of a schema of [arguments](mod@super::arguments).
#[derive(Clone, Copy)]
pub(crate) enum Kind<'s> {
    Type(&'s Type),
    /// One of several scalar values.
    Values(&'s [Value]),
    /// One of several schemas. They have no alternatives themselves.
    Any(&'s [Schema]),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
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
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Type {
    Null,
    Boolean,
    Integer(Range),
    Number(Range),
    String(Text),
    Array(Items),
    Object(Fields),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Range {
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) above: Option<f64>,
    pub(crate) below: Option<f64>,
    /// Positive, see [`scale`](super::values::scale).
    pub(crate) multiple_of: Option<f64>,
    /// Of numbers, with other bounds. Only in arguments; elsewhere the bounds include the format's.
    pub(crate) format: Option<&'static str>,
}

/// Lengths are counted in characters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text {
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
    pub(crate) patterns: Vec<String>,
    /// Formats of the library.
    pub(crate) formats: Vec<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Items {
    pub(crate) prefix: Vec<Schema>,
    pub(crate) rest: Option<Box<Schema>>,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fields {
    pub(crate) properties: Vec<(String, Schema)>,
    pub(crate) patterns: Vec<(String, Schema)>,
    pub(crate) rest: Option<Box<Schema>>,
    pub(crate) required: Vec<String>,
    pub(crate) min: u64,
    pub(crate) max: Option<u64>,
}

/// The schemas directly within parts, by shared or exclusive reference.
macro_rules! children {
    ($parts:expr, $iter:ident, $as_deref:ident) => {{
        let mut all = Vec::new();
        for part in $parts {
            match part {
                Part::Any(schemas) | Part::One(schemas) => all.extend(schemas),
                Part::Types(types) => types.$iter().for_each(|ty| match ty {
                    Type::Array(items) => {
                        all.extend(items.prefix.$iter().chain(items.rest.$as_deref()));
                    }
                    Type::Object(fields) => {
                        let named = fields.properties.$iter().chain(fields.patterns.$iter());
                        let named = named.map(|(_, schema)| schema);
                        all.extend(named.chain(fields.rest.$as_deref()));
                    }
                    _ => {}
                }),
                Part::Never(_) | Part::Ref(_) | Part::Values(_) => {}
            }
        }
        all
    }};
}

impl Document {
    /// All schemas, each one in front of those in it.
    pub(crate) fn schemas(&self) -> Vec<&Schema> {
        let mut open: Vec<&Schema> = self.definitions.iter().rev().chain([&self.root]).collect();
        let mut all = Vec::new();
        while let Some(schema) = open.pop() {
            all.push(schema);
            open.extend(schema.children().into_iter().rev());
        }
        all
    }
}

impl Schema {
    pub(crate) fn never(at: At, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::with(Part::Never(reason.into()), &at)
    }

    pub(crate) fn with(part: Part, at: &At) -> Self {
        Self { parts: vec![part], at: at.clone(), ..Self::default() }
    }

    /// The condition of a schema of arguments.
    pub(crate) fn kind(&self) -> Kind<'_> {
        match self.parts.as_slice() {
            [Part::Types(types)] if let [ty] = types.as_slice() => Kind::Type(ty),
            [Part::Values(values)] => Kind::Values(values),
            [Part::Any(schemas)] => Kind::Any(schemas),
            _ => Kind::Any(&[]),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.kind(), Kind::Type(Type::Null))
    }

    pub(crate) fn is_never(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Never(_)))
    }

    /// The schemas directly within it, without targets of references.
    pub(crate) fn children(&self) -> Vec<&Self> {
        children!(&self.parts, iter, as_deref)
    }

    pub(crate) fn children_mut(&mut self) -> Vec<&mut Self> {
        children!(&mut self.parts, iter_mut, as_deref_mut)
    }
}

impl Type {
    /// Its name in a schema.
    pub(crate) fn name(&self) -> &'static str {
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
    pub(crate) fn item(&self, index: usize) -> Option<&Schema> {
        self.prefix.get(index).or(self.rest.as_deref())
    }
}

impl Fields {
    /// Whether no property is allowed beyond the named ones.
    pub(crate) fn is_closed(&self) -> bool {
        self.patterns.is_empty() && self.rest.as_ref().is_some_and(|rest| rest.is_never())
    }

    /// The schema of a named property, and the one of properties without a name.
    pub(crate) fn property(&self, name: &str) -> (Option<&Schema>, Option<&Schema>) {
        let own = self.properties.iter().find(|(own, _)| own == name);
        (own.map(|(_, schema)| schema), self.rest.as_deref())
    }

    pub(crate) fn is_required(&self, name: &str) -> bool {
        self.required.iter().any(|required| required == name)
    }

    /// Number of properties that an object can have, if there is a limit.
    pub(crate) fn possible(&self) -> Option<u64> {
        let allowed = self.properties.iter().filter(|(_, schema)| !schema.is_never());
        self.is_closed().then(|| allowed.count() as u64)
    }
}
