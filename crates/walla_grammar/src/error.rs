//! Errors of compilation and of matching.

use std::fmt;

use walla_types::TokenId;

/// A constraint that does not compile. The source must be changed; a second attempt fails too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A limit of [`CompilerOptions`](crate::CompilerOptions) is exceeded.
    #[error("{what} is {value}, more than the limit of {max_value}")]
    TooLarge {
        /// The limited quantity, with its unit.
        what: &'static str,
        /// Its value; the first one above the limit if the value is not known.
        value: u64,
        /// The limit.
        max_value: u64,
    },
    /// The schema is not JSON.
    #[error("the schema is not JSON: {message}")]
    Json {
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1.
        column: usize,
        /// The defect, with its position.
        message: String,
    },
    /// A keyword of the schema cannot be enforced.
    #[error("keyword \"{keyword}\"{} is not supported: {reason}", Place(at))]
    UnsupportedKeyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer (RFC 6901) of the schema that contains the keyword. Empty for the root, and
        /// where it is not known.
        at: String,
        /// The reason.
        reason: String,
    },
    /// The value of a keyword is not allowed by the JSON Schema specification.
    #[error("keyword \"{keyword}\"{} must be {expected}", Place(at))]
    InvalidKeyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that contains the keyword.
        at: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// Something else where a schema must be.
    #[error("the schema{} must be an object or a boolean, not {found}", Place(at))]
    NoSchema {
        /// JSON pointer of the schema. Empty for the root.
        at: String,
        /// The value that was found.
        found: &'static str,
    },
    /// No text satisfies the constraint.
    #[error("no text satisfies the constraint: {reason}")]
    Unsatisfiable {
        /// The reason, for a part of a schema with its JSON pointer.
        reason: String,
    },
    /// A regular expression is invalid or not supported.
    #[error("regular expression, byte {offset}: {message}")]
    Regex {
        /// Offset of the defect in bytes.
        offset: usize,
        /// The defect.
        message: String,
    },
    /// A Lark grammar is invalid or not supported.
    #[error("Lark grammar: {message}")]
    Lark {
        /// The defect, with line and column in parentheses where they are known.
        message: String,
    },
    /// A choice without texts, or with an empty text.
    #[error("a choice needs at least one text, and no text may be empty")]
    EmptyChoice,
    /// The grammar exceeds a limit of the matcher. A simpler constraint is needed.
    #[error("the grammar is too complex: {message}")]
    TooComplex {
        /// The limit.
        message: String,
    },
    /// The matcher library failed. This is a bug; please report it with the constraint.
    #[error("internal error: {message}")]
    Internal {
        /// The failure.
        message: String,
    },
}

/// A place in messages; nothing for the root.
struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " at \"{}\"", self.0) }
    }
}

/// A failure while a reply is matched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// The grammar does not allow this token here. The matcher is unchanged.
    #[error("the constraint does not allow token {token} here")]
    Refused {
        /// The token.
        token: TokenId,
    },
    /// The slice for the mask is too short. The matcher is unchanged.
    #[error("a mask has {needed} words, not {words}")]
    MaskTooShort {
        /// Length of the slice.
        words: usize,
        /// Required length.
        needed: usize,
    },
    /// More tokens to roll back than were accepted. The matcher is unchanged.
    #[error("{wanted} tokens to roll back, {accepted} accepted")]
    NothingToRollBack {
        /// Requested number of tokens.
        wanted: usize,
        /// Number of accepted tokens.
        accepted: usize,
    },
    /// No token of the vocabulary continues the text. The reply cannot be finished.
    #[error("no token of the vocabulary continues the text")]
    DeadEnd,
    /// A limit of the matcher is exceeded at this position of the text. The reply cannot be
    /// finished.
    #[error("the text exceeds a limit of the matcher: {message}")]
    TooComplex {
        /// The limit.
        message: String,
    },
    /// The matcher library failed. This is a bug. The reply cannot be finished.
    #[error("internal error: {message}")]
    Internal {
        /// The failure.
        message: String,
    },
}

impl MatchError {
    /// Whether the matcher can no longer be used: all later calls return this error.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::DeadEnd | Self::TooComplex { .. } | Self::Internal { .. })
    }
}

/// A vocabulary that cannot be used for constraints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The vocabulary has more tokens than a token tree can hold.
    #[error("{tokens} tokens, more than {max_tokens}")]
    TooManyTokens {
        /// Number of tokens.
        tokens: usize,
        /// Limit.
        max_tokens: usize,
    },
    /// The matcher library failed. This is a bug.
    #[error("internal error: {message}")]
    Internal {
        /// The failure.
        message: String,
    },
}
