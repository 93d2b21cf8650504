//! Deadlines of steps and replies, on the injected clock.

use walla_device::DeviceError;
use walla_exec::Executor;

use super::Core;
use crate::api::FinishReason;

/// Gives up the device of `executor`, which has not completed a step for `waited_micros`.
pub(super) fn hung(executor: &mut Executor, waited_micros: u64) -> DeviceError {
    let seconds = waited_micros as f64 / 1e6;
    let reason = format!("no results after {seconds:.1} s: the device hangs");
    tracing::error!(target: "walla::device", %reason, "the device is given up, its memory is leaked");
    executor.abandon(&reason);
    DeviceError::Lost { call: "step", reason }
}

impl Core {
    /// Gives up a device whose oldest step exceeds its deadline.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] if so.
    pub(super) fn check_step_deadline(&mut self, now_micros: u64) -> Result<(), DeviceError> {
        let Some(max) = self.deadlines.step else { return Ok(()) };
        match self.in_flight.overdue_micros(max, now_micros) {
            Some(waited_micros) => Err(hung(self.kv.executor_mut(), waited_micros)),
            None => Ok(()),
        }
    }

    /// Deadlines of open replies, with their slots. Replies of paused clients are skipped.
    fn reply_ends(&self) -> impl Iterator<Item = (usize, u64)> {
        self.deadlines.reply.into_iter().flat_map(move |max| {
            let max_micros = u64::try_from(max.as_micros()).unwrap_or(u64::MAX);
            let agents =
                self.agents.iter().filter(move |(_, agent)| self.clients.runs(agent.client));
            agents.filter_map(move |(slot, agent)| {
                let begun_micros = agent.reply.as_ref()?.begun_micros;
                Some((slot, begun_micros.saturating_add(max_micros)))
            })
        })
    }

    /// Ends replies that exceed their deadline.
    pub(super) fn end_overdue_replies(&mut self, now_micros: u64) {
        loop {
            let overdue = self.reply_ends().find(|&(_, end_micros)| end_micros <= now_micros);
            let Some((slot, _)) = overdue else { return };
            self.finish(slot, FinishReason::TimedOut, now_micros);
        }
    }

    /// The microseconds until a reply exceeds its deadline, at least 1.
    pub(super) fn micros_to_reply_deadline(&self, now_micros: u64) -> Option<u64> {
        let end_micros = self.reply_ends().map(|(_, end)| end).min()?;
        Some(end_micros.saturating_sub(now_micros).max(1))
    }
}
