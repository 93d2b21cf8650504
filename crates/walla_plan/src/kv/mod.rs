//! The KV ledger: which page holds which tokens of which sequence.
//!
//! The ledger is the host's book of a device memory that it never touches. It hands out pages,
//! shares them between sequences by reference count, and says in [`KvCommand`]s what a device must
//! copy, move, rotate or clear so that memory agrees with the book.
//!
//! # Cells
//! Token `p` of a sequence lies in cell `p % page_tokens` of page `pages(seq)[p / page_tokens]`.
//! The cell *is* the position: a sequence has no holes, and nothing but its length and its page
//! table describes it. Keys are stored rotated by their position.
//!
//! # One step
//! 1. Sequence operations (`remove`, `copy`, …) and [`append`](KvLedger::append) fill a
//!    [`KvCommands`] list.
//! 2. The device runs the list in order, then the step's forward passes, which write the appended
//!    cells.
//! 3. [`retire(fence)`](KvLedger::retire) closes the step: pages freed so far carry its fence.
//! 4. When the step is known to be complete, [`release_up_to(fence)`](KvLedger::release_up_to)
//!    makes them free.
//!
//! Since commands run before the forward pass, a command must not read a cell that the same step
//! appends. The ledger knows and refuses it ([`LedgerError::Unwritten`]).
//!
//! # From llama.cpp
//! | there | here |
//! |---|---|
//! | `llama_memory_seq_rm(seq, p0, p1)` | [`remove(seq, p0..p1)`](KvLedger::remove); from the middle only with a shift |
//! | `seq_rm(p0, p1)` then `seq_add(p1, -1, p0 - p1)` | [`remove_and_shift(seq, p0..p1)`](KvLedger::remove_and_shift) |
//! | `llama_memory_seq_add` | [`shift`](KvLedger::shift): downwards, as there are no holes to fill |
//! | `llama_memory_seq_cp` | [`copy`](KvLedger::copy): a prefix, into an empty sequence |
//! | `llama_memory_seq_keep`, `llama_memory_clear` | [`keep`](KvLedger::keep), [`clear`](KvLedger::clear) |
//! | `llama_memory_seq_pos_min`, `_max` | always 0; [`len`](KvLedger::len)` - 1` |
//! | `llama_memory_can_shift` | [`LedgerOptions::can_shift`] and not [`LedgerOptions::recurrent`] |
//! | `llama_memory_seq_div` | – (positions are cells, and cells are whole) |
//!
//! # Rules
//! 1. An operation that returns an error has changed nothing and emitted nothing.
//! 2. A page with more than one owner is never written: the writer gets its own copy first.
//! 3. A freed page is no capacity until the fence of the step that may still touch it has passed.
//! 4. Page 0 belongs to nobody: padding rows write there.
//! 5. The same calls in the same order hand out the same pages.

mod batch;
mod check;
mod command;
mod confine;
mod error;
mod ledger;
mod operations;
mod pool;
mod shift;

pub use command::{Cell, KvCommand, KvCommands};
pub use error::{InvalidLedger, LedgerError};
pub use ledger::{KvLedger, LedgerOptions};

/// A page of the KV arena: room for `page_tokens` tokens in every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageId(pub u32);

impl PageId {
    /// The page that padding rows write to; no sequence ever owns it.
    pub const PADDING: Self = Self(0);

    /// The id as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a step on the device's stream; a later step has a higher one.
pub type Fence = u64;
