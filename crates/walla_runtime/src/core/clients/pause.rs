//! Pauses: no step runs for a client, and its agents keep their state.
//!
//! A client is paused by its host ([`Client::set_paused`](crate::Client::set_paused)). All clients
//! are paused while the budget is zero. Asks are queued and none begins; cancels and removals apply
//! at once; steps in flight are collected. The client's clock stops during a pause: afterwards the
//! arrival times of its asks and replies are moved by the duration of the pause. So the pause does
//! not count for voice rates or in [`Usage`](crate::Usage).

use super::{ClientState, Clients};
use crate::engine_core::ClientKey;

impl ClientState {
    pub fn is_paused(&self) -> bool {
        self.paused_since_micros.is_some()
    }

    /// Time on the client's clock, which stops during a pause.
    fn now_micros(&self, now_micros: u64) -> u64 {
        self.paused_since_micros.map_or(now_micros, |since| since.min(now_micros))
    }
}

impl Clients {
    /// The host requests a pause, or its end. It applies at the next update.
    pub fn request_pause(&mut self, key: ClientKey, is_paused: bool) {
        if let Some(client) = self.get_mut(key) {
            client.wants_pause = is_paused;
        }
    }

    /// Whether steps run for the agents of a client.
    pub fn runs(&self, key: ClientKey) -> bool {
        self.list.iter().any(|state| state.key == key && !state.is_paused() && !state.removed)
    }

    /// Whether no client runs.
    pub fn is_all_paused(&self) -> bool {
        self.list.iter().all(ClientState::is_paused)
    }

    /// Time on a client's clock.
    pub fn now_micros(&self, key: ClientKey, now_micros: u64) -> u64 {
        self.get(key).map_or(now_micros, |state| state.now_micros(now_micros))
    }

    /// Begins and ends pauses; with `is_zero`, all clients pause. `ended` receives each client
    /// whose pause ends, and the duration of the pause in microseconds.
    pub fn update_pauses(
        &mut self,
        is_zero: bool,
        now_micros: u64,
        mut ended: impl FnMut(ClientKey, u64),
    ) {
        for client in &mut self.list {
            let is_paused = is_zero || client.wants_pause;
            match (is_paused, client.paused_since_micros) {
                (true, None) => client.paused_since_micros = Some(now_micros),
                (false, Some(since)) => {
                    client.paused_since_micros = None;
                    ended(client.key, now_micros.saturating_sub(since));
                }
                _ => {}
            }
        }
    }
}
