//! The device thread, its mailboxes and the life of every agent's sequence.

mod api;
mod inline_text;
mod mailbox;

pub use api::{
    AgentId, AgentSpec, Command, ContextPolicy, DELTA_BYTES_MAX, EngineStats, Event, FinishReason,
    GenerationId, Pacing, Prompt, ReplyError, ReplyEvent, Speaker, TokenDetail, Turn, Usage,
};
pub use inline_text::InlineText;
pub use mailbox::TrySendError;
