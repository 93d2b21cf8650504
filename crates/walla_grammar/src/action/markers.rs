//! Delimiters of calls in a vocabulary.
//!
//! If the vocabulary has a delimiter as a special token, only this token is the delimiter. The same
//! text spelled by other tokens is plain text, so an agent can quote it. Otherwise the text is the
//! delimiter, in any tokenisation.

use walla_model::tokenizer::Tokenizer;
use walla_types::TokenId;

use crate::CallFormat;

/// A delimiter of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delimiter {
    /// Opens a call: `<tool_call>`, `[TOOL_CALLS]` …
    Open,
    /// Closes a call: `</tool_call>` …
    Close,
    /// Separates the name from the arguments: `[ARGS]`.
    Args,
    /// Begins or ends a text: `<|"|>`.
    Quote,
}

impl Delimiter {
    pub(crate) const ALL: [Self; 4] = [Self::Open, Self::Close, Self::Args, Self::Quote];
}

/// How a delimiter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// As a special token with this text.
    Token { token: TokenId, text: &'static str, ends_generation: bool },
    /// As ordinary text.
    Text(&'static str),
}

impl Spelling {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Token { text, .. } | Self::Text(text) => text,
        }
    }
}

/// Maximum length of a delimiter's text in bytes.
pub const MAX_DELIMITER_BYTES: usize = 20;

/// The delimiters of a call format in a vocabulary. Immutable and small: copy it freely.
///
/// # Examples
/// ```
/// use walla_grammar::{CallFormat, CallMarkers};
/// use walla_model::{Gguf, tokenizer::Tokenizer};
///
/// let file = Gguf::from_static(walla_demo_model::GGUF)?;
/// let tokenizer = Tokenizer::from_gguf(&file)?;
/// let markers = CallMarkers::new(CallFormat::Plain, &tokenizer);
/// assert_eq!(markers.open_text(), Some("<tool_call>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallMarkers {
    format: CallFormat,
    /// In the order of [`Delimiter::ALL`].
    spellings: [Option<Spelling>; 4],
}

impl CallMarkers {
    /// The delimiters of a format in a vocabulary.
    #[must_use]
    pub fn new(format: CallFormat, tokenizer: &Tokenizer) -> Self {
        let spellings = Delimiter::ALL.map(|delimiter| {
            let text = format.text(delimiter)?;
            let token = tokenizer.special_token(text).filter(|_| format != CallFormat::Plain);
            match token {
                Some(token) => {
                    let ends_generation = tokenizer.is_end_of_generation(token);
                    Some(Spelling::Token { token, text, ends_generation })
                }
                // Without this token a model of Llama writes bare JSON only.
                None if format == CallFormat::LlamaJson => None,
                None => Some(Spelling::Text(text)),
            }
        });
        Self { format, spellings }
    }

    /// The delimiters of [`CallFormat::Plain`], for text without tokens.
    #[must_use]
    pub fn text_only() -> Self {
        let format = CallFormat::Plain;
        let spelling = |delimiter| format.text(delimiter).map(Spelling::Text);
        Self { format, spellings: Delimiter::ALL.map(spelling) }
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> CallFormat {
        self.format
    }

    /// The delimiter of a token.
    #[must_use]
    pub fn of_token(&self, token: TokenId) -> Option<Delimiter> {
        Delimiter::ALL.into_iter().find(|&delimiter| self.token(delimiter) == Some(token))
    }

    /// The special token of a delimiter, if the vocabulary has it.
    #[must_use]
    pub fn token(&self, delimiter: Delimiter) -> Option<TokenId> {
        match self.spelling(delimiter)? {
            Spelling::Token { token, .. } => Some(token),
            Spelling::Text(_) => None,
        }
    }

    /// The text that opens a call, if no special token does.
    #[must_use]
    pub fn open_text(&self) -> Option<&'static str> {
        self.text(Delimiter::Open)
    }

    /// The text of a delimiter, if it is not a special token.
    #[must_use]
    pub fn text(&self, delimiter: Delimiter) -> Option<&'static str> {
        match self.spelling(delimiter)? {
            Spelling::Token { .. } => None,
            Spelling::Text(text) => Some(text),
        }
    }

    /// Whether a call may also open with `{` as the first byte of a reply that is not white space.
    #[must_use]
    pub fn opens_with_brace(&self) -> bool {
        self.format == CallFormat::LlamaJson
    }

    pub(crate) fn spelling(&self, delimiter: Delimiter) -> Option<Spelling> {
        self.spellings.get(delimiter as usize).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_delimiter_is_longer_than_declared() {
        for format in CallFormat::ALL {
            for text in Delimiter::ALL.into_iter().filter_map(|delimiter| format.text(delimiter)) {
                assert!(text.len() <= MAX_DELIMITER_BYTES, "{text}");
            }
        }
    }
}
