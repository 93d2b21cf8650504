//! Reads completed steps, and recomputes agents after failed steps.

use std::time::Duration;

use walla_exec::{Completed, ExecError};
use walla_trace::{Stage, enter};

use super::{Core, MAX_RETRIES};
use crate::api::ReplyError;
use crate::engine_core::Emit;

impl Core {
    /// Reads all completed steps. Returns `true` if there was one.
    pub(super) fn collect_steps(
        &mut self,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> Result<bool, ExecError> {
        let mut any = false;
        while let Some(completed) = self.kv.sequences.poll()? {
            any = true;
            self.collect_step(completed, now_micros, emit)?;
        }
        Ok(any)
    }

    fn collect_step(
        &mut self,
        completed: Completed,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> Result<(), ExecError> {
        let _stage = enter(Stage::Read);
        let read = match self.in_flight.read(self.kv.executor_mut(), completed) {
            // The device works, but its results are unknown: all agents are recomputed.
            Err(refused @ ExecError::ForeignResults { .. }) => Err(refused.to_string()),
            read => Ok(read?),
        };
        // Also without results, because slots of the ring are released in the order of the steps.
        self.kv.sequences.release(completed);
        let Some(mut step) = self.in_flight.complete() else { return Ok(()) };
        debug_assert_eq!(step.number, completed.step, "steps complete in order");
        let device_nanos = *read.as_ref().unwrap_or(&0);
        // Also a step without a measurement is paid: with its prediction.
        self.budget.completed(step.charged, device_nanos);
        if let Err(refused) = read {
            self.retry_all(&refused);
        } else {
            self.kv.complete_snapshots(step.number);
            self.stats.steps_done += 1;
            self.stats.device_time += Duration::from_nanos(device_nanos);
            self.stats.step = Duration::from_micros(now_micros.saturating_sub(step.at_micros));
            tracing::trace!(target: "walla::step", step = completed.step, micros = self.stats.step.as_micros() as u64, "completed");
            for of_agent in step.evaluated.drain(..) {
                let agent = self.agents.get_mut(of_agent.slot);
                if let Some(agent) = agent.filter(|agent| agent.sequence.expects(of_agent.epoch)) {
                    agent.sequence.completed(of_agent.tokens);
                }
            }
            let mut results = std::mem::take(&mut self.in_flight.results);
            for (output, result) in step.outputs.drain(..).zip(results.drain(..)) {
                self.take_token(output, result, now_micros, emit);
            }
            self.in_flight.results = results;
        }
        self.in_flight.recycle(step);
        Ok(())
    }
}

// Failed steps: their agents are recomputed from their tokens.
impl Core {
    /// A step could not be submitted although the device works. It is unknown which part of the
    /// step was executed, so its agents are recomputed from their tokens. A reply fails after some
    /// tries.
    pub(super) fn retry_scheduled(&mut self, reason: &str) {
        tracing::warn!(target: "walla::device", reason, "a step failed; its agents are evaluated anew");
        for place in 0..self.scheduler.included.len() {
            let (slot, _) = self.scheduler.included[place];
            self.recompute(slot, reason);
        }
        self.scheduler.clear();
    }

    /// The device refused a step that was in flight. The cache lacks the rows of this step, a later
    /// step may have used them, and other agents may share those pages. Therefore all agents are
    /// recomputed.
    pub(super) fn retry_all(&mut self, reason: &str) {
        tracing::warn!(target: "walla::device", reason, "a step was refused; all agents are evaluated anew");
        self.kv.drop_snapshots();
        for slot in 0..self.agents.slots() {
            if self.agents.get(slot).is_some() {
                self.recompute(slot, reason);
            }
        }
    }

    /// Drops the cached tokens, so that they are prefilled again, and counts a retry; fails the
    /// reply after [`MAX_RETRIES`].
    pub(super) fn recompute(&mut self, slot: usize, reason: &str) {
        self.drop_sequence(slot);
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let Some(reply) = agent.reply.as_mut() else { return };
        reply.retries += 1;
        if reply.retries > MAX_RETRIES {
            self.fail(slot, ReplyError::Device(reason.to_owned()));
        }
    }
}
