//! The device thread, its mailboxes, and the requests of all agents.
//!
//! # The frame budget
//! Each frame has a device-time budget ([`EngineOptions::budget`], by default a quarter of a 60 Hz
//! frame on a GPU and half of it on a CPU). Steps that are predicted to exceed it are not started.
//! Step costs are measured when the model loads with a budget, and every step corrects them.
//! [`Engine::set_budget`] changes the budget at any time, and [`EngineStats::budget`] reports its
//! use. Voices that are due have priority over prompts. [Priorities](AgentSpec::priority) and
//! [levels of detail](AgentSpec::detail) order the voices, and agents that have waited long enough
//! are scheduled in any case.
//!
//! # Traces
//! Events of the `tracing` crate, by target: `walla::load` (info), `walla::reply` (debug: started,
//! finished; warn: failed), `walla::step` (trace: submitted, completed), `walla::device` (warn: a
//! step failed and is repeated). [`walla_trace`] records the time of each stage of a frame, as
//! `tracing` spans and, with `WALLA_TRACE=file.json` in the environment, as a file for Perfetto.

mod api;
mod ask_queue;
mod cache_file;
mod clock;
mod constraint_compiler;
mod core;
mod cues;
mod detokenizer;
mod devices;
mod engine_client;
mod engine_core;
mod history;
mod inline_text;
mod mailbox;
mod model_text;
mod options;
#[doc(hidden)]
pub mod replace;
mod reply_parts;
mod sentence;
mod shell;
mod status;
mod worker;

pub use api::{
    ActionPolicy, Actions, AfterFailure, AgentId, AgentSpec, AskOptions, CacheCopied, CacheError,
    CacheJob, CacheTicket, Call, CallId, CallResult, CancelAfter, Cancellation, Capabilities,
    Command, ConstraintKinds, ContextPolicy, ConversationEdit, Determinism, EngineStats, Event,
    FinishReason, FirstTokenTimes, Logged, MAX_ASKS_WAITING, MAX_CACHE_JOBS, MAX_DELTA_BYTES,
    MAX_EXCHANGES_KNOWN, NamedText, Notes, Pacing, PrefixCache, Prompt, RefusedCall, RemoteError,
    ReplyError, ReplyEvent, ReplyId, ReplyInProgress, ResultError, Route, Score, Speaker,
    TimeLimit, TokenLogprobs, TokenRun, Turn, Unsupported, Usage,
};
pub use ask_queue::{Ask, AskQueue};
pub use cache_file::KvFileError;
#[doc(hidden)]
pub use cues::find_word;
pub use cues::{
    Cue, CueMarks, CuePiece, CueSplitter, Cues, KnownCue, MAX_CUE_BYTES, SpokenCue, UnknownCues,
};
pub use devices::default_registry;
pub use engine_client::EngineClient;
pub use history::{Exchange, History, check_result};
pub use inline_text::InlineText;
pub use mailbox::{Mailbox, TrySendError};
pub use options::{
    Deadlines, EngineError, EngineOptions, FrameBudget, MAX_CARRY_FRAMES, ModelSource,
};
pub use sentence::SentenceSplitter;
#[doc(hidden)]
pub use shell::return_freed_memory;
pub use shell::{Client, Engine, drop_on_thread};
pub use status::{EngineState, ModelCard, TextSettings};
pub use walla_device::{DeviceInfo, GpuContext, KvType};
#[cfg(feature = "actions")]
pub use walla_grammar::{Action, action_name, schemars};
pub use walla_grammar::{
    ActionError, ActionSet, ActionSpec, CallError, CallFormat, Constraint, ConstraintError,
    ConstraintKind, MalformedCall, MatchError, UnmarkedCalls, VocabularyError,
};
#[doc(hidden)]
pub use walla_model::chat::name_line;
pub use walla_model::chat::{
    BuiltInTemplate, MAX_NAME_BYTES, TemplateChoice, TemplateError, TemplateState,
};
pub use walla_model::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer, TokenizerError};
pub use walla_plan::Detail;
pub use walla_plan::governor::{BucketError, BudgetStats};
pub use walla_trace;

/// A program's existing GPU handles, for [`EngineOptions::gpu_context`].
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use walla_cuda::{GraphicsQueue, SharedContext};
}
