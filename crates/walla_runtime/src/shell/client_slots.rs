//! Clients as seen by the device thread.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::channels::{Admission, ClientChannels};
use crate::api::{AgentId, Command, Event, Pacing, ReplyError, ReplyEvent, ReplyId};
use crate::engine_core::{ClientKey, MAX_CLIENTS};
use crate::mailbox::TrySendError;

/// Maximum commands taken from one client per round, so that many commands delay a step by only
/// some microseconds.
pub(super) const COMMANDS_PER_ROUND: usize = 64;

/// One client.
#[derive(Debug)]
struct ClientSlot {
    channels: Arc<ClientChannels>,
    /// Reply ids that were asked and whose terminal event the client has not been sent.
    open: HashMap<ReplyId, AgentId>,
    /// The client's queue refused an event in this round.
    refused: bool,
    /// Commands may remain in the mailbox.
    skipped: bool,
    /// The client was woken in this round.
    woken: bool,
    /// Wake the client at the end of the round.
    wake: bool,
    /// Events that the core returned when it was dropped.
    last_events: VecDeque<Event>,
}

impl ClientSlot {
    fn new(channels: Arc<ClientChannels>) -> Self {
        let open = HashMap::with_capacity(channels.max_open.min(1_024));
        // `wake`: the host may be waiting for the engine's state.
        Self {
            channels,
            open,
            refused: false,
            skipped: false,
            woken: false,
            wake: true,
            last_events: VecDeque::new(),
        }
    }

    fn is_gone(&self) -> bool {
        self.channels.flags.is_gone()
    }

    /// Whether the core may take more of its commands.
    fn takes_commands(&self) -> bool {
        !self.refused && self.open.len() < self.channels.max_open
    }

    /// See [`Emit`](crate::engine_core::Emit).
    fn deliver(&mut self, event: Event) -> Result<(), Event> {
        let reply_id = event.reply_id;
        if reply_id != ReplyId::NONE && !self.open.contains_key(&reply_id) {
            tracing::warn!(?reply_id, "an event of a reply that is over or was never asked");
            return Ok(());
        }
        // Later events wait behind the one that was refused, until the next round.
        if self.refused {
            return Err(event);
        }
        let ends = event.what.is_terminal();
        match self.channels.events.try_send_or_want_retry(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => {
                self.refused = true;
                return Err(event);
            }
            // The client was dropped; the next round removes it.
            Err(TrySendError::Closed(_)) => return Ok(()),
        }
        if ends {
            self.open.remove(&reply_id);
        }
        // The first event of a round wakes the client at once, because a step may follow in the
        // same round. Later events share one wake-up.
        if self.woken {
            self.wake = true;
        } else {
            self.woken = true;
            wake(&self.channels);
        }
        Ok(())
    }

    /// The next command; an ask is entered as open. Returns `None` if no command can be taken now.
    fn command(&mut self) -> Option<Command> {
        while self.takes_commands() {
            let command = self.channels.commands.try_recv()?;
            if let Command::Ask { agent, reply_id, .. } = &command
                && self.open.insert(*reply_id, *agent).is_some()
            {
                tracing::warn!(?reply_id, "asked twice under one name: the second ask is dropped");
                continue;
            }
            return Some(command);
        }
        None
    }

    fn end_round(&mut self) {
        if std::mem::take(&mut self.wake) {
            wake(&self.channels);
        }
        self.woken = false;
    }
}

/// Change of a client slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientChange {
    Joined(Pacing),
    Left,
}

/// Wakes a client's task. A waker is host code: its panic must not end the device thread.
fn wake(channels: &ClientChannels) {
    if catch_unwind(AssertUnwindSafe(|| channels.waker.wake())).is_err() {
        tracing::error!(target: "walla::host", "a waker of the host panicked: its task is not woken");
    }
}

/// Result of reading the mailboxes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Collected {
    /// A frame was granted.
    pub(super) framed: bool,
    /// There may be more commands.
    pub(super) more: bool,
}

/// All clients.
#[derive(Debug, Default)]
pub(super) struct ClientSlots {
    client_slots: [Option<ClientSlot>; MAX_CLIENTS],
}

impl ClientSlots {
    fn each(&mut self) -> impl Iterator<Item = (ClientKey, &mut ClientSlot)> {
        let keyed = (0..).map(ClientKey).zip(&mut self.client_slots);
        keyed.filter_map(|(key, client_slot)| Some((key, client_slot.as_mut()?)))
    }

