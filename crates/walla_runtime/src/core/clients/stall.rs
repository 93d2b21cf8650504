//! Which clients are stalled: see [`stalls`](crate::core::stalls).

use super::{ClientState, Clients};
use crate::api::Pacing;
use crate::core::stalls::{MAX_GAP_MICROS, STALL_MICROS};
use crate::engine_core::ClientKey;

impl ClientState {
    /// Updates the last time at which its agents could be scheduled.
    fn update_stall(&mut self, now_micros: u64) {
        let last = self.schedulable_micros.get_or_insert(now_micros);
        // A pause is the wish of the host, so it is no stall.
        if self.paused_since_micros.is_some() {
            *last = now_micros;
        } else if self.outbox.is_empty() {
            *last = match self.pacing {
                Pacing::FreeRunning => now_micros,
                // Without a new grant no step can run, although the queue has room.
                Pacing::PerFrame { .. } => self.granted_micros.max(*last),
            };
        }
        self.is_stalled = now_micros.saturating_sub(*last) >= STALL_MICROS;
    }

    /// Time since its agents could be scheduled last.
    pub fn stalled_micros(&self, now_micros: u64) -> u64 {
        self.schedulable_micros.map_or(0, |last| now_micros.saturating_sub(last))
    }
}

impl Clients {
    /// Whether agents of a client can be scheduled: it is neither paused nor stalled.
    pub fn is_schedulable(&self, key: ClientKey) -> bool {
        let is_stalled = |state: &ClientState| state.key == key && state.is_stalled;
        self.runs(key) && !self.list.iter().any(is_stalled)
    }

    /// Time since the agents of a client could be scheduled last.
    pub fn stalled_micros(&self, key: ClientKey, now_micros: u64) -> Option<u64> {
        Some(self.get(key)?.stalled_micros(now_micros))
    }

    pub fn update_stalls(&mut self, now_micros: u64) {
        let gap_micros = now_micros.saturating_sub(self.stalls_updated_micros);
        self.stalls_updated_micros = now_micros;
        // The engine itself was not called for so long, so this time is no stall of a host.
        let uncounted_micros = gap_micros.saturating_sub(MAX_GAP_MICROS);
        for client in &mut self.list {
            if let Some(last) = &mut client.schedulable_micros {
                *last += uncounted_micros;
            }
            client.update_stall(now_micros);
        }
    }

    #[cfg(test)]
    pub fn stalls_updated_micros(&self) -> u64 {
        self.stalls_updated_micros
    }
}
