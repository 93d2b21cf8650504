//! Slots: assignment of sequences to agents.
//!
//! A slot is a sequence of the KV ledger; there are
//! [`EngineOptions::agents_max`](crate::EngineOptions::agents_max). All other agents are parked:
//! they have a specification, a conversation and asks, but no tokens and no buffers. Only this
//! module assigns and releases slots.
//!
//! # Rules
//! 1. A new agent takes a free slot, or is parked.
//! 2. A parked agent with asks waits. The first in [`Order`] gets the next slot: a free one; else
//!    the slot of the agent that has been idle longest; else the slot of an agent between two
//!    replies that is later in the order. That agent is parked, and its asks wait.
//! 3. An agent with a reply in progress keeps its slot ([`stall`](super::stall) has the exception).
//! 4. Order: before [`WAIT_MICROS_MAX`] by priority, then by age of the ask; afterwards by age
//!    only. So an agent waits for a bounded number of replies.
//! 5. Agents of a paused client get no slot. Between replies they lose theirs like idle agents.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use walla_types::TokenId;

use super::Core;
use super::agent::{AgentState, Ask};
use crate::api::{
    ASKS_WAITING_MAX, AgentId, AgentSpec, FinishReason, GenerationId, ReplyError, ReplyEvent, Usage,
};
use crate::engine_core::ClientKey;

/// Wait in microseconds after which priorities no longer count: an agent of low priority answers
/// late, but answers.
pub(super) const WAIT_MICROS_MAX: u64 = 10_000_000;

/// Order of waiting agents: the largest gets the next slot.
type Order = (bool, i32, Reverse<(u64, AgentId)>);

fn order(priority: i32, arrived_micros: u64, agent: AgentId, now_micros: u64) -> Order {
    let is_aged = now_micros.saturating_sub(arrived_micros) >= WAIT_MICROS_MAX;
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
    pub agents: BTreeMap<AgentId, Box<AgentState>>,
    /// Parked agents with asks, unordered.
    waiting: Vec<Waiting>,
    /// Total number of asks of parked agents.
    asks: u32,
    agents_max: usize,
    /// Whether an agent that is asked waits for a slot.
    waits: bool,
}

