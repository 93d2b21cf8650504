use walla_types::TokenId;

use super::split::PreTokenizer;
use crate::gguf::MetadataError;

/// Why a vocabulary cannot be used.
///
/// The file is damaged, a broken tool wrote it, or it uses an unsupported kind of tokenizer:
/// convert the model again or use another one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A list that this tokenizer model requires is missing.
    #[error("a vocabulary of model {model:?} needs {key}")]
    Missing {
        /// `tokenizer.ggml.model`.
        model: String,
        /// The missing list.
        key: &'static str,
    },
    /// The tokenizer model is not supported.
    #[error(
        "tokenizer.ggml.model {0:?} is not supported, expected \"llama\", \"gpt2\", \
         \"gemma4\" or \"bert\""
    )]
    UnknownModel(String),
    /// The file's pre-tokenizer is not supported: choose one with the same splitting by
    /// [`Tokenizer::from_gguf_with`](super::Tokenizer::from_gguf_with).
    #[error(
        "tokenizer.ggml.pre {0:?} is not supported; if another one splits alike, name it \
         (walla --pre NAME, or pre_tokenizer in the engine's options): {names}",
        names = PreTokenizer::NAMES.join(", ")
    )]
    UnknownPreTokenizer(String),
    /// The name that replaces the file's pre-tokenizer is unknown.
    #[error(
        "pre-tokenizer {0:?} is not known, expected one of {names}",
        names = PreTokenizer::NAMES.join(", ")
    )]
    UnknownOverride(String),
    /// A part of a split model without a vocabulary: use the first part, or join all parts.
    #[error(
        "this is part {part} of {parts} of a split model and has no vocabulary: use the first \
         part, or join the parts with `llama-gguf-split --merge FIRST_PART WHOLE_MODEL`"
    )]
    Split {
        /// Number of the part, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// No tokens, or more than ids and offsets can represent.
    #[error(
        "tokenizer.ggml.tokens has {tokens} tokens of {bytes} bytes, expected 1 to {max_tokens} tokens"
    )]
    Size {
        /// Number of tokens.
        tokens: usize,
        /// Bytes of all texts.
        bytes: usize,
        /// Maximum number of tokens.
        max_tokens: usize,
    },
    /// A list does not have the length of `tokenizer.ggml.tokens`.
    #[error("{key} has {found} entries for {tokens} tokens")]
    Length {
        /// The list.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A token type is outside `0..=6`.
    #[error(
        "token {token} ({text:?}) has type {found} in tokenizer.ggml.token_type, expected 0 to 6"
    )]
    TokenType {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
        /// The type in the file.
        found: i64,
    },
    /// A score is NaN and cannot be ordered.
    #[error("token {token} ({text:?}) has the score NaN in tokenizer.ggml.scores")]
    Score {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
    },
    /// The text of a byte token does not name a byte.
    #[error(
        "byte token {token} of tokenizer.ggml.tokens is {text:?}, expected \"<0x00>\" to \"<0xFF>\""
    )]
    ByteToken {
        /// The token.
        token: TokenId,
        /// Its text.
        text: String,
    },
    /// A byte has no token, and there is no unknown token for it, so text would be lost.
    #[error(
        "no token for the byte 0x{byte:02X}, and no unknown token that text may become, in \
         tokenizer.ggml.tokens"
    )]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// A merge is not two texts separated by a space.
    #[error(
        "tokenizer.ggml.merges[{index}] is {text:?}, expected two texts with one space between them"
    )]
    Merge {
        /// Index of the merge.
        index: usize,
        /// The merge.
        text: String,
    },
    /// A special token is outside the vocabulary.
    #[error("{key} is {id}, outside the vocabulary of {tokens} tokens")]
    SpecialId {
        /// The key.
        key: &'static str,
        /// The id in the file.
        id: i64,
        /// Number of tokens.
        tokens: usize,
    },
    /// The file requests a token at the start or end of every text but does not name the token.
    #[error("{flag} is on, but there is no {key}")]
    MissingSpecial {
        /// The key that requests the token.
        flag: &'static str,
        /// The missing key of the token.
        key: &'static str,
    },
}

/// Why a text or a token was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The text is too long: shorten it, or raise the limit with
    /// [`Tokenizer::with_max_text_bytes`](super::Tokenizer::with_max_text_bytes).
    #[error("a text of {bytes} bytes, at most {max_bytes}")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Maximum length in bytes.
        max_bytes: usize,
    },
    /// The token is not in this vocabulary.
    #[error("token {token} is outside the vocabulary of {tokens} tokens")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Number of tokens.
        tokens: usize,
    },
}
