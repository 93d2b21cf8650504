//! Encodes text of unknown origin.

use walla_types::TokenId;

use super::{Tokenizer, error::TokenizerError, kind::Kind};

/// Tokens that encoding must not produce; none by default.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avoided<'k>(Option<&'k [Kind]>);

impl<'k> Avoided<'k> {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// All tokens that [only trusted text](Kind::is_trusted_only) may become.
    const fn trusted_only(kinds: &'k [Kind]) -> Self {
        Self(Some(kinds))
    }

    /// Whether no token is avoided.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn contains(&self, token: u32) -> bool {
        let kind = self.0.and_then(|kinds| kinds.get(token as usize));
        kind.is_some_and(|kind| kind.is_trusted_only())
    }
}

impl Tokenizer {
    /// The tokens of a text of unknown origin, such as text that a player typed. Nothing is added.
    ///
    /// The text never becomes a control, unknown or user-defined token, or a token that [ends a
    /// generation](Self::is_end_of_generation), neither as a whole nor by merging. There are two
    /// exceptions:
    ///
    /// - User-defined tokens of white space, such as the line breaks of Gemma. They mark nothing,
    ///   and a model trained with them does not know other spellings.
    /// - A byte that no other token of the vocabulary spells. Otherwise the text would be lost.
    ///
    /// [`encode`](Self::encode) differs: it matches user-defined tokens, as llama.cpp does.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] if the text is longer than [allowed](Self::with_max_text_bytes).
    pub fn encode_untrusted(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_untrusted_at(text, true)
    }

    /// As [`encode_untrusted`](Self::encode_untrusted), for text that continues other text: no
    /// space is added before it, whether or not the vocabulary [adds
    /// one](Self::adds_space_prefix).
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] if the text is longer than [allowed](Self::with_max_text_bytes).
    pub fn encode_continuation(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_untrusted_at(text, false)
    }

    fn encode_untrusted_at(
        &self,
        text: &str,
        is_start: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        self.check_length(text.len())?;
        let fragments = self.partition.cut_untrusted(text);
        let avoided = Avoided::trusted_only(&self.kinds);
        let mut tokens = Vec::new();
        self.encode_fragments_avoiding(text, &fragments, (is_start, avoided), &mut tokens);
        Ok(tokens)
    }
}
