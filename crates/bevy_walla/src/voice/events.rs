//! Events of voices.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_runtime::ReplyId;
use walla_voice::Viseme as MouthShape;

/// Lets an agent with [`Voice`](super::Voice) speak a text that no model has written, behind its
/// other sentences: trigger it. The text is no part of the conversation; its events have
/// [`ReplyId::NONE`].
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::voice::Say;
/// fn greet(guard: Entity, commands: &mut Commands) {
///     commands.trigger(Say::new(guard, "Halt! Who goes there?"));
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct Say {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The text: one sentence or several, at most 64 KiB.
    pub text: Arc<str>,
    /// A number of the game's, for the events.
    pub tag: u64,
}

impl Say {
    /// A text, with the tag 0.
    #[must_use]
    pub fn new(agent: Entity, text: impl Into<Arc<str>>) -> Self {
        Self { agent, text: text.into(), tag: 0 }
    }
}

/// A sentence of an agent begins to sound.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct SpeechStarted {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The sentence: for a subtitle.
    pub text: Arc<str>,
    /// Duration of the part of the sentence that is known; of a short one, the whole.
    pub duration: Duration,
}

/// The mouth of an agent takes another shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct Viseme {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The shape. [`MouthShape::arkit`] has its weights of ARKit's blend shapes.
    pub shape: MouthShape,
    /// How long it holds.
    pub duration: Duration,
}

/// A word of an agent begins to sound.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct Word {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The sentence.
    pub sentence: Arc<str>,
    /// The word, as a byte range of the sentence.
    pub range: Range<usize>,
    /// How long it takes.
    pub duration: Duration,
}

impl Word {
    /// The word.
    #[must_use]
    pub fn text(&self) -> &str {
        self.sentence.get(self.range.clone()).unwrap_or_default()
    }
}

/// A sentence of an agent has ended. Each [`ReplySentence`](crate::ReplySentence) of an agent with
/// [`Voice`](super::Voice) has exactly one, also if it had no sound and therefore no
/// [`SpeechStarted`].
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct SpeechEnded {
    /// The agent that spoke.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The sentence.
    pub text: Arc<str>,
    /// Why it has ended.
    pub reason: SpeechEnd,
}

/// Why a sentence has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "reflect", derive(Reflect))]
#[non_exhaustive]
pub enum SpeechEnd {
    /// It was spoken.
    Spoken,
    /// An [`Interrupt`], a [`Cancel`](crate::ask::Cancel), another [`Voice`](super::Voice) or a
    /// fallen-behind voice has ended it.
    Interrupted {
        /// Bytes of its text that were heard.
        heard_bytes: usize,
    },
    /// The voice cannot be loaded, or cannot speak it: the reason.
    Failed(String),
}

/// Interrupts an agent: trigger it. Its voice falls silent at once, its reply and all its asks are
/// cancelled, and its conversation keeps the part of the reply that was heard, from the position of
/// the playback. Without speech in progress it is a [`Cancel`](crate::ask::Cancel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct Interrupt {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
}
