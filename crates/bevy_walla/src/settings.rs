use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

/// Bounds of the plugin's work, as a resource. They can be changed at any time.
#[derive(Resource, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Resource, Default, Clone, Debug, PartialEq)
)]
pub struct WallaSettings {
    /// Maximum number of events published per frame; the rest waits for the next frame. Default:
    /// `4_096`, four events of each of 1,024 agents.
    pub max_events_per_frame: u32,
    /// Maximum number of commands sent to the engine per frame; the rest waits for the next frame.
    /// Default: `256`.
    pub max_commands_per_frame: u32,
    /// Maximum number of open asks of one agent, including the one that it answers. More fail with
    /// [`ReplyError::Busy`](crate::reply::ReplyError::Busy). Default: `8`. The engine receives
    /// eight of them at a time, the rest wait in the plugin. With `u32::MAX` none is ever refused,
    /// but each takes memory for its question and its reply.
    pub max_asks_per_agent: u32,
    /// Maximum number of turns in a [`Conversation`](crate::Conversation); the oldest are dropped
    /// first. Default: `512`, far more than a usual context holds. It bounds the component and its
    /// saves. The engine's copy of the conversation is bounded by the agent's context. If this
    /// limit is below the context, the engine has more turns than the component, until the
    /// conversation is edited or restored. A pushed turn that is dropped before it was sent never
    /// reaches the engine.
    pub max_conversation_turns: u32,
    /// Whether the truncated end of a reply that was cancelled or failed is published
    /// as a [`ReplySentence`](crate::ReplySentence), marked as a
    /// [fragment](crate::ReplySentence::is_fragment). Default: `false`, since speech output should
    /// stop there.
    pub publish_fragments: bool,
    /// Pauses all agents of this app: no step runs for them, asks queue, cancels and despawns take
    /// effect. The pause does not change the replies. Events of steps in flight are still
    /// published; afterwards [`Speech`](crate::Speech) keeps its state. Default: `false`.
    pub paused: bool,
    /// Pauses all agents while `Time<Virtual>` is paused. It needs Bevy's `TimePlugin`, and has no
    /// effect without it. Default: `false`, since many games stop their time during a dialogue.
    pub pause_with_time: bool,
}

impl Default for WallaSettings {
    fn default() -> Self {
        Self {
            max_events_per_frame: 4_096,
            max_commands_per_frame: 256,
            max_asks_per_agent: 8,
            max_conversation_turns: 512,
            publish_fragments: false,
            paused: false,
            pause_with_time: false,
        }
    }
}
