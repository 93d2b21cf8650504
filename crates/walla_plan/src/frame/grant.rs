//! Grants work to one agent, within all limits.

use super::agents::CHUNK_WAIT_FRAMES;
use super::planner::Planning;
use super::{Deferral, NextWork, StepWork};
use crate::LedgerError;

impl Planning<'_> {
    /// Grants one token in a step to a decoding agent, if it fits. Returns `true` if the token was
    /// granted by this call.
    pub(super) fn try_decode(&mut self, index: u32, step: u32, forced: bool) -> bool {
        let request = &self.requests[index as usize];
        let grant = self.plan.scratch.grants[index as usize];
        if grant.steps != step {
            return false;
        }
        let room = if step == 0 { self.room_for_sequence() } else { Ok(()) };
        let length_after = u64::from(self.ledger.len(request.seq)) + u64::from(step) + 1;
        let granted = room.and_then(|()| self.pages_for(index, step + 1)).and_then(|pages| {
            let mut work = self.plan.steps[step as usize];
            work.decode_rows += 1;
            work.context_tokens += length_after;
            self.fit(step as usize, work, forced)?;
            Ok(pages)
        });
        match granted {
            Ok(pages) => {
                if step == 0 {
                    self.plan.scratch.decoding.push(index);
                }
                self.plan.scratch.grants[index as usize].steps += 1;
                self.take_pages(index, pages);
                true
            }
            Err(reason) => {
                self.defer(index, reason);
                false
            }
        }
    }

    /// Grants a prompt up to `tokens_max` further tokens. Returns the number granted.
    pub(super) fn try_prefill(&mut self, index: u32, tokens_max: u32, forced: bool) -> u32 {
        match self.fitting_chunk(index, tokens_max, forced) {
            Ok((tokens, pages)) => {
                let grant = &mut self.plan.scratch.grants[index as usize];
                if grant.prefill == 0 {
                    self.plan.scratch.reading.push(index);
                }
                grant.prefill += tokens;
                self.prefill_left -= tokens;
                self.take_pages(index, pages);
                tokens
            }
            Err(reason) => {
                self.defer(index, reason);
                0
            }
        }
    }

    /// The largest chunk of a prompt that fits into the first step, and the pages of the whole
    /// prompt.
    fn fitting_chunk(
        &mut self,
        index: u32,
        tokens_max: u32,
        forced: bool,
    ) -> Result<(u32, u32), Deferral> {
        let request = &self.requests[index as usize];
        let NextWork::Prefill { tokens: prompt } = request.work else { return Ok((0, 0)) };
        let grant = self.plan.scratch.grants[index as usize];
        if grant.prefill == 0 {
            self.room_for_sequence()?;
        }
        if self.prefill_left == 0 {
            return Err(Deferral::PrefillTokens);
        }
        // A prompt starts only if enough pages are free for all of it: a partial prompt is useless.
        let pages = self.pages_for(index, prompt)?;
        let rows_left = self.limits.rows_max.saturating_sub(self.plan.steps[0].rows());
        let most = (prompt - grant.prefill).min(tokens_max).min(self.prefill_left).min(rows_left);
        let before = self.plan.steps[0];
        let length = u64::from(self.ledger.len(request.seq));
        let with = |tokens: u32| {
            let mut work = before;
            work.prefill_tokens += tokens;
            // The sequence's cache is read once for all tokens of its chunk.
            let read_before = if grant.prefill == 0 { length } else { 0 };
            let (tokens, seen) = (u64::from(tokens), length + u64::from(grant.prefill));
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
            self.fit(0, with(tokens), forced)?;
            return Ok((tokens, pages));
        }
        Err(if most == 0 { Deferral::Rows } else { Deferral::Budget })
    }

    /// The largest number up to `most` whose work fits the budget of the first step (binary search:
    /// cost is monotonic).
    fn largest_fitting(&self, most: u32, work: impl Fn(u32) -> StepWork) -> u32 {
        let (mut fits, mut too_many) = (0, most + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.is_within_budget(0, self.predict(work(middle))) {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }

    fn room_for_sequence(&self) -> Result<(), Deferral> {
        let sequences = self.plan.scratch.decoding.len() + self.plan.scratch.reading.len();
        if self.plan.steps[0].rows() >= self.limits.rows_max {
            Err(Deferral::Rows)
        } else if sequences >= self.limits.sequences_max as usize {
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

    /// Returns why a step cannot take even one more minimal row, or `None` if it can. A closed step
    /// needs no further requests.
    pub(super) fn closed(&self, step: usize) -> Option<Deferral> {
        let work = self.plan.steps[step];
        if work.rows() >= self.limits.rows_max {
            return Some(Deferral::Rows);
        }
        let context_tokens = work.context_tokens + 1;
        let decode = StepWork { decode_rows: work.decode_rows + 1, context_tokens, ..work };
        let (prefill_tokens, prefill_pairs) = (work.prefill_tokens + 1, work.prefill_pairs + 1);
        let prefill = StepWork { prefill_tokens, context_tokens, prefill_pairs, ..work };
        let fits = self.is_within_budget(step, self.predict(decode))
            || (step == 0 && self.is_within_budget(step, self.predict(prefill)));
        (!fits).then_some(Deferral::Budget)
    }

    /// Returns why the first step cannot take a further sequence, or `None` if it can.
    pub(super) fn closed_to_newcomers(&self) -> Option<Deferral> {
        self.closed(0).or_else(|| self.room_for_sequence().err())
    }

    /// Predicted device time of a step.
    fn predict(&self, work: StepWork) -> f32 {
        self.limits.cost.map_or(0.0, |cost| cost.predict_micros(work))
    }

    /// Whether a step of this duration fits with all other steps.
    fn is_within_budget(&self, step: usize, micros: f32) -> bool {
        let others = self.total_micros - f64::from(self.plan.scratch.micros[step]);
        let total = others + f64::from(micros);
        // Comparisons with NaN are false, so NaN is never within the budget.
        self.limits.cost.is_none()
            || (total <= f64::from(self.limits.device_micros_max)
                && micros <= self.limits.step_micros_max as f32)
    }

    /// Sets the work of a step to `work`, if the budget allows it or `forced` is set.
    fn fit(&mut self, step: usize, work: StepWork, forced: bool) -> Result<(), Deferral> {
        let micros = self.predict(work);
        if !forced && !self.is_within_budget(step, micros) {
            return Err(Deferral::Budget);
        }
        self.total_micros += f64::from(micros) - f64::from(self.plan.scratch.micros[step]);
        self.plan.scratch.micros[step] = micros;
        self.plan.steps[step] = work;
        Ok(())
    }

    /// Records why a request got nothing. Only the first reason is kept.
    fn defer(&mut self, index: u32, reason: Deferral) {
        let grant = &mut self.plan.scratch.grants[index as usize];
        if grant.is_empty() && grant.deferral.is_none() {
            grant.deferral = Some(reason);
        }
    }
}
