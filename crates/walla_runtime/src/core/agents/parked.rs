//! Agents without a slot, and the order in which they get one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::AgentState;
use crate::api::AgentId;
use crate::engine_core::ClientKey;

/// Wait in microseconds after which priorities no longer count: an agent of low priority answers
/// late, but answers.
pub(in crate::core) const MAX_WAIT_MICROS: u64 = 10_000_000;

/// Order of waiting agents: the largest gets the next slot.
pub(super) type Order = (bool, i32, Reverse<(u64, AgentId)>);

/// The order of an ask.
pub(super) fn order(priority: i32, arrived_micros: u64, agent: AgentId, now_micros: u64) -> Order {
    let is_aged = now_micros.saturating_sub(arrived_micros) >= MAX_WAIT_MICROS;
    (is_aged, if is_aged { 0 } else { priority }, Reverse((arrived_micros, agent)))
}

/// A parked agent with asks, and the data that determine its order.
#[derive(Debug)]
struct Waiting {
    agent: AgentId,
    client: ClientKey,
    priority: i32,
    /// Arrival of its oldest ask.
    arrived_micros: u64,
    asks: u32,
}

/// Agents without a slot.
#[derive(Debug)]
pub(super) struct Parked {
    /// Ordered, so that equal inputs lead to equal events.
    agents: BTreeMap<AgentId, Box<AgentState>>,
    /// Parked agents with asks, unordered.
    waiting: Vec<Waiting>,
    /// Total number of asks of parked agents.
    asks: u32,
    max_agents: usize,
}

impl Parked {
    pub fn new(max_agents: u32) -> Self {
        let (agents, waiting) = (BTreeMap::new(), Vec::new());
        Self { agents, waiting, asks: 0, max_agents: max_agents as usize }
    }

    pub fn len(&self) -> u32 {
        self.agents.len() as u32
    }

    pub fn has_room(&self) -> bool {
        self.agents.len() < self.max_agents
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    pub fn asks(&self) -> u32 {
        self.asks
    }

    pub fn get(&self, id: AgentId) -> Option<&AgentState> {
        self.agents.get(&id).map(|agent| &**agent)
    }

    /// After a change of its asks or its priority the caller calls [`refresh`](Self::refresh).
    pub fn get_mut(&mut self, id: AgentId) -> Option<&mut AgentState> {
        self.agents.get_mut(&id).map(|agent| &mut **agent)
    }

    pub fn insert(&mut self, agent: Box<AgentState>) {
        let id = agent.id;
        self.agents.insert(id, agent);
        self.refresh(id);
    }

    pub fn remove(&mut self, id: AgentId) -> Option<Box<AgentState>> {
        let agent = self.agents.remove(&id)?;
        self.refresh(id);
        Some(agent)
    }

    /// Updates the entry of one agent in the list of waiting agents.
    pub fn refresh(&mut self, id: AgentId) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.agent == id) {
            self.asks -= self.waiting.swap_remove(at).asks;
        }
        let Some(agent) = self.agents.get(&id) else { return };
        let Some(ask) = agent.asks.front() else { return };
        let asks = agent.asks.len() as u32;
        self.asks += asks;
        self.waiting.push(Waiting {
            agent: id,
            client: agent.client,
            priority: agent.spec.priority,
            arrived_micros: ask.arrived_micros,
            asks,
        });
    }

    /// Moves the arrival times of a client's asks after a pause.
    pub fn postpone(&mut self, client: ClientKey, micros: u64) {
        let agents = self.agents.values_mut().filter(|agent| agent.client == client);
        agents.for_each(|agent| agent.postpone(micros));
        let waiting = self.waiting.iter_mut().filter(|waiting| waiting.client == client);
        waiting.for_each(|waiting| waiting.arrived_micros += micros);
    }

    pub fn remove_client(&mut self, client: ClientKey) {
        self.agents.retain(|_, agent| agent.client != client);
        self.waiting.retain(|waiting| waiting.client != client);
        self.asks = self.waiting.iter().map(|waiting| waiting.asks).sum();
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = Box<AgentState>> + use<> {
        self.waiting.clear();
        self.asks = 0;
        std::mem::take(&mut self.agents).into_values()
    }

    /// The waiting agent that is first in the order, among the agents of clients that `can_run`.
    pub fn first_waiting(
        &self,
        now_micros: u64,
        can_run: &dyn Fn(ClientKey) -> bool,
    ) -> Option<(Order, AgentId)> {
        let waiting = self.waiting.iter().filter(|waiting| can_run(waiting.client));
        let by_order = |w: &Waiting| order(w.priority, w.arrived_micros, w.agent, now_micros);
        waiting.map(|waiting| (by_order(waiting), waiting.agent)).max()
    }

    /// Arrival of the oldest ask of these agents.
    pub fn oldest_arrival(&self, can_run: &dyn Fn(ClientKey) -> bool) -> Option<u64> {
        let waiting = self.waiting.iter().filter(|waiting| can_run(waiting.client));
        waiting.map(|waiting| waiting.arrived_micros).min()
    }
}
