//! Bevy plugin: every NPC's or robot's dialogue as one batch a frame, without blocking the frame.

mod agent;
mod ask;
mod conversation;
mod diagnostics;
mod error;
mod hub;
mod link;
mod plugin;
mod reply;
pub mod scripted;
mod sentence;
mod settings;
mod speech;
mod systems;
mod walla;

pub use agent::{
    Agent, AgentContext, AgentPriority, AgentSampling, AgentSeed, ReplyLimits, VoiceRate,
};
pub use ask::{Ask, AskCommands, AskEntityCommands, Cancel};
pub use conversation::Conversation;
pub use diagnostics::WallaDiagnosticsPlugin;
pub use error::WallaError;
pub use hub::FrameCost;
pub use link::{Link, WallaState};
pub use plugin::WallaPlugin;
pub use reply::{ReplyDelta, ReplyFailed, ReplyFinished, ReplyStarted, SentenceSpoken, TokenDrawn};
pub use sentence::SENTENCE_BYTES_MAX;
pub use settings::WallaSettings;
pub use speech::{Speech, SpeechState};
pub use systems::WallaSystems;
pub use walla::{Walla, WallaFailed, WallaReady, walla_ready};
pub use walla_runtime::{
    AgentId, Command, ContextPolicy, EngineStats, Event, FinishReason, GenerationId, InlineText,
    ReplyError, ReplyEvent, Speaker, TokenDetail, TrySendError, Turn, Usage,
};
pub use walla_types::{InvalidSampling, Sampling, SamplingBuilder, TokenId};

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Agent, AgentContext, AgentPriority, AgentSampling, AgentSeed, Ask, AskCommands,
        AskEntityCommands, Cancel, ContextPolicy, Conversation, FinishReason, ReplyDelta,
        ReplyFailed, ReplyFinished, ReplyLimits, ReplyStarted, Sampling, SentenceSpoken, Speaker,
        Speech, SpeechState, Turn, VoiceRate, Walla, WallaDiagnosticsPlugin, WallaFailed,
        WallaPlugin, WallaReady, WallaSettings, WallaState, WallaSystems, walla_ready,
    };
}
