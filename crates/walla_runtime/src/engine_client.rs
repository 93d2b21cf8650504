//! The interface between a host and an engine of any kind: local, remote or scripted.

use std::task::Waker;
use std::time::Duration;

use crate::api::{Capabilities, Command, EngineStats, Event};
use crate::mailbox::TrySendError;
use crate::options::FrameBudget;
use crate::shell::{Client, Engine};
use crate::status::{EngineState, ModelCard};

/// An engine as one of its hosts sees it: only operations that never wait.
///
/// [`Client`] implements it for a local engine. Implement it for another kind of engine, or around
/// a client, for instance to record and replay the dialogue of agents.
///
/// # Rules
/// 1. Commands arrive in the order in which they are sent.
/// 2. Each accepted ask gets exactly one terminal event, also if the engine fails. Events of a
///    reply arrive in the order that [`ReplyEvent`](crate::ReplyEvent) describes.
/// 3. An ask that needs a [feature](Capabilities) that the engine lacks fails with
///    [`ReplyError::Unsupported`](crate::ReplyError::Unsupported). The documentation of the engine
///    lists settings that it leaves out.
pub trait EngineClient: Send + Sync + 'static {
    /// Sends a command. Commands arrive in order.
    ///
    /// # Errors
    /// The command is returned: [`TrySendError::Full`] is temporary, [`TrySendError::Closed`]
    /// permanent.
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>>;

    /// The next event, if there is one.
    fn try_recv(&self) -> Option<Event>;

    /// Receives up to `most` events, in order, and appends them to `events`. Returns their number.
    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        events.extend(core::iter::from_fn(|| self.try_recv()).take(most));
        events.len() - before
    }

    /// Grants the steps of one frame. Called in each frame with an open ask, or while
    /// [`EngineStats::background_agents`] is above 0. Commands take effect without a grant.
    fn frame(&self);

    /// Begins or ends a pause of all agents of this client. No frame is granted in a pause, so an
    /// engine that works only in frames can ignore it.
    fn set_paused(&self, _is_paused: bool) {}

    /// Begins or ends the sending of [details for recordings](crate::Logged) to this client. Call
    /// it before the first command. Returns whether the engine has them; only local engines do.
    fn set_logged(&self, _is_logged: bool) -> bool {
        false
    }

    /// Whether the engine can answer.
    fn state(&self) -> EngineState;

    /// The engine's counters.
    fn stats(&self) -> EngineStats;

    /// Features of the engine.
    fn capabilities(&self) -> Capabilities;

    /// The loaded model and its device. `None` while it loads, and for an engine without a model
    /// in this process.
    fn model(&self) -> Option<&ModelCard> {
        self.local().and_then(Engine::model)
    }

    /// Changes the device time of a frame. Without effect on an engine that uses no device of this
    /// machine.
    fn set_budget(&self, _budget: FrameBudget) {}

    /// Reserves time of each frame on the processor for work of this client outside the engine;
    /// zero ends that. While it is reserved, engines on the CPU have a smaller
    /// [share](FrameBudget::without) of the budget, which itself does not change. Without effect on
    /// an engine that uses no processor of this machine.
    fn set_reserved(&self, _time: Duration) {}

    /// The device time of a frame that was set last, though it may not be in effect yet. `None`: it
    /// is not known.
    fn budget(&self) -> Option<FrameBudget> {
        None
    }

    /// Time after which the host calls [`try_recv`](Self::try_recv) again although nothing has
    /// woken it. `None`: no such time. A host that calls it in each frame can ignore it.
    fn max_wait(&self) -> Option<Duration> {
        None
    }

    /// Requests the engine to stop, for all its clients, and returns at once. Every reply that has
    /// not ended fails with [`ReplyError::EngineGone`](crate::ReplyError::EngineGone).
    fn stop(&self);

    /// Whether the engine has ended and released its memory.
    fn is_ended(&self) -> bool {
        self.state().is_over()
    }

    /// The local engine behind this client. `None` for other kinds of engines.
    fn local(&self) -> Option<&Engine> {
        None
    }

    /// Wakes `waker` once, when events have arrived or the state has changed; replaces an earlier
    /// one. A host that calls [`try_recv`](Self::try_recv) in each frame needs none. Default: wakes
    /// it at once, so that the host looks again, which keeps a thread busy.
    fn register_waker(&self, waker: &Waker) {
        waker.wake_by_ref();
    }
}

impl EngineClient for Client {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        Self::try_send(self, command)
    }

    fn try_recv(&self) -> Option<Event> {
        Self::try_recv(self)
    }

    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        Self::try_recv_many(self, most, events)
    }

    fn frame(&self) {
        Self::frame(self);
    }

    fn set_paused(&self, is_paused: bool) {
        Self::set_paused(self, is_paused);
    }

    fn set_logged(&self, is_logged: bool) -> bool {
        Self::set_logged(self, is_logged);
        true
    }

    fn state(&self) -> EngineState {
        self.engine().state()
    }

    fn stats(&self) -> EngineStats {
        self.engine().stats()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn set_budget(&self, budget: FrameBudget) {
        Self::set_budget(self, budget);
    }

    fn set_reserved(&self, time: Duration) {
        Self::set_reserved(self, time);
    }

    fn budget(&self) -> Option<FrameBudget> {
        Some(self.engine().budget())
    }

    fn stop(&self) {
        self.engine().stop();
    }

    fn is_ended(&self) -> bool {
        self.engine().is_ended()
    }

    fn local(&self) -> Option<&Engine> {
        Some(self.engine())
    }

    fn register_waker(&self, waker: &Waker) {
        Self::register_waker(self, waker);
    }
}
