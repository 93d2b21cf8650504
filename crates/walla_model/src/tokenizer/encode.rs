//! Encodes text to tokens.

use walla_types::TokenId;

use super::{
    Model, Tokenizer,
    error::TokenizerError,
    kind::Kind,
    merge::Merger,
    partition::{Fragment, Trust},
    pieces::{Index, Pieces},
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
        self.check_length(text.len())?;
        let whole = 0..text.len();
        let trusted = core::slice::from_ref(&whole);
        let trust = Trust { parse_special: options.parse_special, trusted };
        let mut encoding = self.begin(false);
        encoding.tokens.extend(self.bos.filter(|_| options.add_special && self.adds_bos));
        self.encode_fragments(text, &self.partition.cut(text, trust), true, &mut encoding);
        encoding.tokens.extend(self.eos.filter(|_| options.add_special && self.adds_eos));
        Ok(encoding.tokens)
    }

    /// Refuses a text of `bytes` bytes if it is too long.
    pub(super) fn check_length(&self, bytes: usize) -> Result<(), TokenizerError> {
        let max_bytes = self.max_text_bytes;
        if bytes > max_bytes { Err(TokenizerError::TooLong { bytes, max_bytes }) } else { Ok(()) }
    }

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
        let mut encoding = self.begin(true);
        let fragments = self.partition.cut_untrusted(text);
        self.encode_fragments(text, &fragments, is_start, &mut encoding);
        Ok(encoding.tokens)
    }

    /// Begins to encode a text. Text of unknown origin avoids all tokens that [only trusted
    /// text](Kind::is_trusted_only) may become.
    pub(super) fn begin(&self, is_untrusted: bool) -> Encoding<'_> {
        let avoided = if is_untrusted { &self.kinds[..] } else { &[] };
        let (pieces, index) = (&self.pieces, &self.index);
        Encoding { pieces, index, avoided, merger: Merger::default(), tokens: Vec::new() }
    }

    /// Encodes the fragments of [`Partition::cut`](super::partition::Partition::cut). The text
    /// starts as after a special token, or continues other text.
    pub(super) fn encode_fragments(
        &self,
        text: &str,
        fragments: &[Fragment],
        mut is_after_special: bool,
        encoding: &mut Encoding<'_>,
    ) {
        for fragment in fragments {
            match fragment {
                Fragment::Token(token) => encoding.tokens.push(*token),
                Fragment::Text(range) => {
                    let text = text.get(range.clone()).unwrap_or_default();
                    self.encode_text(text, is_after_special, encoding);
                }
            }
            // As in llama.cpp: SentencePiece text gets its space behind each special token.
            is_after_special = matches!(fragment, Fragment::Token(_));
        }
    }

    fn encode_text(&self, text: &str, is_after_special: bool, encoding: &mut Encoding<'_>) {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(text, encoding),
            Model::WordPiece(words) => words.encode(text, encoding),
            Model::Spm(spm) => {
                let prefix = if self.adds_space_prefix && is_after_special { " " } else { "" };
                spm.encode(&[prefix, &text.replace('▁', " ")].concat(), encoding);
            }
        }
    }
}

/// A text while it is encoded.
pub(super) struct Encoding<'a> {
    pub pieces: &'a Pieces,
    pub index: &'a Index,
    /// The kinds of all tokens if some of them must not be produced, otherwise empty.
    pub avoided: &'a [Kind],
    pub merger: Merger,
    pub tokens: Vec<TokenId>,
}

impl Encoding<'_> {
    /// The token or symbol with this text.
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        self.index.find(self.pieces, text)
    }

    /// Whether the token must not be produced.
    pub fn avoids(&self, token: u32) -> bool {
        self.avoided.get(token as usize).is_some_and(|kind| kind.is_trusted_only())
    }
}
