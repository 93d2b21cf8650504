use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::{InternedScheduleLabel, ScheduleLabel};

use crate::bridge;

/// System sets of the plugin, to order other systems against.
///
/// | set | schedule | work |
/// |---|---|---|
/// | [`Publish`](Self::Publish) | [`PreUpdate`] | publishes the engine's events since the last frame: [`Speech`](crate::Speech), [`Conversation`](crate::Conversation), messages, events |
/// | [`UpdateLod`](Self::UpdateLod) | [`PostUpdate`], before `Collect` | sets levels of detail by distance (`WallaLodPlugin`, feature `lod`) |
/// | [`Collect`](Self::Collect) | [`PostUpdate`] | collects new and changed agents and asks |
/// | [`Submit`](Self::Submit) | [`PostUpdate`], after `Collect` | sends commands to the engine and grants the steps of this frame |
///
/// An ask made in `Update` is thus sent to the engine in the same frame, and new text is available
/// before `Update`. In `PostUpdate`, order systems that ask before `Collect`: otherwise an ask may
/// wait for the next frame. [`WallaPlugin::schedules`](crate::WallaPlugin::schedules) selects other
/// schedules.
#[derive(SystemSet, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WallaSystems {
    /// Publishes the engine's events as components, messages and events.
    Publish,
    /// Sets levels of detail by distance (`WallaLodPlugin`, feature `lod`). Always in
    /// [`PostUpdate`].
    UpdateLod,
    /// Collects changes and asks.
    Collect,
    /// Sends commands to the engine and grants the frame's steps.
    Submit,
}

/// Schedules of the plugin's systems.
#[derive(Resource, Clone, Copy, Debug, PartialEq)]
pub(crate) struct Schedules {
    /// [`WallaSystems::Publish`].
    publish: InternedScheduleLabel,
    /// [`WallaSystems::Collect`] and [`WallaSystems::Submit`].
    submit: InternedScheduleLabel,
}

impl Schedules {
    pub fn new(publish: impl ScheduleLabel, submit: impl ScheduleLabel) -> Self {
        Self { publish: publish.intern(), submit: submit.intern() }
    }

    /// Of an app: the default ones before it has the plugin.
    pub fn of(app: &mut App) -> Self {
        *app.world_mut().get_resource_or_init::<Self>()
    }

    /// All three sets take a [`NonSendMarker`](bevy_ecs::system::NonSendMarker), so they run on the
    /// thread that runs the schedule. They take about 40 µs with 64 agents. Moving them to a thread
    /// of the task pool, and waking the frame's thread afterwards, usually costs as much and
    /// occasionally up to half a millisecond (benches/README.md), which the frame would wait for.
    /// Other systems of the schedule still run in parallel to them.
    pub fn add_systems(self, app: &mut App) {
        let Self { publish, submit } = self;
        app.configure_sets(submit, (WallaSystems::Collect, WallaSystems::Submit).chain())
            .add_systems(publish, bridge::publish.in_set(WallaSystems::Publish))
            .add_systems(
                submit,
                (
                    (bridge::take_result_messages, bridge::collect)
                        .chain()
                        .in_set(WallaSystems::Collect),
                    bridge::submit.in_set(WallaSystems::Submit),
                ),
            );
        if publish == submit {
            app.configure_sets(submit, WallaSystems::Publish.before(WallaSystems::Collect));
        }
        if submit != PostUpdate.intern() {
            // In a pause of the time, a schedule with fixed time steps does not run.
            app.add_systems(PostUpdate, bridge::pause.after(WallaSystems::Publish));
        }
    }

    /// Adds systems to the schedule of [`WallaSystems::Collect`] and [`WallaSystems::Submit`].
    pub fn add_submit_systems<M>(
        self,
        app: &mut App,
        systems: impl IntoScheduleConfigs<bevy_ecs::system::ScheduleSystem, M>,
    ) {
        app.add_systems(self.submit, systems);
    }

    /// Adds a system behind [`WallaSystems::Publish`].
    pub fn add_publish_system<M>(
        self,
        app: &mut App,
        system: impl IntoScheduleConfigs<bevy_ecs::system::ScheduleSystem, M>,
    ) {
        app.add_systems(self.publish, system.in_set(WallaSystems::Publish).after(bridge::publish));
    }
}

impl Default for Schedules {
    fn default() -> Self {
        Self::new(PreUpdate, PostUpdate)
    }
}
