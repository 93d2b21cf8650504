//! Text to tokens.

use std::ops::Range;

use walla_types::TokenId;

use super::{
    Model, Tokenizer,
    error::TokenizerError,
    merge::Merger,
    partition::{Fragment, Trust},
    untrusted::Avoided,
};

/// What encoding adds and recognises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether BOS and EOS are added where the file asks for them. Default: `false`.
    pub add_special: bool,
    /// Whether the texts of control tokens in the text become these tokens. Never for text from
    /// players, which [`Tokenizer::encode_untrusted`] encodes; a prompt is encoded by
    /// [`Tokenizer::encode_prompt`], which knows the origin of each part. Default: `false`.
    pub parse_special: bool,
}

impl Tokenizer {
    /// The tokens of a text.
    ///
    /// User-defined tokens are recognised in any case, as llama.cpp does. In some vocabularies they
    /// include markers of the chat format, so encode text of unknown origin with
    /// [`encode_untrusted`](Self::encode_untrusted).
    ///
    /// # Errors
    /// [`TokenizerError::TooLong`] if the text is longer than [allowed](Self::with_text_bytes_max).
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
    /// [`TokenizerError::TooLong`] if the text is longer than [allowed](Self::with_text_bytes_max);
    /// `tokens` is as before then.
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

    /// Refuses a text of so many bytes if it is too long.
    pub(super) fn check_length(&self, bytes: usize) -> Result<(), TokenizerError> {
        let bytes_max = self.text_bytes_max;
        if bytes > bytes_max { Err(TokenizerError::TooLong { bytes, bytes_max }) } else { Ok(()) }
    }

    /// Encodes what [`Partition::cut`](super::partition::Partition::cut) has cut.
    pub(super) fn encode_fragments(
        &self,
        text: &str,
        fragments: &[Fragment],
        tokens: &mut Vec<TokenId>,
    ) {
        self.encode_fragments_avoiding(text, fragments, Avoided::none(), tokens);
    }

    /// As [`encode_fragments`](Self::encode_fragments), without the tokens to avoid.
    pub(super) fn encode_fragments_avoiding(
        &self,
        text: &str,
        fragments: &[Fragment],
        avoided: Avoided<'_>,
        tokens: &mut Vec<TokenId>,
    ) {
        let mut merger = Merger::default();
        let mut is_after_special = true;
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
