//! All tokens that one step wants evaluated, checked as a whole.

mod check;
mod error;

pub use check::CheckedBatch;
pub(crate) use check::{NONE, SequenceSlot};
pub use error::BatchError;

use walla_types::{Position, SeqId, TokenId};

/// What stands at a place of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenInput {
    /// This token.
    Id(TokenId),
    /// The token that the device sampled last for the sequence: the host need not have read it yet.
    /// Only the first token of a sequence in a batch can be one.
    LastSampled,
}

/// What is wanted of a token's hidden state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Output {
    /// Nothing is said. If nothing is said of any token of the batch, the last one is
    /// [`Output::Sample`], as llama.cpp does without a `logits` array; otherwise it means
    /// [`Output::None`].
    #[default]
    Unsaid,
    /// Nothing: the token only fills the cache.
    None,
    /// The next token, drawn on the device.
    Sample,
    /// The row of logits, copied to the host.
    Logits,
    /// Both.
    SampleAndLogits,
}

impl Output {
    /// Whether anything is wanted.
    #[must_use]
    pub const fn is_output(self) -> bool {
        self.samples() || self.has_logits()
    }

    /// Whether a token is drawn.
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

/// Sizes that a batch is checked against; they are also what everything downstream allocates once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Tokens of the vocabulary: ids are below it.
    pub vocab: u32,
    /// Sequences: ids are below it.
    pub sequences_max: u32,
    /// Tokens of one batch (llama.cpp's `n_batch`).
    pub tokens_max: u32,
    /// Different sequences in one batch.
    pub batch_sequences_max: u32,
    /// Outputs of one batch: rows of the pinned result block.
    pub outputs_max: u32,
    /// Outputs with logits of one batch: rows of the pinned logits block.
    pub logits_max: u32,
}

impl BatchLimits {
    /// Limits where every token of a batch can be of another sequence and an output with logits.
    #[must_use]
    pub const fn new(vocab: u32, sequences_max: u32, tokens_max: u32) -> Self {
        let batch_sequences_max =
            if sequences_max < tokens_max { sequences_max } else { tokens_max };
        let (outputs_max, logits_max) = (tokens_max, tokens_max);
        Self { vocab, sequences_max, tokens_max, batch_sequences_max, outputs_max, logits_max }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: TokenInput,
    pub(crate) position: Option<Position>,
    pub(crate) seq: SeqId,
    pub(crate) output: Output,
}

/// Collects tokens for one step; reusable, and without allocation after construction.
///
/// It is llama.cpp's `llama_batch`, but for two things. A token belongs to exactly one sequence:
/// what several sequences share is evaluated once and then shared by
/// [`KvLedger::copy`](crate::KvLedger::copy), so that sequences never get coupled and every split
/// works on every batch. And tokens of one sequence stand in ascending positions, without gaps,
/// from the sequence's current length on (they may lie apart, with other sequences between them).
/// Embeddings are no input.
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
    /// An empty batch with room for `limits.tokens_max` tokens.
    #[must_use]
    pub fn new(limits: BatchLimits) -> Self {
        let entries = Vec::with_capacity(limits.tokens_max as usize);
        Self { limits, entries, index: check::Index::new(&limits) }
    }

    /// The limits that it was made with.
    #[must_use]
    pub fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// Tokens so far.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.entries.len() as u32 // at most `tokens_max`
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets all tokens and keeps the room.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Forgets the tokens from index `len` on: takes back what was pushed for a request that turned
    /// out wrong.
    pub fn truncate(&mut self, len: u32) {
        self.entries.truncate(len as usize);
    }

    /// Takes out all tokens of a sequence, so that the others can go on without it. Later tokens
    /// get lower indices; O(tokens).
    pub fn remove_sequence(&mut self, seq: SeqId) {
        self.entries.retain(|entry| entry.seq != seq);
    }

    /// Adds a token and returns its index. `position: None` is the next one of its sequence.
    ///
    /// # Errors
    /// [`BatchError::Full`], [`BatchError::TokenOutOfVocabulary`],
    /// [`BatchError::SequenceOutOfRange`]; the batch is as before.
    pub fn push(
        &mut self,
        token: TokenInput,
        position: Option<Position>,
        seq: SeqId,
        output: Output,
    ) -> Result<u32, BatchError> {
        let BatchLimits { vocab, sequences_max, tokens_max, .. } = self.limits;
        let index = self.len();
        if index >= tokens_max {
            return Err(BatchError::Full { tokens_max });
        }
        if let TokenInput::Id(token) = token
            && token.0 >= vocab
        {
            return Err(BatchError::TokenOutOfVocabulary { index, token, vocab });
        }
        if seq.0 >= sequences_max {
            return Err(BatchError::SequenceOutOfRange { index, seq, sequences_max });
        }
        self.entries.push(Entry { token, position, seq, output });
        Ok(index)
    }
}
