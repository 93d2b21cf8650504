//! Interface between the frame and an engine.

use walla_runtime::{
    AgentId, Client, Command, EngineState, EngineStats, Event, ReplyId, TrySendError,
};

use crate::error::WallaError;

/// Whether an engine can answer.
#[derive(Clone, Debug)]
pub enum WallaState {
    /// The model is being loaded; asks wait.
    Loading {
        /// Fraction that is loaded: 0 to 1.
        fraction: f32,
    },
    /// Agents can speak.
    Ready,
    /// No agent will speak: every ask fails.
    Failed(WallaError),
}

impl Default for WallaState {
    fn default() -> Self {
        Self::Loading { fraction: 0.0 }
    }
}

impl WallaState {
    /// Whether agents can speak.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }
}

/// An engine's interface to the plugin: only non-blocking operations.
///
/// [`Client`] implements it for an engine, and [`ScriptedEngine`](crate::scripted::ScriptedEngine)
/// for a game's own tests. Implement it to record or replay the dialogue of agents.
pub trait EngineClient: Send + Sync + 'static {
    /// A new agent id, unique among all clients of the same engine.
    fn new_agent(&self) -> AgentId;

    /// A new reply id, unique among all clients of the same engine.
    fn new_reply_id(&self) -> ReplyId;

    /// Sends a command. Commands arrive in order.
    ///
    /// # Errors
    /// The command is returned: [`TrySendError::Full`] is temporary, [`TrySendError::Closed`]
    /// permanent.
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>>;

    /// The next event, if there is one.
    fn try_recv(&self) -> Option<Event>;

    /// Receives up to `most` events, in order, and appends them to `events`, whose capacity
    /// suffices.
    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) {
        events.extend(core::iter::from_fn(|| self.try_recv()).take(most));
    }

    /// Grants the steps of one frame. Called in each frame with an open ask, or while
    /// [`EngineStats::background_agents`] is above 0. Commands take effect without a grant.
    fn frame(&self);

    /// Begins or ends a pause of all agents of this client. No frame is granted in a pause, so an
    /// engine that works only in frames can ignore it.
    fn set_paused(&self, _is_paused: bool) {}

    /// Whether the engine can answer.
    fn state(&self) -> WallaState;

    /// The engine's counters.
    fn stats(&self) -> EngineStats;
}

impl EngineClient for Client {
    fn new_agent(&self) -> AgentId {
        Self::new_agent(self)
    }

    fn new_reply_id(&self) -> ReplyId {
        Self::new_reply_id(self)
    }

    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        Self::try_send(self, command)
    }

    fn try_recv(&self) -> Option<Event> {
        Self::try_recv(self)
    }

    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) {
        Self::try_recv_many(self, most, events);
    }

    fn frame(&self) {
        Self::frame(self);
    }

    fn set_paused(&self, is_paused: bool) {
        Self::set_paused(self, is_paused);
    }

    fn state(&self) -> WallaState {
        match self.engine().state() {
            EngineState::Loading { fraction } => WallaState::Loading { fraction },
            EngineState::Ready => WallaState::Ready,
            EngineState::Failed(error) => WallaState::Failed(WallaError::Engine(error)),
            EngineState::Stopped => WallaState::Failed(WallaError::Stopped),
        }
    }

    fn stats(&self) -> EngineStats {
        self.engine().stats()
    }
}
