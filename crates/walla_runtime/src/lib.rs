//! The device thread, its mailboxes and the life of every agent's sequence.
//!
//! # Traces
//! Events of the `tracing` crate, by target: `walla::load` (info), `walla::reply` (debug: started, finished; warn: failed),
//! `walla::step` (trace: submitted, completed), `walla::device` (warn: a step failed and is done again). Where the time of a frame goes is
//! told by [`walla_trace`]: as `tracing` spans, and as a file for Perfetto that `WALLA_TRACE=file.json` in the environment asks for.

mod api;
mod client;
mod core;
mod devices;
mod inline_text;
mod mailbox;
mod options;
mod reply_text;
mod sentence;
mod shell;
mod state;

pub use api::{
    AgentId, AgentSpec, BudgetStats, Command, ContextPolicy, DELTA_BYTES_MAX, EngineStats, Event,
    FinishReason, GenerationId, Pacing, Prompt, ReplyError, ReplyEvent, Speaker, TokenDetail, Turn,
    Usage,
};
pub use client::Client;
pub use devices::default_registry;
pub use inline_text::InlineText;
pub use mailbox::TrySendError;
pub use options::{EngineError, EngineOptions, ModelSource};
pub use sentence::SentenceSplitter;
pub use shell::Engine;
pub use state::{EngineState, ModelCard};
pub use walla_plan::Detail;
pub use walla_trace;
