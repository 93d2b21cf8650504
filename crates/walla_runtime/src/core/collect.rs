//! Reads completed steps.

use std::time::Duration;

use walla_exec::{Completed, ExecError};
use walla_trace::{Stage, enter};

use super::Core;
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
            Err(refused @ ExecError::ForeignResults { .. }) => Err(refused.to_string()),
            read => Ok(read?),
        };
        self.kv.sequences.release(completed);
        let Some(mut step) = self.in_flight.complete() else { return Ok(()) };
        debug_assert_eq!(step.number, completed.step, "steps complete in order");
        let device_nanos = *read.as_ref().unwrap_or(&0);
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
