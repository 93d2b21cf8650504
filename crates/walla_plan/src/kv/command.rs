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

/// What a device does to its memory before the step's forward pass, in list order.
///
/// Commands name physical pages, so they mean the same whatever later operations do to the page
/// tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvCommand {
    /// Copies a whole page, keys and values of every layer. The pages differ.
    CopyPage {
        /// Read; other sequences still own it.
        from: PageId,
        /// Written; exclusively owned.
        to: PageId,
    },
    /// Moves cells of one page to one page and turns their keys by `turn` positions.
    ///
    /// Neither side crosses the end of its page. The sides can overlap (then `to` is not above
    /// `from` in the same page), so a device reads all cells before it writes one. If `from == to`,
    /// values stay and keys are turned in place.
    MoveCells {
        /// First cell read.
        from: Cell,
        /// First cell written.
        to: Cell,
        /// Cells moved, at least 1.
        cells: u32,
        /// Positions that the tokens advance by: negative, as tokens only move down.
        turn: i32,
    },
    /// Tells whatever remembers recent tokens by position (penalties) that those in `from..end`
    /// advance by `turn`.
    ShiftRecent {
        /// The sequence.
        seq: SeqId,
        /// First old position that moves.
        from: Position,
        /// One after the last old position.
        end: Position,
        /// Positions that the tokens advance by: negative.
        turn: i32,
    },
    /// Copies what a sequence keeps outside its pages: recurrent state, the last sampled token,
    /// recent tokens.
    CopySequence {
        /// Read.
        from: SeqId,
        /// Written.
        to: SeqId,
    },
    /// Zeroes what a sequence keeps outside its pages. Emitted where there is recurrent state;
    /// everything else is bounded by the sequence's length.
    ClearSequence {
        /// Written.
        seq: SeqId,
    },
}

/// A list of commands with a capacity fixed at construction.
///
/// An operation that needs more room than is left is refused with
/// [`LedgerError::CommandsFull`](super::LedgerError::CommandsFull) and can be retried in the next
/// step. An append emits at most one command, a copy or a removal of one sequence at most one, a
/// shift at most two for each page that it writes and two more.
#[derive(Clone, Debug)]
pub struct KvCommands {
    commands: Vec<KvCommand>,
    capacity: usize,
}

impl KvCommands {
    /// An empty list with room for `capacity` commands.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { commands: Vec::with_capacity(capacity), capacity }
    }

    /// The commands in the order in which they run.
    #[must_use]
    pub fn as_slice(&self) -> &[KvCommand] {
        &self.commands
    }

    /// Commands that still fit.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity - self.commands.len()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Forgets all commands and keeps the room.
    pub fn clear(&mut self) {
        self.commands.clear();
    }

    /// Forgets the first `count` commands, which a device has taken, and keeps the room.
    pub fn forget_first(&mut self, count: usize) {
        self.commands.drain(..count.min(self.commands.len()));
    }

    /// Adds a command; the caller has checked [`free`](Self::free).
    pub(super) fn push(&mut self, command: KvCommand) {
        debug_assert!(self.free() > 0, "room is checked before an operation changes anything");
        self.commands.push(command);
    }
}
