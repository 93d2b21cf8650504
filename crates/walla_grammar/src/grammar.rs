//! A compiled constraint.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use llguidance::TokenParser;

use crate::{ConstraintError, MatchError, Matcher, Vocabulary, size};

/// A constraint, compiled for one vocabulary. Any number of replies can use it at the same time.
pub struct Grammar {
    /// Never advanced; each reply gets an independent copy. The copy has the lexer states of the
    /// first mask, and never the states of other replies: only its text can exceed a limit.
    prototype: Mutex<TokenParser>,
    vocabulary: Vocabulary,
    bytes: usize,
    max_mask_time: Duration,
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
        max_mask_time: Duration,
    ) -> Result<Self, ConstraintError> {
        let view = parser.clone();
        // A failure is kept, so a busy machine must not cause it.
        let max_first = max_mask_time.saturating_mul(10);
        let mut grammar =
            Self { prototype: Mutex::new(parser), vocabulary, bytes: 0, max_mask_time };
        let mut first = Matcher::new(view.clone(), grammar.vocabulary.clone(), max_first);
        let mut words = vec![0; grammar.vocabulary.mask_words()];
        first.mask(&mut words).map_err(|error| match error {
            MatchError::DeadEnd => ConstraintError::Unsatisfiable {
                reason: "no token of the vocabulary starts it".to_owned(),
            },
            MatchError::TooComplex { message } => ConstraintError::TooComplex { message },
            other => ConstraintError::Internal { message: other.to_string() },
        })?;
        grammar.bytes = source_bytes + size::of_grammar(&view) + size::of_lexer(&view);
        Ok(grammar)
    }

    /// A matcher for a new reply.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        let copy = self.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Matcher::new(copy, self.vocabulary.clone(), self.max_mask_time)
    }

    /// The vocabulary that the grammar was compiled for.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Its size in bytes, estimated from the counters of the library: within a factor of two. Its
    /// matchers have [their own](Matcher::bytes).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
