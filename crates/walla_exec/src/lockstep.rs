//! Sequences that decode in lockstep, for benchmarks. Steps are awaited one by one or submitted
//! ahead.

use walla_plan::{Batch, Output, TokenInput};
use walla_types::{Sampling, SeqId, TokenId};

use crate::error::ExecError;
use crate::executor::Executor;
use crate::sequences::{Sequences, StepError};

/// Device timestamps of a step, in nanoseconds; zero if the device does not stamp its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepNanos {
    /// When its first op began.
    pub begin: u64,
    /// When its last op ended.
    pub end: u64,
}

/// Sequences of the same length on one executor.
#[derive(Debug)]
pub struct Lockstep {
    sequences: Sequences,
    batch: Batch,
    active: Vec<SeqId>,
    sampling: Sampling,
}

impl Lockstep {
    /// Takes over an executor. `active` are the sequences that decode; their ids need not be
    /// contiguous.
    ///
    /// # Errors
    /// [`StepError::InvalidLedger`].
    pub fn new(
        executor: Executor,
        active: Vec<SeqId>,
        sampling: Sampling,
    ) -> Result<Self, StepError> {
        let sequences = Sequences::new(executor)?;
        let batch = Batch::new(sequences.limits());
        Ok(Self { sequences, batch, active, sampling })
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.sequences.executor
    }

    /// Forgets all sequences and makes others active.
    ///
    /// # Errors
    /// Any ledger or device error.
    pub fn restart(&mut self, active: Vec<SeqId>) -> Result<(), StepError> {
        self.clear()?;
        self.sequences.free_fenced();
        self.active = active;
        Ok(())
    }

    /// Forgets all sequences.
    ///
    /// # Errors
    /// Any ledger or device error.
    pub fn clear(&mut self) -> Result<(), StepError> {
        self.active.iter().try_for_each(|&seq| self.sequences.remove(seq))
    }

    /// Prefills `tokens` into every sequence, sequentially, in steps of at most `rows` tokens, and
    /// waits for each step. The last token of each sequence samples its first output.
    ///
    /// # Errors
    /// Any batch, ledger or device error.
    pub fn prefill(&mut self, tokens: &[TokenId], rows: u32) -> Result<(), StepError> {
        let max_rows = rows.clamp(1, self.sequences.limits().max_tokens) as usize;
        for place in 0..self.active.len() {
            let seq = self.active[place];
            for (number, chunk) in tokens.chunks(max_rows).enumerate() {
                self.batch.clear();
                for (index, &token) in chunk.iter().enumerate() {
                    let is_last = number * max_rows + index + 1 == tokens.len();
                    let output = if is_last { Output::Sample } else { Output::None };
                    self.batch.push(TokenInput::Id(token), None, seq, output)?;
                }
                self.submit()?;
                self.collect()?;
            }
        }
        Ok(())
    }

    /// Enqueues one decode step of every sequence. The input of each is the token sampled last.
    ///
    /// # Errors
    /// Any batch, ledger or device error.
    pub fn submit_step(&mut self) -> Result<(), StepError> {
        self.batch.clear();
        for &seq in &self.active {
            self.batch.push(TokenInput::LastSampled, None, seq, Output::Sample)?;
        }
        self.submit()
    }

    fn submit(&mut self) -> Result<(), StepError> {
        let sampling = &self.sampling;
        self.sequences.submit(&mut self.batch, &|_| Some(sampling.into()))?;
        Ok(())
    }

    /// Waits for the oldest step in flight; returns its device timestamps.
    ///
    /// # Errors
    /// Any device error.
    pub fn collect(&mut self) -> Result<StepNanos, ExecError> {
        let mut nanos = StepNanos::default();
        if let Some(completed) = self.sequences.wait()? {
            self.sequences.executor.read_results(completed, &mut |view| {
                nanos = StepNanos { begin: view.header.begin_nanos, end: view.header.end_nanos };
            })?;
            self.sequences.release(completed);
        }
        Ok(nanos)
    }
}
