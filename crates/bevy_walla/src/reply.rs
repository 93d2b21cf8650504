//! What comes back: one type for each thing that happens to a reply, as an entity event and as a
//! message.
//!
//! All of them are published in [`WallaSystems::Publish`](crate::WallaSystems::Publish): the
//! message at once, the event when that schedule's commands are applied, both in the order in which
//! things happened. Texts are inside the values: publishing allocates nothing.

use bevy_ecs::prelude::*;
use std::sync::Arc;
use walla_runtime::{
    DELTA_BYTES_MAX, FinishReason, GenerationId, InlineText, ReplyError, TokenDetail, Usage,
};

/// An agent begins with a question: its prompt is encoded, the model begins to read it. The first
/// word comes later, with the first [`ReplyDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct ReplyStarted {
    /// Who answers.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// The [`Ask::tag`](crate::Ask::tag) of what it answers.
    pub tag: u64,
    /// Tokens of persona, conversation and question.
    pub prompt_tokens: u32,
}

/// More text of a reply. All deltas of a reply joined are the reply, without reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct ReplyDelta {
    /// Who speaks.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// Whole characters, spaces included.
    pub text: InlineText<DELTA_BYTES_MAX>,
    /// Tokens that this text completes.
    pub tokens: u32,
}

/// More reasoning of an agent: text that the model writes for itself and that is never spoken. It
/// is in no [`ReplyDelta`], no [`SentenceSpoken`](crate::SentenceSpoken), not in
/// [`Speech`](crate::Speech) and not in [`Conversation`](crate::Conversation).
///
/// Comes from models with markers of reasoning only; [`AgentReasoning`](crate::AgentReasoning) has
/// the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct ReplyReasoning {
    /// The agent that reasons.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// Whole characters, spaces included.
    pub text: InlineText<DELTA_BYTES_MAX>,
    /// Tokens that this text completes.
    pub tokens: u32,
}

/// A token was drawn, with the likeliest alternatives: only of agents whose
/// [`Sampling::candidates`](walla_types::Sampling::candidates) is above 0.
#[derive(Clone, Debug, PartialEq, EntityEvent, Message)]
pub struct TokenDrawn {
    /// Who speaks.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// The token and its alternatives.
    pub detail: Arc<TokenDetail>,
}

/// A reply is over. Its text is in [`Speech`](crate::Speech) and, with the question, in
/// [`Conversation`](crate::Conversation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct ReplyFinished {
    /// Who spoke. May be gone: despawning an agent finishes its replies as cancelled.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// The [`Ask::tag`](crate::Ask::tag) of what it answered.
    pub tag: u64,
    /// Why it ended.
    pub reason: FinishReason,
    /// Counts and times.
    pub usage: Usage,
}

/// A reply is over, badly: the error says what to do. Other agents go on, unless the error is
/// [`ReplyError::EngineGone`].
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct ReplyFailed {
    /// Who was asked.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// The [`Ask::tag`](crate::Ask::tag) of what was asked.
    pub tag: u64,
    /// Why.
    pub error: ReplyError,
}
