//! Levels of detail reach the engine, set by hand and by distance.

use bevy_ecs::prelude::*;
use bevy_walla::engine::{Command, Detail};
use bevy_walla::prelude::*;

use crate::common::{app, echo, spawn};

fn details(commands: &[Command]) -> Vec<Detail> {
    let detail = |command: &Command| match command {
        Command::AddAgent { spec, .. } | Command::ChangeAgent { spec, .. } => Some(spec.detail),
        Command::SetDetail { detail, .. } => Some(*detail),
        _ => None,
    };
    commands.iter().filter_map(detail).collect()
}

#[test]
fn only_changed_levels_are_sent() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = app.world_mut().spawn((Agent::persona("Greta"), LevelOfDetail(2))).id();
    for level in [2, 1, 1, 0, 7] {
        app.update();
        app.world_mut()
            .entity_mut(greta)
            .get_mut::<LevelOfDetail>()
            .unwrap()
            .set_if_neq(LevelOfDetail(level));
    }
    app.update();
    let expected = [Detail::Background, Detail::Reduced, Detail::Full, Detail::Background];
    assert_eq!(details(&engine.commands()), expected);
    let changes =
        engine.commands().iter().filter(|c| matches!(c, Command::ChangeAgent { .. })).count();
    assert_eq!(changes, 0, "a level alone is no new agent");
}

#[test]
fn a_changed_agent_keeps_its_level() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    app.update();
    app.world_mut().entity_mut(greta).insert((AgentPriority(4), LevelOfDetail(1)));
    app.update();
    assert_eq!(details(&engine.commands()), [Detail::Full, Detail::Reduced]);
    assert_eq!(engine.commands().len(), 2);
    // Despawned in the frame in which its level changed: only the removal is sent.
    app.world_mut().entity_mut(greta).insert(LevelOfDetail(2));
    app.world_mut().despawn(greta);
    app.update();
    assert_eq!(engine.commands().len(), 3);
}

#[cfg(feature = "lod")]
#[test]
fn the_plugin_sets_levels_by_distance() {
    use bevy_transform::TransformPlugin;
    use bevy_transform::components::Transform;
    use bevy_walla::lod::{InView, Listener, ManualLevelOfDetail, WallaLodPlugin};

    let engine = echo();
    let mut app = app(&engine);
    app.add_plugins((TransformPlugin, WallaLodPlugin));
    let at = |x: f32| Transform::from_xyz(x, 0.0, 0.0);
    let far = app.world_mut().spawn((Agent::persona("far"), at(100.0))).id();
    let hidden = app.world_mut().spawn((Agent::persona("hidden"), at(3.0), InView(false))).id();
    app.update();
    let level = |app: &bevy_app::App, agent| app.world().get::<LevelOfDetail>(agent).unwrap().0;
    assert_eq!((level(&app, far), level(&app, hidden)), (0, 0), "nobody listens");
    let player = app.world_mut().spawn((Listener, at(0.0))).id();
    app.update();
    assert_eq!((level(&app, far), level(&app, hidden)), (2, 1));
    assert_eq!(details(&engine.commands()).len(), 4, "told in the same frame");
    app.world_mut().entity_mut(player).insert(at(90.0));
    app.update();
    assert_eq!((level(&app, far), level(&app, hidden)), (0, 2));
    // The game sets the level of a marked agent.
    app.world_mut().entity_mut(hidden).insert((ManualLevelOfDetail, LevelOfDetail(1)));
    app.update();
    assert_eq!((level(&app, far), level(&app, hidden)), (0, 1));
    app.world_mut().entity_mut(hidden).remove::<ManualLevelOfDetail>();
    app.update();
    assert_eq!((level(&app, far), level(&app, hidden)), (0, 2));
    // The game runs the set less often.
    app.configure_sets(bevy_app::PostUpdate, WallaSystems::UpdateLod.run_if(|| false));
    app.world_mut().entity_mut(player).insert(at(0.0));
    app.update();
    assert_eq!((level(&app, far), level(&app, hidden)), (0, 2));
}
