//! The agents: assignment of sequences to agents, and agents without a sequence.
//!
//! A slot is a sequence of the KV ledger; there are
//! [`EngineOptions::max_agents`](crate::EngineOptions::max_agents). All other agents are parked:
//! they have a specification, a conversation and asks, but no tokens and no buffers. Only this
//! module assigns and releases slots, and only this module refuses an ask if no slot is free.
//!
//! # Rules
//! 1. A new agent takes a free slot, or is parked.
//! 2. A parked agent with asks waits. The first in the order gets the next slot: a free one; else
//!    the slot of the agent that has been idle longest; else the slot of an agent between two
//!    replies that is later in the order. That agent is parked, and its asks wait.
//! 3. An agent with a reply in progress keeps its slot ([`stalls`](super::stalls) has the
//!    exception).
//! 4. Order: before [`MAX_WAIT_MICROS`] by priority, then by age of the ask; afterwards by age
//!    only. So an agent waits for a bounded number of replies.
//! 5. Agents of a paused client get no slot. Between replies they lose theirs like idle agents.

mod agent;
mod background;
mod parked;
mod reply;
mod sequence;
mod turns;

use std::collections::HashMap;

use walla_types::TokenId;

pub(super) use self::agent::AgentState;
pub(super) use self::parked::MAX_WAIT_MICROS;
use self::parked::{Order, Parked, order};
pub(super) use self::reply::{Asked, Reply};
pub(super) use self::sequence::Epoch;
use crate::api::{AgentId, AgentSpec, EngineStats, MAX_ASKS_WAITING, ReplyError, ReplyId};
use crate::ask_queue::Ask;
use crate::engine_core::ClientKey;

/// Result of [`Agents::cancel`].
#[derive(Debug)]
pub(super) struct Cancelled {
    /// Waiting asks that were removed.
    pub asks: Vec<ReplyId>,
    /// The slot whose reply must end.
    pub reply_slot: Option<usize>,
}

/// All agents.
#[derive(Debug)]
pub(super) struct Agents {
    /// Indexed by the agent's sequence.
    slots: Vec<Option<Box<AgentState>>>,
    slot_of: HashMap<AgentId, usize>,
    parked: Parked,
    /// Whether an agent that is asked waits for a slot.
    waits: bool,
    context_tokens: u32,
}

impl Agents {
    pub fn new(slots: usize, (max_parked, waits): (u32, bool), context_tokens: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| None).collect(),
            slot_of: HashMap::with_capacity(slots),
            parked: Parked::new(max_parked),
            waits,
            context_tokens,
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The agent in a slot.
    pub fn get(&self, slot: usize) -> Option<&AgentState> {
        self.slots.get(slot)?.as_deref()
    }

