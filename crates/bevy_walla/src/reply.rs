//! Events of a reply: one type for each, as an entity event and as a message.
//!
//! Texts are stored inline: publishing allocates nothing.

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use std::sync::Arc;

pub use crate::sentence::{MAX_SENTENCE_BYTES, ReplySentence};
pub use crate::speech::{Speech, SpeechState};
pub use walla_runtime::{
    FinishReason, FirstTokenTimes, InlineText, MAX_DELTA_BYTES, RemoteError, ReplyError, ReplyId,
    Score, TimeLimit, TokenLogprobs, Unsupported, Usage,
};

/// A reply begins: its prompt is encoded and prefill begins. The first text arrives later, with the
/// first [`ReplyDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplyStarted {
    /// The agent that answers.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// Tokens of persona, conversation and question.
    pub prompt_tokens: u32,
}

/// More text of a reply. The concatenation of all deltas is the reply, without reasoning and
/// without the [cues](crate::cues) of an agent that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplyDelta {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// Whole characters, spaces included.
    pub text: InlineText<MAX_DELTA_BYTES>,
    /// Tokens that this text completes, with the tokens of [cues](crate::cues) before it.
    pub tokens: u32,
}

/// More reasoning of an agent: text that the model writes before its answer and that is never
/// spoken. It is in no [`ReplyDelta`], no [`ReplySentence`], not in
/// [`Speech`] and not in [`Conversation`](crate::Conversation).
///
/// Only models with reasoning markers produce it. [`AgentReasoning`](crate::agent::AgentReasoning)
/// has the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplyReasoning {
    /// The agent that reasons.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// Whole characters, spaces included.
    pub text: InlineText<MAX_DELTA_BYTES>,
    /// Tokens that this text completes.
    pub tokens: u32,
}

/// A token was sampled. Carries the likeliest alternatives. Published only for agents whose
/// [`Sampling::candidates`](walla_types::Sampling::candidates) is above 0.
#[derive(Clone, Debug, PartialEq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct ReplyToken {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The token and its alternatives, with their log-probabilities.
    pub logprobs: Arc<TokenLogprobs>,
}

/// The scores of all texts of an ask ([`Ask::scoring`](crate::Ask::scoring)). Published before its
/// [`ReplyFinished`] with [`FinishReason::Scored`].
#[derive(Clone, Debug, PartialEq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct ReplyScores {
    /// The agent.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// One for each text, in the order of the texts.
    pub scores: Arc<[Score]>,
}

impl ReplyScores {
    /// The score of the most probable text, by the mean of its tokens. `None` without texts.
    #[must_use]
    pub fn best(&self) -> Option<Score> {
        let better = |a: &&Score, b: &&Score| a.per_token().total_cmp(&b.per_token());
        self.scores.iter().max_by(better).copied()
    }
}

/// The agent has forgotten the oldest turns of its conversation, because they did not fit in its
/// context any more ([`ContextPolicy`](crate::agent::ContextPolicy)). Triggered before the end of
/// the reply with the first prompt without them. The [`Conversation`](crate::Conversation) still
/// has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct TurnsDropped {
    /// The agent.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// Number of turns: [`Usage::dropped_turns`].
    pub turns: u32,
}

/// A reply has finished. With its question, it is in the [`Conversation`](crate::Conversation):
/// [`Conversation::reply`](crate::Conversation::reply) returns its text.
/// [`Speech`] may already show the next reply. A reply to a
/// [raw ask](crate::ask::Prompt::Raw) is in no conversation: collect its [`ReplyDelta`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplyFinished {
    /// The agent that spoke. May no longer exist: despawning an agent finishes its replies as
    /// cancelled.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// Why the reply ended.
    pub reason: FinishReason,
    /// Counts and times. [`Usage::first_token`] has the parts of the time to the first token:
    /// waiting, encoding, prefill and decode.
    pub usage: Usage,
}

/// A reply has failed. The error names the cause. Other agents continue, unless the error is
/// [`ReplyError::EngineGone`].
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplyFailed {
    /// The agent that was asked.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The reason.
    pub error: ReplyError,
}
