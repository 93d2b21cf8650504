use walla_types::{Position, SeqId, TokenId};

/// Why a token or a batch was refused. Indices are the batch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Run this batch first, or give the batch more room at construction.
    #[error("the batch is full: {tokens_max} tokens")]
    Full {
        /// Tokens of a batch.
        tokens_max: u32,
    },
    /// There is nothing to evaluate.
    #[error("the batch is empty")]
    Empty,
    /// The token is of another model, or is no token.
    #[error("token {token} at index {index} is not below the vocabulary's size {vocab}")]
    TokenOutOfVocabulary {
        /// Index that it would have had.
        index: u32,
        /// The token.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The caller's handle is stale or wrong.
    #[error("sequence {seq} at index {index} does not exist, ids are below {sequences_max}")]
    SequenceOutOfRange {
        /// Index that it would have had.
        index: u32,
        /// The sequence.
        seq: SeqId,
        /// Sequences that exist.
        sequences_max: u32,
    },
    /// Leave the sequence to the next batch.
    #[error(
        "sequence {seq} at index {index} is one more than the {batch_sequences_max} of a batch"
    )]
    TooManySequences {
        /// The first token of one sequence too many.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// Sequences of a batch.
        batch_sequences_max: u32,
    },
    /// The token before it is missing, in the cache or in the batch.
    #[error("sequence {seq}: position {position} at index {index}, expected {expected}")]
    PositionGap {
        /// The token.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// What was given.
        position: Position,
        /// The next position of the sequence.
        expected: Position,
    },
    /// The position is taken, in the cache (remove it there first) or by an earlier token of the
    /// batch.
    #[error("sequence {seq}: position {position} at index {index} is taken, expected {expected}")]
    PositionRepeat {
        /// The token.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// What was given.
        position: Position,
        /// The next position of the sequence.
        expected: Position,
    },
    /// The sequence is at its context's end: end the reply or shift.
    #[error("sequence {seq}: index {index} is past the context of {context_tokens} tokens")]
    ContextFull {
        /// The first token that does not fit.
        index: u32,
        /// Its sequence.
        seq: SeqId,
        /// Tokens that a sequence can hold.
        context_tokens: u32,
    },
    /// The device knows one sampled token a sequence, and it comes next after what is in the cache.
    #[error(
        "sequence {seq}: the last sampled token at index {index} must be its first token of the batch"
    )]
    LastSampledNotFirst {
        /// The token.
        index: u32,
        /// Its sequence.
        seq: SeqId,
    },
    /// An empty sequence has sampled nothing: start it with a token.
    #[error("sequence {seq}: the last sampled token at index {index} cannot start a sequence")]
    NothingSampled {
        /// The token.
        index: u32,
        /// Its sequence.
        seq: SeqId,
    },
    /// Ask for fewer outputs.
    #[error("the output at index {index} is one more than the {outputs_max} of a batch")]
    TooManyOutputs {
        /// The first output too many.
        index: u32,
        /// Outputs of a batch.
        outputs_max: u32,
    },
    /// Ask for fewer rows of logits.
    #[error("the logits at index {index} are one row more than the {logits_max} of a batch")]
    TooManyLogits {
        /// The first row too many.
        index: u32,
        /// Rows of logits of a batch.
        logits_max: u32,
    },
}

impl BatchError {
    /// The sequence that is to blame, if one is:
    /// [`Batch::remove_sequence`](super::Batch::remove_sequence) lets the others go on.
    #[must_use]
    pub const fn sequence(&self) -> Option<SeqId> {
        match *self {
            Self::SequenceOutOfRange { seq, .. }
            | Self::TooManySequences { seq, .. }
            | Self::PositionGap { seq, .. }
            | Self::PositionRepeat { seq, .. }
            | Self::ContextFull { seq, .. }
            | Self::LastSampledNotFirst { seq, .. }
            | Self::NothingSampled { seq, .. } => Some(seq),
            Self::Full { .. }
            | Self::Empty
            | Self::TokenOutOfVocabulary { .. }
            | Self::TooManyOutputs { .. }
            | Self::TooManyLogits { .. } => None,
        }
    }
}
