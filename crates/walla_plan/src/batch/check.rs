use walla_types::{Position, SeqId};

use super::{Batch, BatchError, BatchLimits, Entry, Output, TokenInput};
use crate::KvLedger;

/// Marks an absent slot or an absent next token.
pub(crate) const NONE: u32 = u32::MAX;

/// A sequence of a batch, in the order of first appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceSlot {
    pub(crate) seq: SeqId,
    /// Batch index of its first token.
    pub(crate) first: u32,
    /// Batch index of its last token.
    last: u32,
    /// Tokens in the batch.
    pub(crate) tokens: u32,
    /// Position of the next token.
    next_position: Position,
}

/// Result of the check for one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) position: Position,
    /// Index of its sequence's slot.
    pub(crate) slot: u32,
    /// Tokens of its sequence before it in the batch.
    pub(crate) rank: u32,
    /// Batch index of its sequence's next token, or [`NONE`].
    pub(crate) next: u32,
    /// Requested output; never [`Output::Unsaid`].
    pub(crate) output: Output,
}

/// Index of the tokens of each sequence.
#[derive(Clone, Debug)]
pub(super) struct Index {
    links: Vec<Link>,
    slots: Vec<SequenceSlot>,
    /// Slot of each sequence id, or [`NONE`]. Only the sequences in `slots` have an entry.
    slot_of: Vec<u32>,
    outputs: u32,
    logits: u32,
    /// Whether any token specifies its output.
    said: bool,
}

impl Index {
    pub(super) fn new(limits: &BatchLimits) -> Self {
        Self {
            links: Vec::with_capacity(limits.max_tokens as usize),
            slots: Vec::with_capacity(limits.max_batch_sequences as usize),
            slot_of: vec![NONE; limits.max_sequences as usize],
            outputs: 0,
            logits: 0,
            said: false,
        }
    }

    fn clear(&mut self) {
        for slot in self.slots.drain(..) {
            self.slot_of[slot.seq.index()] = NONE;
        }
        self.links.clear();
        (self.outputs, self.logits, self.said) = (0, 0, false);
    }
}

