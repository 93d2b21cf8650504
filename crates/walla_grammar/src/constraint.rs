//! Constraints as plain data.

use std::fmt;
use std::sync::Arc;

use crate::ConstraintError;

/// A limit on the text of a reply: plain data that is [compiled](crate::Compiler::compile) once per
/// vocabulary.
///
/// Equal constraints share one compiled grammar. The sources are shared, so a clone is cheap.
///
/// # Examples
/// ```
/// use walla_grammar::Constraint;
///
/// let price = Constraint::json_schema(r#"{"type": "integer", "minimum": 1}"#);
/// let code = Constraint::regex("[A-Z]{2}-[0-9]{4}");
/// let answer = Constraint::choice(["yes", "no"]);
/// assert_eq!(answer, Constraint::choice(["no", "yes", "no"]));
/// # let _ = (price, code);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "(ConstraintKind, Vec<Arc<str>>)"))]
#[cfg_attr(feature = "serde", serde(into = "(ConstraintKind, Vec<Arc<str>>)"))]
pub struct Constraint {
    kind: ConstraintKind,
    /// One, or the texts of a choice, sorted and without duplicates.
    sources: Arc<[Arc<str>]>,
}

/// A kind of constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConstraintKind {
    /// [`Constraint::json_schema`].
    JsonSchema,
    /// [`Constraint::regex`].
    Regex,
    /// [`Constraint::choice`].
    Choice,
    /// [`Constraint::lark`].
    Lark,
}

impl fmt::Display for ConstraintKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonSchema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Choice => "choice",
            Self::Lark => "Lark grammar",
        })
    }
}

impl Constraint {
    fn new(kind: ConstraintKind, source: impl Into<Arc<str>>) -> Self {
        Self { kind, sources: Arc::new([source.into()]) }
    }

    /// JSON that is valid by a schema, given as JSON text.
    ///
    /// The schema is one of [JSON Schema 2020-12](https://json-schema.org/draft/2020-12), 2019-09
    /// or draft 7. The documentation of crate `walla_grammar` lists the supported keywords (`cargo
    /// doc -p walla_grammar --no-deps --open`). A schema with any other keyword does not compile.
    ///
    /// Properties are written in the order of the schema.
    pub fn json_schema(schema: impl Into<Arc<str>>) -> Self {
        Self::new(ConstraintKind::JsonSchema, schema)
    }

    /// As [`json_schema`](Self::json_schema), from a parsed schema.
    #[must_use]
    pub fn json_schema_value(schema: &serde_json::Value) -> Self {
        Self::json_schema(schema.to_string())
    }

    /// Checks a schema as far as that is possible without a vocabulary, with the default
    /// [limits](crate::CompilerOptions). Takes about as long as a compilation.
    ///
    /// # Errors
    /// [`ConstraintError`] names the part that is not supported or that no value satisfies, or the
    /// exceeded limit.
    pub fn check_json_schema(schema: &serde_json::Value) -> Result<(), ConstraintError> {
        crate::compiler::check_json_schema(schema)
    }

    /// Text that a regular expression matches from its start to its end.
    ///
    /// The syntax is that of the [`regex`](https://docs.rs/regex/latest/regex/#syntax) crate.
    /// Anchors are allowed at the start and the end, and change nothing there. Word boundaries are
    /// not supported.
    pub fn regex(regex: impl Into<Arc<str>>) -> Self {
        Self::new(ConstraintKind::Regex, regex)
    }

    /// One of several texts. The order and duplicates do not matter.
    pub fn choice<T: Into<Arc<str>>>(texts: impl IntoIterator<Item = T>) -> Self {
        let mut texts: Vec<Arc<str>> = texts.into_iter().map(Into::into).collect();
        texts.sort_unstable();
        texts.dedup();
        Self { kind: ConstraintKind::Choice, sources: texts.into() }
    }

    /// Text of a context-free grammar, in the [dialect of
    /// Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md) of `llguidance`.
    ///
    /// The start rule is `start`. `%json { … }` embeds a JSON schema, which is checked as in
    /// [`json_schema`](Self::json_schema). The documentation of crate `walla_grammar` describes
    /// special tokens and the directives that are refused. A grammar has at most 4,000 rules,
    /// terminals and opening parentheses.
    pub fn lark(grammar: impl Into<Arc<str>>) -> Self {
        Self::new(ConstraintKind::Lark, grammar)
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ConstraintKind {
        self.kind
    }

    /// Its source: the schema, expression or grammar, or the texts of a choice in order.
    #[must_use]
    pub fn sources(&self) -> Vec<&str> {
        self.sources.iter().map(|text| &**text).collect()
    }

    /// The source of a constraint that is no choice.
    pub(crate) fn source(&self) -> &str {
        self.sources.first().map_or("", |source| source)
    }

    /// Length of the source in bytes.
    #[must_use]
    pub fn source_bytes(&self) -> usize {
        self.sources.iter().map(|source| source.len()).sum()
    }
}

#[cfg(feature = "serde")]
impl From<Constraint> for (ConstraintKind, Vec<Arc<str>>) {
    fn from(constraint: Constraint) -> Self {
        (constraint.kind, constraint.sources.to_vec())
    }
}

#[cfg(feature = "serde")]
impl TryFrom<(ConstraintKind, Vec<Arc<str>>)> for Constraint {
    type Error = &'static str;

    fn try_from((kind, sources): (ConstraintKind, Vec<Arc<str>>)) -> Result<Self, Self::Error> {
        match (kind, sources.as_slice()) {
            (ConstraintKind::Choice, _) => Ok(Self::choice(sources)),
            (kind, [source]) => Ok(Self::new(kind, Arc::clone(source))),
            _ => Err("a constraint has one source"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_sources_are_equal_constraints() {
        let texts = ["b", "a", "b"];
        assert_eq!(Constraint::choice(texts), Constraint::choice(vec!["a".to_owned(), "b".into()]));
        assert_ne!(Constraint::regex("a"), Constraint::lark("a"));
        let schema = json!({"type": "null"});
        assert_eq!(
            Constraint::json_schema_value(&schema),
            Constraint::json_schema(r#"{"type":"null"}"#)
        );
        assert_eq!(Constraint::choice(texts).source_bytes(), 2);
    }
}
