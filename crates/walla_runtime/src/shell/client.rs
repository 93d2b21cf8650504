use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use super::Engine;
use super::channels::ClientChannels;
use crate::api::{AgentId, Command, Event, Pacing, ReplyId};
use crate::engine_core::MAX_CLIENTS;
use crate::mailbox::TrySendError;
use crate::options::{EngineError, FrameBudget};

/// One host of an engine: a game, a robot, a test. It can be shared between threads. No call waits.
///
/// Dropping it cancels its replies and removes its agents.
pub struct Client {
    // Dropped before the engine, because the engine may stop when its last handle is dropped.
    channels: Arc<ClientChannels>,
    engine: Engine,
    /// See [`Client::set_reserved`], in nanoseconds.
    reserved: AtomicU64,
}

impl Engine {
    /// A new host of this engine, with separate mailboxes.
    ///
    /// # Errors
    /// [`EngineError::TooManyClients`] beyond 16 concurrent clients (a dropped client counts until
    /// the device thread has removed it), [`EngineError::Failed`] or [`EngineError::Stopped`] if
    /// the engine has ended.
    pub fn client(&self, pacing: Pacing) -> Result<Client, EngineError> {
        let shared = self.shared();
        self.check_alive()?;
        if !shared.admission.reserve() {
            return Err(EngineError::TooManyClients { max_clients: MAX_CLIENTS as u32 });
        }
        let channels = ClientChannels::new(shared.command_queue, shared.event_queue, pacing);
        let channels = Arc::new(channels);
        if !shared.admission.join(Arc::clone(&channels)) {
            // The engine has ended since: a reserved place is never refused otherwise.
            self.check_alive()?;
            return Err(EngineError::Stopped);
        }
        shared.ring();
        Ok(Client { channels, engine: self.clone(), reserved: AtomicU64::new(0) })
    }
}

impl Client {
    /// An id for a new agent: [`AgentId::unique`].
    #[must_use]
    pub fn new_agent(&self) -> AgentId {
        AgentId::unique()
    }

    /// An id for a new reply: [`ReplyId::unique`].
    #[must_use]
    pub fn new_reply_id(&self) -> ReplyId {
        ReplyId::unique()
    }

    /// Sends a command. Commands of one thread arrive in order. Before the engine is ready they
    /// wait in the queue.
    ///
    /// # Errors
    /// Both errors return the command: [`TrySendError::Full`] if the queue is full (send it again
    /// next frame), [`TrySendError::Closed`] if the engine has ended.
    pub fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        if self.engine.shared().is_forked() {
            return Err(TrySendError::Closed(command));
        }
        self.channels.commands.try_send(command)?;
        self.engine.shared().ring();
        Ok(())
    }

    /// Returns the next event, if there is one. If several threads receive, each event is delivered
    /// to one of them. In a forked process no event follows, also not the end of a reply: the
    /// [state](crate::Engine::state) is then `Failed`.
    #[must_use]
    pub fn try_recv(&self) -> Option<Event> {
        let event = self.channels.events.try_recv()?;
        if self.channels.events.take_retry_wanted() {
            self.engine.shared().ring();
        }
        Some(event)
    }

    /// Moves up to `most` events, in order, to the end of `events` and returns their number.
    /// Cheaper than one [`try_recv`](Self::try_recv) per event. Allocates only if `events` lacks
    /// capacity.
    pub fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        let count = self.channels.events.recv_many(most, events);
        if count > 0 && self.channels.events.take_retry_wanted() {
            self.engine.shared().ring();
        }
        count
    }

    /// Grants the steps of one frame ([`Pacing::PerFrame`](crate::Pacing::PerFrame)). Unused grants
    /// do not accumulate.
    pub fn frame(&self) {
        self.channels.flags.grant_frame();
        self.engine.shared().ring();
    }

    /// Pauses this client's agents, or resumes them with unchanged output. During a pause no step
    /// runs for them. Asks are queued, cancels and removals apply at once, and replies in progress
    /// keep their state and their slots. Other clients can use their KV pages. The pause does not
    /// count in [`Usage`](crate::Usage) or for the voice rate.
    pub fn set_paused(&self, is_paused: bool) {
        self.channels.flags.set_paused(is_paused);
        self.engine.shared().ring();
    }

    /// Begins or ends the sending of [details for recordings](crate::Logged) to this client. Call
    /// it before the first command, so that all commands are counted.
    pub fn set_logged(&self, is_logged: bool) {
        self.channels.flags.set_logged(is_logged);
        self.engine.shared().ring();
    }

    /// Changes the engine's budget: [`Engine::set_budget`].
    pub fn set_budget(&self, budget: impl Into<FrameBudget>) {
        self.engine.set_budget(budget);
    }

    /// Reserves time of each frame on the processor for work of this client outside the engine:
    /// [`FrameBudget::without`]. Reservations of several clients add up; zero ends this one, and so
    /// does the drop of the client.
    pub fn set_reserved(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.reserved.swap(nanos, Ordering::Relaxed);
        if before != nanos {
            self.engine.reserve(before, nanos);
        }
    }

    /// Changes the engine's KV capacity: [`Engine::set_kv_tokens`].
    pub fn set_kv_tokens(&self, tokens: u32) {
        self.engine.set_kv_tokens(tokens);
    }

    /// Wakes `waker` once, when events have arrived or the engine's state has changed. Replaces the
    /// previously registered waker.
    ///
    /// Register first, then check [`try_recv`](Self::try_recv) and the state: no event in between
    /// is missed. The waker runs on the device thread and should only schedule its task.
    pub fn register_waker(&self, waker: &Waker) {
        self.channels.waker.register(waker);
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.set_reserved(Duration::ZERO);
        self.channels.flags.leave();
        self.channels.commands.close();
        self.channels.events.close();
        self.engine.shared().ring();
    }
}
