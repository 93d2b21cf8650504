//! Types exchanged between hosts and the engine: agents, commands, events.

mod action;
mod agent;
mod command;
mod error;
mod event;
mod stats;

pub(crate) use self::action::CALL_BYTES_MAX;
pub use self::action::{ActionPolicy, Actions, Call, CallId, RefusedCall};
pub use self::agent::{AgentSpec, AskOptions, ContextPolicy, Prompt, Speaker, Turn};
pub use self::command::{ASKS_WAITING_MAX, Command, EXCHANGES_KNOWN_MAX, Pacing};
pub use self::error::ReplyError;
pub use self::event::{
    DELTA_BYTES_MAX, Event, FinishReason, FirstTokenTimes, ReplyEvent, TokenLogprobs, Usage,
};
pub use self::stats::{BudgetStats, EngineStats};

/// Id of an agent, unique for the engine's life. An agent belongs to the [`Client`](crate::Client)
/// that added it. Another client cannot change it, and its asks fail with
/// [`ReplyError::UnknownAgent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u64);

/// Id of one reply of an agent, unique for the engine's life. It distinguishes late events of an
/// earlier reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub struct ReplyId(pub u64);
