//! Pauses: no step runs for a client, and its agents keep their state.
//!
//! A client is paused by its host ([`Client::set_paused`](crate::Client::set_paused)). All clients
//! are paused while the budget is zero. Asks are queued and none begins; cancels and removals apply
//! at once; steps in flight are collected. The client's clock stops during a pause: afterwards the
//! arrival times of its asks and replies are moved by the duration of the pause. So the pause does
//! not count for voice rates or in [`Usage`](crate::Usage).

use super::Core;

impl Core {
    /// Begins and ends pauses.
    pub(super) fn update_pauses(&mut self, now_micros: u64) {
        let is_zero = self.budget.is_zero();
        let Self { clients, agents, budget, .. } = self;
        clients.update_pauses(is_zero, now_micros, |client, micros| {
            agents.postpone(client, micros, budget.ticks);
        });
    }
}
