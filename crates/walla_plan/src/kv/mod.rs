//! The KV ledger: maps the tokens of each sequence to pages.
//!
//! The ledger is host-side accounting of device memory; it never accesses that memory. It allocates
//! pages, shares them between sequences by reference count, and emits
//! [`CacheCommand`](walla_types::CacheCommand)s: the copies, moves, rotations and clears that the
//! device must execute to match the ledger.
//!
//! # Cells
//! Token `p` of a sequence is stored in cell `p % page_tokens` of page `pages(seq)[p /
//! page_tokens]`. The cell *is* the position: a sequence has no holes, and its length and page
//! table describe it completely. Keys are stored rotated by their position.
//!
//! # One step
//! 1. Sequence operations (`remove`, `copy`, …) and [`append`](KvLedger::append) fill a
//!    [`KvCommands`] list.
//! 2. The device runs the list in order, then the step's forward passes, which write the appended
//!    cells.
//! 3. [`retire(fence)`](KvLedger::retire) closes the step: pages freed up to here get its fence.
//! 4. After the step has completed, [`release_up_to(fence)`](KvLedger::release_up_to) makes them
//!    free.
//!
//! Commands run before the forward pass. A command therefore must not read a cell that the same
//! step appends; the ledger refuses such an operation ([`LedgerError::Unwritten`]).
//!
//! # Counterparts in llama.cpp
//! | llama.cpp | walla |
//! |---|---|
//! | `llama_memory_seq_rm(seq, p0, p1)` | [`remove(seq, p0..p1)`](KvLedger::remove): from the middle only with a shift |
//! | `seq_rm(p0, p1)` then `seq_add(p1, -1, p0 - p1)` | [`remove_and_shift(seq, p0..p1)`](KvLedger::remove_and_shift) |
//! | `llama_memory_seq_add` alone | – (a sequence has no holes) |
//! | `llama_memory_seq_cp` | [`copy`](KvLedger::copy): a prefix, into an empty sequence |
//! | `llama_memory_seq_keep`, `llama_memory_clear` | [`remove`](KvLedger::remove) of each sequence |
//! | `llama_memory_seq_pos_min`, `_max` | always 0; [`len`](KvLedger::len)` - 1` |
//! | `llama_memory_can_shift` | [`LedgerOptions::can_shift`] and not [`LedgerOptions::recurrent`] |
//! | `llama_memory_seq_div` | – (positions are cells, and cells are integers) |
//!
//! # Rules
//! 1. An operation that returns an error has changed and emitted nothing.
//! 2. A page with more than one owner is never written: the writer gets its own copy first.
//! 3. A freed page is not available until the fence of the last step that may access it has passed.
//! 4. Page 0 has no owner: padding rows write to it.
//! 5. The same calls in the same order allocate the same pages.

mod check;
mod command;
mod confine;
mod error;
mod ledger;
mod operations;
mod pool;
mod shift;

pub use command::KvCommands;
pub use error::{InvalidLedger, LedgerError};
pub use ledger::{KvLedger, LedgerOptions};

/// A page of the KV arena: cells for `page_tokens` tokens in every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PageId(pub u32);

impl PageId {
    /// The page that padding rows write to. No sequence ever owns it.
    pub(crate) const PADDING: Self = Self(0);

    /// The id as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a step on the device's stream; it increases with each step.
pub type Fence = u64;