    /// The agent in a slot.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut AgentState> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// Agents in slots, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &AgentState)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, agent)| Some((slot, agent.as_deref()?)))
    }

    /// Agents in slots, by slot.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut AgentState> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The slot of an agent. `None` for parked agents.
    pub fn slot_of(&self, id: AgentId) -> Option<usize> {
        self.slot_of.get(&id).copied()
    }

    /// An agent of this client, parked or not. Asks and priority are changed by the methods below.
    pub fn of_client(&mut self, client: ClientKey, id: AgentId) -> Option<&mut AgentState> {
        let agent = match self.slot_of.get(&id) {
            Some(&slot) => self.slots[slot].as_deref_mut(),
            None => self.parked.get_mut(id),
        };
        // An agent of another client is unknown to this one.
        agent.filter(|agent| agent.client == client)
    }

    /// Ids of a client's agents that have a slot.
    pub fn ids_in_slots(&self, client: ClientKey) -> Vec<AgentId> {
        let agents = self.iter().map(|(_, agent)| agent);
        agents.filter(|agent| agent.client == client).map(|agent| agent.id).collect()
    }

    /// Adds an agent. A known id has no effect, and nor has an agent beyond the bounds: its asks
    /// are refused. Returns whether it was added.
    pub fn add(&mut self, client: ClientKey, id: AgentId, spec: AgentSpec) -> bool {
        if self.slot_of.contains_key(&id) || self.parked.get(id).is_some() {
            return false;
        }
        let agent = Box::new(AgentState::new(client, id, spec));
        if let Some(slot) = self.free_slot() {
            self.assign_slot(slot, agent, Vec::new());
        } else if self.parked.has_room() {
            self.parked.insert(agent);
        } else {
            tracing::warn!(target: "walla::reply", agent = id.0, "no capacity for another agent");
            return false;
        }
        true
    }

    /// Changes the specification of an agent.
    pub fn change(&mut self, client: ClientKey, id: AgentId, spec: Box<AgentSpec>) {
        if let Some(agent) = self.of_client(client, id) {
            agent.change(spec);
            self.parked.refresh(id);
        }
    }

    /// Adds an ask to the queue of an agent.
    ///
    /// # Errors
    /// The reason why the ask fails.
    pub fn ask(&mut self, client: ClientKey, id: AgentId, ask: Ask) -> Result<(), ReplyError> {
        let too_many = ReplyError::TooManyAgents { max_agents: self.slots.len() as u32 };
        let (free_slot, waits) = (self.free_slot(), self.waits);
        let has_room = free_slot.is_some() || self.parked.has_room();
        let Some(agent) = self.of_client(client, id) else {
            return Err(if has_room { ReplyError::UnknownAgent } else { too_many });
        };
        if agent.asks.len() >= MAX_ASKS_WAITING {
            return Err(ReplyError::Busy { waiting: MAX_ASKS_WAITING as u32 });
        }
        agent.asks.push(ask);
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
        if let Some(agent) = self.parked.remove(id) {
            self.assign_slot(slot, agent, Vec::new());
        }
        Ok(())
    }

    /// Removes the asks of an agent that match from its queue.
    pub fn cancel(
        &mut self,
        client: ClientKey,
        id: AgentId,
        matches: impl Fn(ReplyId) -> bool,
    ) -> Option<Cancelled> {
        let max_turns = self.context_tokens as usize;
        let agent = self.of_client(client, id)?;
        let asks = agent.asks.cancel(&matches).iter().map(|ask| ask.reply_id).collect();
        let ends_reply = agent.reply.as_ref().is_some_and(|reply| matches(reply.reply_id));
        agent.flush_turns_after_asks(max_turns);
        let has_slot = agent.has_slot();
        if !has_slot {
            self.parked.refresh(id);
        }
        let reply_slot = self.slot_of(id).filter(|_| has_slot && ends_reply);
        Some(Cancelled { asks, reply_slot })
    }

    /// Removes an agent without asks and without a reply. Returns its slot, whose sequence the
    /// caller drops.
    pub fn remove(&mut self, client: ClientKey, id: AgentId) -> Option<usize> {
        self.of_client(client, id)?;
        let Some(slot) = self.slot_of.remove(&id) else {
            self.parked.remove(id);
            return None;
        };
        self.slots[slot] = None;
        Some(slot)
    }

    /// Removes the parked agents of a client that has left.
    pub fn remove_parked(&mut self, client: ClientKey) {
        self.parked.remove_client(client);
    }

    /// Ends a pause of a client: moves arrival times by its duration. `ticks` is the current tick.
    pub fn postpone(&mut self, client: ClientKey, micros: u64, ticks: u64) {
        for agent in self.iter_mut().filter(|agent| agent.client == client) {
            agent.postpone(micros);
            agent.sequence.wait_since(ticks);
        }
        self.parked.postpone(client, micros);
    }

    /// Removes all agents.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<AgentState>> + use<> {
        self.slot_of.clear();
        let agents: Vec<_> = self.slots.iter_mut().filter_map(Option::take).collect();
        agents.into_iter().chain(self.parked.take_all())
    }

    /// Changes the number of slots of an empty table.
    pub fn resize(&mut self, slots: usize) {
        debug_assert!(self.slot_of.is_empty(), "agents keep their slots");
        self.slots.resize_with(slots, || None);
    }

    /// Writes the numbers of agents and asks.
    pub fn update_stats(&self, stats: &mut EngineStats) {
        let active = self.iter().filter(|(_, agent)| agent.reply.is_some()).count();
        let waiting: usize = self.iter().map(|(_, agent)| agent.asks.len()).sum();
        stats.agents = self.slot_of.len() as u32 + self.parked.len();
        stats.agents_parked = self.parked.len();
        stats.agents_waiting = self.parked.waiting();
        stats.agents_active = active as u32 + self.parked.waiting();
        stats.asks_waiting = waiting as u32 + self.parked.asks();
    }
}

