//! Text to tokens and back, as the model's own vocabulary wants it.
//!
//! Two kinds of tokenizer are here: SentencePiece-style BPE (`tokenizer.ggml.model` = "llama") and
//! byte-level BPE ("gpt2") with the [pre-tokenizers](PreTokenizer) of the common families. Both
//! give what llama.cpp gives, id by id, with these exceptions, all on the safe side:
//!
//! - Text never becomes a control token, an unknown token or a marker by merging. They are found as
//!   whole texts, where [`EncodeOptions::parse_special`] asks for it, or not at all. Nor does
//!   typing `<0x41>` become the byte token.
//! - A file that names no BOS or EOS has none, instead of whatever token has the number 11.
//! - [Decoding](Tokenizer::decode) changes nothing: no spaces are "cleaned up".
//! - Of tokens with the same text, the first one encodes it instead of the last.
//!
//! Encoding costs O(n log n) in the length of the text at worst, whatever the text, and is bounded
//! by [`Tokenizer::with_text_bytes_max`].

mod bpe;
mod decode;
mod encode;
mod error;
mod kind;
mod load;
mod markers;
mod merge;
mod partition;
mod pieces;
mod prompt;
mod special;
mod split;
mod spm;
mod unicode;
mod untrusted;
mod vocabulary;
mod warning;

use walla_types::TokenId;

pub use decode::{DecodeOptions, StreamDecoder};
pub use encode::EncodeOptions;
pub use error::{TokenizerError, VocabularyError};
pub use markers::markers_in;
pub(crate) use special::texts_of_bos_and_eos;
pub use split::PreTokenizer;
pub use vocabulary::{SpecialIds, Vocabulary};
pub use warning::VocabularyWarning;

use crate::gguf::Gguf;
use bpe::Bpe;
use kind::Kind;
use partition::Partition;
use pieces::{Index, Pieces};
use spm::Spm;

/// How text without special tokens is encoded.
#[derive(Clone, Debug)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
}

/// A model's vocabulary, ready to encode and decode. Immutable: share it freely.
///
/// # Examples
/// ```
/// # fn run(gguf: &walla_model::Gguf) -> Result<(), Box<dyn std::error::Error>> {
/// use walla_model::tokenizer::{EncodeOptions, Tokenizer};
///
/// let tokenizer = Tokenizer::from_gguf(gguf)?;
/// let tokens = tokenizer.encode("What does a horseshoe cost?", EncodeOptions::default())?;
/// assert_eq!(tokenizer.decode(&tokens)?, "What does a horseshoe cost?");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// What each token decodes to; behind the vocabulary's own, strings that only merges mention.
    pieces: Pieces,
    /// Pieces that encoding may end in.
    index: Index,
    /// By token.
    kinds: Vec<Kind>,
    partition: Partition,
    model: Model,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
    adds_bos: bool,
    adds_eos: bool,
    adds_space_prefix: bool,
    piece_bytes_max: usize,
    text_bytes_max: usize,
    warnings: Vec<VocabularyWarning>,
}

impl Tokenizer {
    /// Bytes of a text that are encoded at once, unless [changed](Self::with_text_bytes_max): 1
    /// MiB, some 250,000 tokens of English.
    pub const TEXT_BYTES_MAX: usize = 1 << 20;

