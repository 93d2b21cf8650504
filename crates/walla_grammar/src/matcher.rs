//! Follows one reply through a grammar.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use llguidance::TokenParser;
use walla_types::TokenId;

use crate::vocabulary::first_line;
use crate::watch::{Call, Timed};
use crate::{MatchError, Vocabulary, messages, size};

/// Bytes of the parser for an accepted token.
const ACCEPTED_BYTES: usize = 400;

/// The kind of a [mask](Matcher::mask).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskOutcome {
    /// The mask allows the tokens that continue the text; if the grammar may end here, also all
    /// end-of-generation tokens.
    Open,
    /// The mask allows only this token, because the grammar forces its text.
    Forced(TokenId),
    /// The text is complete and nothing may follow: the mask allows the end-of-generation tokens.
    Ended,
}

/// The position of one reply in a [`Grammar`](crate::Grammar).
///
/// The matcher is `Send`; each reply has its own. After a [final](MatchError::is_final) error all
/// calls return this error.
///
/// # Examples
/// ```
/// # fn run(grammar: &walla_grammar::Grammar) -> Result<(), walla_grammar::MatchError> {
/// let mut matcher = grammar.matcher();
/// let mut words = vec![0; grammar.vocabulary().mask_words()];
/// while !matcher.has_ended() {
///     matcher.mask(&mut words)?;
///     let word = words.iter().position(|&word| word != 0).unwrap_or_default();
///     let token = word as u32 * 32 + words[word].trailing_zeros();
///     matcher.accept(walla_types::TokenId(token))?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Matcher {
    inner: llguidance::Matcher,
    /// Shares the lexer of `inner`, for its counters.
    counters: TokenParser,
    /// `None` if the library cannot be cancelled.
    timed: Option<Arc<Timed>>,
    vocabulary: Vocabulary,
    /// Forced tokens that are not accepted yet. They are computed once and then fixed, so the
    /// tokens do not depend on whether the caller uses [`forced`](Self::forced).
    pending: VecDeque<TokenId>,
    /// The accepted tokens, and whether each one was forced.
    accepted: Vec<(TokenId, bool)>,
    failure: Option<MatchError>,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("accepted", &self.accepted.len())
            .field("pending", &self.pending)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser, vocabulary: Vocabulary, max_time: Duration) -> Self {
        let counters = parser.clone();
        let inner = llguidance::Matcher::new(Ok(parser)).into_cancellable();
        let timed = inner.cancellation_handle().map(|handle| Timed::new(handle, max_time));
        let (pending, accepted) = (VecDeque::new(), Vec::new());
        Self { inner, counters, timed, vocabulary, pending, accepted, failure: None }
    }

    /// Writes the set of allowed tokens: one bit per token, the lowest bit first. Words and
    /// bits beyond the vocabulary become 0.
    ///
    /// Takes some 50 µs; a difficult position can take milliseconds, and that of an ambiguous
    /// grammar more, up to the limits of [`CompilerOptions`](crate::CompilerOptions).
    ///
    /// # Errors
    /// [`MatchError::MaskTooShort`] if `words` is shorter than [`Vocabulary::mask_words`], and the
    /// [final](MatchError::is_final) errors.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<MaskOutcome, MatchError> {
        self.check()?;
        let (given, needed) = (words.len(), self.vocabulary.mask_words());
        let error = MatchError::MaskTooShort { words: given, needed };
        let (mask, beyond) = words.split_at_mut_checked(needed).ok_or(error)?;
        beyond.fill(0);
        if self.has_ended() {
            mask.fill(0);
            self.vocabulary.end_tokens().for_each(|token| set(mask, token));
            return Ok(MaskOutcome::Ended);
        }
        self.find_forced()?;
        if let Some(&token) = self.pending.front() {
            mask.fill(0);
            set(mask, token.0);
            return Ok(MaskOutcome::Forced(token));
        }
        let call = self.start();
        let allowed = self.inner.compute_mask();
        drop(call);
        let allowed = allowed.map_err(|error| self.fail(&error.to_string()))?;
        // The library's set has one token more than the vocabulary.
        mask.copy_from_slice(allowed.as_slice().get(..needed).unwrap_or_default());
        let used = self.vocabulary.tokens() as u32 % u32::BITS;
        if let Some(last) = mask.last_mut().filter(|_| used != 0) {
            *last &= (1 << used) - 1;
        }
        // The caller could draw nothing; an error ends the reply instead.
        if mask.iter().all(|&word| word == 0) {
            self.failure = Some(MatchError::DeadEnd);
            return Err(MatchError::DeadEnd);
        }
        Ok(MaskOutcome::Open)
    }

    /// Advances by a token of the mask.
    ///
    /// An end-of-generation token ends the reply where the grammar may end. After the end it is
    /// accepted again and changes nothing.
    ///
    /// # Errors
    /// [`MatchError::Refused`] if the mask does not allow the token, and the
    /// [final](MatchError::is_final) errors.
    pub fn accept(&mut self, token: TokenId) -> Result<(), MatchError> {
        self.check()?;
        if self.has_ended() {
            let is_end = self.vocabulary.is_end(token);
            return if is_end { Ok(()) } else { Err(MatchError::Refused { token }) };
        }
        if token.index() >= self.vocabulary.tokens() {
            return Err(MatchError::Refused { token }); // final in the library
        }
        self.find_forced()?;
        let forced = self.pending.front().copied();
        if forced.is_some_and(|forced| forced != token) {
            return Err(MatchError::Refused { token });
        }
        let call = self.start();
        let advanced = self.inner.try_consume_tokens(&[token.0]);
        drop(call);
        match advanced.map_err(|error| self.fail(&error.to_string()))? {
            1 => {
                self.pending.pop_front();
                self.accepted.push((token, forced.is_some()));
                Ok(())
            }
            _ => Err(MatchError::Refused { token }),
        }
    }

    /// Appends the tokens that the grammar forces next, and returns their number. Their text is the
    /// only text that can follow, in the tokenizer's spelling. The matcher does not advance:
    /// [accept](Self::accept) each token.
    ///
    /// The last forced bytes are left out if a longer token could start with them.
    ///
    /// # Errors
    /// The [final](MatchError::is_final) errors.
    pub fn forced(&mut self, tokens: &mut Vec<TokenId>) -> Result<usize, MatchError> {
        self.check()?;
        if !self.has_ended() {
            self.find_forced()?;
        }
        tokens.extend(&self.pending);
        Ok(self.pending.len())
    }

    /// Whether the text is complete: the grammar may end here.
    pub fn is_complete(&mut self) -> bool {
        self.failure.is_none() && (self.has_ended() || self.inner.is_accepting().unwrap_or(false))
    }

    /// Whether the text is complete and nothing may follow, or an end-of-generation token was
    /// accepted.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.failure.is_none() && self.inner.is_stopped() && !self.inner.is_error()
    }

    /// Number of accepted tokens.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.len()
    }

    /// Its size in bytes, estimated from the counters of the library: within a factor of two. It
    /// grows with the text.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size::of_lexer(&self.counters) + self.accepted.len() * ACCEPTED_BYTES
    }

    /// Removes the last `count` accepted tokens.
    ///
    /// # Errors
    /// [`MatchError::NothingToRollBack`] if fewer tokens were accepted, and the
    /// [final](MatchError::is_final) errors.
    pub fn rollback(&mut self, count: usize) -> Result<(), MatchError> {
        self.check()?;
        let accepted = self.accepted.len();
        let nothing = MatchError::NothingToRollBack { wanted: count, accepted };
        let kept = accepted.checked_sub(count).ok_or(nothing)?;
        let rolled_back = self.inner.rollback(count);
        rolled_back.map_err(|error| self.fail(&error.to_string()))?;
        // The same tokens are forced again. Those behind a token that was not forced are
        // computed again.
        for (token, was_forced) in self.accepted.drain(kept..).rev() {
            if was_forced {
                self.pending.push_front(token);
            } else {
                self.pending.clear();
            }
        }
        Ok(())
    }

    /// Starts a call of the library.
    fn start(&self) -> Option<Call> {
        self.timed.as_ref().map(Timed::start)
    }

    fn check(&self) -> Result<(), MatchError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Computes the forced tokens at this position.
    fn find_forced(&mut self) -> Result<(), MatchError> {
        if !self.pending.is_empty() || !self.vocabulary.has_forced_tokens() {
            return Ok(());
        }
        let call = self.start();
        let tokens = self.inner.compute_ff_tokens();
        drop(call);
        if let Some(message) = self.inner.get_error() {
            return Err(self.fail(&message));
        }
        self.pending.extend(tokens.into_iter().map(TokenId));
        Ok(())
    }

    /// Records a failure of the library.
    fn fail(&mut self, message: &str) -> MatchError {
        let message = first_line(message);
        let is_limit = message.starts_with("lexer error") || message.starts_with("parser error");
        let failure = if self.inner.is_cancelled() {
            let message = "more time for a mask than CompilerOptions::max_mask_time allows";
            MatchError::TooComplex { message: message.to_owned() }
        } else if message.contains("NoExtensionBias") {
            MatchError::DeadEnd
        } else if is_limit || message.starts_with("Parser Error") {
            let limit = messages::limit(&message, "mask_fuel");
            MatchError::TooComplex { message: limit.unwrap_or(message) }
        } else {
            MatchError::Internal { message }
        };
        self.failure = Some(failure.clone());
        failure
    }
}

