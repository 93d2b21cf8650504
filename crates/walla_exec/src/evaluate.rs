//! Evaluates whole sequences and returns logits, for tests, tools and comparisons. It waits for the
//! device, so it is not for use in a frame.

use walla_plan::{Batch, BatchLimits, Output, OutputMap, Split, Splitter, TokenInput, UBatch};
use walla_types::{SeqId, TokenId};

use crate::error::ExecError;
use crate::executor::Executor;
use crate::ring::Completed;
use crate::sequences::{Sequences, StepError};

/// Feeds sequences to an executor, several in one batch, and reads logits.
#[derive(Debug)]
pub struct Evaluator {
    sequences: Sequences,
}

impl Evaluator {
    /// Takes over an executor that was loaded with at least one row of logits.
    ///
    /// # Errors
    /// [`StepError::InvalidLedger`].
    pub fn new(executor: Executor) -> Result<Self, StepError> {
        Ok(Self { sequences: Sequences::new(executor)? })
    }

    /// The sequences.
    #[must_use]
    pub fn sequences(&mut self) -> &mut Sequences {
        &mut self.sequences
    }

    /// Appends tokens to sequences, as one batch of any size. It is split into steps with equal
    /// parts of the sequences. Calls `sink` with the logits after each token: sequence index in
    /// `inputs`, token index, row. The rows of a sequence come in the order of its tokens.
    ///
    /// # Errors
    /// Any batch, ledger or device error. After a device error the state of the sequences is
    /// undefined.
    pub fn append(
        &mut self,
        inputs: &[(SeqId, &[TokenId])],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), StepError> {
        let of_step = self.sequences.limits();
        let tokens = inputs.iter().map(|(_, tokens)| tokens.len()).sum::<usize>() as u32;
        let limits = BatchLimits {
            max_tokens: tokens,
            max_batch_sequences: of_step.max_sequences,
            max_outputs: tokens,
            max_logits: tokens,
            ..of_step
        };
        let (mut batch, mut places) = (Batch::new(limits), Vec::with_capacity(tokens as usize));
        for (input, (seq, tokens)) in inputs.iter().enumerate() {
            for (place, token) in tokens.iter().enumerate() {
                batch.push(TokenInput::Id(*token), None, *seq, Output::Logits)?;
                places.push((input, place));
            }
        }
        let checked = batch.check(&self.sequences.ledger)?;
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        ledger.reserve_batch(checked, commands)?;
        self.sequences.flush_cache_ops()?;
        let rows = of_step.max_tokens.min(of_step.max_logits);
        let (mut splitter, mut outputs) = (Splitter::new(limits), OutputMap::new(limits));
        let mut ubatch = UBatch::with_capacity(rows);
        let mut split = checked.split(&mut splitter, &mut outputs);
        let take = if inputs.len() == 1 { Split::simple } else { Split::equal };
        let mut last = None;
        let mut run = || -> Result<(), StepError> {
            while take(&mut split, rows, &mut ubatch) {
                let Sequences { executor, ledger, .. } = &mut self.sequences;
                let step = executor.submit_ubatch(&ubatch, ledger, &|_| None)?;
                last = Some(step);
                let completed = Self::wait_for(&mut self.sequences, step)?;
                let first = ubatch.logits_rows().start;
                let read = ubatch.rows().iter().try_for_each(|row| {
                    let (input, place) = places[row.batch_index as usize];
                    let Ok(of_batch) = split.outputs().logits_row(row.batch_index as i32) else {
                        unreachable!("logits of every token were asked for");
                    };
                    let sink = &mut |row: &[f32]| sink(input, place, row);
                    self.sequences.executor.read_logits(completed, of_batch - first, sink)
                });
                self.sequences.release(completed);
                read?;
            }
            Ok(())
        };
        let result = run();
        // Tokens of steps that were submitted are in the cache, also after an error.
        if let Some(step) = last {
            self.sequences.ledger.append_reserved(checked);
            self.sequences.ledger.retire(step);
        }
        result
    }

    /// Waits for a step. Releases earlier steps that previous calls did not wait for.
    fn wait_for(sequences: &mut Sequences, step: u64) -> Result<Completed, ExecError> {
        while let Some(completed) = sequences.wait()? {
            if completed.step == step {
                return Ok(completed);
            }
            sequences.release(completed);
        }
        unreachable!("step {step} is in flight")
    }
}
