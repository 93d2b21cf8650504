//! The device thread, its mailboxes and the life of every agent's sequence.
//!
//! # The frame budget
//! Each frame may use so much device time ([`EngineOptions::budget`], a quarter of a 60 Hz frame
//! unless you say otherwise): steps that are predicted not to fit are not started. What steps cost
//! is measured when the model loads and corrected by every step. [`Engine::set_budget`] changes it
//! at any time, [`EngineStats::budget`] says how it is kept. Voices that are due go before prompts,
//! [priorities](AgentSpec::priority) and [levels of detail](AgentSpec::detail) decide among them,
//! and whoever waits long enough has a turn.
//!
//! # Traces
//! Events of the `tracing` crate, by target: `walla::load` (info), `walla::reply` (debug: started,
//! finished; warn: failed), `walla::step` (trace: submitted, completed), `walla::device` (warn: a
//! step failed and is done again). Where the time of a frame goes is told by [`walla_trace`]: as
//! `tracing` spans, and as a file for Perfetto that `WALLA_TRACE=file.json` in the environment asks
//! for.

mod api;
mod client;
mod clock;
mod core;
mod devices;
mod inline_text;
mod mailbox;
mod options;
mod reply_parts;
mod reply_text;
mod sentence;
mod shell;
mod state;

pub use api::{
    ASKS_WAITING_MAX, AgentId, AgentSpec, BudgetStats, Command, ContextPolicy, DELTA_BYTES_MAX,
    EXCHANGES_KNOWN_MAX, EngineStats, Event, FinishReason, GenerationId, Pacing, Prompt,
    ReplyError, ReplyEvent, Speaker, TokenDetail, Turn, Usage,
};
pub use client::Client;
pub use devices::default_registry;
pub use inline_text::InlineText;
pub use mailbox::TrySendError;
pub use options::{Deadlines, EngineError, EngineOptions, ModelSource};
pub use sentence::SentenceSplitter;
pub use shell::Engine;
pub use state::{EngineState, ModelCard};
pub use walla_device::{DeviceInfo, GpuContext, KvType};
pub use walla_model::chat::{
    BuiltInTemplate, TemplateChoice, TemplateError, TemplateState, UnknownTemplate,
};
pub use walla_model::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer, TokenizerError};
pub use walla_plan::Detail;
pub use walla_plan::governor::BucketError;
pub use walla_trace;

/// Handles of what a program has already on a GPU, for [`EngineOptions::gpu_context`].
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use walla_cuda::{GraphicsQueue, SharedContext};
}