/// Sets the bit of a token; the token is in the vocabulary.
fn set(words: &mut [u32], token: u32) {
    if let Some(word) = words.get_mut((token / u32::BITS) as usize) {
        *word |= 1 << (token % u32::BITS);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walla_model::{Gguf, tokenizer::Tokenizer};

    use super::*;
    use crate::{Compiler, CompilerOptions, Constraint};

    /// The library panics inside; the panic becomes a final error of this matcher only.
    #[test]
    fn a_panic_of_the_library_is_an_error() {
        let file = Gguf::from_static(walla_demo_model::GGUF).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_gguf(&file).unwrap());
        let vocabulary = Vocabulary::new(tokenizer).unwrap();
        let compiler = Compiler::new(vocabulary, CompilerOptions::default());
        let grammar = compiler.compile(&Constraint::choice(["a", "b"])).unwrap();
        let mut matcher = grammar.matcher();
        let mut words = vec![0; compiler.vocabulary().mask_words()];
        assert!(matcher.inner.test_trigger_lexer_error().is_err());
        let error = matcher.mask(&mut words).unwrap_err();
        assert!(matches!(&error, MatchError::Internal { message } if message.contains("panic")));
        assert!(error.is_final());
        assert_eq!(matcher.accept(TokenId(1)), Err(error.clone()));
        assert_eq!(matcher.rollback(0), Err(error));
        assert!(!matcher.has_ended() && !matcher.is_complete());
        assert_eq!(grammar.matcher().mask(&mut words), Ok(MaskOutcome::Open));
    }
}
