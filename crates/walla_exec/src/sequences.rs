//! An executor with the ledger of its cache: batches in, steps out.

use walla_plan::{
    Batch, BatchError, BatchLimits, InvalidLedger, KvCommands, KvLedger, LedgerError,
    LedgerOptions, OutputMap, Splitter, UBatch,
};
use walla_types::SeqId;

use crate::error::ExecError;
use crate::executor::Executor;
use crate::fill::SamplingOf;
use crate::ring::Completed;

/// Why a batch was not run. No sequence is longer than before, although pages may have been
/// reserved for it.
///
/// After [`StepError::Exec`], unless [`ExecError::nothing_happened`], nobody knows how much of the
/// step did: its sequences should be removed and evaluated anew.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch makes no sense.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The cache has no room.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The executor's capacities make no ledger.
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
    /// What runs the steps.
    pub executor: Executor,
    /// Which pages hold whose tokens.
    pub ledger: KvLedger,
    /// Upkeep that the device has not heard of yet.
    pub commands: KvCommands,
    /// Pages that have memory behind them, the reserved one included: what sequences hold is never
    /// beyond.
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
            pages_per_sequence_max: options.pages_per_sequence(),
            sequences_max: options.sequences_max,
            recurrent: executor.is_recurrent(),
            can_shift: !executor.is_recurrent(),
        })?;
        let layout = executor.layout();
        let limits = BatchLimits {
            vocab: executor.vocab(),
            sequences_max: options.sequences_max,
            tokens_max: options.rows_max,
            batch_sequences_max: layout.sequences_max,
            outputs_max: layout.outputs_max,
            logits_max: options.logits_rows_max.min(layout.outputs_max),
        };
        // A step copies at most a page for each of its sequences; removing one clears its state.
        let commands = KvCommands::with_capacity(4 * options.sequences_max as usize + 64);
        Ok(Self {
            executor,
            ledger,
            commands,
            resident_pages: options.pages,
            limits,
            splitter: Splitter::new(limits),
            outputs: OutputMap::new(limits),
            ubatch: UBatch::with_capacity(limits.tokens_max),
        })
    }

    /// What a batch may hold.
    #[must_use]
    pub fn limits(&self) -> BatchLimits {
        self.limits
    }

    /// Where the outputs of the latest batch are.
    #[must_use]
    pub fn outputs(&self) -> &OutputMap {
        &self.outputs
    }

    /// The rows of the latest batch.
    #[must_use]
    pub fn ubatch(&self) -> &UBatch {
        &self.ubatch
    }

    /// Enqueues a batch as one step and returns its number: decode rows first, each sequence's rows
    /// side by side.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn submit(
        &mut self,
        batch: &mut Batch,
        sampling: &SamplingOf<'_>,
    ) -> Result<u64, StepError> {
        self.executor.check_room()?;
        let checked = batch.check(&self.ledger)?;
        self.ledger.reserve_batch(checked, &mut self.commands)?;
        self.upkeep()?;
        // A batch is bounded by the rows of a step, so one micro-batch takes it all.
        let mut split = checked.split(&mut self.splitter, &mut self.outputs);
        split.ragged(self.limits.tokens_max, &mut self.ubatch);
        let step = self.executor.submit_ubatch(&self.ubatch, &self.ledger, sampling)?;
        self.ledger.append_reserved(checked);
        self.ledger.retire(step);
        Ok(step)
    }

    /// The oldest step in flight if it has completed.
    ///
    /// # Errors
    /// What the device says.
    pub fn poll(&mut self) -> Result<Option<Completed>, ExecError> {
        self.executor.poll()
    }

    /// Gives a completed step's slot back, and the pages that waited for it.
    pub fn release(&mut self, completed: Completed) {
        self.executor.release(completed);
        self.ledger.release_up_to(completed.step);
    }

    /// Frees the pages of sequences that were removed while nothing is in flight: no step will come
    /// whose end they could wait for.
    pub fn settle(&mut self) {
        if self.executor.in_flight() == 0 && self.ledger.fenced_pages() > 0 {
            self.ledger.retire(0);
            self.ledger.release_up_to(u64::MAX);
        }
    }

    /// Keeps memory for `pages` pages of sequences, where the device can: what is held beyond them
    /// moves below, and the memory above is given back; or memory comes back. Nothing is in flight.
    /// Not a matter of every frame.
    ///
    /// If sequences own more than `pages` pages together, some of it stays above, and so does all
    /// memory; none of the pages above is handed out any more, and another call goes on when less
    /// is owned.
    ///
    /// # Errors
    /// What the device says: if there is no memory for more pages, there are as many as before. If
    /// it failed at moving pages, some have moved and all memory is there: call again.
    pub fn resize(&mut self, pages: u32) -> Result<(), ExecError> {
        let end = pages.saturating_add(1).clamp(2, self.executor.options().pages);
        if end > self.resident_pages {
            self.executor.resize_cache(end)?;
            self.resident_pages = end;
        }
        // An earlier call may have left pages beyond this end, too, so they move whether there are
        // to be more pages than before or less: as many at a time as the list has room for.
        let mut held = u32::MAX;
        while held > 0 {
            self.settle();
            self.upkeep()?;
            let left = self.ledger.confine(end, &mut self.commands);
            if left > 0 && left == held {
                return Ok(());
            }
            held = left;
        }
        self.upkeep()?;
        self.settle();
        if end < self.resident_pages {
            self.executor.resize_cache(end)?;
            self.resident_pages = end;
        }
        Ok(())
    }

    /// Waits for the oldest step in flight: for tests, tools and benchmarks, never in play.
    ///
    /// # Errors
    /// What the device says.
    pub fn wait(&mut self) -> Result<Option<Completed>, ExecError> {
        while self.executor.in_flight() > 0 {
            if let Some(completed) = self.poll()? {
                return Ok(Some(completed));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    /// Removes a sequence from the cache.
    ///
    /// # Errors
    /// What ledger and device say.
    pub fn forget(&mut self, seq: SeqId) -> Result<(), StepError> {
        self.ledger.remove(seq, .., &mut self.commands)?;
        Ok(self.upkeep()?)
    }

    /// Sends the ledger's commands to the device.
    ///
    /// # Errors
    /// What the device says. Commands that it has not taken stay in the list: no sequence is the
    /// worse for it, and the next upkeep, which comes before any step, sends them again.
    pub fn upkeep(&mut self) -> Result<(), ExecError> {
        let mut taken = 0;
        let all = self.commands.as_slice().iter().try_for_each(|&command| {
            self.executor.maintain(command)?;
            taken += 1;
            Ok(())
        });
        self.commands.forget_first(taken);
        all
    }
}
