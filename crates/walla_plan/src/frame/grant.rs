//! Grants work to one agent, within all limits.

use super::agents::CHUNK_WAIT_FRAMES;
use super::planner::Planning;
use super::{Deferral, NextWork, StepWork};
use crate::LedgerError;

impl Planning<'_> {
    /// Grants a request what fits of its work: one token to a decoding agent, up to `max_tokens`
    /// further tokens to a prompt. Returns the rows granted by this call.
    pub(super) fn grant(&mut self, index: u32, max_tokens: u32, forced: bool) -> u32 {
        match self.requests[index as usize].work {
            NextWork::Decoding => self.try_decode(index, forced),
            NextWork::Prefill { .. } => self.try_prefill(index, max_tokens, forced),
        }
    }

    fn try_decode(&mut self, index: u32, forced: bool) -> u32 {
        // An aged agent is in the order of its work too.
        if self.plan.scratch.grants[index as usize].rows > 0 {
            return 0;
        }
        let seq = self.requests[index as usize].seq;
        let granted = self.room_for_sequence().and_then(|()| self.pages_for(index, 1));
        let granted = granted.and_then(|pages| {
            let mut work = self.plan.step;
            work.decode_rows += 1;
            work.context_tokens += u64::from(self.ledger.len(seq)) + 1;
            self.fit(work, forced)?;
            Ok(pages)
        });
        match granted {
            Ok(pages) => {
                self.plan.decode.push(seq);
                self.plan.scratch.grants[index as usize].rows = 1;
                self.take_pages(index, pages);
                1
            }
            Err(reason) => self.defer(index, reason),
        }
    }

    /// Grants a prompt up to `max_tokens` further tokens. Returns the number granted.
    pub(super) fn try_prefill(&mut self, index: u32, max_tokens: u32, forced: bool) -> u32 {
        match self.fitting_chunk(index, max_tokens, forced) {
            Ok((tokens, pages)) => {
                let grant = &mut self.plan.scratch.grants[index as usize];
                if grant.rows == 0 {
                    self.plan.scratch.reading.push(index);
                }
                grant.rows += tokens;
                self.prefill_left -= tokens;
                self.take_pages(index, pages);
                tokens
            }
            Err(reason) => self.defer(index, reason),
        }
    }

    /// The largest chunk of a prompt that fits into the step, and the pages of the whole prompt.
    fn fitting_chunk(
        &mut self,
        index: u32,
        max_tokens: u32,
        forced: bool,
    ) -> Result<(u32, u32), Deferral> {
        let request = &self.requests[index as usize];
        let NextWork::Prefill { tokens: prompt } = request.work else { return Ok((0, 0)) };
        let grant = self.plan.scratch.grants[index as usize];
        if grant.rows == 0 {
            self.room_for_sequence()?;
        }
        if self.prefill_left == 0 {
            return Err(Deferral::PrefillTokens);
        }
        // A prompt starts only if enough pages are free for all of it: a partial prompt is useless.
        let pages = self.pages_for(index, prompt)?;
        let rows_left = self.limits.max_rows.saturating_sub(self.plan.step.rows());
        let most = (prompt - grant.rows).min(max_tokens).min(self.prefill_left).min(rows_left);
        let before = self.plan.step;
        let length = u64::from(self.ledger.len(request.seq));
        let with = |tokens: u32| {
            let mut work = before;
            work.prefill_tokens += tokens;
            // The sequence's cache is read once for all tokens of its chunk.
            let read_before = if grant.rows == 0 { length } else { 0 };
            let (tokens, seen) = (u64::from(tokens), length + u64::from(grant.rows));
            work.context_tokens += read_before + tokens;
            work.prefill_pairs += tokens * seen + tokens * (tokens + 1) / 2;
            work
        };
        let tokens = self.largest_fitting(most, with);
        let micros = |tokens: u32| self.predict(with(tokens));
        let is_crumb = tokens > 0
            && before.is_empty()
            && tokens < prompt
            && (micros(tokens) < self.limits.chunk_gain_min * micros(1)
                || (tokens < self.limits.chunk_tokens_min
                    && request.waited_frames < CHUNK_WAIT_FRAMES));
        if (tokens > 0 && !is_crumb) || (forced && most > 0) {
            let tokens = tokens.max(1);
            self.fit(with(tokens), forced)?;
            return Ok((tokens, pages));
        }
        Err(if most == 0 { Deferral::Rows } else { Deferral::Budget })
    }

    /// The largest number up to `most` whose work fits the budget (binary search: cost is
    /// monotonic).
    fn largest_fitting(&self, most: u32, work: impl Fn(u32) -> StepWork) -> u32 {
        let (mut fits, mut too_many) = (0, most + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.is_within_budget(work(middle)) {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }

    fn room_for_sequence(&self) -> Result<(), Deferral> {
        let sequences = self.plan.decode.len() + self.plan.scratch.reading.len();
        if self.plan.step.rows() >= self.limits.max_rows {
            Err(Deferral::Rows)
        } else if sequences >= self.limits.max_sequences as usize {
            Err(Deferral::Sequences)
        } else {
            Ok(())
        }
    }

    /// Pages that a sequence needs for `tokens` more tokens, if enough are free.
    fn pages_for(&self, index: u32, tokens: u32) -> Result<u32, Deferral> {
        let granted = self.plan.scratch.grants[index as usize].pages;
        match self.ledger.pages_wanted(self.requests[index as usize].seq, tokens) {
            Ok(pages) if pages.saturating_sub(granted) <= self.pages_left => Ok(pages),
            Ok(wanted_pages) => Err(Deferral::Pages { wanted_pages }),
            Err(LedgerError::ContextFull { .. }) => Err(Deferral::ContextFull),
            Err(_) => Err(Deferral::UnknownSequence),
        }
    }

    fn take_pages(&mut self, index: u32, pages: u32) {
        let granted = &mut self.plan.scratch.grants[index as usize].pages;
        self.pages_left -= pages.saturating_sub(*granted);
        *granted = pages.max(*granted);
    }

    /// Returns why the step cannot take a further sequence, or `None` if it can. A closed step
    /// needs no further requests.
    pub(super) fn closed(&self) -> Option<Deferral> {
        let work = self.plan.step;
        if work.rows() >= self.limits.max_rows {
            return Some(Deferral::Rows);
        }
        let context_tokens = work.context_tokens + 1;
        let decode = StepWork { decode_rows: work.decode_rows + 1, context_tokens, ..work };
        let (prefill_tokens, prefill_pairs) = (work.prefill_tokens + 1, work.prefill_pairs + 1);
        let prefill = StepWork { prefill_tokens, context_tokens, prefill_pairs, ..work };
        if !self.is_within_budget(decode) && !self.is_within_budget(prefill) {
            return Some(Deferral::Budget);
        }
        self.room_for_sequence().err()
    }

    /// Predicted device time of the step with this work.
    fn predict(&self, work: StepWork) -> f32 {
        self.limits.cost.map_or(0.0, |cost| cost.predict_micros(work))
    }

    fn is_within_budget(&self, work: StepWork) -> bool {
        let micros = self.predict(work);
        // Comparisons with NaN are false, so NaN is never within the budget. In `f64`, which holds
        // every `u32`.
        self.limits.cost.is_none()
            || (f64::from(micros) <= f64::from(self.limits.max_device_micros)
                && micros <= self.limits.max_step_micros as f32)
    }

    /// Sets the work of the step to `work`, if the budget allows it or `forced` is set.
    fn fit(&mut self, work: StepWork, forced: bool) -> Result<(), Deferral> {
        if !forced && !self.is_within_budget(work) {
            return Err(Deferral::Budget);
        }
        self.plan.step = work;
        Ok(())
    }

    /// Records why a request got nothing, and returns the rows granted: none. Only the first reason
    /// is kept.
    fn defer(&mut self, index: u32, reason: Deferral) -> u32 {
        let grant = &mut self.plan.scratch.grants[index as usize];
        if grant.rows == 0 && grant.deferral.is_none() {
            grant.deferral = Some(reason);
        }
        0
    }
}
