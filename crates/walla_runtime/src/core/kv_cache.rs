//! The KV cache of all agents: sequences, pages, the page limit and the page claim.

use std::ops::{Range, RangeBounds, RangeTo};

use walla_device::CachePart;
use walla_exec::{ExecError, Executor, Sequences, StepError};
use walla_plan::{KvLedger, LedgerError};
use walla_types::SeqId;

use super::MAX_STEPS_AHEAD;
use super::snapshots::Snapshots;
use crate::api::EngineStats;

/// The executor with its cache. A slot is a sequence.
///
/// Others submit and collect steps; only this module changes the [ledger](Self::ledger) otherwise.
#[derive(Debug)]
pub(super) struct KvCache {
    pub(super) sequences: Sequences,
    /// Target number of pages for a resize, which runs when no step is in flight.
    resizes_to: Option<u32>,
    /// Pages of the last limit for which there was no memory.
    pages_refused: u32,
    /// A reply ended or pages were freed since the last plan: agents that lacked pages may
    /// continue.
    has_freed: bool,
    /// The agent that preempted others for pages which steps in flight still hold.
    pub claim: Option<usize>,
    /// Scratch: a bit for each page.
    pub(super) held_pages: Vec<u64>,
    /// Scratch: pages of a copy.
    page_numbers: Vec<u32>,
    /// Changed by the methods in [`snapshots`](super::snapshots).
    pub(super) snapshots: Snapshots,
}

fn seq(slot: usize) -> SeqId {
    SeqId(slot as u32)
}

impl KvCache {
    pub fn new(sequences: Sequences) -> Self {
        let options = sequences.executor.options();
        let (first, count) = (options.max_sequences, options.max_snapshots);
        let snapshots = Snapshots::new(first, count, options.context_tokens);
        Self {
            held_pages: vec![0; (options.pages as usize).div_ceil(64)],
            sequences,
            page_numbers: Vec::new(),
            resizes_to: None,
            pages_refused: 0,
            has_freed: false,
            claim: None,
            snapshots,
        }
    }

    pub fn executor(&self) -> &Executor {
        &self.sequences.executor
    }

    pub fn executor_mut(&mut self) -> &mut Executor {
        &mut self.sequences.executor
    }

    /// Which sequence holds which pages.
    pub fn ledger(&self) -> &KvLedger {
        &self.sequences.ledger
    }

    /// Number of submitted positions of a sequence.
    pub fn len(&self, slot: usize) -> u32 {
        self.ledger().len(seq(slot))
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.ledger().is_empty(seq(slot))
    }

    /// Capacity in tokens, shared by all agents.
    pub fn capacity_tokens(&self) -> u32 {
        self.ledger().usable_pages().saturating_mul(self.ledger().options().page_tokens)
    }
}

// Steps.
impl KvCache {
    /// Whether the device accepts another step.
    pub fn accepts_step(&self) -> bool {
        self.executor().in_flight() < MAX_STEPS_AHEAD && self.executor().has_room()
    }
}

// Sequences.
impl KvCache {
    /// Reserves pages for `tokens` more tokens of a sequence.
    ///
    /// # Errors
    /// [`StepError::Ledger`] if no pages are free, [`StepError::Exec`] if the device refuses the
    /// cache operations that precede.
    pub fn reserve(&mut self, slot: usize, tokens: u32) -> Result<(), StepError> {
        loop {
            let Sequences { ledger, commands, .. } = &mut self.sequences;
            match ledger.reserve(seq(slot), tokens, commands) {
                // Usually commands go with the next step; a full list goes now.
                Err(LedgerError::CommandsFull { .. }) if !commands.is_empty() => {
                    self.sequences.flush_cache_ops()?;
                }
                reserved => return Ok(reserved?),
            }
        }
    }

    /// Drops the tokens from `keep` on. Returns `false` if the model's layers do not allow it.
    pub fn cut(&mut self, slot: usize, keep: u32) -> bool {
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        ledger.remove(seq(slot), keep.., commands).is_ok()
    }

    /// Removes tokens from the middle, and shifts the keys of the later ones. Returns `false` if
    /// that is not possible: see [`KvLedger::remove_and_shift`].
    pub fn remove_and_shift(&mut self, slot: usize, gap: Range<u32>) -> bool {
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        ledger.remove_and_shift(seq(slot), gap, commands).is_ok()
    }

    /// Frees all pages of a sequence.
    pub fn clear(&mut self, slot: usize) {
        self.has_freed |= !self.is_empty(slot);
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        if ledger.remove(seq(slot), .., commands).is_err() {
            // The command buffer is full, and `flush_cache_ops` empties it. If that fails too, the
            // device is lost and reports it at the next call.
            let flushed = self.sequences.flush_cache_ops();
            let removed = self.sequences.ledger.remove(seq(slot), .., &mut self.sequences.commands);
            debug_assert!(
                removed.is_ok() || flushed.is_err(),
                "a whole sequence can always be removed"
            );
        }
    }

    /// Whether [`clear`](Self::clear) and [`share`](Self::share) find free commands.
    pub fn has_commands(&self) -> bool {
        self.sequences.commands.free() >= 2
    }

    /// Lets the empty sequence of `to` begin with these tokens of `from`, in whole pages that both
    /// then reference. Returns `false` if that failed.
    pub fn share(&mut self, from: usize, to: usize, tokens: RangeTo<u32>) -> bool {
        self.copy(seq(from), seq(to), tokens)
    }

