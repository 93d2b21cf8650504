//! Evaluates whole sequences and returns logits, for tests, tools and comparisons. It waits for the
//! device, so it is not for use in a frame.

use walla_plan::{Batch, Output, TokenInput};
use walla_types::{SeqId, TokenId};

use crate::error::ExecError;
use crate::executor::Executor;
use crate::ring::Completed;
use crate::sequences::{Sequences, StepError};

/// Feeds sequences to an executor, several in one batch, and reads logits.
#[derive(Debug)]
pub struct Evaluator {
    sequences: Sequences,
    batch: Batch,
}

impl Evaluator {
    /// Takes over an executor that was loaded with at least one row of logits.
    ///
    /// # Errors
    /// [`StepError::InvalidLedger`].
    pub fn new(executor: Executor) -> Result<Self, StepError> {
        let sequences = Sequences::new(executor)?;
        let batch = Batch::new(sequences.limits());
        Ok(Self { sequences, batch })
    }

    /// The sequences.
    #[must_use]
    pub fn sequences(&mut self) -> &mut Sequences {
        &mut self.sequences
    }

    /// Appends tokens to sequences, all as one batch (split into steps that fit). Calls `sink` with
    /// the logits after each token: sequence index in `inputs`, token index, row. The order of rows
    /// is unspecified.
    ///
    /// # Errors
    /// Any batch, ledger or device error; the batch may then be partly evaluated.
    pub fn append(
        &mut self,
        inputs: &[(SeqId, &[TokenId])],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), StepError> {
        // Round robin, one token per sequence at a time, so that sequences of different lengths
        // share steps.
        let longest = inputs.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
        let places: Vec<(usize, usize)> = (0..longest)
            .flat_map(|token| (0..inputs.len()).map(move |input| (input, token)))
            .filter(|&(input, token)| token < inputs[input].1.len())
            .collect();
        let limits = self.sequences.limits();
        let rows = limits.logits_max.min(limits.tokens_max).max(1) as usize;
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
    ) -> Result<(), StepError> {
        self.batch.clear();
        for &(input, token) in part {
            let (seq, tokens) = inputs[input];
            self.batch.push(TokenInput::Id(tokens[token]), None, seq, Output::Logits)?;
        }
        let step = self.sequences.submit(&mut self.batch, &|_| None)?;
        let completed = self.wait_for(step)?;
        let mut places = part.iter().enumerate();
        let read = places.try_for_each(|(index, &(input, token))| {
            let Ok(row) = self.sequences.outputs().logits_row(index as i32) else {
                unreachable!("logits of every token were asked for");
            };
            let sink = &mut |row: &[f32]| sink(input, token, row);
            self.sequences.executor.read_logits(completed, row, sink)
        });
        self.sequences.release(completed);
        Ok(read?)
    }

    /// Waits for a step. Releases earlier steps that previous calls did not wait for.
    fn wait_for(&mut self, step: u64) -> Result<Completed, ExecError> {
        while let Some(completed) = self.sequences.wait()? {
            if completed.step == step {
                return Ok(completed);
            }
            self.sequences.release(completed);
        }
        unreachable!("step {step} is in flight")
    }
}
