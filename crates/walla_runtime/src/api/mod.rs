//! Types exchanged between hosts and the engine: agents, commands, events.

use std::sync::atomic::{AtomicU64, Ordering};

mod action;
mod agent;
mod cache;
mod capabilities;
mod command;
mod edit;
mod error;
mod event;
mod logged;
mod notes;
mod route;
mod stats;

pub(crate) use self::action::MAX_CALL_BYTES;
pub use self::action::{ActionPolicy, Actions, Call, CallId, CallResult, RefusedCall, ResultError};
pub use self::agent::{
    AgentSpec, AskOptions, CancelAfter, ContextPolicy, NamedText, Prompt, Speaker, Turn,
};
pub(crate) use self::cache::CacheWork;
pub use self::cache::{CacheCopied, CacheError, CacheJob, CacheTicket, MAX_CACHE_JOBS};
pub use self::capabilities::{
    Cancellation, Capabilities, ConstraintKinds, Determinism, PrefixCache, Unsupported,
};
pub use self::command::{Command, MAX_ASKS_WAITING, MAX_EXCHANGES_KNOWN, Pacing};
pub use self::edit::ConversationEdit;
pub use self::error::{RemoteError, ReplyError, TimeLimit};
pub use self::event::{
    Event, FinishReason, FirstTokenTimes, MAX_DELTA_BYTES, ReplyEvent, Score, TokenLogprobs, Usage,
};
pub use self::logged::{Logged, TokenRun};
pub use self::notes::Notes;
pub use self::route::{AfterFailure, ReplyInProgress, Route};
pub use self::stats::EngineStats;

/// Id of an agent, unique in the process. An agent belongs to the [`Client`](crate::Client) that
/// added it. Another client cannot change it, and its asks fail with
/// [`ReplyError::UnknownAgent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AgentId(pub u64);

/// Id of one reply of an agent, unique in the process. It distinguishes late events of an earlier
/// reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub struct ReplyId(pub u64);

/// The latest ids. One counter for all engines: an agent and its replies keep their ids when they
/// move to another engine.
static LATEST_AGENT: AtomicU64 = AtomicU64::new(0);
static LATEST_REPLY: AtomicU64 = AtomicU64::new(0);

impl AgentId {
    /// A new id.
    #[must_use]
    pub fn unique() -> Self {
        Self(LATEST_AGENT.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl ReplyId {
    /// No reply.
    pub const NONE: Self = Self(0);

    /// A new id, higher than all before.
    #[must_use]
    pub fn unique() -> Self {
        Self(LATEST_REPLY.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
