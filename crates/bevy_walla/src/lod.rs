//! Levels of detail by distance.

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use bevy_transform::TransformSystems;
use bevy_transform::components::GlobalTransform;

use walla_runtime::Route;

use crate::agent::{Agent, AgentEngine, LevelOfDetail};
use crate::systems::WallaSystems;

/// Sets the [`LevelOfDetail`] of every agent with a `GlobalTransform` by its distance from the
/// nearest [`Listener`], and by whether it is [in view](InView): agents near the player have
/// precedence, distant agents use the remaining device time. The game sets the level of an agent
/// with [`ManualLevelOfDetail`].
///
/// Levels are set in `PostUpdate` ([`WallaSystems::UpdateLod`]), and sent to the engine by the next
/// run of [`WallaSystems::Submit`]. Without a listener all levels stay unchanged. Distances are in
/// the resource [`LodDistances`].
///
/// # Examples
/// ```
/// # use bevy_app::prelude::*;
/// # use bevy_ecs::prelude::*;
/// # use bevy_transform::components::Transform;
/// use bevy_walla::lod::{Listener, LodDistances, WallaLodPlugin};
/// use bevy_walla::prelude::*;
/// App::new()
///     .insert_resource(LodDistances { near: 5.0, far: 25.0, ..LodDistances::default() })
///     .add_plugins(WallaLodPlugin)
///     .add_systems(Startup, |mut commands: Commands| {
///         commands.spawn((Listener, Transform::default())); // on the player or the camera
///         commands.spawn((Agent::persona("You are Greta."), Transform::from_xyz(12.0, 0.0, 0.0)));
///     });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WallaLodPlugin;

/// Marks the listener: the player, or the camera. With several, the nearest counts.
#[derive(Component, Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Clone, Debug))]
pub struct Listener;

/// Marks an agent whose [`LevelOfDetail`] the game sets: [`WallaLodPlugin`] does not change it.
#[derive(Component, Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Clone, Debug))]
pub struct ManualLevelOfDetail;

/// Whether an agent can be seen. The level of an agent out of view is worse by one. Agents without
/// this component count as seen.
///
/// With Bevy's renderer, copy its `ViewVisibility` here; a game without one sets it by
/// its rules.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Clone, Debug, PartialEq))]
pub struct InView(pub bool);

/// Distances of [`WallaLodPlugin`], in the units of transforms. They can be changed at any
/// time.
#[derive(Resource, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Resource, Default, Clone, Debug, PartialEq)
)]
pub struct LodDistances {
    /// Up to this distance an agent has level 0. Default: `10.0`, where a voice is understood.
    pub near: f32,
    /// Up to this distance it has level 1, beyond it 2. Default: `40.0`, where a voice is heard.
    pub far: f32,
    /// Relative distance beyond a limit at which an agent loses a level, so that levels do not
    /// oscillate. Default: `0.1`.
    pub hysteresis: f32,
}

impl Default for LodDistances {
    fn default() -> Self {
        Self { near: 10.0, far: 40.0, hysteresis: 0.1 }
    }
}

impl LodDistances {
    /// The level at a distance, for an agent with the current level `now`.
    fn level(&self, distance_squared: f32, is_seen: bool, now: u8) -> u8 {
        let unseen = u8::from(!is_seen);
        let had = now.saturating_sub(unseen);
        let is_beyond = |limit: f32, level: u8| {
            // An agent inside a limit loses its level a little farther out.
            let limit = if had < level { limit * (1.0 + self.hysteresis) } else { limit };
            distance_squared > limit * limit
        };
        let level = match () {
            () if is_beyond(self.far, 2) => 2,
            () if is_beyond(self.near, 1) => 1,
            () => 0,
        };
        (level + unseen).min(2)
    }
}

