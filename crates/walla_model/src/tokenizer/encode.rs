//! Encodes text to tokens.

use std::ops::Range;

use walla_types::TokenId;

use super::{
    Model, Tokenizer,
    error::TokenizerError,
    merge::Merger,
    partition::{Fragment, Trust},
    untrusted::Avoided,
};

/// Options of encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether BOS and EOS are added if the file requests them; always the two ends of a "bert"
    /// text. Default: `false`.
    pub add_special: bool,
    /// Whether the texts of control tokens become these tokens. Never set this for text from
    /// players: use [`Tokenizer::encode_untrusted`] for it. Use [`Tokenizer::encode_prompt`] for a
    /// prompt, because it tracks the origin of each part. Default: `false`.
    pub parse_special: bool,
}

impl Tokenizer {
    /// The tokens of a text.
    ///
    /// User-defined tokens are always recognised, as in llama.cpp. In some vocabularies they
    /// include markers of the chat format, so encode text of unknown origin with
    /// [`encode_untrusted`](Self::encode_untrusted).
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] if the text is longer than [allowed](Self::with_max_text_bytes).
    pub fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let mut tokens = Vec::new();
        self.encode_into(text, options, &mut tokens)?;
        Ok(tokens)
    }

    /// As [`encode`](Self::encode), appended to `tokens`.
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] if the text is longer than [allowed](Self::with_max_text_bytes);
    /// `tokens` is unchanged then.
    pub fn encode_into(
        &self,
        text: &str,
        options: EncodeOptions,
        tokens: &mut Vec<TokenId>,
    ) -> Result<(), TokenizerError> {
        self.check_length(text.len())?;
        let whole = 0..text.len();
        let trusted = core::slice::from_ref(&whole);
        let trust = Trust { parse_special: options.parse_special, trusted };
        if options.add_special && self.adds_bos {
            tokens.extend(self.bos);
        }
        self.encode_fragments(text, &self.partition.cut(text, trust), tokens);
        if options.add_special && self.adds_eos {
            tokens.extend(self.eos);
        }
        Ok(())
    }

    /// Refuses a text of `bytes` bytes if it is too long.
    pub(super) fn check_length(&self, bytes: usize) -> Result<(), TokenizerError> {
        let max_bytes = self.max_text_bytes;
        if bytes > max_bytes { Err(TokenizerError::TooLong { bytes, max_bytes }) } else { Ok(()) }
    }

    /// Encodes the fragments of [`Partition::cut`](super::partition::Partition::cut).
    pub(super) fn encode_fragments(
        &self,
        text: &str,
        fragments: &[Fragment],
        tokens: &mut Vec<TokenId>,
    ) {
        self.encode_fragments_avoiding(text, fragments, (true, Avoided::none()), tokens);
    }

    /// As [`encode_fragments`](Self::encode_fragments), without the avoided tokens. The text starts
    /// as after a special token, or continues other text.
    pub(super) fn encode_fragments_avoiding(
        &self,
        text: &str,
        fragments: &[Fragment],
        (mut is_after_special, avoided): (bool, Avoided<'_>),
        tokens: &mut Vec<TokenId>,
    ) {
        let mut merger = Merger::default();
        for fragment in fragments {
            match fragment {
                Fragment::Token(token) => tokens.push(*token),
                Fragment::Text(range) => {
                    let how = (is_after_special, avoided);
                    self.encode_text(text, range, how, &mut merger, tokens);
                }
            }
            is_after_special = matches!(fragment, Fragment::Token(_));
        }
    }

    fn encode_text(
        &self,
        text: &str,
        range: &Range<usize>,
        (is_after_special, avoided): (bool, Avoided<'_>),
        merger: &mut Merger,
        tokens: &mut Vec<TokenId>,
    ) {
        let text = text.get(range.clone()).unwrap_or_default();
        let vocabulary = (&self.pieces, &self.index);
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(text, vocabulary, avoided, (merger, tokens)),
            Model::WordPiece(words) => words.encode(text, vocabulary, avoided, tokens),
            Model::Spm(spm) => {
                let mut spaced = String::with_capacity(text.len() + 1);
                if self.adds_space_prefix && is_after_special {
                    spaced.push(' ');
                }
                for (nth, part) in text.split('▁').enumerate() {
                    if nth > 0 {
                        spaced.push(' ');
                    }
                    spaced.push_str(part);
                }
                spm.encode(&spaced, vocabulary, avoided, (merger, tokens));
            }
        }
    }
}
