//! An embedded async LLM runtime for games and robots.
//!
//! Every agent (an NPC, a robot) is a token sequence; all of them run as one batch on one device
//! thread. This crate is the async interface for any tokio program; Bevy apps use `bevy_walla`.
//! Both can use one engine at once: [`Engine::runtime`], [`Engine::join`].
//!
//! No call and no drop blocks on that thread or on a lock: each call is one send into a channel,
//! which a thread `walla-async` drains. Only futures wait, and they do not block.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use walla::{Engine, EngineOptions};
//!
//! let engine = Engine::start(EngineOptions::model("qwen3-0.6b-q8_0.gguf")).await?;
//! let robot = engine.agent("You are a courier robot. Answer with one JSON action.");
//! let mut reply = robot.ask("Bring this to the kitchen.");
//! while let Some(delta) = reply.next().await {
//!     print!("{}", delta?.text()); // dropping `reply` cancels it
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | type | purpose |
//! |---|---|
//! | [`EngineOptions`], [`EngineBuilder`] | model and settings of an engine; what only this API has |
//! | [`Engine`] | a loaded model on a device; clones share it |
//! | [`Agent`] | persona, sampling, conversation; dropping it frees its memory |
//! | [`Reply`] | a stream of deltas with a terminal event; dropping it cancels |
//! | [`Embedder`] | an embedding model with its own thread: vectors of texts, for search by meaning |
//! | [`memory::Memory`] | entries that agents find at each ask: [`Engine::recall`], [`Agent::set_recall`] |
//! | [`record::Recording`] | a recorded session: [`EngineBuilder::record_to`], [`Engine::replay_from`] |

#![forbid(unsafe_code)]

mod agent;
mod dispatcher;
mod engine;
mod reply;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "speech")]
pub mod voice;

pub use agent::{Agent, TryAskError};
pub use engine::{Engine, EngineBuilder};
pub use reply::{Delta, Finished, Reply};
pub use walla_device::{KvType, Registry};
/// Embedding models.
pub use walla_embed::{
    EmbedError, Embedder, EmbedderOptions, Embedding, LoadError as EmbedderLoadError, LongTexts,
    Pending, Pooling, Purpose, TrySubmitError, cosine,
};
/// Memories of agents and shared lore, found at each ask: [`Engine::recall`],
/// [`Agent::set_recall`]; and their stores with deterministic search, without a thread.
#[doc(inline)]
pub use walla_memory as memory;
pub use walla_model::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer, TokenizerError};
/// Recordings of sessions, their replay with a model, and their player without one:
/// [`EngineBuilder::record_to`], [`Engine::replay_from`].
#[doc(inline)]
pub use walla_record as record;
/// Remote engines, for [`Engine::with_client`] (feature `remote`).
#[cfg(feature = "remote")]
#[doc(inline)]
pub use walla_remote as remote;
/// Several named engines behind one, for [`Engine::with_client`]: substitutes, health, loading at
/// run time.
#[doc(inline)]
pub use walla_router as router;
/// An engine without the async API, shared with Bevy apps: [`Engine::runtime`], [`Engine::join`].
pub use walla_runtime::Engine as RuntimeEngine;
#[cfg(feature = "cuda")]
pub use walla_runtime::cuda;
#[cfg(feature = "actions")]
pub use walla_runtime::{Action, schemars};
pub use walla_runtime::{
    ActionError, ActionPolicy, ActionSet, ActionSpec, Actions, AfterFailure, AgentSpec, AskOptions,
    BudgetStats, BuiltInTemplate, CacheCopied, CacheError, CacheJob, Call, CallError, CallFormat,
    CallId, CallResult, Capabilities, Constraint, ConstraintError, ContextPolicy, Cue, CueMarks,
    Cues, Deadlines, Detail, EngineClient, EngineError, EngineOptions, EngineState, EngineStats,
    FinishReason, FirstTokenTimes, FrameBudget, GpuContext, InlineText, KnownCue, KvFileError,
    MAX_CUE_BYTES, MAX_DELTA_BYTES, MAX_EXCHANGES_KNOWN, MalformedCall, MatchError, ModelCard,
    ModelSource, NamedText, Notes, Pacing, Prompt, RefusedCall, RemoteError, ReplyError,
    ReplyEvent, ReplyId, ReplyInProgress, ResultError, Route, Score, SentenceSplitter, Speaker,
    TemplateChoice, TemplateError, TemplateState, TextSettings, TimeLimit, TokenLogprobs, Turn,
    UnknownCues, UnmarkedCalls, Unsupported, Usage, VocabularyError, default_registry,
};
pub use walla_types::{
    InvalidSampling, InvalidTokenMask, LogitBias, Sampling, SamplingBuilder, TokenId, TokenMask,
};

/// Compiles the examples of `docs/tokio.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tokio.md")]
struct TokioPage;