/// An agent with its position.
type Placed = (&'static GlobalTransform, Option<&'static InView>, &'static mut LevelOfDetail);

fn set_levels(
    distances: Res<LodDistances>,
    listeners: Query<&GlobalTransform, With<Listener>>,
    mut agents: Query<Placed, (With<Agent>, Without<ManualLevelOfDetail>)>,
) {
    if listeners.is_empty() {
        return;
    }
    for (place, in_view, mut level) in &mut agents {
        let to = |ear: &GlobalTransform| ear.translation().distance_squared(place.translation());
        let nearest = listeners.iter().map(to).fold(f32::INFINITY, f32::min);
        let is_seen = in_view.is_none_or(|in_view| in_view.0);
        level.set_if_neq(LevelOfDetail(distances.level(nearest, is_seen, level.0)));
    }
}

impl Plugin for WallaLodPlugin {
    fn build(&self, app: &mut App) {
        let order = (TransformSystems::Propagate, WallaSystems::UpdateLod, WallaSystems::Collect);
        app.init_resource::<LodDistances>()
            .configure_sets(PostUpdate, order.chain())
            .add_systems(PostUpdate, set_levels.in_set(WallaSystems::UpdateLod));
        #[cfg(feature = "reflect")]
        app.register_type::<Listener>()
            .register_type::<ManualLevelOfDetail>()
            .register_type::<InView>()
            .register_type::<LodDistances>();
    }
}

/// Chooses the engine of agents with [`RoutedByLod`] by their [`LevelOfDetail`], with the routes in
/// the resource [`LodRoutes`]: for instance near agents on a large model and distant ones on a
/// small or remote one. The levels come from [`WallaLodPlugin`], or from the game.
///
/// The plugin runs [`route_by_level`] in [`WallaSystems::UpdateLod`]. For other rules, write a
/// system that sets [`AgentEngine`] instead of adding this plugin.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use bevy_app::prelude::*;
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::engines::Route;
/// use bevy_walla::lod::{LodRoutes, RoutedByLod, WallaLodRoutingPlugin};
/// use bevy_walla::prelude::*;
/// App::new()
///     .insert_resource(LodRoutes([
///         Route::engine("large"),
///         Route::engine("small"),
///         Route::engine("cloud").or("small", Duration::from_secs(2)),
///     ]))
///     .add_plugins(WallaLodRoutingPlugin)
///     .add_systems(Startup, |mut commands: Commands| {
///         commands.spawn((Agent::persona("You are Greta."), RoutedByLod));
///     });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WallaLodRoutingPlugin;

/// Marks an agent whose [`AgentEngine`] follows its level of detail.
#[derive(Component, Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Clone, Debug))]
#[require(AgentEngine)]
pub struct RoutedByLod;

/// The routes of agents at the levels 0, 1 and 2. The default engine for all, if it is not changed.
#[derive(Resource, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Resource, Default, Clone, Debug, PartialEq)
)]
pub struct LodRoutes(pub [Route; 3]);

/// Sets the engine of agents whose level has changed, or of all if the routes have.
pub fn route_by_level(
    routes: Res<LodRoutes>,
    mut agents: Query<(Ref<LevelOfDetail>, Ref<RoutedByLod>, &mut AgentEngine)>,
) {
    let is_changed = routes.is_changed();
    for (level, routed, mut engine) in &mut agents {
        if is_changed || level.is_changed() || routed.is_added() {
            let route = &routes.0[usize::from(level.0.min(2))];
            if engine.0 != *route {
                engine.0 = route.clone();
            }
        }
    }
}

impl Plugin for WallaLodRoutingPlugin {
    fn build(&self, app: &mut App) {
        let order = (WallaSystems::UpdateLod, WallaSystems::Collect);
        app.init_resource::<LodRoutes>().configure_sets(PostUpdate, order.chain()).add_systems(
            PostUpdate,
            route_by_level.in_set(WallaSystems::UpdateLod).after(set_levels),
        );
        #[cfg(feature = "reflect")]
        app.register_type::<RoutedByLod>().register_type::<LodRoutes>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_distance_with_hysteresis() {
        let distances = LodDistances { near: 10.0, far: 40.0, hysteresis: 0.1 };
        let walk = |path: &[f32]| {
            let mut now = 0;
            let level = |&distance: &f32| {
                now = distances.level(distance * distance, true, now);
                now
            };
            path.iter().map(level).collect::<Vec<_>>()
        };
        assert_eq!(walk(&[0.0, 9.0, 10.5, 11.5, 10.5, 9.5]), [0, 0, 0, 1, 1, 0]);
        assert_eq!(walk(&[43.0, 45.0, 43.0, 39.0, 43.0, 9.0]), [1, 2, 2, 1, 1, 0]);
    }

    #[test]
    fn invisible_agents_have_one_more_level_up_to_2() {
        let distances = LodDistances::default();
        assert_eq!([0, 1, 2].map(|now| distances.level(0.0, false, now)), [1, 1, 1]);
        assert_eq!(distances.level(20.0 * 20.0, false, 2), 2);
        assert_eq!(distances.level(1e9, false, 0), 2);
        assert_eq!(distances.level(f32::INFINITY, true, 0), 2);
    }
}
