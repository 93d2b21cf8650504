//! Computes the hidden state of the last token of texts, for embeddings. It waits for the device,
//! so it is not for use in a frame.

use walla_plan::{Batch, Output, TokenInput};
use walla_types::{SeqId, TokenId};

use crate::error::ExecError;
use crate::executor::Executor;
use crate::options::{ExecOptions, Target};
use crate::sequences::{Sequences, StepError};

/// Feeds texts to an executor that was [loaded without its head](Executor::load).
#[derive(Debug)]
pub struct LastHidden {
    sequences: Sequences,
    batch: Batch,
}

/// A text whose tokens are in the current batch.
#[derive(Clone, Copy)]
struct Part {
    text: usize,
    seq: SeqId,
    /// Index of its last token in the batch, if the batch ends it.
    last: Option<u32>,
}

impl LastHidden {
    /// Options for texts of up to `context_tokens` tokens: in each step at most one text continues
    /// in the next one, so only one needs pages for a whole context.
    #[must_use]
    pub fn options(context_tokens: u32, max_rows: u32) -> ExecOptions {
        let max_sequences = max_rows.min(64);
        let options = ExecOptions {
            max_sequences,
            context_tokens,
            max_rows,
            max_outputs: max_sequences,
            max_logits_rows: max_sequences,
            ring: 1,
            target: Target::Hidden,
            ..ExecOptions::default()
        };
        // Each other text fills its last page partly.
        let others = max_rows.div_ceil(options.page_tokens).saturating_add(max_sequences);
        let pages = options.pages_per_sequence().saturating_add(others).saturating_add(1);
        ExecOptions { pages, ..options }
    }

    /// Takes over an executor with [these options](Self::options).
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
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Calls `sink` with the index of each text and the hidden state of its last token. A text
    /// without tokens is left out.
    ///
    /// # Errors
    /// Any batch, ledger or device error. No text stays in the cache.
    pub fn run(
        &mut self,
        texts: &[&[TokenId]],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let mut parts = Vec::new();
        let done = self.run_texts(texts, &mut parts, sink);
        // After a failed step its texts, and the one that was to continue, are removed.
        for part in parts {
            let removed = self.sequences.remove(part.seq);
            if done.is_ok() {
                removed?;
            }
        }
        self.sequences.free_fenced();
        done
    }

    fn run_texts(
        &mut self,
        texts: &[&[TokenId]],
        parts: &mut Vec<Part>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let limits = self.sequences.limits();
        let max_sequences = limits.max_batch_sequences.min(limits.max_logits) as usize;
        self.batch.clear();
        for (text, tokens) in texts.iter().enumerate() {
            let mut rest = *tokens;
            while !rest.is_empty() {
                let continues = parts.first().is_some_and(|part| part.text == text);
                let is_full = parts.len() == max_sequences && !continues;
                if is_full || self.batch.len() == limits.max_tokens {
                    self.step(parts, sink)?;
                }
                // A text that the previous step did not end is alone now.
                let seq = match parts.first() {
                    Some(part) if part.text == text => part.seq,
                    _ => {
                        let seq = self.free(parts);
                        parts.push(Part { text, seq, last: None });
                        seq
                    }
                };
                let room = (limits.max_tokens - self.batch.len()) as usize;
                let (now, behind) = rest.split_at(rest.len().min(room));
                for (nth, token) in now.iter().enumerate() {
                    let ends = behind.is_empty() && nth + 1 == now.len();
                    let output = if ends { Output::Logits } else { Output::None };
                    let index = self.batch.push(TokenInput::Id(*token), None, seq, output)?;
                    if ends && let Some(part) = parts.last_mut() {
                        part.last = Some(index);
                    }
                }
                rest = behind;
            }
        }
        if self.batch.is_empty() { Ok(()) } else { self.step(parts, sink) }
    }

    /// A sequence that no part has.
    fn free(&self, parts: &[Part]) -> SeqId {
        let is_free = |seq: &SeqId| parts.iter().all(|part| part.seq != *seq);
        (0..=parts.len() as u32).map(SeqId).find(is_free).unwrap_or(SeqId(0))
    }

    /// Runs the batch, passes the results on, and leaves the part that continues.
    fn step(
        &mut self,
        parts: &mut Vec<Part>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        self.sequences.submit(&mut self.batch, &|_| None)?;
        self.batch.clear();
        let Some(completed) = self.sequences.wait()? else {
            return Err(ExecError::NoRows.into());
        };
        for part in parts.iter() {
            let Some(last) = part.last else { continue };
            let Ok(row) = self.sequences.outputs().logits_row(last as i32) else {
                unreachable!("the result of the last token was asked for");
            };
            let sink = &mut |row: &[f32]| sink(part.text, row);
            self.sequences.executor.read_logits(completed, row, sink)?;
        }
        self.sequences.release(completed);
        let ended: Vec<SeqId> =
            parts.iter().filter(|part| part.last.is_some()).map(|part| part.seq).collect();
        parts.retain(|part| part.last.is_none());
        ended.into_iter().try_for_each(|seq| self.sequences.remove(seq))?;
        self.sequences.free_fenced();
        Ok(())
    }
}
