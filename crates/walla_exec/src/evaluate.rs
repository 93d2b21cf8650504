//! Whole sequences in, logits out: for tests, tools and comparisons. It waits for the device, so it is nothing for a frame.

use walla_plan::{
    Batch, BatchError, BatchLimits, InvalidLedger, KvCommands, KvLedger, LedgerError,
    LedgerOptions, Output, OutputMap, Splitter, TokenInput, UBatch,
};
use walla_types::{SeqId, TokenId};

use crate::error::ExecError;
use crate::executor::Executor;

/// Why a batch could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
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

/// Feeds sequences to an executor, several as one batch, and reads logits.
#[derive(Debug)]
pub struct Evaluator {
    executor: Executor,
    ledger: KvLedger,
    commands: KvCommands,
    limits: BatchLimits,
    vocab: usize,
}

impl Evaluator {
    /// Takes over an executor that was loaded with at least one row of logits.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidLedger`].
    pub fn new(
        executor: Executor,
        vocab: usize,
        is_recurrent: bool,
    ) -> Result<Self, EvaluateError> {
        let options = *executor.options();
        let ledger = KvLedger::new(LedgerOptions {
            page_tokens: options.page_tokens,
            pages: options.pages,
            pages_per_sequence_max: options.pages_per_sequence(),
            sequences_max: options.sequences_max,
            recurrent: is_recurrent,
            can_shift: !is_recurrent,
        })?;
        let layout = executor.layout();
        let limits = BatchLimits {
            vocab: vocab as u32,
            sequences_max: options.sequences_max,
            tokens_max: options.rows_max,
            batch_sequences_max: layout.sequences_max,
            outputs_max: layout.outputs_max,
            logits_max: options.logits_rows_max.min(layout.outputs_max),
        };
        let commands = KvCommands::with_capacity(4 * options.sequences_max as usize + 64);
        Ok(Self { executor, ledger, commands, limits, vocab })
    }

    /// The cache's ledger.
    #[must_use]
    pub fn ledger(&self) -> &KvLedger {
        &self.ledger
    }

    /// The executor.
    #[must_use]
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Forgets a sequence.
    ///
    /// # Errors
    /// What the device says.
    pub fn forget(&mut self, seq: SeqId) -> Result<(), EvaluateError> {
        self.ledger.remove(seq, .., &mut self.commands)?;
        self.upkeep()
    }

    /// Appends tokens to sequences, all as one batch (cut into steps that fit), and hands `sink` the logits after each of
    /// them: sequence index in `inputs`, index of the token, row. Rows come in no particular order.
    ///
    /// # Errors
    /// What batch, ledger and device say; the batch may then be evaluated in part.
    pub fn append(
        &mut self,
        inputs: &[(SeqId, &[TokenId])],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        // Round robin: one token of each sequence at a time, so that sequences of different lengths share steps.
        let longest = inputs.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
        let places: Vec<(usize, usize)> = (0..longest)
            .flat_map(|token| (0..inputs.len()).map(move |input| (input, token)))
            .filter(|&(input, token)| token < inputs[input].1.len())
            .collect();
        let rows = self.limits.logits_max.min(self.limits.tokens_max).max(1) as usize;
        for part in places.chunks(rows) {
            self.run(inputs, part, sink)?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        inputs: &[(SeqId, &[TokenId])],
        part: &[(usize, usize)],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let mut batch = Batch::new(self.limits);
        for &(input, token) in part {
            let (seq, tokens) = inputs[input];
            batch.push(TokenInput::Id(tokens[token]), None, seq, Output::Logits)?;
        }
        for &(seq, _) in inputs {
            let tokens = part.iter().filter(|(input, _)| inputs[*input].0 == seq).count();
            self.ledger.reserve(seq, tokens as u32, &mut self.commands)?;
        }
        self.upkeep()?;
        let mut outputs = OutputMap::new(self.limits);
        let mut splitter = Splitter::new(self.limits);
        let mut ubatch = UBatch::with_capacity(self.limits.tokens_max);
        let mut split = batch.check(&self.ledger)?.split(&mut splitter, &mut outputs);
        split.ragged(self.limits.tokens_max, &mut ubatch);
        let step = self.executor.submit_ubatch(&ubatch, &self.ledger, &|_| None)?;
        for run in ubatch.runs() {
            self.ledger.append(run.seq, run.rows, &mut self.commands)?;
        }
        self.ledger.retire(step);
        self.executor.synchronise()?;
        let Some(completed) = self.executor.poll()? else { return Ok(()) };
        for (index, &(input, token)) in part.iter().enumerate() {
            let Ok(row) = outputs.logits_row(index as i32) else { continue };
            self.executor.read_logits(completed, row, &mut |row| sink(input, token, row))?;
        }
        self.executor.release(completed);
        self.ledger.release_up_to(completed.step);
        Ok(())
    }

    /// Numbers in a row of logits.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    fn upkeep(&mut self) -> Result<(), EvaluateError> {
        self.executor.maintain(self.commands.as_slice())?;
        self.commands.clear();
        Ok(())
    }
}
