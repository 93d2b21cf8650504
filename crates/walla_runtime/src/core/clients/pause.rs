//! Pauses: no step runs for a client, and its agents keep their state.
//!
//! A client is paused by its host ([`Client::set_paused`](crate::Client::set_paused)) or while its
//! budget is zero. Asks are queued and none begins; cancels and removals apply at once; steps in
//! flight are collected. The client's clock stops during a pause: afterwards the arrival times of
//! its asks and replies are moved by the duration of the pause. So the pause does not count for
//! voice rates or in [`Usage`](crate::Usage).

use super::agent::AgentState;
use super::{ClientState, Core};
use crate::api::Pacing;
use crate::engine_core::ClientKey;

impl ClientState {
    pub(super) fn is_paused(&self) -> bool {
        self.paused_since_micros.is_some()
    }

    /// Time on the client's clock, which stops during a pause.
    pub(super) fn now_micros(&self, now_micros: u64) -> u64 {
        self.paused_since_micros.map_or(now_micros, |since| since.min(now_micros))
    }
}

impl AgentState {
    /// Moves the arrival times of its asks and its reply.
    pub(super) fn postpone(&mut self, micros: u64) {
        let of_asks = self.asks.iter_mut().map(|ask| &mut ask.arrived_micros);
        let of_reply = self.reply.iter_mut().map(|reply| &mut reply.arrived_micros);
        of_asks.chain(of_reply).for_each(|arrived| *arrived += micros);
        if let Some(reply) = &mut self.reply {
            reply.begun_micros += micros;
            reply.spoken_since_micros.iter_mut().for_each(|since| *since += micros);
        }
    }
}

impl Core {
    /// Whether steps run for the agents of a client.
    pub(super) fn runs(&self, client: ClientKey) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|state| state.key == client && !state.is_paused() && !state.removed)
    }

    /// Whether no client runs.
    pub(super) fn is_all_paused(&self) -> bool {
        self.clients.iter().all(ClientState::is_paused)
    }

    /// Time on a client's clock.
    pub(super) fn client_micros(&self, client: ClientKey, now_micros: u64) -> u64 {
        let state = self.clients.iter().find(|state| state.key == client);
        state.map_or(now_micros, |state| state.now_micros(now_micros))
    }

    /// Begins and ends pauses.
    pub(super) fn update_pauses(&mut self, now_micros: u64) {
        let is_zero =
            self.budget.is_zero() && (self.budget.holds_for_all() || !self.is_budget_lifted());
        for place in 0..self.clients.len() {
            let client = &mut self.clients[place];
            let is_paused = is_zero || client.wants_pause;
            match (is_paused, client.paused_since_micros) {
                (true, None) => client.paused_since_micros = Some(now_micros),
                (false, Some(since)) => {
                    client.paused_since_micros = None;
                    let key = client.key;
                    self.postpone(key, now_micros.saturating_sub(since));
                }
                _ => {}
            }
        }
    }

    /// Whether a free-running client has work, which lifts the budget of all clients.
    fn is_budget_lifted(&self) -> bool {
        let runs_free =
            |client: &&ClientState| client.pacing == Pacing::FreeRunning && !client.wants_pause;
        self.clients.iter().filter(runs_free).any(|client| {
            let agents = self.agents.iter().flatten().chain(self.parked.agents.values());
            let mut agents = agents.filter(|agent| agent.client == client.key);
            agents.any(|agent| agent.reply.is_some() || !agent.asks.is_empty())
        })
    }

    /// Ends a pause of this duration.
    fn postpone(&mut self, client: ClientKey, micros: u64) {
        let ticks = self.budget.ticks;
        for agent in self.agents.iter_mut().flatten().filter(|agent| agent.client == client) {
            agent.postpone(micros);
            agent.waiting_since = ticks;
        }
        self.parked.postpone(client, micros);
    }
}
