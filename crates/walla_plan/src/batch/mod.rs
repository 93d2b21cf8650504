//! The tokens of one step, validated as a whole.

mod check;
mod error;

pub use check::CheckedBatch;
pub(crate) use check::{NONE, SequenceSlot};
pub use error::BatchError;

use walla_types::{Position, SeqId, TokenId};

/// Input token of a batch entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenInput {
    /// A given token.
    Id(TokenId),
    /// The token that the device sampled last for the sequence. The host need not have read it yet.
    /// Only the first token of a sequence in a batch can be `LastSampled`.
    LastSampled,
}

/// Requested output of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Output {
    /// Unspecified. If all tokens of the batch are unspecified, the last one is [`Output::Sample`],
    /// as in llama.cpp without a `logits` array. Otherwise it means [`Output::None`].
    #[default]
    Unsaid,
    /// No output: the token only fills the KV cache.
    None,
    /// The next token, sampled on the device.
    Sample,
    /// The row of logits, copied to the host.
    Logits,
    /// A sample and the logits.
    SampleAndLogits,
}

impl Output {
    /// Whether the token has any output.
    #[must_use]
    pub const fn is_output(self) -> bool {
        self.samples() || self.has_logits()
    }

    /// Whether the device samples a token.
    #[must_use]
    pub const fn samples(self) -> bool {
        matches!(self, Self::Sample | Self::SampleAndLogits)
    }

    /// Whether logits are copied to the host.
    #[must_use]
    pub const fn has_logits(self) -> bool {
        matches!(self, Self::Logits | Self::SampleAndLogits)
    }
}

/// Limits that a batch is checked against. Downstream buffers are allocated once with these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Vocabulary size: token ids are below it.
    pub vocab: u32,
    /// Number of sequences: sequence ids are below it.
    pub max_sequences: u32,
    /// Maximum number of tokens in one batch (llama.cpp's `n_batch`).
    pub max_tokens: u32,
    /// Maximum number of different sequences in one batch.
    pub max_batch_sequences: u32,
    /// Maximum number of outputs of one batch: rows of the pinned result block.
    pub max_outputs: u32,
    /// Maximum number of outputs with logits of one batch: rows of the pinned logits block.
    pub max_logits: u32,
}

impl BatchLimits {
    /// Limits for the worst case: every token is of a different sequence and is an output with
    /// logits.
    #[must_use]
    pub const fn new(vocab: u32, max_sequences: u32, max_tokens: u32) -> Self {
        let max_batch_sequences =
            if max_sequences < max_tokens { max_sequences } else { max_tokens };
        let (max_outputs, max_logits) = (max_tokens, max_tokens);
        Self { vocab, max_sequences, max_tokens, max_batch_sequences, max_outputs, max_logits }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: TokenInput,
    pub(crate) position: Option<Position>,
    pub(crate) seq: SeqId,
    pub(crate) output: Output,
}

/// Collects the tokens of one step. Reusable; does not allocate after construction.
///
/// It corresponds to llama.cpp's `llama_batch`, with three differences:
/// - A token belongs to exactly one sequence. A prefix that several sequences share is evaluated
///   once and shared by [`KvLedger::copy`](crate::KvLedger::copy). Sequences are therefore never
///   coupled, and every split works on every batch.
/// - Tokens of one sequence have ascending positions without gaps, starting at the sequence's
///   current length. They need not be adjacent in the batch.
/// - Embeddings are not supported as input.
///
/// # Examples
/// ```
/// use walla_plan::{Batch, BatchError, BatchLimits, KvLedger, LedgerOptions, Output, TokenInput};
/// use walla_types::{SeqId, TokenId};
///
/// let ledger = KvLedger::new(LedgerOptions::default())?;
/// let mut batch = Batch::new(BatchLimits::new(32_000, 64, 512));
/// for id in [1, 15043, 3186] {
///     batch.push(TokenInput::Id(TokenId(id)), None, SeqId(3), Output::Unsaid)?;
/// }
/// let checked = batch.check(&ledger)?;
/// assert_eq!(checked.output(2), Output::Sample); // only the last token is an output
/// assert_eq!(checked.position(2), 2);
///
/// let refused = batch.push(TokenInput::Id(TokenId(32_000)), None, SeqId(3), Output::None);
/// assert!(matches!(refused, Err(BatchError::TokenOutOfVocabulary { index: 3, .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Batch {
    limits: BatchLimits,
    entries: Vec<Entry>,
    /// Filled by `check`.
    index: check::Index,
}

impl Batch {
    /// An empty batch with capacity for `limits.max_tokens` tokens.
    #[must_use]
    pub fn new(limits: BatchLimits) -> Self {
        let entries = Vec::with_capacity(limits.max_tokens as usize);
        Self { limits, entries, index: check::Index::new(&limits) }
    }

    /// The limits passed to [`new`](Self::new).
    #[must_use]
    pub fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.entries.len() as u32 // at most `max_tokens`
    }

    /// Number of tokens with an output. O(tokens).
    #[must_use]
    pub fn outputs(&self) -> u32 {
        self.entries.iter().filter(|entry| entry.output.is_output()).count() as u32
    }

    /// Whether the batch has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all tokens and keeps the allocation.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Removes the tokens from index `len` on, for example to roll back a request that failed to
    /// build.
    pub fn truncate(&mut self, len: u32) {
        self.entries.truncate(len as usize);
    }

    /// Removes all tokens of a sequence, so that the step can run without it. Later tokens get
    /// lower indices. O(tokens).
    pub fn remove_sequence(&mut self, seq: SeqId) {
        self.entries.retain(|entry| entry.seq != seq);
    }

    /// Adds a token and returns its index. `position: None` means the next position of its
    /// sequence.
    ///
    /// # Errors
    /// [`BatchError::Full`], [`BatchError::TokenOutOfVocabulary`],
    /// [`BatchError::SequenceOutOfRange`]; the batch is unchanged.
    pub fn push(
        &mut self,
        token: TokenInput,
        position: Option<Position>,
        seq: SeqId,
        output: Output,
    ) -> Result<u32, BatchError> {
        let BatchLimits { vocab, max_sequences, max_tokens, .. } = self.limits;
        let index = self.len();
        if index >= max_tokens {
            return Err(BatchError::Full { max_tokens });
        }
        if let TokenInput::Id(token) = token
            && token.0 >= vocab
        {
            return Err(BatchError::TokenOutOfVocabulary { index, token, vocab });
        }
        if seq.0 >= max_sequences {
            return Err(BatchError::SequenceOutOfRange { index, seq, max_sequences });
        }
        self.entries.push(Entry { token, position, seq, output });
        Ok(index)
    }
}
