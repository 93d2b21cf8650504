//! Deadlines of steps and replies, on the injected clock.

use std::time::Duration;

use walla_device::DeviceError;
use walla_exec::Sequences;

use super::Core;
use crate::api::FinishReason;
use crate::clock::WaitMeter;

/// Longest time between two looks that counts as waiting.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// Measures how long the oldest step has been in flight.
pub(super) fn step_meter() -> WaitMeter {
    WaitMeter::new(LOOK_MAX)
}

/// Gives up the device of `sequences`, which has not completed a step for `waited_micros`.
pub(super) fn hung(sequences: &mut Sequences, waited_micros: u64) -> DeviceError {
    let seconds = waited_micros as f64 / 1e6;
    let reason = format!("no results after {seconds:.1} s: the device hangs");
    tracing::error!(target: "walla::device", %reason, "the device is given up, its memory is leaked");
    sequences.executor.abandon(&reason);
    DeviceError::Lost { call: "step", reason }
}

impl Core {
    /// Gives up a device whose oldest step exceeds its deadline.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] if so.
    pub(super) fn check_step_deadline(&mut self, now_micros: u64) -> Result<(), DeviceError> {
        let Some(max) = self.deadlines.step else { return Ok(()) };
        let step = self.in_flight.oldest();
        let waited_micros = self.step_meter.look(step, now_micros);
        if step.is_none() || Duration::from_micros(waited_micros) <= max {
            return Ok(());
        }
        Err(hung(&mut self.sequences, waited_micros))
    }

    /// Ends replies that exceed their deadline. Returns the microseconds until the next one does.
    pub(super) fn end_overdue_replies(&mut self, now_micros: u64) -> Option<u64> {
        let max_micros = u64::try_from(self.deadlines.reply?.as_micros()).unwrap_or(u64::MAX);
        let mut next_micros: Option<u64> = None;
        for slot in 0..self.agents.len() {
            let Some(agent) = self.agents[slot].as_ref() else { continue };
            let Some(reply) = agent.reply.as_ref().filter(|_| self.runs(agent.client)) else {
                continue;
            };
            let end_micros = reply.begun_micros.saturating_add(max_micros);
            if end_micros <= now_micros {
                self.finish(slot, FinishReason::TimedOut, now_micros);
                continue;
            }
            let left_micros = end_micros - now_micros;
            next_micros = Some(next_micros.map_or(left_micros, |next| next.min(left_micros)));
        }
        next_micros
    }
}
