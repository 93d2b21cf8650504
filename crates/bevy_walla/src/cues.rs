//! Cues: stage directions of agents (`*smiles*`, `(sighs)`, `[laughs]`) as events, apart from
//! speech.
//!
//! An agent with [`AgentCues`] speaks without them: they are in no
//! [`ReplyDelta`](crate::ReplyDelta), no [`ReplySentence`](crate::ReplySentence) and not in
//! [`Speech`](crate::Speech). Each is a [`ReplyCue`] with its place. The
//! [`Conversation`](crate::Conversation) keeps the reply as the model wrote it, so that the agent
//! continues in the same manner. This holds for all engines: local, remote and scripted ones.
//!
//! # Examples
//! ```
//! # use bevy_ecs::prelude::*;
//! use bevy_walla::cues::{AgentCues, Cues, ReplyCue};
//! use bevy_walla::prelude::*;
//!
//! fn setup(mut commands: Commands) {
//!     let cues = Cues::new().with_cue("smile", ["smiles", "grins"]).with_cue("sigh", ["sighs"]);
//!     // The sentence names the words: "… *smiles*, *sighs*."
//!     let persona = format!("You are Greta, the smith. {}", cues.instruction().unwrap_or_default());
//!     commands.spawn((Agent::persona(persona), AgentCues(cues))).observe(|cue: On<ReplyCue>| {
//!         println!("animation {} behind {} bytes of speech", cue.name, cue.at_bytes);
//!     });
//! }
//! ```

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_runtime::{InlineText, ReplyId};

pub use walla_runtime::{Cue, CueMarks, Cues, KnownCue, MAX_CUE_BYTES, UnknownCues};

/// Separates the cues of an agent from its speech: see the [module](self). A change applies from
/// the next reply on. Replies to [asides](crate::Ask::aside) stay as they are.
///
/// For replies with no other stage directions than the known ones, give the agent
/// [`AgentConstraint`](crate::AgentConstraint)`(cues.constraint())` too ([`Cues::constraint`]).
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
pub struct AgentCues(pub Cues);

impl From<Cues> for AgentCues {
    fn from(cues: Cues) -> Self {
        Self(cues)
    }
}

/// A cue of a reply. It comes behind the [`ReplyDelta`](crate::ReplyDelta)s of the speech before
/// it, and before the deltas of the speech after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplyCue {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// [`KnownCue::name`] (its first [`MAX_CUE_BYTES`] bytes), or the text if the agent has no
    /// known cues.
    pub name: InlineText<MAX_CUE_BYTES>,
    /// The text between the marks.
    pub text: InlineText<MAX_CUE_BYTES>,
    /// Bytes of speech before it: of all deltas of the reply.
    pub at_bytes: u32,
    /// Bytes of the whole reply before it, cues included. It belongs to the first sentence whose
    /// [`end_bytes`](crate::ReplySentence::end_bytes) are more.
    pub reply_bytes: u32,
}
