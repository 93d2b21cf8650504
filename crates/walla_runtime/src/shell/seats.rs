//! Clients as the device thread sees them.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::engine::{Post, Shared};
use super::{CLIENTS_MAX, ClientKey};
use crate::api::{AgentId, Command, Event, GenerationId, Pacing, ReplyError, ReplyEvent};
use crate::mailbox::TrySendError;

/// Commands of one client in one round: a flood of them delays a step by some microseconds, not
/// more.
pub(super) const COMMANDS_PER_ROUND: usize = 64;

/// One client.
#[derive(Debug)]
struct Seat {
    post: Arc<Post>,
    /// Generations that were asked and whose end the client has not been sent.
    open: HashMap<GenerationId, AgentId>,
    /// Its queue refused an event in this round.
    refused: bool,
    /// Commands may be left in its mailbox for later.
    skipped: bool,
    /// The core knows that it is paused.
    paused: bool,
    /// It was woken in this round.
    woken: bool,
    /// It is to be woken at the end of the round.
    wake: bool,
    /// What the core had to say when it went.
    last_words: VecDeque<Event>,
}

impl Seat {
    fn new(post: Arc<Post>) -> Self {
        let open = HashMap::with_capacity(post.open_max.min(1_024));
        // Whoever waits for the engine's state looks again.
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

    /// Whether the core may get more of its commands.
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
            // The client has gone; the next round removes it.
            Err(TrySendError::Closed(_)) => return Ok(()),
        }
        if ends {
            self.open.remove(&generation);
        }
        // The first event of a round wakes at once, since a step may follow in the same round; the
        // others wake together.
        if self.woken {
            self.wake = true;
        } else {
            self.woken = true;
            wake(&self.post);
        }
        Ok(())
    }

    /// The next command, its ask entered as open. `None`: none for now.
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

/// How a place has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatChange {
    Joined(Pacing),
    Left,
}

/// Wakes a client's task. A waker is code of the host: its panic must not end the device thread.
fn wake(post: &Post) {
    if catch_unwind(AssertUnwindSafe(|| post.waker.wake())).is_err() {
        tracing::error!(target: "walla::host", "a waker of the host panicked: its task is not woken");
    }
}

/// What was in the mailboxes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Collected {
    /// A frame was granted.
    pub(super) framed: bool,
    /// There may be more.
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

    /// Frees the places of clients that left and seats clients that joined, never both at one place
    /// in one round: the core is done with a client before its key means another. Returns the
    /// changes for the core, by place.
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

    /// Whether a client has granted a frame since the last look; `None` if there is no such client.
    pub(super) fn take_frame(&mut self, key: ClientKey) -> Option<bool> {
        Some(self.at(key)?.post.framed.swap(false, Ordering::AcqRel))
    }

    /// Whether a client is paused, if that has changed since the last look.
    pub(super) fn take_pause(&mut self, key: ClientKey) -> Option<bool> {
        let seat = self.at(key)?;
        let is_paused = seat.post.paused.load(Ordering::Acquire);
        (std::mem::replace(&mut seat.paused, is_paused) != is_paused).then_some(is_paused)
    }

    /// The next command of a client, if the core may get one.
    pub(super) fn command(&mut self, key: ClientKey) -> Option<Command> {
        self.at(key)?.command()
    }

    /// All commands of this round have been taken from a client.
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

    /// Wakes whoever got something. `true`: commands that waited can be taken now.
    pub(super) fn end_round(&mut self) -> bool {
        let mut more = false;
        for (_, seat) in self.each() {
            seat.end_round();
            more |= seat.skipped && seat.takes_commands();
        }
        more
    }

    /// At the engine's end: closes the mailboxes and fails what is open, as far as there is room.
    pub(super) fn end_all(&mut self, reason: &str) {
        self.close();
        self.fail_open(reason);
        self.end_round();
    }

    /// Takes what is left in the mailboxes, which close.
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

    /// Keeps what the core has to say to each client, now that it goes.
    pub(super) fn keep(&mut self, last_words: Vec<(ClientKey, VecDeque<Event>)>) {
        for (key, words) in last_words {
            if let Some(seat) = self.at(key) {
                seat.last_words = words;
            }
        }
    }

    /// Delivers the core's last words and fails what is open then, as far as there is room.
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

    /// Whether every client that is still there knows how all its replies ended.
    pub(super) fn is_done(&mut self) -> bool {
        self.each().all(|(_, seat)| {
            seat.is_gone() || (seat.open.is_empty() && seat.post.commands.is_drained())
        })
    }

    /// Wakes all, because the engine's state has changed.
    pub(super) fn wake_all(&mut self) {
        self.each().for_each(|(_, seat)| wake(&seat.post));
    }
}
