//! Clients as seen by the device thread.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::engine::{Post, Shared};
use super::{CLIENTS_MAX, ClientKey};
use crate::api::{AgentId, Command, Event, GenerationId, Pacing, ReplyError, ReplyEvent};
use crate::mailbox::TrySendError;

/// Maximum commands taken from one client per round, so that many commands delay a step by only
/// some microseconds.
pub(super) const COMMANDS_PER_ROUND: usize = 64;

/// One client.
#[derive(Debug)]
struct Seat {
    post: Arc<Post>,
    /// Generations that were asked and whose terminal event the client has not been sent.
    open: HashMap<GenerationId, AgentId>,
    /// The client's queue refused an event in this round.
    refused: bool,
    /// Commands may remain in the mailbox.
    skipped: bool,
    /// Pause state that the core knows.
    paused: bool,
    /// The client was woken in this round.
    woken: bool,
    /// Wake the client at the end of the round.
    wake: bool,
    /// Events that the core returned when it was dropped.
    last_words: VecDeque<Event>,
}

impl Seat {
    fn new(post: Arc<Post>) -> Self {
        let open = HashMap::with_capacity(post.open_max.min(1_024));
        // `wake`: the host may be waiting for the engine's state.
        Self {
            post,
            open,
            refused: false,
            skipped: false,
            paused: false,
            woken: false,
            wake: true,
            last_words: VecDeque::new(),
        }
    }

    fn is_gone(&self) -> bool {
        self.post.gone.load(Ordering::Acquire)
    }

    /// Whether the core may take more of its commands.
    fn takes_commands(&self) -> bool {
        !self.refused && self.open.len() < self.post.open_max
    }

    /// See [`super::Emit`].
    fn deliver(&mut self, event: Event) -> Result<(), Event> {
        let generation = event.generation;
        if !self.open.contains_key(&generation) {
            tracing::warn!(?generation, "an event of a reply that is over or was never asked");
            return Ok(());
        }
        if self.refused {
            return Err(event);
        }
        let ends = event.what.is_terminal();
        match self.post.events.try_send_or_want_retry(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => {
                self.refused = true;
                return Err(event);
            }
            // The client was dropped; the next round removes it.
            Err(TrySendError::Closed(_)) => return Ok(()),
        }
        if ends {
            self.open.remove(&generation);
        }
        // The first event of a round wakes the client at once, because a step may follow in the
        // same round. Later events share one wake-up.
        if self.woken {
            self.wake = true;
        } else {
            self.woken = true;
            wake(&self.post);
        }
        Ok(())
    }

    /// The next command; an ask is entered as open. Returns `None` if no command can be taken now.
    fn command(&mut self) -> Option<Command> {
        while self.takes_commands() {
            let command = self.post.commands.try_recv()?;
            if let Command::Ask { agent, generation, .. } = &command
                && self.open.insert(*generation, *agent).is_some()
            {
                tracing::warn!(
                    ?generation,
                    "asked twice under one name: the second ask is dropped"
                );
                continue;
            }
            return Some(command);
        }
        None
    }

    fn end_round(&mut self) {
        if std::mem::take(&mut self.wake) {
            wake(&self.post);
        }
        self.woken = false;
    }
}

/// Change of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatChange {
    Joined(Pacing),
    Left,
}

