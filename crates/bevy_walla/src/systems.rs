use bevy_app::prelude::*;
use bevy_ecs::prelude::*;

use crate::bridge;

/// System sets of the plugin, to order other systems against.
///
/// | set | schedule | work |
/// |---|---|---|
/// | [`Publish`](Self::Publish) | [`PreUpdate`] | publishes the engine's events since the last frame: [`Speech`](crate::Speech), [`Conversation`](crate::Conversation), messages, events |
/// | [`Collect`](Self::Collect) | [`PostUpdate`] | collects new and changed agents and asks |
/// | [`Submit`](Self::Submit) | [`PostUpdate`], after `Collect` | sends commands to the engine and grants the steps of this frame |
///
/// An ask made in `Update` is thus sent to the engine in the same frame, and new text is available
/// before `Update`.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WallaSystems {
    /// Publishes the engine's events as components, messages and events.
    Publish,
    /// Collects changes and asks.
    Collect,
    /// Sends commands to the engine and grants the frame's steps.
    Submit,
}

/// All three take a [`NonSendMarker`](bevy_ecs::system::NonSendMarker), so they run on the thread
/// that runs the schedule. They take about 40 µs with 64 agents. Moving them to a thread of the
/// task pool, and waking the frame's thread afterwards, usually costs as much and occasionally up
/// to half a millisecond (benches/README.md), which the frame would wait for. Other systems of the
/// schedule still run in parallel to them.
pub(crate) fn add_systems(app: &mut App) {
    app.configure_sets(PreUpdate, WallaSystems::Publish)
        .configure_sets(PostUpdate, (WallaSystems::Collect, WallaSystems::Submit).chain())
        .add_systems(PreUpdate, bridge::publish.in_set(WallaSystems::Publish))
        .add_systems(
            PostUpdate,
            (
                bridge::collect.in_set(WallaSystems::Collect),
                bridge::submit.in_set(WallaSystems::Submit),
            ),
        );
}
