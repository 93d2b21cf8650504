//! Details of the engine's work for recordings.

use core::fmt;

use walla_types::TokenId;

/// A detail for recordings, so that a replay can repeat the engine's order of work. Sent only to
/// clients that [request](crate::EngineClient::set_logged) them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Logged {
    /// The engine has applied the next command of this client, without copies of caches, which
    /// change no text ([`Command::CopyCache`](crate::Command::CopyCache)). It belongs to no reply:
    /// its [`reply_id`](crate::Event::reply_id) is [`ReplyId::NONE`](crate::ReplyId::NONE). Events
    /// that the command caused at once precede it.
    Applied,
    /// The reply begins: specification and conversation of its agent are taken now.
    Begun,
    /// The next tokens of the reply, sampled or forced: of speech, reasoning, calls and the end.
    /// They are sent when the run is full and before the end of the reply, independent of deltas.
    Tokens(TokenRun),
}

/// Up to [`TokenRun::MAX_TOKENS`] tokens, stored inline.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenRun {
    len: u32,
    tokens: [TokenId; Self::MAX_TOKENS],
}

impl TokenRun {
    /// Maximum number of tokens. An event with a run is not larger than one with text.
    pub const MAX_TOKENS: usize = 14;

    /// No tokens.
    #[must_use]
    pub const fn new() -> Self {
        Self { len: 0, tokens: [TokenId(0); Self::MAX_TOKENS] }
    }

    /// Appends a token. Returns whether the run is full; a token beyond that is lost.
    pub fn push(&mut self, token: TokenId) -> bool {
        if let Some(place) = self.tokens.get_mut(self.len as usize) {
            *place = token;
            self.len += 1;
        }
        self.len as usize == Self::MAX_TOKENS
    }

    /// The tokens.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        self.tokens.get(..self.len as usize).unwrap_or_default()
    }
}

impl fmt::Debug for TokenRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tokens().iter().map(|token| token.0)).finish()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for TokenRun {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(self.tokens(), serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for TokenRun {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tokens: Vec<TokenId> = serde::Deserialize::deserialize(deserializer)?;
        let mut run = Self::new();
        let fits = tokens.len() <= Self::MAX_TOKENS;
        tokens.into_iter().for_each(|token| _ = run.push(token));
        if fits { Ok(run) } else { Err(serde::de::Error::custom("too many tokens")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Event, ReplyEvent};

    #[test]
    fn a_run_holds_its_maximum() {
        let mut run = TokenRun::new();
        for token in 0..20 {
            assert_eq!(run.push(TokenId(token)), token >= 13);
        }
        assert_eq!(run.tokens().len(), TokenRun::MAX_TOKENS);
        assert_eq!(run.tokens()[13], TokenId(13));
    }

    #[test]
    fn a_run_does_not_enlarge_events() {
        assert!(size_of::<TokenRun>() <= 64);
        assert!(size_of::<ReplyEvent>() <= 88, "{}", size_of::<ReplyEvent>());
        assert!(size_of::<Event>() <= 104, "{}", size_of::<Event>());
    }
}