/// Wakes a client's task. A waker is host code: its panic must not end the device thread.
fn wake(post: &Post) {
    if catch_unwind(AssertUnwindSafe(|| post.waker.wake())).is_err() {
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
pub(super) struct Seats {
    seats: [Option<Seat>; CLIENTS_MAX],
}

impl Seats {
    fn each(&mut self) -> impl Iterator<Item = (ClientKey, &mut Seat)> {
        let keyed = (0..).map(ClientKey).zip(&mut self.seats);
        keyed.filter_map(|(key, seat)| Some((key, seat.as_mut()?)))
    }

    /// Frees the seats of clients that left and seats clients that joined, but never both at one
    /// index in one round: the core must remove a client before its key is reused. Returns the
    /// changes for the core, by index.
    pub(super) fn admit(&mut self, shared: &Shared) -> [Option<SeatChange>; CLIENTS_MAX] {
        let mut changes = [const { None }; CLIENTS_MAX];
        for (place, change) in self.seats.iter_mut().zip(&mut changes) {
            if place.as_ref().is_some_and(Seat::is_gone) {
                *place = None;
                shared.clients.fetch_sub(1, Ordering::AcqRel);
                *change = Some(SeatChange::Left);
            } else if place.is_none()
                && let Some(post) = shared.joining.try_recv()
            {
                *change = Some(SeatChange::Joined(post.pacing));
                *place = Some(Seat::new(post));
            }
        }
        changes
    }

    fn at(&mut self, key: ClientKey) -> Option<&mut Seat> {
        self.seats.get_mut(key.0 as usize)?.as_mut()
    }

    /// Whether a client has granted a frame since the last call. Returns `None` if there is no such
    /// client.
    pub(super) fn take_frame(&mut self, key: ClientKey) -> Option<bool> {
        Some(self.at(key)?.post.framed.swap(false, Ordering::AcqRel))
    }

    /// Whether a client is paused, if that has changed since the last call.
    pub(super) fn take_pause(&mut self, key: ClientKey) -> Option<bool> {
        let seat = self.at(key)?;
        let is_paused = seat.post.paused.load(Ordering::Acquire);
        (std::mem::replace(&mut seat.paused, is_paused) != is_paused).then_some(is_paused)
    }

    /// The next command of a client, if the core may take one.
    pub(super) fn command(&mut self, key: ClientKey) -> Option<Command> {
        self.at(key)?.command()
    }

    /// Called after all commands of this round have been taken from a client.
    pub(super) fn end_commands(&mut self, key: ClientKey) {
        if let Some(seat) = self.at(key) {
            seat.skipped = !seat.takes_commands();
            seat.refused = false;
        }
    }

    /// See [`super::Emit`].
    pub(super) fn deliver(&mut self, key: ClientKey, event: Event) -> Result<(), Event> {
        self.at(key).map_or(Ok(()), |seat| seat.deliver(event))
    }

    /// Wakes the clients that received events. Returns `true` if commands that waited can be taken
    /// now.
    pub(super) fn end_round(&mut self) -> bool {
        let mut more = false;
        for (_, seat) in self.each() {
            seat.end_round();
            more |= seat.skipped && seat.takes_commands();
        }
        more
    }

    /// Ends the engine: closes the mailboxes and fails open generations, as far as event queues
    /// have capacity.
    pub(super) fn end_all(&mut self, reason: &str) {
        self.close();
        self.fail_open(reason);
        self.end_round();
    }

    /// Closes the command mailboxes and enters the remaining asks as open.
    fn close(&mut self) {
        for (_, seat) in self.each() {
            seat.refused = false;
            seat.post.commands.close();
            while let Some(command) = seat.post.commands.try_recv() {
                if let Command::Ask { agent, generation, .. } = command {
                    seat.open.insert(generation, agent);
                }
            }
        }
    }

    /// Keeps the last events of the core for each client.
    pub(super) fn keep(&mut self, last_words: Vec<(ClientKey, VecDeque<Event>)>) {
        for (key, words) in last_words {
            if let Some(seat) = self.at(key) {
                seat.last_words = words;
            }
        }
    }

    /// Delivers the core's last events, then fails open generations, as far as event queues have
    /// capacity.
    fn fail_open(&mut self, reason: &str) {
        for (_, seat) in self.each() {
            while let Some(event) = seat.last_words.pop_front() {
                if let Err(event) = seat.deliver(event) {
                    seat.last_words.push_front(event);
                    break;
                }
            }
            if !seat.last_words.is_empty() {
                continue;
            }
            let mut open: Vec<_> = seat.open.iter().map(|(g, a)| (*g, *a)).collect();
            open.sort_unstable();
            for (generation, agent) in open {
                let what = ReplyEvent::Failed(ReplyError::EngineGone(reason.to_owned()));
                if seat.deliver(Event { agent, generation, what }).is_err() {
                    break;
                }
            }
        }
    }

    /// Whether every remaining client has received the ends of all its replies.
    pub(super) fn is_done(&mut self) -> bool {
        self.each().all(|(_, seat)| {
            seat.is_gone() || (seat.open.is_empty() && seat.post.commands.is_drained())
        })
    }

    /// Wakes all clients, because the engine's state has changed.
    pub(super) fn wake_all(&mut self) {
        self.each().for_each(|(_, seat)| wake(&seat.post));
    }
}