impl Parked {
    pub fn new(agents_max: u32, waits: bool) -> Self {
        let (agents, waiting) = (BTreeMap::new(), Vec::new());
        Self { agents, waiting, asks: 0, agents_max: agents_max as usize, waits }
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    pub fn asks(&self) -> u32 {
        self.asks
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
}

impl Core {
    pub(super) fn add_agent(&mut self, client: ClientKey, id: AgentId, spec: AgentSpec) {
        if self.slots.contains_key(&id) || self.parked.agents.contains_key(&id) {
            return;
        }
        let agent = Box::new(AgentState::new(client, id, spec));
        if let Some(slot) = self.free_slot() {
            self.assign_slot(slot, agent, Vec::new());
        } else if self.parked.agents.len() < self.parked.agents_max {
            self.parked.agents.insert(id, agent);
        } else {
            tracing::warn!(target: "walla::reply", agent = id.0, "no room for one more agent");
        }
    }

    pub(super) fn ask(&mut self, client: ClientKey, id: AgentId, ask: Ask) {
        let generation = ask.generation;
        if let Err(error) = self.try_ask(client, id, ask) {
            self.queue_event(client, id, generation, ReplyEvent::Failed(error));
        }
    }

    fn try_ask(&mut self, client: ClientKey, id: AgentId, mut ask: Ask) -> Result<(), ReplyError> {
        let too_many = ReplyError::TooManyAgents { agents_max: self.agents.len() as u32 };
        let (free_slot, waits) = (self.free_slot(), self.parked.waits);
        let has_room = free_slot.is_some() || self.parked.agents.len() < self.parked.agents_max;
        let Some(agent) = self.agent_of(client, id) else {
            return Err(if has_room { ReplyError::UnknownAgent } else { too_many });
        };
        if agent.asks.len() >= ASKS_WAITING_MAX {
            return Err(ReplyError::Busy { waiting: ASKS_WAITING_MAX as u32 });
        }
        ask.turns_before = std::mem::take(&mut agent.later);
        agent.asks.push_back(ask);
        if agent.has_slot() {
            return Ok(());
        }
        if waits {
            self.parked.refresh(id);
            return Ok(());
        }
        let Some(slot) = free_slot else {
            // The agent has no other asks, and turns are appended at once if no ask is open.
            agent.asks.clear();
            return Err(too_many);
        };
        if let Some(agent) = self.parked.agents.remove(&id) {
            self.assign_slot(slot, agent, Vec::new());
        }
        Ok(())
    }

    /// Cancels a reply or a waiting ask. `None` cancels all of them.
    pub(super) fn cancel(
        &mut self,
        client: ClientKey,
        id: AgentId,
        generation: Option<GenerationId>,
        now_micros: u64,
    ) {
        let turns_max = self.context_tokens as usize;
        let matches = |g: GenerationId| generation.is_none_or(|wanted| wanted == g);
        let Some(agent) = self.agent_of(client, id) else { return };
        let cancelled = agent.cancel_asks(matches);
        let is_speaking = agent.reply.as_ref().is_some_and(|reply| matches(reply.generation));
        agent.settle_turns(turns_max);
        if !agent.has_slot() {
            self.parked.refresh(id);
        } else if is_speaking && let Some(slot) = self.slot_of(client, id) {
            self.finish(slot, FinishReason::Cancelled, now_micros);
        }
        for generation in cancelled {
            let usage = Usage::default();
            let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage };
            self.queue_event(client, id, generation, what);
        }
    }

    /// Ends a reply, or shortens one that has ended, to the part that the host heard.
    pub(super) fn interrupt(
        &mut self,
        client: ClientKey,
        id: AgentId,
        (generation, heard_bytes): (GenerationId, u32),
        now_micros: u64,
    ) {
        let Some(agent) = self.agent_of(client, id) else { return };
        if let Some(reply) = agent.reply.as_mut().filter(|reply| reply.generation == generation) {
            reply.heard_bytes = heard_bytes;
        } else {
            agent.shorten_reply(generation, heard_bytes);
        }
        self.cancel(client, id, Some(generation), now_micros);
    }

    pub(super) fn remove_agent(&mut self, client: ClientKey, id: AgentId, now_micros: u64) {
        self.cancel(client, id, None, now_micros);
        if let Some(slot) = self.slot_of(client, id) {
            self.slots.remove(&id);
            self.agents[slot] = None;
            self.drop_sequence(slot);
        } else if self.parked.agents.get(&id).is_some_and(|agent| agent.client == client) {
            self.parked.agents.remove(&id);
        }
    }

    fn free_slot(&self) -> Option<usize> {
        // Fast path for crowds, in which all slots are taken.
        let is_full = self.slots.len() >= self.agents.len();
        if is_full { None } else { self.agents.iter().position(Option::is_none) }
    }

    /// Assigns slots to agents that wait for one.
    pub(super) fn place_waiting(&mut self, now_micros: u64) {
        while let Some((id, slot)) = self.next_placement(now_micros) {
            let Some(agent) = self.parked.agents.remove(&id) else { return };
            self.parked.refresh(id);
            let buffer = self.park(slot);
            self.assign_slot(slot, agent, buffer);
        }
    }

    /// The agent that gets the next slot, and the slot. `None` if no agent gets one now.
    pub(super) fn next_placement(&self, now_micros: u64) -> Option<(AgentId, usize)> {
        if self.parked.waiting.is_empty() {
            return None;
        }
        // Slots first: there are few, and in a busy crowd none is available.
        let (occupant, slot) = match self.free_slot() {
            Some(slot) => (None, slot),
            None => self.slot_to_take(now_micros)?,
        };
        let can_run = |waiting: &&Waiting| self.is_schedulable(waiting.client);
        let by_order = |w: &Waiting| order(w.priority, w.arrived_micros, w.agent, now_micros);
        let waiting = self.parked.waiting.iter().filter(can_run).map(|w| (by_order(w), w.agent));
        let (first, id) = waiting.max()?;
        (occupant < Some(first)).then_some((id, slot))
    }

    /// Longest wait for a slot, in microseconds. `None` if no agent waits that could be scheduled,
    /// or if a slot does not hold a reply.
    pub(super) fn longest_slot_wait(&self, now_micros: u64) -> Option<u64> {
        let waiting = self.parked.waiting.iter().filter(|w| self.is_schedulable(w.client));
        let arrived_micros = waiting.map(|waiting| waiting.arrived_micros).min()?;
        let holds_reply = |agent: &Option<Box<AgentState>>| {
            agent.as_ref().is_some_and(|agent| agent.reply.is_some())
        };
        let waited_micros = now_micros.saturating_sub(arrived_micros);
        self.agents.iter().all(holds_reply).then_some(waited_micros)
    }

    /// The slot whose agent is parked at the lowest cost, and the order of that agent's next ask
    /// (`None` without an ask that can begin).
    fn slot_to_take(&self, now_micros: u64) -> Option<(Option<Order>, usize)> {
        let between_replies =
            |&slot: &usize| self.agents[slot].as_ref().is_some_and(|agent| agent.reply.is_none());
        let order_of = |slot: usize| {
            let agent =
                self.agents[slot].as_ref().filter(|agent| self.is_schedulable(agent.client))?;
            let ask = agent.asks.front()?;
            Some(order(agent.spec.priority, ask.arrived_micros, agent.id, now_micros))
        };
        let last_step = |slot: usize| self.agents[slot].as_ref().map_or(0, |agent| agent.last_step);
        let slots = (0..self.agents.len()).filter(between_replies);
        let slot = slots.min_by_key(|&slot| (order_of(slot), last_step(slot)))?;
        Some((order_of(slot), slot))
    }

    fn assign_slot(&mut self, slot: usize, mut agent: Box<AgentState>, buffer: Vec<TokenId>) {
        agent.take_slot(buffer, self.context_tokens);
        self.slots.insert(agent.id, slot);
        self.agents[slot] = Some(agent);
    }

    /// Parks the agent of a slot, if there is one. Returns its token buffer.
    fn park(&mut self, slot: usize) -> Vec<TokenId> {
        self.drop_sequence(slot);
        let Some(mut agent) = self.agents[slot].take() else { return Vec::new() };
        let (id, buffer) = (agent.id, agent.leave_slot());
        tracing::debug!(target: "walla::reply", agent = id.0, "parked: another agent needs its slot");
        self.slots.remove(&id);
        self.parked.agents.insert(id, agent);
        self.parked.refresh(id);
        buffer
    }
}
