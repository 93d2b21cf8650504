//! Clients: their grants, pauses, stalls and outboxes. Only this module changes them.

mod outbox;
mod pause;
mod stall;

use std::collections::VecDeque;

pub(super) use self::outbox::Outbox;
use crate::api::{AgentId, Event, Logged, Pacing, ReplyEvent, ReplyId};
use crate::engine_core::{ClientKey, Emit};

/// One host.
#[derive(Debug, Default)]
pub(super) struct ClientState {
    pub key: ClientKey,
    pub pacing: Pacing,
    /// Steps granted and not yet used, under [`Pacing::PerFrame`] without a budget.
    pub credits: u32,
    /// Frames granted so far.
    pub grants: u64,
    /// Whether it has granted a frame since the engine's current frame began.
    is_framed: bool,
    outbox: Outbox,
    /// Whether one of its agents is in the step just submitted.
    stepped: bool,
    removed: bool,
    /// Its host requests a pause.
    wants_pause: bool,
    /// Begin of its current pause.
    paused_since_micros: Option<u64>,
    /// Time of its last frame.
    granted_micros: u64,
    /// Last time at which its agents could be scheduled.
    schedulable_micros: Option<u64>,
    is_stalled: bool,
    /// It receives details for a recording.
    is_logged: bool,
}

impl ClientState {
    fn new(key: ClientKey, pacing: Pacing) -> Self {
        Self { key, pacing, outbox: Outbox::new(key), ..Self::default() }
    }

    /// Whether its agents may take steps, as far as its grants allow it.
    fn may_step(&self) -> bool {
        // A client that reads no events gets no steps: its events would pile up without a bound.
        self.outbox.is_empty() && !self.removed && !self.is_paused()
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    list: Vec<ClientState>,
    /// Time of the last update of the stalls.
    stalls_updated_micros: u64,
    /// Events that queues of clients that have left refused.
    refused: u64,
}

impl Clients {
    pub fn add(&mut self, key: ClientKey, pacing: Pacing) {
        self.list.push(ClientState::new(key, pacing));
    }

    /// Removes a client at the next [delivery](Self::deliver). Its events are dropped.
    pub fn remove(&mut self, key: ClientKey) {
        if let Some(client) = self.get_mut(key) {
            client.outbox.clear();
            client.removed = true;
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &ClientState> {
        self.list.iter()
    }

    fn get(&self, key: ClientKey) -> Option<&ClientState> {
        self.list.iter().find(|client| client.key == key)
    }

    fn get_mut(&mut self, key: ClientKey) -> Option<&mut ClientState> {
        self.list.iter_mut().find(|client| client.key == key)
    }

    /// The client, if its agents may take steps.
    pub fn that_may_step(&self, key: ClientKey) -> Option<&ClientState> {
        self.list.iter().find(|client| client.key == key && client.may_step())
    }

    /// Whether a client is free-running.
    pub fn is_free_running(&self, key: ClientKey) -> bool {
        self.get(key).is_some_and(|client| client.pacing == Pacing::FreeRunning)
    }

    pub fn has_free_running(&self) -> bool {
        self.list.iter().any(|client| client.pacing == Pacing::FreeRunning)
    }

    /// A client that is paced per frame grants the steps of a frame. Returns whether a frame of the
    /// engine begins with it, and `None` for all other clients.
    pub fn grant_frame(&mut self, key: ClientKey, now_micros: u64) -> Option<bool> {
        let place = self.list.iter().position(|client| client.key == key)?;
        let Pacing::PerFrame { steps } = self.list[place].pacing else { return None };
        // The first grant, or the second one of a client since the begin: the fastest client
        // counts.
        let begins = self.list[place].is_framed || self.list.iter().all(|client| !client.is_framed);
        if begins {
            self.list.iter_mut().for_each(|client| client.is_framed = false);
        }
        let client = &mut self.list[place];
        client.is_framed = true;
        // Set, not added: steps that a frame did not use are not saved up.
        client.credits = steps;
        client.grants += 1;
        client.granted_micros = now_micros;
        Some(begins)
    }

    /// An agent of the client is in the step being submitted. Returns the number of the client's
    /// grant.
    pub fn take_step(&mut self, key: ClientKey) -> Option<u64> {
        let client = self.get_mut(key)?;
        client.stepped = true;
        Some(client.grants)
    }

    /// Charges the submitted step to the clients whose agents are in it.
    pub fn charge_step(&mut self) {
        for client in &mut self.list {
            // Once for each client, however many of its agents had rows.
            client.credits = client.credits.saturating_sub(u32::from(client.stepped));
            client.stepped = false;
        }
    }

    /// Begins or ends the sending of details for a recording.
    pub fn set_logged(&mut self, key: ClientKey, is_logged: bool) {
        if let Some(client) = self.get_mut(key) {
            client.is_logged = is_logged;
        }
    }

    /// Whether the client receives details for a recording.
    pub fn is_logged(&self, key: ClientKey) -> bool {
        self.get(key).is_some_and(|client| client.is_logged)
    }

    /// Queues a detail for a recording, if the client receives them.
    pub fn log(&mut self, key: ClientKey, agent: AgentId, reply_id: ReplyId, what: Logged) {
        if self.is_logged(key) {
            self.queue_event(key, agent, reply_id, ReplyEvent::Logged(what));
        }
    }

    /// Sends an event to a client, or queues it.
    pub fn send(&mut self, key: ClientKey, event: Event, emit: &mut Emit<'_>) {
        if let Some(outbox) = self.outbox(key) {
            outbox.send(event, emit);
        }
    }

    /// The outbox of a client, if the client exists.
    pub fn outbox(&mut self, key: ClientKey) -> Option<&mut Outbox> {
        self.get_mut(key).map(|client| &mut client.outbox)
    }

    /// Queues an event of a reply: see [`Outbox::queue`].
    pub fn queue_event(
        &mut self,
        key: ClientKey,
        agent: AgentId,
        reply_id: ReplyId,
        what: ReplyEvent,
    ) {
        if let Some(outbox) = self.outbox(key) {
            outbox.queue(Event { agent, reply_id, what });
        }
    }

    /// Sends queued events as far as the clients' queues have free slots.
    pub fn deliver(&mut self, emit: &mut Emit<'_>) {
        self.list.iter_mut().for_each(|client| client.outbox.deliver(emit));
        // The counter outlives the client, because it counts from the start of the engine.
        let removed = self.list.iter().filter(|client| client.removed);
        self.refused += removed.map(|client| client.outbox.refused()).sum::<u64>();
        self.list.retain(|client| !client.removed);
    }

    /// Number of events that a client's queue refused when they were sent.
    pub fn refused(&self) -> u64 {
        self.refused + self.list.iter().map(|client| client.outbox.refused()).sum::<u64>()
    }

    /// The undelivered events of each client.
    pub fn drain(&mut self) -> Vec<(ClientKey, VecDeque<Event>)> {
        self.list.drain(..).map(|client| (client.key, client.outbox.into_events())).collect()
    }

    /// Whether all events of a client are in its queue.
    #[cfg(test)]
    pub fn has_received_all(&self, key: ClientKey) -> bool {
        self.get(key).is_some_and(|client| client.outbox.is_empty())
    }
}
