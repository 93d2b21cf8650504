use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

/// Bounds of the plugin's work, a resource: change it at any time.
#[derive(Resource, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Resource, Default, Clone, Debug, PartialEq)
)]
pub struct WallaSettings {
    /// Things that happened to replies which one frame publishes; the rest waits for the next
    /// frame. Default: `4_096`, four events of each of 1,024 agents.
    pub events_per_frame_max: u32,
    /// Commands that one frame sends to the engine; the rest waits for the next frame. Default:
    /// `256`.
    pub commands_per_frame_max: u32,
    /// Asks of one agent that may wait, the one it is answering included; more fail with
    /// [`ReplyError::Busy`](crate::ReplyError::Busy). Default: `8`. The engine gets eight of them
    /// at a time, the rest wait in the plugin: with `u32::MAX` none is ever refused, but each takes
    /// memory for its question and its reply.
    pub asks_per_agent_max: u32,
    /// Turns that a [`Conversation`](crate::Conversation) keeps; the oldest go first. Default:
    /// `512`, far more than a usual context holds. It bounds the component and what is saved of it.
    /// What the agent itself remembers is bounded by its context: with less turns here than fit in
    /// there, it remembers more than the component says, until the conversation is edited or
    /// restored.
    pub conversation_turns_max: u32,
    /// Whether the cut end of a reply that was cancelled, interrupted or failed is published as a
    /// [`SentenceSpoken`](crate::SentenceSpoken), as a
    /// [fragment](crate::SentenceSpoken::is_fragment). Default: `false`, since a voice is to stop
    /// there.
    pub publish_fragments: bool,
    /// Pauses all agents of this app: no step runs for them, asks queue, cancels and despawns
    /// count. Later they continue with the same words. Default: `false`.
    pub paused: bool,
    /// Pauses all agents while `Time<Virtual>` is paused. Default: `false`, since many games stop
    /// their time while the player talks.
    pub pause_with_time: bool,
}

impl Default for WallaSettings {
    fn default() -> Self {
        Self {
            events_per_frame_max: 4_096,
            commands_per_frame_max: 256,
            asks_per_agent_max: 8,
            conversation_turns_max: 512,
            publish_fragments: false,
            paused: false,
            pause_with_time: false,
        }
    }
}
