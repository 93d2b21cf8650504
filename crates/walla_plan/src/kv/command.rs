use walla_types::{Position, SeqId};

use super::PageId;

/// One cell of the arena: the keys and values of one token in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The page.
    pub page: PageId,
    /// Token slot in the page, below `page_tokens`.
    pub slot: u32,
}

/// A device memory operation, executed before the step's forward pass, in list order.
///
/// Commands name physical pages. Later changes of the page tables do not affect them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvCommand {
    /// Copies a whole page, keys and values of every layer. The pages differ.
    CopyPage {
        /// Source; other sequences still own it.
        from: PageId,
        /// Destination; exclusively owned.
        to: PageId,
    },
    /// Moves cells from one page to one page and rotates their keys by `delta` positions.
    ///
    /// Neither range crosses the end of its page. The ranges can overlap (then `to` is not above
    /// `from` in the same page), so a device reads all cells before it writes the first. If `from
    /// == to`, values stay and keys are rotated in place.
    MoveCells {
        /// First cell read.
        from: Cell,
        /// First cell written.
        to: Cell,
        /// Cells moved, at least 1.
        cells: u32,
        /// Change of the tokens' positions: negative, because tokens only move down.
        delta: i32,
    },
    /// Adds `delta` to the positions in `from..end` wherever a device stores recent tokens by
    /// position (penalties).
    ShiftRecent {
        /// The sequence.
        seq: SeqId,
        /// First old position that is moved.
        from: Position,
        /// End of the old positions, exclusive.
        end: Position,
        /// Change of the positions: negative.
        delta: i32,
    },
    /// Copies the state of a sequence outside its pages: recurrent state, last sampled token,
    /// recent tokens.
    CopySequence {
        /// Source.
        from: SeqId,
        /// Destination.
        to: SeqId,
    },
    /// Zeroes the state of a sequence outside its pages. Emitted only with recurrent state; all
    /// other state is bounded by the sequence's length.
    ClearSequence {
        /// Destination.
        seq: SeqId,
    },
}

/// A list of commands with a capacity fixed at construction.
///
/// An operation that needs more free entries is refused with
/// [`LedgerError::CommandsFull`](super::LedgerError::CommandsFull) and can be retried in the next
/// step. Maximum number of commands: one for an append, a copy or a removal of one sequence; for a
/// shift, two for each page that it writes and two more.
#[derive(Clone, Debug)]
pub struct KvCommands {
    commands: Vec<KvCommand>,
    capacity: usize,
}

impl KvCommands {
    /// An empty list with a capacity of `capacity` commands.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { commands: Vec::with_capacity(capacity), capacity }
    }

    /// The commands in execution order.
    #[must_use]
    pub fn as_slice(&self) -> &[KvCommand] {
        &self.commands
    }

    /// Number of free entries.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity - self.commands.len()
    }

    /// Whether the list has no commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Removes all commands and keeps the allocation.
    pub fn clear(&mut self) {
        self.commands.clear();
    }

    /// Removes the first `count` commands, which a device has taken, and keeps the allocation.
    pub fn remove_first(&mut self, count: usize) {
        self.commands.drain(..count.min(self.commands.len()));
    }

    /// Adds a command. The caller has checked [`free`](Self::free).
    pub(super) fn push(&mut self, command: KvCommand) {
        debug_assert!(self.free() > 0, "room is checked before an operation changes anything");
        self.commands.push(command);
    }
}
