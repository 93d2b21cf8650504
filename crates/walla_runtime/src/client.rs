use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use crate::api::{AgentId, Command, Event, GenerationId};
use crate::mailbox::TrySendError;
use crate::shell::{Engine, Post};

/// One host of an engine: a game, a robot, a test. Can be shared between threads; no call waits.
///
/// Dropping it cancels its replies and removes its agents.
pub struct Client {
    // Before the engine: the engine may stop when it goes.
    post: Arc<Post>,
    engine: Engine,
}

impl Client {
    pub(crate) fn new(engine: Engine, post: Arc<Post>) -> Self {
        Self { post, engine }
    }

    /// A name for a new agent, unique among all clients of the engine.
    #[must_use]
    pub fn new_agent(&self) -> AgentId {
        AgentId(self.engine.shared().name_agent())
    }

    /// A name for a new reply, unique among all clients of the engine.
    #[must_use]
    pub fn new_generation(&self) -> GenerationId {
        GenerationId(self.engine.shared().name_generation())
    }

    /// Sends a command. Commands of one thread arrive in order; before the engine is ready they
    /// wait in the queue.
    ///
    /// # Errors
    /// The command comes back: as [`TrySendError::Full`] for now (send it again next frame), as
    /// [`TrySendError::Closed`] once the engine is over.
    pub fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        if self.engine.shared().is_forked() {
            return Err(TrySendError::Closed(command));
        }
        self.post.commands.try_send(command)?;
        self.engine.shared().ring();
        Ok(())
    }

    /// The next thing that happened, if there is one. Where several threads ask, each event goes to
    /// one of them.
    #[must_use]
    pub fn try_recv(&self) -> Option<Event> {
        let event = self.post.events.try_recv()?;
        if self.post.events.take_retry_wanted() {
            self.engine.shared().ring();
        }
        Some(event)
    }

    /// Takes up to `most` of the next things that happened, in order, and appends them to `events`;
    /// says how many. Cheaper than [`try_recv`](Self::try_recv) for each of them. Allocates nothing
    /// where `events` has room.
    pub fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        let count = self.post.events.recv_many(most, events);
        if count > 0 && self.post.events.take_retry_wanted() {
            self.engine.shared().ring();
        }
        count
    }

    /// Grants the steps of one frame ([`Pacing::PerFrame`](crate::Pacing::PerFrame)). Grants do not
    /// pile up.
    pub fn frame(&self) {
        self.post.framed.store(true, Ordering::Release);
        self.engine.shared().ring();
    }

    /// Pauses this client's agents, or resumes them with the same tokens. In a pause no step runs
    /// for them: asks queue, cancels and removals count at once, replies in progress keep their
    /// state and their slots. Their KV pages are free for other clients. The time of a pause does
    /// not count in [`Usage`](crate::Usage), and voices owe no tokens for it.
    pub fn set_paused(&self, is_paused: bool) {
        self.post.paused.store(is_paused, Ordering::Release);
        self.engine.shared().ring();
    }

    /// Changes the engine's budget: [`Engine::set_budget`].
    pub fn set_budget(&self, budget: Option<std::time::Duration>) {
        self.engine.set_budget(budget);
    }

    /// Changes the engine's room for conversations: [`Engine::set_kv_tokens`].
    pub fn set_kv_tokens(&self, tokens: u32) {
        self.engine.set_kv_tokens(tokens);
    }

    /// Wakes `waker` once, when events have arrived or the engine's state has changed; it takes the
    /// place of the one registered before.
    ///
    /// Register first, then look at [`try_recv`](Self::try_recv) and the state: what happens in
    /// between is not missed. The waker runs on the device thread and should only schedule its
    /// task.
    pub fn register_waker(&self, waker: &Waker) {
        self.post.waker.register(waker);
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
        self.post.gone.store(true, Ordering::Release);
        self.post.commands.close();
        self.post.events.close();
        self.engine.shared().ring();
    }
}
