use bevy_app::prelude::*;
use bevy_ecs::prelude::*;

use crate::hub;

/// When the plugin works: order your systems around these sets.
///
/// | set | schedule | what it does |
/// |---|---|---|
/// | [`Publish`](Self::Publish) | [`PreUpdate`] | takes what was said since the last frame: [`Speech`](crate::Speech), [`Conversation`](crate::Conversation), messages, events |
/// | [`Collect`](Self::Collect) | [`PostUpdate`] | looks for new and changed agents and for asks |
/// | [`Submit`](Self::Submit) | [`PostUpdate`], after `Collect` | tells the engine, and grants the steps of this frame |
///
/// What is asked in `Update` thus goes to the engine in the same frame, and what is said is there
/// before `Update`.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WallaSystems {
    /// What agents said becomes components, messages and events.
    Publish,
    /// Changes and asks are seen.
    Collect,
    /// The engine is told, and the frame's steps are granted.
    Submit,
}

/// All three take a [`NonSendMarker`](bevy_ecs::system::NonSendMarker), so they run on the thread
/// that runs the schedule. They take some 40 µs with 64 agents; handing them to a thread of the
/// task pool, and waking the frame's thread when that is done, costs as much usually and up to half
/// a millisecond now and then (benches/README.md), which the frame would wait for. What else is in
/// the schedule runs beside them as before.
pub(crate) fn add_systems(app: &mut App) {
    app.configure_sets(PreUpdate, WallaSystems::Publish)
        .configure_sets(PostUpdate, (WallaSystems::Collect, WallaSystems::Submit).chain())
        .add_systems(PreUpdate, hub::publish.in_set(WallaSystems::Publish))
        .add_systems(
            PostUpdate,
            (hub::collect.in_set(WallaSystems::Collect), hub::submit.in_set(WallaSystems::Submit)),
        );
}
