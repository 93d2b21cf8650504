//! Decodes tokens to text.

use walla_types::TokenId;

use super::{Tokenizer, error::TokenizerError};

/// Options of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Whether control tokens are decoded to their text (`<|im_end|>`) or omitted. Default:
    /// `false`.
    pub control_text: bool,
    /// Whether to remove the space that encoding adds before a text and after each special token,
    /// for vocabularies with this behaviour (see [`Tokenizer::adds_space_prefix`]). Default:
    /// `true`; use `false` for text that continues other text.
    pub strip_space_prefix: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { control_text: false, strip_space_prefix: true }
    }
}

/// Decodes tokens to text, one at a time, never splitting a character.
///
/// The deltas of [`push`](Self::push) and [`finish`](Self::finish) concatenate to the result of
/// [`Tokenizer::decode_with`] for all tokens. Bytes that can never become a character are replaced
/// by U+FFFD, as [`String::from_utf8_lossy`] does. An incomplete character is held back until the
/// next token or the end.
///
/// A delta has at most [`Tokenizer::max_delta_bytes`] bytes, so a string with this free capacity is
/// never reallocated.
///
/// # Examples
/// ```
/// # fn show(tokenizer: &walla_model::tokenizer::Tokenizer, reply: &[walla_types::TokenId])
/// # -> Result<(), walla_model::tokenizer::TokenizerError> {
/// use walla_model::tokenizer::{DecodeOptions, StreamDecoder};
///
/// let mut decoder = StreamDecoder::new(DecodeOptions::default());
/// let mut delta = String::with_capacity(tokenizer.max_delta_bytes());
/// for &token in reply {
///     delta.clear();
///     decoder.push(tokenizer, token, &mut delta)?;
///     print!("{delta}");
/// }
/// delta.clear();
/// decoder.finish(&mut delta);
/// print!("{delta}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    options: DecodeOptions,
    /// First bytes of an incomplete character.
    pending: [u8; 4],
    /// Number of these bytes: at most 3.
    pending_bytes: usize,
    /// Whether the next token is the first one or follows a special token.
    is_after_special: bool,
}

impl StreamDecoder {
    /// A decoder at the start of a text.
    #[must_use]
    pub fn new(options: DecodeOptions) -> Self {
        Self { options, pending: [0; 4], pending_bytes: 0, is_after_special: true }
    }

    /// Appends to `delta` the characters that `token` completes.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] if the token is not in this vocabulary; the decoder is
    /// unchanged then.
    pub fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: TokenId,
        delta: &mut String,
    ) -> Result<(), TokenizerError> {
        let mut bytes = tokenizer.try_token_bytes(token)?;
        // The only error is behind us: an unknown token leaves the decoder unchanged.
        let is_hidden = tokenizer.is_hidden(token);
        let is_special = tokenizer.is_special(token);
        let has_prefix = tokenizer.adds_space_prefix() && self.is_after_special && !is_special;
        if self.options.strip_space_prefix && has_prefix {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.is_after_special = is_special;
        if !is_hidden || self.options.control_text {
            self.push_bytes(bytes, delta);
        }
        Ok(())
    }

    /// Ends the text: an incomplete character is replaced. Resets the decoder to the start of a
    /// text.
    pub fn finish(&mut self, delta: &mut String) {
        if self.pending_bytes > 0 {
            delta.push(char::REPLACEMENT_CHARACTER);
        }
        *self = Self::new(self.options);
    }

    fn push_bytes(&mut self, bytes: &[u8], delta: &mut String) {
        let mut rest = bytes;
        while self.pending_bytes > 0 {
            let Some((&byte, behind)) = rest.split_first() else { return };
            if self.continue_character(byte, delta) {
                rest = behind;
            }
        }
        for chunk in rest.utf8_chunks() {
            delta.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if is_beginning(invalid) {
                self.keep(invalid); // only the last chunk can be one
            } else {
                delta.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Adds a byte to the pending character. Returns `false` if the byte does not continue it; then
    /// the pending character was replaced.
    fn continue_character(&mut self, byte: u8, delta: &mut String) -> bool {
        let mut bytes = self.pending;
        if let Some(slot) = bytes.get_mut(self.pending_bytes) {
            *slot = byte;
        }
        let character = bytes.get(..=self.pending_bytes).unwrap_or_default();
        match str::from_utf8(character) {
            Ok(text) => {
                delta.push_str(text);
                self.pending_bytes = 0;
                true
            }
            Err(_) if is_beginning(character) => {
                self.pending = bytes;
                self.pending_bytes += 1;
                true
            }
            Err(_) => {
                delta.push(char::REPLACEMENT_CHARACTER);
                self.pending_bytes = 0;
                false
            }
        }
    }

    fn keep(&mut self, beginning: &[u8]) {
        for (to, from) in self.pending.iter_mut().zip(beginning) {
            *to = *from;
        }
        self.pending_bytes = beginning.len().min(3);
    }
}

/// Whether bytes are an incomplete character, so that more bytes can complete it.
fn is_beginning(bytes: &[u8]) -> bool {
    str::from_utf8(bytes)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
