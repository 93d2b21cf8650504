use core::ops::Range;

use walla_types::{Position, SeqId};

/// Reason why an operation on the ledger was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The id is not below `max_sequences`: the caller's sequence id is stale or wrong.
    #[error("sequence {seq} does not exist, ids are below {max_sequences}")]
    UnknownSequence {
        /// The given sequence.
        seq: SeqId,
        /// Number of sequences of the ledger.
        max_sequences: u32,
    },
    /// Retry after a fence passes (if `fenced_pages` is sufficient) or after a sequence ends;
    /// preempt otherwise.
    #[error("{wanted_pages} KV pages wanted, {free_pages} free, {fenced_pages} behind a fence")]
    NoPages {
        /// Pages that the operation needs now.
        wanted_pages: u32,
        /// Pages that are free now.
        free_pages: u32,
        /// Pages that become free as steps complete, without preemption.
        fenced_pages: u32,
    },
    /// The sequence has reached its context limit: end the reply or shift.
    #[error("sequence {seq} would hold {wanted_tokens} tokens, its context holds {context_tokens}")]
    ContextFull {
        /// The sequence.
        seq: SeqId,
        /// Requested length.
        wanted_tokens: u64,
        /// Maximum tokens of a page table.
        context_tokens: u32,
    },
    /// Tokens follow the range, and a sequence cannot have holes: use `remove_and_shift`.
    #[error(
        "sequence {seq}: tokens follow {range:?} (length {len}); remove_and_shift closes the gap"
    )]
    MiddleRemoval {
        /// The sequence.
        seq: SeqId,
        /// The range to remove.
        range: Range<Position>,
        /// Tokens of the sequence.
        len: u32,
    },
    /// Recurrent state cannot be truncated: only the whole sequence can be removed or copied.
    #[error(
        "sequence {seq} has recurrent state, which only whole removal and whole copy leave valid"
    )]
    Recurrent {
        /// The sequence.
        seq: SeqId,
    },
    /// The model or the device cannot rotate stored keys: remove a tail, or restart the sequence.
    #[error("sequence {seq} cannot be shifted: the device cannot rotate stored keys")]
    CannotShift {
        /// The sequence.
        seq: SeqId,
    },
    /// Only a prefix can be shared: the range must start at 0.
    #[error("sequence {seq}: a copy starts at position 0, not {start}")]
    CopyNotPrefix {
        /// The sequence copied from.
        seq: SeqId,
        /// Requested start.
        start: Position,
    },
    /// Remove the destination's tokens first.
    #[error("sequence {seq} holds {len} tokens; a copy needs an empty destination")]
    DestinationNotEmpty {
        /// The destination.
        seq: SeqId,
        /// Number of its tokens.
        len: u32,
    },
    /// The operation reads cells that the current step will write: submit the step (`retire`) and
    /// retry.
    #[error(
        "sequence {seq} has {unwritten_tokens} appended tokens that no submitted step writes yet"
    )]
    Unwritten {
        /// The sequence.
        seq: SeqId,
        /// Tokens appended since the last `retire`.
        unwritten_tokens: u32,
    },
    /// Execute the commands of the list and retry.
    #[error("{wanted} commands wanted, room for {free}")]
    CommandsFull {
        /// Maximum number of commands that the operation emits.
        wanted: usize,
        /// Free entries of the list.
        free: usize,
    },
}

/// A size of the ledger options is outside its range. Positions are `u32`, and shifts of a context
/// must fit an `i32`; more pages or larger page tables would take gibibytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {size}, expected {min} to {max}")]
pub struct InvalidLedger {
    /// The option, or a product of two.
    pub what: &'static str,
    /// Its value.
    pub size: u64,
    /// The smallest valid value. One page is reserved, so `pages` is at least 2.
    pub min: u64,
    /// The largest valid value.
    pub max: u64,
}