impl Batch {
    /// Checks the batch against the ledger's current lengths and resolves positions and outputs.
    /// O(tokens).
    ///
    /// A batch can be checked again, also after an error and after a change of the ledger.
    ///
    /// # Errors
    /// [`BatchError`] names the first violation. The tokens of the batch are unchanged.
    pub fn check(&mut self, ledger: &KvLedger) -> Result<CheckedBatch<'_>, BatchError> {
        if self.entries.is_empty() {
            return Err(BatchError::Empty);
        }
        // A batch that was refused before has left a part of its index.
        self.index.clear();
        self.index.said = self.entries.iter().any(|entry| entry.output != Output::Unsaid);
        for index in 0..self.len() {
            let output = self.resolved_output(index);
            self.link(index, output, ledger)?;
            self.count_output(index, output)?;
        }
        Ok(CheckedBatch { batch: self })
    }

    /// Links a token to the preceding tokens of its sequence.
    fn link(&mut self, index: u32, output: Output, ledger: &KvLedger) -> Result<(), BatchError> {
        let Entry { token, position, seq, .. } = self.entries[index as usize];
        let slot_index = self.slot(index, seq, ledger)?;
        let slot = &mut self.index.slots[slot_index as usize];
        let expected = slot.next_position;
        match position {
            Some(position) if position > expected => {
                return Err(BatchError::PositionGap { index, seq, position, expected });
            }
            Some(position) if position < expected => {
                return Err(BatchError::PositionRepeat { index, seq, position, expected });
            }
            _ => {}
        }
        let context_tokens = ledger.context_tokens();
        if expected >= context_tokens {
            return Err(BatchError::ContextFull { index, seq, context_tokens });
        }
        if token == TokenInput::LastSampled {
            if slot.tokens > 0 {
                return Err(BatchError::LastSampledNotFirst { index, seq });
            }
            if expected == 0 {
                return Err(BatchError::NothingSampled { index, seq });
            }
        }
        if slot.tokens > 0 {
            self.index.links[slot.last as usize].next = index;
        }
        self.index.links.push(Link {
            position: expected,
            slot: slot_index,
            rank: slot.tokens,
            next: NONE,
            output,
        });
        slot.last = index;
        slot.tokens += 1;
        slot.next_position += 1;
        Ok(())
    }

    /// The slot of a token's sequence, created at the sequence's first token.
    fn slot(&mut self, index: u32, seq: SeqId, ledger: &KvLedger) -> Result<u32, BatchError> {
        let known = self.index.slot_of[seq.index()]; // `push` has checked the id
        if known != NONE {
            return Ok(known);
        }
        let max_sequences = ledger.options().max_sequences;
        if seq.0 >= max_sequences {
            return Err(BatchError::SequenceOutOfRange { index, seq, max_sequences });
        }
        let max_batch_sequences = self.limits.max_batch_sequences;
        let slot = self.index.slots.len() as u32; // at most `max_batch_sequences`
        if slot >= max_batch_sequences {
            return Err(BatchError::TooManySequences { index, seq, max_batch_sequences });
        }
        self.index.slot_of[seq.index()] = slot;
        let next_position = ledger.len(seq);
        let made = SequenceSlot { seq, first: index, last: index, tokens: 0, next_position };
        self.index.slots.push(made);
        Ok(slot)
    }

    fn resolved_output(&self, index: u32) -> Output {
        match self.entries[index as usize].output {
            Output::Unsaid if !self.index.said && index + 1 == self.len() => Output::Sample,
            Output::Unsaid => Output::None,
            said => said,
        }
    }

    fn count_output(&mut self, index: u32, output: Output) -> Result<(), BatchError> {
        let BatchLimits { max_outputs, max_logits, .. } = self.limits;
        self.index.outputs += u32::from(output.is_output());
        self.index.logits += u32::from(output.has_logits());
        if self.index.outputs > max_outputs {
            return Err(BatchError::TooManyOutputs { index, max_outputs });
        }
        if self.index.logits > max_logits {
            return Err(BatchError::TooManyLogits { index, max_logits });
        }
        Ok(())
    }
}

/// A batch that has passed [`Batch::check`]: every token has a position, and no sequence has a gap.
///
/// Indices of its methods are below [`len`](Self::len).
#[derive(Clone, Copy, Debug)]
pub struct CheckedBatch<'a> {
    batch: &'a Batch,
}

impl<'a> CheckedBatch<'a> {
    /// Tokens, at least 1.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.batch.len()
    }

    /// Always `false`: an empty batch does not pass the check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    pub(crate) fn token(&self, index: u32) -> TokenInput {
        self.batch.entries[index as usize].token
    }

    /// The position of the token at an index.
    ///
    /// # Panics
    /// If the index is not below [`len`](Self::len).
    #[must_use]
    pub fn position(&self, index: u32) -> Position {
        self.link(index).position
    }

    pub(crate) fn seq(&self, index: u32) -> SeqId {
        self.batch.entries[index as usize].seq
    }

    /// The requested output of the token at an index; never [`Output::Unsaid`].
    ///
    /// # Panics
    /// If the index is not below [`len`](Self::len).
    #[must_use]
    pub fn output(&self, index: u32) -> Output {
        self.link(index).output
    }

    /// The sequences with their token counts, in the order of first appearance: the arguments for
    /// [`append`](KvLedger::append).
    pub fn sequences(&self) -> impl ExactSizeIterator<Item = (SeqId, u32)> + use<'a> {
        self.batch.index.slots.iter().map(|slot| (slot.seq, slot.tokens))
    }

    pub(crate) fn slots(&self) -> &'a [SequenceSlot] {
        &self.batch.index.slots
    }

    /// The tokens in batch order.
    pub(crate) fn tokens(&self) -> impl ExactSizeIterator<Item = (SeqId, Link)> + use<'a> {
        let Batch { entries, index, .. } = self.batch;
        entries.iter().map(|entry| entry.seq).zip(index.links.iter().copied())
    }

    pub(crate) fn link(&self, index: u32) -> Link {
        self.batch.index.links[index as usize]
    }
}
