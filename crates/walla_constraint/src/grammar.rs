//! A compiled constraint.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llguidance::TokenParser;

use crate::{ConstraintError, Matcher, Vocabulary};

/// Estimated size of an empty grammar in bytes.
const BASE_BYTES: usize = 64 << 10;

/// Estimated size of a grammar in bytes per byte of its source.
const SIZE_FACTOR: usize = 32;

/// A constraint, compiled for one vocabulary. Any number of replies can use it at the same time.
pub struct Grammar {
    /// Never advanced; each reply gets an independent copy. The copy has the lexer states of the
    /// first mask, and never the states of other replies: only its text can exceed a limit.
    prototype: Mutex<llguidance::Matcher>,
    vocabulary: Vocabulary,
    bytes: usize,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Computes the first mask, because a grammar without any text is detected only there.
    pub(crate) fn new(
        parser: TokenParser,
        vocabulary: Vocabulary,
        source_bytes: usize,
    ) -> Result<Self, ConstraintError> {
        let bytes = BASE_BYTES + source_bytes * SIZE_FACTOR;
        let grammar =
            Self { prototype: Mutex::new(llguidance::Matcher::new(Ok(parser))), vocabulary, bytes };
        let mut first = grammar.shallow_matcher();
        let mut words = vec![0; grammar.vocabulary.mask_words()];
        first.mask(&mut words).map_err(|error| match error {
            crate::MatchError::DeadEnd => ConstraintError::Unsatisfiable {
                reason: "no token of the vocabulary starts it".to_owned(),
            },
            crate::MatchError::TooComplex { message } => ConstraintError::TooComplex { message },
            other => ConstraintError::Internal { message: other.to_string() },
        })?;
        Ok(grammar)
    }

    /// A matcher for a new reply.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        let copy = self.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Matcher::new(copy, self.vocabulary.clone())
    }

    /// A matcher that shares the lexer states of the prototype.
    fn shallow_matcher(&self) -> Matcher {
        let copy = self.prototype.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Matcher::new(copy, self.vocabulary.clone())
    }

    /// The vocabulary that the grammar was compiled for.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Estimated size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
