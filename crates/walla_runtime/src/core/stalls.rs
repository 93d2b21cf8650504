//! Stalled clients: a host that grants no frames or reads no events does not block other clients.
//!
//! # Rules
//! 1. A client is stalled if none of its agents could be scheduled for [`STALL_MICROS`]: events
//!    were left because its queue was full, or it is paced per frame and granted none. A pause is
//!    not a stall. Of the time between two updates at most [`MAX_GAP_MICROS`] counts: a process
//!    that was suspended or stopped in a debugger is not a stalled host.
//! 2. Other clients may take the pages of its agents, whose tokens are recomputed later. Its agents
//!    get no slot, and yield theirs between replies.
//! 3. A reply in progress keeps its slot. If an agent of another client has waited for
//!    [`MAX_WAIT_MICROS`] and every slot holds a reply, the reply of the client that has been
//!    stalled longest, for at least [`END_MICROS`], ends with [`FinishReason::TimedOut`].

use super::Core;
use super::agents::{AgentState, MAX_WAIT_MICROS};
use super::clients::ClientState;
use crate::api::FinishReason;

/// Time without a possible step after which a client is stalled, in microseconds.
pub(super) const STALL_MICROS: u64 = 1_000_000;

/// Duration of a stall after which a reply may lose its slot, in microseconds.
pub(super) const END_MICROS: u64 = 10_000_000;

/// Maximum time between two updates that counts as a stall, in microseconds. While another host
/// waits for the end of a stall, the core is called at least as often.
pub(super) const MAX_GAP_MICROS: u64 = 1_000_000;

impl Core {
    /// Rule 3.
    pub(super) fn end_stalled_reply(&mut self, now_micros: u64) {
        let waited_micros = self.longest_slot_wait(now_micros);
        if waited_micros.is_none_or(|waited| waited < MAX_WAIT_MICROS) {
            return;
        }
        let stalled = |(slot, agent): (usize, &AgentState)| {
            agent.reply.as_ref()?;
            let stalled_micros = self.clients.stalled_micros(agent.client, now_micros)?;
            (stalled_micros >= END_MICROS).then_some((stalled_micros, slot))
        };
        let slots = self.agents.iter().filter_map(stalled);
        if let Some((_, slot)) = slots.max() {
            self.finish(slot, FinishReason::TimedOut, now_micros);
        }
    }

    /// See [`Agents::longest_slot_wait`](super::agents::Agents::longest_slot_wait).
    fn longest_slot_wait(&self, now_micros: u64) -> Option<u64> {
        self.agents.longest_slot_wait(now_micros, &|client| self.clients.is_schedulable(client))
    }

    /// The microseconds until stalls are updated next. `None`: no request waits for one.
    pub(super) fn micros_to_stall(&self, now_micros: u64) -> Option<u64> {
        if self.clients.len() < 2 {
            return None;
        }
        let mut agents = self.agents.iter().map(|(_, agent)| agent);
        let waited_micros = self.longest_slot_wait(now_micros);
        let waits = waited_micros.is_some()
            || agents.any(|agent| agent.has_work() && self.clients.is_schedulable(agent.client));
        let holds = |client: &&ClientState| {
            let mut agents = self.agents.iter().map(|(_, agent)| agent);
            agents.any(|agent| agent.client == client.key && agent.reply.is_some())
        };
        let holders = self.clients.iter().filter(|client| !client.is_paused()).filter(holds);
        let stalls = holders.map(|client| client.stalled_micros(now_micros));
        let ends = stalls.flat_map(|stalled| [(STALL_MICROS, stalled), (END_MICROS, stalled)]);
        let of_wait = waited_micros.map(|waited| (MAX_WAIT_MICROS, waited));
        let left = ends.chain(of_wait).filter(|(end, now)| end > now).map(|(end, now)| end - now);
        left.min().filter(|_| waits).map(|micros| micros.min(MAX_GAP_MICROS))
    }
}
