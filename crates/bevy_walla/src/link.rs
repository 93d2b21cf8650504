//! The frame's side of an engine.

use walla_runtime::{
    AgentId, Client, Command, EngineState, EngineStats, Event, GenerationId, TrySendError,
};

use crate::error::WallaError;

/// Whether an engine can answer.
#[derive(Clone, Debug)]
pub enum WallaState {
    /// The model is being loaded; asks wait.
    Loading {
        /// How much of it is there: 0 to 1.
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

/// What the plugin needs of an engine: try-operations only, none of them waits.
///
/// An engine's [`Client`] is one. A [`ScriptedEngine`](crate::scripted::ScriptedEngine) is another,
/// for a game's own tests; write a third to record or replay what agents say.
pub trait Link: Send + Sync + 'static {
    /// A name for a new agent, unique among all links of the same engine.
    fn new_agent(&self) -> AgentId;

    /// A name for a new reply, unique among all links of the same engine.
    fn new_generation(&self) -> GenerationId;

    /// Sends a command. Commands arrive in order.
    ///
    /// # Errors
    /// The command comes back: [`TrySendError::Full`] for now, [`TrySendError::Closed`] for ever.
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>>;

    /// The next thing that happened, if there is one.
    fn try_recv(&self) -> Option<Event>;

    /// Takes up to `most` of the next things that happened, in order, and appends them to `events`,
    /// which has room for them.
    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) {
        events.extend(core::iter::from_fn(|| self.try_recv()).take(most));
    }

    /// Grants the steps of one frame. Called in each frame in which anything is asked; commands
    /// arrive without it.
    fn frame(&self);

    /// Begins or ends a pause of all agents of this link. No frame is granted in a pause, so an
    /// engine that works in frames alone need not do anything.
    fn set_paused(&self, _is_paused: bool) {}

    /// Whether the engine can answer.
    fn state(&self) -> WallaState;

    /// Its counters.
    fn stats(&self) -> EngineStats;
}

impl Link for Client {
    fn new_agent(&self) -> AgentId {
        Self::new_agent(self)
    }

    fn new_generation(&self) -> GenerationId {
        Self::new_generation(self)
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
