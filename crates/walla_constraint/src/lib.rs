//! Constrained output: limits the text of a reply by a JSON schema, a regular expression, a list of
//! texts or a grammar.
#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod cache;
mod compiler;
mod constraint;
mod error;
mod grammar;
mod json;
mod lark;
mod matcher;
mod regex;
mod vocabulary;

pub use compiler::{Compiler, CompilerOptions};
pub use constraint::Constraint;
pub use error::{ConstraintError, MatchError, VocabularyError};
pub use grammar::Grammar;
pub use json::JsonWhitespace;
pub use matcher::{MaskOutcome, Matcher};
pub use vocabulary::{Vocabulary, VocabularyOptions};
