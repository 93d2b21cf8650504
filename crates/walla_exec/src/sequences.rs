//! An executor with the KV ledger of its cache: accepts batches and submits steps.

use walla_plan::{
    Batch, BatchError, BatchLimits, InvalidLedger, KvCommands, KvLedger, LedgerError,
    LedgerOptions, OutputMap, Splitter, UBatch,
};
use walla_types::SeqId;

use crate::error::ExecError;
use crate::executor::Executor;
use crate::fill::DrawOf;
use crate::ring::Completed;

/// Why a batch was not run. No sequence grew, but pages may have been reserved for it.
///
/// After [`StepError::Exec`], unless [`ExecError::nothing_happened`], the state of the step's
/// sequences is undefined: remove and recompute them.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch is invalid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The cache has no free pages.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The executor's capacities are invalid for a ledger.
    #[error(transparent)]
    InvalidLedger(#[from] InvalidLedger),
    /// The device failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// The sequences of a model on a device.
///
/// Allocates nothing after construction.
#[derive(Debug)]
pub struct Sequences {
    /// Runs the steps.
    pub executor: Executor,
    /// Which sequence holds which pages.
    pub ledger: KvLedger,
    /// Cache operations not yet sent to the device.
    pub commands: KvCommands,
    /// Pages with physical memory, including the reserved one. Sequences hold no pages beyond them.
    resident_pages: u32,
    limits: BatchLimits,
    splitter: Splitter,
    outputs: OutputMap,
    ubatch: UBatch,
}

impl Sequences {
    /// Takes over an executor.
    ///
    /// # Errors
    /// [`StepError::InvalidLedger`].
    pub fn new(executor: Executor) -> Result<Self, StepError> {
        let options = *executor.options();
        let ledger = KvLedger::new(LedgerOptions {
            page_tokens: options.page_tokens,
            pages: options.pages,
            max_pages_per_sequence: options.pages_per_sequence(),
            max_sequences: options.cache_sequences(),
            recurrent: executor.is_recurrent(),
            can_shift: !executor.is_recurrent(),
        })?;
        let layout = executor.layout();
        let limits = BatchLimits {
            vocab: executor.vocab(),
            max_sequences: options.max_sequences,
            max_tokens: options.max_rows,
            max_batch_sequences: layout.max_sequences,
            max_outputs: layout.max_outputs,
            max_logits: options.max_logits_rows.min(layout.max_outputs),
        };
        // A step copies at most one page per sequence; removing a sequence clears its state.
        let commands = KvCommands::with_capacity(4 * options.max_sequences as usize + 64);
        Ok(Self {
            executor,
            ledger,
            commands,
            resident_pages: options.pages,
            limits,
            splitter: Splitter::new(limits),
            outputs: OutputMap::new(limits),
            ubatch: UBatch::with_capacity(limits.max_tokens),
        })
    }

    /// Limits of a batch.
    #[must_use]
    pub fn limits(&self) -> BatchLimits {
        self.limits
    }

    /// Output map of the latest batch.
    #[must_use]
    pub fn outputs(&self) -> &OutputMap {
        &self.outputs
    }

    /// The rows of the latest batch.
    #[must_use]
    pub fn ubatch(&self) -> &UBatch {
        &self.ubatch
    }

    /// Enqueues a batch as one step and returns its number. Decode rows come before prefill rows;
    /// the rows of a sequence are contiguous.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn submit(&mut self, batch: &mut Batch, draw: &DrawOf<'_>) -> Result<u64, StepError> {
        // Before anything changes: a full ring is the usual refusal.
        self.executor.check_room()?;
        let checked = batch.check(&self.ledger)?;
        self.ledger.reserve_batch(checked, &mut self.commands)?;
        self.flush_cache_ops()?;
        // A batch is limited to the rows of a step, so one micro-batch takes all of it.
        let mut split = checked.split(&mut self.splitter, &mut self.outputs);
        split.ragged(self.limits.max_tokens, &mut self.ubatch);
        let step = self.executor.submit_ubatch(&self.ubatch, &self.ledger, draw)?;
        // Only now, so that a step that is refused leaves all lengths as they were.
        self.ledger.append_reserved(checked);
        self.ledger.retire(step);
        Ok(step)
    }

    /// Returns the oldest step in flight if it has completed.
    ///
    /// # Errors
    /// Any device error.
    pub fn poll(&mut self) -> Result<Option<Completed>, ExecError> {
        self.executor.poll()
    }

    /// Returns a completed step's slot to the ring and frees the pages fenced by the step.
    pub fn release(&mut self, completed: Completed) {
        self.executor.release(completed);
        self.ledger.release_up_to(completed.step);
    }

    /// Frees the fenced pages of removed sequences while nothing is in flight: no later step would
    /// release their fence.
    pub fn free_fenced(&mut self) {
        if self.executor.in_flight() == 0 && self.ledger.fenced_pages() > 0 {
            self.ledger.retire(0);
            self.ledger.release_up_to(u64::MAX);
        }
    }

    /// Sets the number of pages that have physical memory, if the device can unmap memory. To
    /// shrink, moves pages held above the limit below it and unmaps the memory above. To grow, maps
    /// memory again. Nothing may be in flight. Too slow to call every frame.
    ///
    /// If sequences own more than `pages` pages together, some stay above the limit and all memory
    /// stays mapped. No page above the limit is allocated any more; call again when sequences own
    /// fewer pages.
    ///
    /// # Errors
    /// Any device error. If there is no memory for more pages, the number of pages is unchanged. If
    /// moving pages failed, some have moved and all memory is still mapped: call again.
    pub fn resize(&mut self, pages: u32) -> Result<(), ExecError> {
        let end = pages.saturating_add(1).clamp(2, self.executor.options().pages);
        if end > self.resident_pages {
            self.executor.resize_cache(end)?;
            self.resident_pages = end;
        }
        // An earlier call may have left pages above this limit too, so pages are moved in both
        // directions. Each round moves as many as the command list can hold.
        let mut held = u32::MAX;
        while held > 0 {
            self.free_fenced();
            self.flush_cache_ops()?;
            let left = self.ledger.confine(end, &mut self.commands);
            if left > 0 && left == held {
                return Ok(());
            }
            held = left;
        }
        self.flush_cache_ops()?;
        self.free_fenced();
        if end < self.resident_pages {
            self.executor.resize_cache(end)?;
            self.resident_pages = end;
        }
        Ok(())
    }

    /// Waits for the oldest step in flight. For tests, tools and benchmarks only.
    ///
    /// # Errors
    /// Any device error.
    pub fn wait(&mut self) -> Result<Option<Completed>, ExecError> {
        while self.executor.in_flight() > 0 {
            if let Some(completed) = self.poll()? {
                return Ok(Some(completed));
            }
            self.executor.wait_for_oldest()?;
        }
        Ok(None)
    }

    /// Removes a sequence from the cache.
    ///
    /// # Errors
    /// Any ledger or device error.
    pub fn remove(&mut self, seq: SeqId) -> Result<(), StepError> {
        self.ledger.remove(seq, .., &mut self.commands)?;
        Ok(self.flush_cache_ops()?)
    }

    /// Sends the ledger's commands to the device.
    ///
    /// # Errors
    /// Any device error. Commands that were not enqueued stay in the list. No sequence is affected:
    /// the next call, which precedes any step, sends them again.
    pub fn flush_cache_ops(&mut self) -> Result<(), ExecError> {
        let mut taken = 0;
        let all = self.commands.as_slice().iter().try_for_each(|&command| {
            self.executor.run_cache_ops(command)?;
            taken += 1;
            Ok(())
        });
        self.commands.remove_first(taken);
        all
    }
}
