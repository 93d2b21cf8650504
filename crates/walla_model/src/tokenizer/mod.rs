//! Encodes text to tokens and decodes tokens, according to the model's vocabulary.
//!
//! Four kinds of tokenizer are supported: SentencePiece-style BPE (`tokenizer.ggml.model` =
//! "llama"), byte-level BPE ("gpt2") with the [pre-tokenizers](PreTokenizer) of the common
//! families, BPE over characters ("gemma4"), and WordPiece ("bert"). The first three produce the
//! ids of llama.cpp, with these exceptions, all for safety:
//!
//! - Text never becomes a control token, an unknown token or a marker by merging. These are matched
//!   as whole texts if [`EncodeOptions::parse_special`] is set, or not at all. Typing `<0x41>` does
//!   not produce the byte token.
//! - A file without BOS or EOS has no such token, instead of token 11.
//! - [Decoding](Tokenizer::decode) changes nothing: spaces are not "cleaned up".
//! - Of several tokens with the same text, the first one encodes it instead of the last.
//!
//! WordPiece produces the ids of the `tokenizers` library, from which llama.cpp differs for some
//! characters. Its vocabularies cannot spell all text: the unknown token replaces whole words.
//!
//! Encoding costs at most O(n log n) in the length of any text, which is bounded by
//! [`Tokenizer::with_max_text_bytes`].

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
mod vocabulary;
mod wordpiece;

use walla_types::TokenId;

pub use decode::{DecodeOptions, StreamDecoder};
pub use encode::EncodeOptions;
pub use error::{TokenizerError, VocabularyError};
pub use markers::markers_in;
pub(crate) use special::texts_of_bos_and_eos;
pub use split::PreTokenizer;
pub use vocabulary::{SpecialIds, Vocabulary};

use crate::gguf::Gguf;
use bpe::Bpe;
use kind::Kind;
use partition::Partition;
use pieces::{Index, Pieces};
use spm::Spm;
use wordpiece::WordPiece;

/// Encoder for text without special tokens.
#[derive(Clone, Debug)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
    WordPiece(WordPiece),
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
    /// Bytes of each token; after the vocabulary's pieces follow strings that only merges mention.
    pieces: Pieces,
    /// Pieces that encoding may produce.
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
    max_piece_bytes: usize,
    max_text_bytes: usize,
    warnings: Vec<String>,
}

impl Tokenizer {
    /// Default maximum length of a text that is encoded in one call, in bytes: 1 MiB, some 250,000
    /// tokens of English. [Change it](Self::with_max_text_bytes) if necessary.
    pub const MAX_TEXT_BYTES: usize = 1 << 20;

    /// Reads the tokenizer of a model.
    ///
    /// # Errors
    /// [`VocabularyError`] names the key or token that is missing, invalid or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, VocabularyError> {
        Self::from_gguf_with(gguf, None)
    }

    /// Reads the tokenizer of a model with another pre-tokenizer than the file's, for files with no
    /// pre-tokenizer or an unsupported one. `None` uses the file's.
    ///
    /// # Errors
    /// [`VocabularyError::UnknownOverride`] if no pre-tokenizer has this name
    /// ([`PreTokenizer::NAMES`]). Any other [`VocabularyError`] names the key or token of the file
    /// that is missing, invalid or not supported.
    pub fn from_gguf_with(gguf: &Gguf, pre: Option<&str>) -> Result<Self, VocabularyError> {
        Self::new(&Vocabulary::from_gguf_with(gguf, pre)?)
    }

    /// Defects of the vocabulary that did not prevent loading, but may change tokens.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Sets the maximum length of a text, in bytes; at most 1 GiB.
    #[must_use]
    pub fn with_max_text_bytes(mut self, max_text_bytes: usize) -> Self {
        self.max_text_bytes = max_text_bytes.min(1 << 30); // offsets within a text are 32 bits wide
        self
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes that a token represents, which need not be whole characters. A control token
    /// returns its text, a token outside the vocabulary an empty slice.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        if token.index() < self.vocab_size() { self.pieces.get(token.0) } else { &[] }
    }

    /// The bytes that a token adds to visible text: its [bytes](Self::token_bytes), or an empty
    /// slice for a control, unknown or unused token. The concatenated bytes equal the result of
    /// [`decode_with`](Self::decode_with) with `control_text` and `strip_space_prefix` off.
    #[must_use]
    pub fn text_bytes(&self, token: TokenId) -> &[u8] {
        self.try_token_bytes(token).ok().filter(|_| !self.is_hidden(token)).unwrap_or_default()
    }

    /// The control, unknown or user-defined token with exactly this text, for example `<|im_end|>`.
    #[must_use]
    pub fn special_token(&self, text: &str) -> Option<TokenId> {
        self.partition.find(text)
    }

    /// Token that starts a text; `[CLS]` of a "bert" vocabulary.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// Token that ends a text; `[SEP]` of a "bert" vocabulary.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Token that ends a turn of a chat.
    #[must_use]
    pub fn eot(&self) -> Option<TokenId> {
        self.eot
    }

    /// Whether the file requests a BOS token before every text.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Whether the file requests an EOS token after every text.
    #[must_use]
    pub fn adds_eos(&self) -> bool {
        self.adds_eos
    }

    /// Whether text at the start and after a special token is encoded with an additional space
    /// before it.
    #[must_use]
    pub fn adds_space_prefix(&self) -> bool {
        self.adds_space_prefix
    }

    /// Whether a token belongs to the chat format and is not visible.
    #[must_use]
    pub fn is_control(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::CONTROL)
    }

    /// Whether a token ends a generation (EOG): end of text, turn or message, by its role or by a
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
    /// Untrusted text never becomes such a token, with one exception: if a vocabulary cannot spell
    /// a byte, or a "bert" vocabulary a word, the unknown token represents it.
    #[must_use]
    pub fn is_reserved(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::RESERVED)
    }

    /// Maximum length in bytes of the text that one token adds to a stream: the capacity for
    /// [`StreamDecoder::push`]'s delta. Each byte of the token, and three pending ones, could
    /// require a replacement character.
    #[must_use]
    pub fn max_delta_bytes(&self) -> usize {
        (self.max_piece_bytes + 3) * char::REPLACEMENT_CHARACTER.len_utf8()
    }

    /// The text of tokens, without control tokens: the inverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] if a token is not in this vocabulary.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        self.decode_with(tokens, DecodeOptions::default())
    }

    /// The text of tokens. Bytes that are not characters become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] if a token is not in this vocabulary.
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

    /// Whether text after this token is encoded as at the start of a text.
    pub(crate) fn is_special(&self, token: TokenId) -> bool {
        self.kind(token).is_any(Kind::SPECIAL)
    }

    /// Whether this token is invisible in decoded text.
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