// Assignment of slots.
impl Agents {
    fn free_slot(&self) -> Option<usize> {
        // Fast path for crowds, in which all slots are taken.
        let is_full = self.slot_of.len() >= self.slots.len();
        if is_full { None } else { self.slots.iter().position(Option::is_none) }
    }

    /// The agent that gets the next slot, and the slot. `None` if no agent gets one now. Only
    /// agents of clients that `can_run` get one.
    pub fn next_placement(
        &self,
        now_micros: u64,
        can_run: &dyn Fn(ClientKey) -> bool,
    ) -> Option<(AgentId, usize)> {
        if self.parked.waiting() == 0 {
            return None;
        }
        // Slots first: there are few, and in a busy crowd none is available.
        let (occupant, slot) = match self.free_slot() {
            Some(slot) => (None, slot),
            None => self.slot_to_take(now_micros, can_run)?,
        };
        let (first, id) = self.parked.first_waiting(now_micros, can_run)?;
        (occupant < Some(first)).then_some((id, slot))
    }

    /// Gives the slot to a parked agent, and parks the agent that has it. The slot's sequence is
    /// empty.
    pub fn place(&mut self, id: AgentId, slot: usize) {
        let Some(agent) = self.parked.remove(id) else { return };
        let buffer = self.park(slot);
        self.assign_slot(slot, agent, buffer);
    }

    /// Longest wait for a slot, in microseconds. `None` if no agent waits whose client `can_run`,
    /// or if a slot does not hold a reply.
    pub fn longest_slot_wait(
        &self,
        now_micros: u64,
        can_run: &dyn Fn(ClientKey) -> bool,
    ) -> Option<u64> {
        let arrived_micros = self.parked.oldest_arrival(can_run)?;
        let holds_reply = |agent: &Option<Box<AgentState>>| {
            agent.as_ref().is_some_and(|agent| agent.reply.is_some())
        };
        let waited_micros = now_micros.saturating_sub(arrived_micros);
        self.slots.iter().all(holds_reply).then_some(waited_micros)
    }

    /// The slot whose agent is parked at the lowest cost, and the order of that agent's next ask
    /// (`None` without an ask that can begin).
    fn slot_to_take(
        &self,
        now_micros: u64,
        can_run: &dyn Fn(ClientKey) -> bool,
    ) -> Option<(Option<Order>, usize)> {
        let order_of = |agent: &AgentState| {
            let ask = agent.asks.front().filter(|_| can_run(agent.client))?;
            Some(order(agent.spec.priority, ask.arrived_micros, agent.id, now_micros))
        };
        let between_replies = self.iter().filter(|(_, agent)| agent.reply.is_none());
        let (slot, agent) = between_replies
            .min_by_key(|(_, agent)| (order_of(agent), agent.sequence.last_step()))?;
        Some((order_of(agent), slot))
    }

    fn assign_slot(&mut self, slot: usize, mut agent: Box<AgentState>, buffer: Vec<TokenId>) {
        agent.take_slot(buffer, self.context_tokens);
        self.slot_of.insert(agent.id, slot);
        self.slots[slot] = Some(agent);
    }

    /// Parks the agent of a slot, if there is one. Returns its token buffer.
    fn park(&mut self, slot: usize) -> Vec<TokenId> {
        let Some(mut agent) = self.slots[slot].take() else { return Vec::new() };
        let (id, buffer) = (agent.id, agent.leave_slot());
        tracing::debug!(target: "walla::reply", agent = id.0, "parked: another agent needs its slot");
        self.slot_of.remove(&id);
        self.parked.insert(agent);
        buffer
    }
}
