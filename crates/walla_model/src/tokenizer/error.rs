use walla_types::TokenId;

use super::split::PreTokenizer;
use crate::gguf::MetadataError;

/// Why a vocabulary cannot be used.
///
/// The file is damaged, was made by a broken tool, or holds a kind of tokenizer that walla does not
/// have: convert the model again or take another one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A list that this tokenizer model needs is missing.
    #[error("a vocabulary of model {model:?} needs {key}")]
    Missing {
        /// `tokenizer.ggml.model`.
        model: String,
        /// The missing list.
        key: &'static str,
    },
    /// A tokenizer model that walla does not have.
    #[error("tokenizer.ggml.model {0:?} is not supported, expected \"llama\" or \"gpt2\"")]
    UnknownModel(String),
    /// The file names a pre-tokenizer that walla does not have: name one that splits alike with
    /// [`Tokenizer::from_gguf_with`](super::Tokenizer::from_gguf_with).
    #[error(
        "tokenizer.ggml.pre {0:?} is not supported; if another one splits alike, name it \
         (walla --pre NAME, or pre_tokenizer in the engine's options): {names}",
        names = PreTokenizer::NAMES.join(", ")
    )]
    UnknownPreTokenizer(String),
    /// No pre-tokenizer has the name that replaces the file's own.
    #[error(
        "pre-tokenizer {0:?} is not known, expected one of {names}",
        names = PreTokenizer::NAMES.join(", ")
    )]
    UnknownOverride(String),
    /// A part of a split model without a vocabulary: use the first part, or join all of them.
    #[error(
        "this is part {part} of {parts} of a split model and has no vocabulary: use the first \
         part, or join the parts with `llama-gguf-split --merge FIRST_PART WHOLE_MODEL`"
    )]
    Split {
        /// Which part, counted from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// No token, or more than ids and offsets can count.
    #[error(
        "tokenizer.ggml.tokens has {tokens} tokens of {bytes} bytes, expected 1 to {tokens_max} tokens"
    )]
    Size {
        /// Number of tokens.
        tokens: usize,
        /// Bytes of all texts.
        bytes: usize,
        /// Most that are allowed.
        tokens_max: usize,
    },
    /// A list with another length than `tokenizer.ggml.tokens`.
    #[error("{key} has {found} entries for {tokens} tokens")]
    Length {
        /// The list.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A token type outside `1..=6`.
    #[error(
        "token {token} ({text:?}) has type {found} in tokenizer.ggml.token_type, expected 0 to 6"
    )]
    TokenType {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
        /// What the file says.
        found: i64,
    },
    /// A score that cannot be ordered.
    #[error("token {token} ({text:?}) has the score NaN in tokenizer.ggml.scores")]
    Score {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
    },
    /// A byte token that does not say which byte.
    #[error(
        "byte token {token} of tokenizer.ggml.tokens is {text:?}, expected \"<0x00>\" to \"<0xFF>\""
    )]
    ByteToken {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
    },
    /// Text would be lost: neither a token for this byte nor one for what is unknown.
    #[error(
        "no token for the byte 0x{byte:02X}, and no unknown token that text may become, in \
         tokenizer.ggml.tokens"
    )]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// A merge that is not two texts with a space between them.
    #[error(
        "tokenizer.ggml.merges[{index}] is {text:?}, expected two texts with one space between them"
    )]
    Merge {
        /// Which one.
        index: usize,
        /// As it stands.
        text: String,
    },
    /// A special token outside the vocabulary.
    #[error("{key} is {id}, outside the vocabulary of {tokens} tokens")]
    SpecialId {
        /// The key.
        key: &'static str,
        /// What it says.
        id: i64,
        /// Number of tokens.
        tokens: usize,
    },
    /// The file asks for a token at the beginning or end of every text and does not say which.
    #[error("{flag} is on, but there is no {key}")]
    MissingSpecial {
        /// What asks for it.
        flag: &'static str,
        /// What would say which.
        key: &'static str,
    },
}

/// Why a text or a token was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// Shorten the text, or raise the limit with
    /// [`Tokenizer::with_text_bytes_max`](super::Tokenizer::with_text_bytes_max).
    #[error("a text of {bytes} bytes, at most {bytes_max}")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Most that are allowed.
        bytes_max: usize,
    },
    /// A token of another model.
    #[error("token {token} is outside the vocabulary of {tokens} tokens")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Number of tokens.
        tokens: usize,
    },
}