    /// Frees the client slots of clients that left and registers clients that joined, but never
    /// both at one index in one round: the core must remove a client before its key is reused.
    /// Returns the changes for the core, by index.
    pub(super) fn admit(&mut self, admission: &Admission) -> [Option<ClientChange>; MAX_CLIENTS] {
        let mut changes = [const { None }; MAX_CLIENTS];
        for (place, change) in self.client_slots.iter_mut().zip(&mut changes) {
            if place.as_ref().is_some_and(ClientSlot::is_gone) {
                *place = None;
                admission.release();
                *change = Some(ClientChange::Left);
            } else if place.is_none()
                && let Some(channels) = admission.joining.try_recv()
            {
                *change = Some(ClientChange::Joined(channels.pacing));
                *place = Some(ClientSlot::new(channels));
            }
        }
        changes
    }

    fn at(&mut self, key: ClientKey) -> Option<&mut ClientSlot> {
        self.client_slots.get_mut(key.0 as usize)?.as_mut()
    }

    /// Whether a client has granted a frame since the last call, is paused, and is logged.
    pub(super) fn flags(&mut self, key: ClientKey) -> Option<[bool; 3]> {
        let flags = &self.at(key)?.channels.flags;
        Some([flags.take_frame(), flags.is_paused(), flags.is_logged()])
    }

    /// The next command of a client, and whether the client is logged.
    pub(super) fn command(&mut self, key: ClientKey) -> Option<(Command, bool)> {
        let client_slot = self.at(key)?;
        let command = client_slot.command()?;
        Some((command, client_slot.channels.flags.is_logged()))
    }

    /// Called after all commands of this round have been taken from a client.
    pub(super) fn end_commands(&mut self, key: ClientKey) {
        if let Some(client_slot) = self.at(key) {
            client_slot.skipped = !client_slot.takes_commands();
            client_slot.refused = false;
        }
    }

    /// See [`Emit`](crate::engine_core::Emit).
    pub(super) fn deliver(&mut self, key: ClientKey, event: Event) -> Result<(), Event> {
        self.at(key).map_or(Ok(()), |client_slot| client_slot.deliver(event))
    }

    /// Wakes the clients that received events. Returns `true` if commands that waited can be taken
    /// now.
    pub(super) fn end_round(&mut self) -> bool {
        let mut more = false;
        for (_, client_slot) in self.each() {
            client_slot.end_round();
            more |= client_slot.skipped && client_slot.takes_commands();
        }
        more
    }

    /// Ends the engine: closes the mailboxes and fails open replies, as far as event queues
    /// have capacity.
    pub(super) fn end_all(&mut self, reason: &str) {
        self.close();
        self.fail_open(reason);
        self.end_round();
    }

    /// Closes the command mailboxes and enters the remaining asks as open.
    fn close(&mut self) {
        for (_, client_slot) in self.each() {
            client_slot.refused = false;
            client_slot.channels.commands.close();
            while let Some(command) = client_slot.channels.commands.try_recv() {
                if let Command::Ask { agent, reply_id, .. } = command {
                    client_slot.open.insert(reply_id, agent);
                }
            }
        }
    }

    /// Keeps the last events of the core for each client.
    pub(super) fn keep(&mut self, last_events: Vec<(ClientKey, VecDeque<Event>)>) {
        for (key, events) in last_events {
            if let Some(client_slot) = self.at(key) {
                client_slot.last_events = events;
            }
        }
    }

    /// Delivers the core's last events, then fails open replies, as far as event queues have
    /// capacity.
    fn fail_open(&mut self, reason: &str) {
        for (_, client_slot) in self.each() {
            while let Some(event) = client_slot.last_events.pop_front() {
                if let Err(event) = client_slot.deliver(event) {
                    client_slot.last_events.push_front(event);
                    break;
                }
            }
            if !client_slot.last_events.is_empty() {
                continue;
            }
            let mut open: Vec<_> = client_slot.open.iter().map(|(g, a)| (*g, *a)).collect();
            open.sort_unstable();
            for (reply_id, agent) in open {
                let what = ReplyEvent::Failed(ReplyError::EngineGone(reason.to_owned()));
                if client_slot.deliver(Event { agent, reply_id, what }).is_err() {
                    break;
                }
            }
        }
    }

    /// Whether every remaining client has received the ends of all its replies.
    pub(super) fn is_done(&mut self) -> bool {
        self.each().all(|(_, client_slot)| {
            client_slot.is_gone()
                || (client_slot.open.is_empty() && client_slot.channels.commands.is_drained())
        })
    }

    /// Wakes all clients, because the engine's state has changed.
    pub(super) fn wake_all(&mut self) {
        self.each().for_each(|(_, client_slot)| wake(&client_slot.channels));
    }
}
