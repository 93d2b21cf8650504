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
    open: Option<Spelling>,
    close: Option<Spelling>,
    args: Option<Spelling>,
    quote: Option<Spelling>,
}

impl CallMarkers {
    /// The delimiters of a format in a vocabulary.
    #[must_use]
    pub fn new(format: CallFormat, tokenizer: &Tokenizer) -> Self {
        let spelling = |text: Option<&'static str>| {
            let text = text?;
            let token = tokenizer.special_token(text).filter(|_| format != CallFormat::Plain);
            Some(match token {
                Some(token) => {
                    let ends_generation = tokenizer.is_end_of_generation(token);
                    Spelling::Token { token, text, ends_generation }
                }
                None => Spelling::Text(text),
            })
        };
        let texts = format.texts();
        let mut open = spelling(texts.open);
        // Without this token a model of Llama writes bare JSON only.
        if format == CallFormat::LlamaJson && matches!(open, Some(Spelling::Text(_))) {
            open = None;
        }
        let (close, args, quote) =
            (spelling(texts.close), spelling(texts.args), spelling(texts.quote));
        Self { format, open, close, args, quote }
    }

    /// The delimiters of [`CallFormat::Plain`], for text without tokens.
    #[must_use]
    pub fn text_only() -> Self {
        let texts = CallFormat::Plain.texts();
        let [open, close, args, quote] =
            [texts.open, texts.close, texts.args, texts.quote].map(|text| text.map(Spelling::Text));
        Self { format: CallFormat::Plain, open, close, args, quote }
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> CallFormat {
        self.format
    }

    /// The delimiter of a token.
    #[must_use]
    pub fn of_token(&self, token: TokenId) -> Option<Delimiter> {
        let of = |(spelling, delimiter)| match spelling {
            Some(Spelling::Token { token: own, .. }) if own == token => Some(delimiter),
            _ => None,
        };
        self.all().into_iter().find_map(of)
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
        self.format.opens_with_brace()
    }

    pub(crate) fn spelling(&self, delimiter: Delimiter) -> Option<Spelling> {
        self.all().iter().find(|(_, other)| *other == delimiter).and_then(|(spelling, _)| *spelling)
    }

    fn all(&self) -> [(Option<Spelling>, Delimiter); 4] {
        [
            (self.open, Delimiter::Open),
            (self.close, Delimiter::Close),
            (self.args, Delimiter::Args),
            (self.quote, Delimiter::Quote),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_delimiter_is_longer_than_declared() {
        for format in CallFormat::ALL {
            let texts = format.texts();
            for text in [texts.open, texts.close, texts.args, texts.quote].into_iter().flatten() {
                assert!(text.len() <= MAX_DELIMITER_BYTES, "{text}");
            }
        }
    }
}
