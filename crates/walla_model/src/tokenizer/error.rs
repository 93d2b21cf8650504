use walla_types::TokenId;

use crate::gguf::MetadataError;

/// Why a vocabulary cannot be used.
///
/// The file is damaged, was made by a broken tool, or holds a kind of tokenizer that walla does not have: convert the
/// model again or take another one.
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
    /// A pre-tokenizer that walla does not have.
    #[error("tokenizer.ggml.pre {0:?} is not supported")]
    UnknownPreTokenizer(String),
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
    #[error("token {token} ({text:?}) has type {found}, expected 0 to 6")]
    TokenType {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
        /// What the file says.
        found: i64,
    },
    /// A score that cannot be ordered.
    #[error("token {token} ({text:?}) has the score NaN")]
    Score {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
    },
    /// A byte token that does not say which byte.
    #[error("byte token {token} is {text:?}, expected \"<0x00>\" to \"<0xFF>\"")]
    ByteToken {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
    },
    /// Text would be lost: neither a token for this byte nor one for what is unknown.
    #[error("no token for the byte 0x{byte:02X}, and no unknown token that text may become")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// One text for two tokens.
    #[error("tokens {first} and {second} are both {text:?}")]
    Duplicate {
        /// The text.
        text: String,
        /// The token that has it first.
        first: TokenId,
        /// The other one.
        second: TokenId,
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
