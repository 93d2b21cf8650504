//! Whether an engine can answer.

use walla_runtime::EngineState;

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

impl From<EngineState> for WallaState {
    fn from(state: EngineState) -> Self {
        match state {
            EngineState::Loading { fraction } => Self::Loading { fraction },
            EngineState::Ready => Self::Ready,
            EngineState::Failed(error) => Self::Failed(WallaError::Engine(error)),
            EngineState::Stopped => Self::Failed(WallaError::Stopped),
        }
    }
}
