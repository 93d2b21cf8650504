//! JSON schemas: [parsed](parse) strictly, [combined](merge), [checked](check) and
//! [written](emit) in the subset that the library enforces exactly.
//!
//! The library ignores keywords that it does not know, and its treatment of some known ones is not
//! exact (see [`parse`] and [`emit`]). So it never sees a schema as written.

mod arguments;
mod check;
mod disjoint;
mod document;
mod emit;
mod empty;
mod format;
mod keywords;
mod merge;
mod parse;
mod pattern;
mod place;
mod values;
mod work;
mod write;

use serde_json::Value;

use crate::work::Budget;
use crate::{CompilerOptions, ConstraintError};

#[cfg(feature = "serde")]
pub(crate) use arguments::stored_arguments;
pub(crate) use arguments::{ITEMS_DEFAULT, TEXT_CHARS_DEFAULT, arguments, is_name, is_of_name};
pub(crate) use document::{Fields, Items, Kind, MAX_NUMBER, Part, Range, Schema, Text, Type};
pub(crate) use place::At;
pub(crate) use values::is_equal;
pub(crate) use write::{for_grammar, for_model, max_or, of_type};

/// White space between the tokens of JSON text, outside strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum JsonWhitespace {
    /// None. A model cannot lose itself in white space, and the text is shortest.
    #[default]
    Compact,
    /// One space after each comma and colon, as many models are trained to write.
    Spaced,
    /// Between any two tokens up to 16 spaces, or a line break and up to 16 spaces.
    Flexible,
}

/// The schema in the library's subset, for the text of a schema.
pub(crate) fn lower(
    text: &str,
    options: &CompilerOptions,
    budget: &mut Budget,
) -> Result<Value, ConstraintError> {
    let text = without_mark(text);
    if text.trim().is_empty() {
        let message = "the text is empty".to_owned();
        return Err(ConstraintError::Json { line: 1, column: 1, message });
    }
    let source: Value = serde_json::from_str(text).map_err(|error| json_error(&error))?;
    lower_value(&source, options, options.whitespace, budget)
}

/// The text without a byte-order mark, which editors write. RFC 8259 allows parsers to ignore it.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// As [`lower`], for a parsed schema.
pub(crate) fn lower_value(
    source: &Value,
    options: &CompilerOptions,
    whitespace: JsonWhitespace,
    budget: &mut Budget,
) -> Result<Value, ConstraintError> {
    let max_nodes = options.max_nodes;
    let document = parse::parse(source, parse::Limits::constraint(max_nodes))?;
    check::check_references(&document)?;
    let document = merge::merge(document, max_nodes.saturating_mul(4))?;
    work::check_work(&document, budget)?;
    disjoint::check_alternatives(&document)?;
    check::check_values(&document)?;
    Ok(emit::emit(&document, whitespace))
}

/// For a schema that the library refuses because a string matches nothing: the JSON pointer of the
/// string and the reason.
pub(crate) fn find_empty_text(text: &str, max_nodes: usize) -> Option<String> {
    let source: Value = serde_json::from_str(without_mark(text)).ok()?;
    let document = parse::parse(&source, parse::Limits::constraint(max_nodes)).ok()?;
    let document = merge::merge(document, max_nodes.saturating_mul(4)).ok()?;
    empty::find(&document)
}

pub(crate) fn json_error(error: &serde_json::Error) -> ConstraintError {
    let (line, column) = (error.line(), error.column());
    ConstraintError::Json { line, column, message: error.to_string() }
}
