//! The engine of an agent, in an app with several.

use std::sync::Arc;
use std::time::Duration;

/// Which engine an agent uses, in an app with several named engines. An engine that is alone
/// ignores it; in a Bevy app with one engine, asks fail with
/// [`ReplyError::NoEngine`](crate::ReplyError::NoEngine).
///
/// A change of the engine applies from the next reply on, and the conversation stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Route {
    /// Name of the engine. `None`: the default engine.
    pub engine: Option<Arc<str>>,
    /// Name of the engine that takes over an ask: if the other one fails before its first output,
    /// lacks a feature that the ask needs, is unavailable after several failures, or exceeds
    /// [`max_first_token`](Self::max_first_token). A name that no engine has is as `None`, and is
    /// in the log once. `None`: such an ask fails. Default: `None`.
    pub substitute: Option<Arc<str>>,
    /// Time from the begin of an ask to its first output (speech, reasoning or a call). After it
    /// the substitute takes the ask over. Pauses do not count. `None`: no limit. Default: `None`.
    /// Without effect without a substitute.
    pub max_first_token: Option<Duration>,
    /// What happens if the engine fails within a reply.
    pub after_failure: AfterFailure,
    /// What happens to a reply in progress when the engine of its agent changes.
    pub reply_in_progress: ReplyInProgress,
}

/// What happens if an engine fails behind the first output of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AfterFailure {
    /// The reply fails. Its text so far stays in the conversation.
    #[default]
    End,
    /// The [substitute](Route::substitute) continues the text
    /// ([`AskOptions::opening`](crate::AskOptions::opening)). A reply with a call or under a
    /// constraint fails all the same.
    Continue,
}

/// What happens to a reply in progress when the engine of its agent changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReplyInProgress {
    /// The old engine finishes it.
    #[default]
    Finish,
    /// It is cancelled, and its text so far stays in the conversation.
    Cancel,
}

impl Route {
    /// The engine with this name.
    #[must_use]
    pub fn engine(name: impl Into<Arc<str>>) -> Self {
        Self { engine: Some(name.into()), ..Self::default() }
    }

    /// With this substitute, which takes over after `max_first_token`.
    #[must_use]
    pub fn or(
        self,
        substitute: impl Into<Arc<str>>,
        max_first_token: impl Into<Option<Duration>>,
    ) -> Self {
        let (substitute, max_first_token) = (Some(substitute.into()), max_first_token.into());
        Self { substitute, max_first_token, ..self }
    }
}