    /// Lets an empty sequence be a copy of a whole one. Returns `false` if that failed.
    pub(super) fn copy_whole(&mut self, from: SeqId, to: SeqId) -> bool {
        self.copy(from, to, ..)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, tokens: impl RangeBounds<u32>) -> bool {
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        let copied = ledger.copy(from, to, tokens, commands);
        debug_assert!(copied.is_ok(), "a sequence that is there, and room: {copied:?}");
        copied.is_ok()
    }

    /// Enqueues a copy of pages of a sequence, by their index in it, to a buffer.
    ///
    /// # Errors
    /// Any device error.
    pub fn read_pages(
        &mut self,
        seq: SeqId,
        pages: Range<usize>,
        buffer: usize,
    ) -> Result<(), ExecError> {
        self.page_numbers(seq, pages);
        let Self { sequences, page_numbers, .. } = self;
        sequences.executor.read_part(buffer, &CachePart::Pages(page_numbers))
    }

    /// Enqueues a copy of `bytes` to pages of a sequence, by their index in it.
    ///
    /// # Errors
    /// Any device error.
    pub fn write_pages(
        &mut self,
        seq: SeqId,
        pages: Range<usize>,
        buffer: usize,
        bytes: &[u8],
    ) -> Result<(), ExecError> {
        self.page_numbers(seq, pages);
        let Self { sequences, page_numbers, .. } = self;
        let part = CachePart::Pages(page_numbers);
        let mut fill = |to: &mut [u8]| to.copy_from_slice(bytes);
        sequences.executor.write_part(buffer, &part, bytes.len(), &mut fill)
    }

    fn page_numbers(&mut self, seq: SeqId, pages: Range<usize>) {
        let table = self.sequences.ledger.pages(seq).get(pages).unwrap_or_default();
        self.page_numbers.clear();
        self.page_numbers.extend(table.iter().map(|page| page.0));
    }

    /// Appends tokens whose reserved pages were written.
    ///
    /// # Errors
    /// [`StepError::Ledger`] if the pages were not reserved.
    pub fn append_written(&mut self, seq: SeqId, tokens: u32) -> Result<(), StepError> {
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        Ok(ledger.append_written(seq, tokens, commands)?)
    }

    /// Whether no other sequence holds pages, so that waiting does not help.
    pub fn is_only_holder(&self, slot: usize) -> bool {
        let slots = self.ledger().options().max_sequences as usize;
        (0..slots).all(|other| other == slot || !self.holds_pages(other))
    }

    /// Whether a sequence has pages, for its tokens or reserved.
    pub fn holds_pages(&self, slot: usize) -> bool {
        !self.ledger().pages(seq(slot)).is_empty()
    }
}

// Limit.
impl KvCache {
    /// Limits all sequences together to `tokens` tokens. The caller clears sequences while
    /// [`exceeds_limit`](Self::exceeds_limit).
    pub fn limit(&mut self, tokens: u32) {
        let ledger = &mut self.sequences.ledger;
        let pages = tokens.div_ceil(ledger.options().page_tokens).max(1);
        ledger.limit_pages(pages);
        let wanted = pages.min(ledger.options().pages - 1);
        // Plus one, because page 0 is reserved.
        self.resizes_to = (wanted + 1 != ledger.pages_end()).then_some(wanted);
        self.pages_refused = 0;
    }

    /// Whether sequences hold more pages than the limit.
    pub fn exceeds_limit(&self) -> bool {
        self.ledger().used_pages() > self.ledger().usable_pages()
    }

    /// Continues the limit of another cache.
    pub fn inherit(&mut self, other: &Self) {
        self.sequences.ledger.limit_pages(other.ledger().usable_pages());
        self.pages_refused = other.pages_refused;
    }

    /// Resizes the cache's memory when no step is in flight, because the device may wait for them.
    /// Returns whether steps have to wait for the resize.
    ///
    /// # Errors
    /// A lost device.
    pub fn resize(&mut self) -> Result<bool, ExecError> {
        let Some(pages) = self.resizes_to else { return Ok(false) };
        if self.executor().in_flight() > 0 {
            return Ok(true);
        }
        self.resizes_to = None;
        let grows = pages + 1 > self.ledger().pages_end();
        match self.sequences.resize(pages) {
            Ok(()) => {}
            Err(ExecError::Device(error)) if grows && !error.is_lost() => {
                let usable = self.ledger().usable_pages();
                self.pages_refused = pages.saturating_sub(usable);
                tracing::warn!(target: "walla::load", %error, pages, usable, "no memory for a larger cache");
            }
            Err(ExecError::Device(error)) if !error.is_lost() => {
                tracing::warn!(target: "walla::load", %error, "the cache's memory is not given back");
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Writes the sizes of the cache.
    pub fn update_stats(&self, stats: &mut EngineStats) {
        stats.pages_used = self.ledger().used_pages();
        stats.pages = self.ledger().usable_pages();
        stats.pages_refused = self.pages_refused;
        stats.snapshots_used = self.snapshots_used();
        stats.snapshots = self.executor().options().max_snapshots;
        stats.kv_bytes = self.executor().device().memory().cache_bytes;
    }

    #[cfg(test)]
    pub fn is_resizing(&self) -> bool {
        self.resizes_to.is_some()
    }
}

// Waiting for pages.
impl KvCache {
    /// A reply ended or pages were freed.
    pub fn note_freed(&mut self) {
        self.has_freed = true;
    }

    /// Whether [`note_freed`](Self::note_freed) was called since the last call of this, or a
    /// sequence was cleared.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.has_freed)
    }
}
