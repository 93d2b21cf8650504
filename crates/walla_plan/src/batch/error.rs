use walla_types::{Position, SeqId, TokenId};

/// Reason why a token or a batch was refused. Indices are batch indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Run this batch first, or construct the batch with a larger `max_tokens`.
    #[error("the batch is full: {max_tokens} tokens")]
    Full {
        /// Capacity of the batch.
        max_tokens: u32,
    },
    /// The batch has no tokens to evaluate.
    #[error("the batch is empty")]
    Empty,
    /// The token id belongs to another model or is invalid.
    #[error("token {token} at index {index} is not below the vocabulary's size {vocab}")]
    TokenOutOfVocabulary {
        /// Index that the token would have had.
        index: u32,
        /// The token.
        token: TokenId,
        /// Vocabulary size.
        vocab: u32,
    },
    /// The caller's sequence id is stale or wrong.
    #[error("sequence {seq} at index {index} does not exist, ids are below {max_sequences}")]
    SequenceOutOfRange {
        /// Index that the token would have had.
        index: u32,
        /// The sequence.
        seq: SeqId,
        /// Number of sequences.
        max_sequences: u32,
    },
    /// Move the sequence to the next batch.
    #[error(
        "sequence {seq} at index {index} is one more than the {max_batch_sequences} of a batch"
    )]
    TooManySequences {
        /// The first token of the sequence that exceeds the limit.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// Maximum number of sequences in a batch.
        max_batch_sequences: u32,
    },
    /// The preceding token is neither in the cache nor in the batch.
    #[error("sequence {seq}: position {position} at index {index}, expected {expected}")]
    PositionGap {
        /// The token's index.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// The given position.
        position: Position,
        /// The next position of the sequence.
        expected: Position,
    },
    /// The position is already used, in the cache (remove it there first) or by an earlier token of
    /// the batch.
    #[error("sequence {seq}: position {position} at index {index} is taken, expected {expected}")]
    PositionRepeat {
        /// The token's index.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// The given position.
        position: Position,
        /// The next position of the sequence.
        expected: Position,
    },
    /// The sequence has reached its context limit: end the reply or shift.
    #[error("sequence {seq}: index {index} is past the context of {context_tokens} tokens")]
    ContextFull {
        /// The first token that does not fit.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// Maximum number of tokens in a sequence.
        context_tokens: u32,
    },
    /// The device stores one sampled token per sequence. Its position directly follows the cached
    /// tokens.
    #[error(
        "sequence {seq}: the last sampled token at index {index} must be its first token of the batch"
    )]
    LastSampledNotFirst {
        /// The token's index.
        index: u32,
        /// Its sequence.
        seq: SeqId,
    },
    /// An empty sequence has no sampled token. Start it with
    /// [`TokenInput::Id`](super::TokenInput::Id).
    #[error("sequence {seq}: the last sampled token at index {index} cannot start a sequence")]
    NothingSampled {
        /// The token's index.
        index: u32,
        /// Its sequence.
        seq: SeqId,
    },
    /// Request fewer outputs.
    #[error("the output at index {index} is one more than the {max_outputs} of a batch")]
    TooManyOutputs {
        /// The first output that exceeds the limit.
        index: u32,
        /// Maximum number of outputs of a batch.
        max_outputs: u32,
    },
    /// Request fewer rows of logits.
    #[error("the logits at index {index} are one row more than the {max_logits} of a batch")]
    TooManyLogits {
        /// The first row that exceeds the limit.
        index: u32,
        /// Maximum number of logits rows of a batch.
        max_logits: u32,
    },
}
