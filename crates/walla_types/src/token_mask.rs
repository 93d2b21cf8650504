use std::fmt;

use crate::TokenId;

/// Tokens per word of a mask.
const WORD_BITS: u32 = u32::BITS;

/// Set of tokens that may be sampled: one bit per token of the vocabulary, 32 per word, the lowest
/// bit first.
///
/// At least one token is allowed. Tokens beyond the mask's end are forbidden.
///
/// # Examples
/// ```
/// use walla_types::{TokenId, TokenMask};
/// let mask = TokenMask::allow(100, [TokenId(3), TokenId(64)])?;
/// assert!(mask.allows(TokenId(64)) && !mask.allows(TokenId(65)));
/// assert_eq!(mask.words(), [1 << 3, 0, 1, 0]);
/// assert!(TokenMask::allow(100, []).is_err());
/// # Ok::<(), walla_types::InvalidTokenMask>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Box<[u32]>,
    lowest: TokenId,
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        write!(f, "TokenMask({allowed} of {} tokens)", self.words.len() * WORD_BITS as usize)
    }
}

impl TokenMask {
    /// Allows `tokens` of a vocabulary of `vocab` and forbids all others.
    ///
    /// # Errors
    /// [`InvalidTokenMask::OutsideVocabulary`], [`InvalidTokenMask::NothingAllowed`].
    pub fn allow(
        vocab: u32,
        tokens: impl IntoIterator<Item = TokenId>,
    ) -> Result<Self, InvalidTokenMask> {
        let mut words = vec![0; vocab.div_ceil(WORD_BITS) as usize];
        for token in tokens {
            if token.0 >= vocab {
                return Err(InvalidTokenMask::OutsideVocabulary { token, vocab });
            }
            if let Some(word) = words.get_mut((token.0 / WORD_BITS) as usize) {
                *word |= 1 << (token.0 % WORD_BITS);
            }
        }
        Self::from_words(words)
    }

    /// Uses a mask that is already packed.
    ///
    /// # Errors
    /// [`InvalidTokenMask::NothingAllowed`].
    pub fn from_words(words: impl Into<Box<[u32]>>) -> Result<Self, InvalidTokenMask> {
        let words = words.into();
        let first = words.iter().zip(0..).find(|(word, _)| **word != 0);
        let (word, index) = first.ok_or(InvalidTokenMask::NothingAllowed)?;
        Ok(Self { lowest: TokenId(index * WORD_BITS + word.trailing_zeros()), words })
    }

    /// The packed bits.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether the token is allowed.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        let word = self.words.get((token.0 / WORD_BITS) as usize).copied().unwrap_or_default();
        word >> (token.0 % WORD_BITS) & 1 == 1
    }

    /// Whether any token of a vocabulary of `vocab` tokens is allowed. O(1).
    #[must_use]
    pub fn allows_some_of(&self, vocab: u32) -> bool {
        self.lowest.0 < vocab
    }
}

/// An invalid mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTokenMask {
    /// Every token is forbidden: allow at least one.
    #[error("the mask forbids every token")]
    NothingAllowed,
    /// The token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab} tokens")]
    OutsideVocabulary {
        /// The token.
        token: TokenId,
        /// Vocabulary size.
        vocab: u32,
    },
}

#[cfg(feature = "serde")]
impl serde::Serialize for TokenMask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&self.words, serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for TokenMask {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words: Box<[u32]> = serde::Deserialize::deserialize(deserializer)?;
        Self::from_words(words).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_allow_exactly_the_given_tokens() {
        let allowed = [0, 31, 32, 77].map(TokenId);
        let mask = TokenMask::allow(78, allowed).unwrap();
        for token in (0..200).map(TokenId) {
            assert_eq!(mask.allows(token), allowed.contains(&token), "{token}");
        }
        assert_eq!(TokenMask::from_words(mask.words()), Ok(mask));
    }

    #[test]
    fn invalid_masks_are_refused() {
        assert_eq!(TokenMask::allow(9, []), Err(InvalidTokenMask::NothingAllowed));
        assert_eq!(TokenMask::from_words([0, 0]), Err(InvalidTokenMask::NothingAllowed));
        let outside = InvalidTokenMask::OutsideVocabulary { token: TokenId(9), vocab: 9 };
        assert_eq!(TokenMask::allow(9, [TokenId(9)]), Err(outside));
        assert_eq!(outside.to_string(), "token 9 is outside the vocabulary of 9 tokens");
    }

    #[test]
    fn a_mask_for_a_larger_vocabulary_may_allow_nothing_of_a_smaller_one() {
        let mask = TokenMask::allow(100, [TokenId(70)]).unwrap();
        assert!(mask.allows_some_of(71));
        assert!(!mask.allows_some_of(70));
    }
}