    /// Reads the tokenizer of a model.
    ///
    /// # Errors
    /// [`VocabularyError`] names the key or token that is missing, wrong or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, VocabularyError> {
        Self::from_gguf_with(gguf, None)
    }

    /// Reads the tokenizer of a model, with another pre-tokenizer than the file names: for files
    /// that name none, or one that walla does not have. `None` uses the file's own.
    ///
    /// # Errors
    /// [`VocabularyError::UnknownOverride`] if no pre-tokenizer has this name
    /// ([`PreTokenizer::NAMES`]), any other [`VocabularyError`] names the key or token of the file
    /// that is missing, wrong or not supported.
    pub fn from_gguf_with(gguf: &Gguf, pre: Option<&str>) -> Result<Self, VocabularyError> {
        Self::new(&Vocabulary::from_gguf_with(gguf, pre)?)
    }

    /// Defects of the vocabulary that did not prevent loading, but may change tokens.
    #[must_use]
    pub fn warnings(&self) -> &[VocabularyWarning] {
        &self.warnings
    }

    /// Changes how long a text may be, in bytes; at most 1 GiB.
    #[must_use]
    pub fn with_text_bytes_max(mut self, text_bytes_max: usize) -> Self {
        self.text_bytes_max = text_bytes_max.min(1 << 30); // positions within a text are 32 bits wide
        self
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// What a token stands for: bytes that need not be whole characters. Of a control token, its
    /// text; of a token outside the vocabulary, nothing.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        if token.index() < self.vocab_size() { self.pieces.get(token.0) } else { &[] }
    }

    /// What a token adds to a text that somebody reads: its [bytes](Self::token_bytes), but none of
    /// a control, unknown or unused token. These bytes joined are what
    /// [`decode_with`](Self::decode_with) makes of tokens with `control_text` and
    /// `strip_space_prefix` off.
    #[must_use]
    pub fn text_bytes(&self, token: TokenId) -> &[u8] {
        self.try_token_bytes(token).ok().filter(|_| !self.is_hidden(token)).unwrap_or_default()
    }

    /// The control, unknown or user-defined token with exactly this text, for example `<|im_end|>`.
    #[must_use]
    pub fn special_token(&self, text: &str) -> Option<TokenId> {
        self.partition.find(text)
    }

    /// Begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// Ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Ends a turn of a chat.
    #[must_use]
    pub fn eot(&self) -> Option<TokenId> {
        self.eot
    }

    /// Whether the file asks for a BOS token before every text.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Whether the file asks for an EOS token behind every text.
    #[must_use]
    pub fn adds_eos(&self) -> bool {
        self.adds_eos
    }

    /// Whether text at the beginning and behind a special token is encoded as if a space stood
    /// before it.
    #[must_use]
    pub fn adds_space_prefix(&self) -> bool {
        self.adds_space_prefix
    }

    /// Whether a token belongs to the chat format and is not for reading.
    #[must_use]
    pub fn is_control(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::CONTROL)
    }

    /// Whether a token ends a generation (EOG): end of text, turn or message, by role or by a
    /// well-known text.
    #[must_use]
    pub fn is_end_of_generation(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::END_OF_GENERATION)
    }

    /// All tokens that end a generation, ascending.
    pub fn end_of_generation_tokens(&self) -> impl Iterator<Item = TokenId> {
        let all = (0..self.kinds.len() as u32).map(TokenId);
        all.filter(|&token| self.is_end_of_generation(token))
    }

    /// Whether a token is not for text: control, unknown, and user-defined tokens that look like
    /// markers (`<think>`).
    ///
    /// Untrusted text becomes none of them, with one exception: where a vocabulary cannot spell a
    /// byte, its unknown token stands for it.
    #[must_use]
    pub fn is_reserved(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::RESERVED)
    }

    /// Longest text that one token adds to a stream, in bytes: the capacity for
    /// [`StreamDecoder::push`]'s delta. Each of its bytes, and three kept back, could need a
    /// replacement character.
    #[must_use]
    pub fn delta_bytes_max(&self) -> usize {
        (self.piece_bytes_max + 3) * char::REPLACEMENT_CHARACTER.len_utf8()
    }

    /// The text of tokens, without control tokens: the inverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] if a token is not of this vocabulary.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        self.decode_with(tokens, DecodeOptions::default())
    }

    /// The text of tokens. Bytes that are no characters become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] if a token is not of this vocabulary.
    pub fn decode_with(
        &self,
        tokens: &[TokenId],
        options: DecodeOptions,
    ) -> Result<String, TokenizerError> {
        let mut text = String::with_capacity(tokens.len() * 4);
        let mut decoder = StreamDecoder::new(options);
        for &token in tokens {
            decoder.push(self, token, &mut text)?;
        }
        decoder.finish(&mut text);
        Ok(text)
    }

    fn kind(&self, token: TokenId) -> Kind {
        self.kinds.get(token.index()).copied().unwrap_or_default()
    }

    /// Whether text behind this token begins anew.
    pub(crate) fn is_special(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::SPECIAL)
    }

    /// Whether readers do not see this token.
    fn is_hidden(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::CONTROL.with(Kind::UNKNOWN))
    }

    fn try_token_bytes(&self, token: TokenId) -> Result<&[u8], TokenizerError> {
        let tokens = self.vocab_size();
        if token.index() >= tokens {
            return Err(TokenizerError::UnknownToken { token, tokens });
        }
        let has_text = Kind::SPECIAL.with(Kind::NORMAL).with(Kind::BYTE);
        Ok(if self.kind(token).is_any(has_text) { self.pieces.get(token.0) } else { &[] })
    }
}
