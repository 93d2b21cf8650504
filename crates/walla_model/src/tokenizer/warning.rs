use walla_types::TokenId;

/// A defect of a vocabulary that does not prevent its use, but may change tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyWarning {
    /// A "gpt2" vocabulary has no pre-tokenizer, so text is split as by "default". Tokens then
    /// differ from training, and replies are worse. Specify the right one with
    /// [`Tokenizer::from_gguf_with`](super::Tokenizer::from_gguf_with).
    #[error(
        "the file has no tokenizer.ggml.pre: text is split as by \"default\", which gives other tokens \
         than the model was trained with if that is wrong. Name the pre-tokenizer (walla --pre NAME, \
         or pre_tokenizer in the engine's options){}",
        likely.map(|name| format!("; the markers are those of {name:?}")).unwrap_or_default()
    )]
    NoPreTokenizer {
        /// The pre-tokenizer of the model family that the vocabulary's markers indicate.
        likely: Option<&'static str>,
    },
    /// A pre-tokenizer was specified for a vocabulary that does not use one.
    #[error("pre-tokenizer {name:?} has no effect on a vocabulary of model {model:?}")]
    PreTokenizerIgnored {
        /// The name.
        name: String,
        /// `tokenizer.ggml.model`.
        model: String,
    },
    /// Several tokens have the same text: the first one encodes, all of them decode.
    #[error(
        "tokenizer.ggml.tokens has {tokens} duplicate texts, the first one is {text:?} (tokens {first} \
         and {second}): the first token of a text encodes it"
    )]
    DuplicateTexts {
        /// Number of tokens whose text belongs to an earlier token.
        tokens: usize,
        /// The first such text; truncated if it is long.
        text: String,
        /// The token that encodes it.
        first: TokenId,
        /// The next token with this text.
        second: TokenId,
    },
    /// The id of an optional role is invalid.
    #[error("{reason}: it is ignored")]
    SpecialId {
        /// The key and its defect.
        reason: String,
    },
}
