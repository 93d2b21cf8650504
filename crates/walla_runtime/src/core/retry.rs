//! Failed steps: their agents are recomputed from their tokens.

use super::{Core, MAX_RETRIES};
use crate::api::ReplyError;

impl Core {
    /// A step could not be submitted although the device works. It is unknown which part of the
    /// step was executed, so its agents are recomputed from their tokens. A reply fails after some
    /// tries.
    pub(super) fn retry_scheduled(&mut self, reason: &str) {
        tracing::warn!(target: "walla::device", reason, "a step failed; its agents are evaluated anew");
        for place in 0..self.scheduler.included().len() {
            let (slot, _) = self.scheduler.included()[place];
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
