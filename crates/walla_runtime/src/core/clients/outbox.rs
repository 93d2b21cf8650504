//! Delivery of events to one client, in order.

use std::collections::VecDeque;

use crate::api::Event;
use crate::engine_core::{ClientKey, Emit};

/// Events that are not in the client's queue yet. While there are some, the client's agents take
/// no step.
#[derive(Debug, Default)]
pub(in crate::core) struct Outbox {
    key: ClientKey,
    events: VecDeque<Event>,
    /// Number of events that the client's queue refused when they were sent.
    refused: u64,
}

impl Outbox {
    pub fn new(key: ClientKey) -> Self {
        Self { key, events: VecDeque::with_capacity(256), refused: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Queues an event for the next [delivery](Self::deliver), because commands arrive between
    /// calls of `advance`.
    pub fn queue(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Sends an event, or keeps it until the client's queue has free slots.
    pub fn send(&mut self, event: Event, emit: &mut Emit<'_>) {
        // Behind the events that wait: their order is the order of the text.
        if !self.events.is_empty() {
            self.events.push_back(event);
        } else if let Err(event) = emit(self.key, event) {
            self.events.push_back(event);
            self.refused += 1;
        }
    }

    /// Sends events while the client's queue has free slots.
    pub fn deliver(&mut self, emit: &mut Emit<'_>) {
        while let Some(event) = self.events.pop_front() {
            if let Err(event) = emit(self.key, event) {
                // Back to its place; the rest would be refused too.
                self.events.push_front(event);
                return;
            }
        }
    }

    /// Drops all events.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    pub fn into_events(self) -> VecDeque<Event> {
        self.events
    }
}
