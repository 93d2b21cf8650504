//! Disabled agents: Bevy's queries skip them, the plugin does not.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

fn disable(app: &mut App, agent: Entity) {
    app.world_mut().entity_mut(agent).insert(Disabled);
}

fn enable(app: &mut App, agent: Entity) {
    app.world_mut().entity_mut(agent).remove::<Disabled>();
}

#[test]
fn a_disabled_agent_takes_no_slot_and_answers_when_enabled() {
    let engine = echo();
    let mut app = app(&engine);
    let old = Conversation::new([Turn::new(Speaker::User, "q"), Turn::new(Speaker::Agent, "a")]);
    let [odo, greta] =
        ["Odo", "Greta"].map(|name| app.world_mut().spawn((Agent::persona(name), Disabled)).id());
    updates(&mut app, 5);
    // Changes in the pool take effect, too.
    app.world_mut().get_mut::<Agent>(odo).unwrap().persona = "Sir Odo".into();
    app.world_mut().get_mut::<LevelOfDetail>(odo).unwrap().0 = 1;
    *app.world_mut().get_mut::<Conversation>(odo).unwrap() = old;
    updates(&mut app, 5);
    assert_eq!(engine.agents(), 0);
    enable(&mut app, odo);
    ask(&mut app, odo, "x");
    updates(&mut app, 8);
    assert_eq!(turns(&app, odo), ["q", "a", "x", "Sir Odo: x"]);
    assert_eq!(engine.agents(), 1);
    app.world_mut().despawn(greta);
    updates(&mut app, 2);
    assert_eq!(engine.agents(), 1);
}

#[test]
fn changes_while_disabled_apply_when_enabled() {
    let mut app = app(&echo());
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 8);
    disable(&mut app, odo);
    app.world_mut().get_mut::<Agent>(odo).unwrap().persona = "Sir Odo".into();
    app.world_mut().get_mut::<Conversation>(odo).unwrap().clear();
    updates(&mut app, 5);
    enable(&mut app, odo);
    ask(&mut app, odo, "y");
    updates(&mut app, 8);
    assert_eq!(turns(&app, odo), ["y", "Sir Odo: y"]);
}

#[test]
fn a_reply_continues_while_its_agent_is_disabled() {
    let mut app = app(&ScriptedEngine::new(|_, _| "one two three four".into()));
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    updates(&mut app, 4);
    disable(&mut app, odo);
    ask(&mut app, odo, "again");
    updates(&mut app, 20);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 2]);
    assert!(speech(&app, odo).is_silent());
    assert_eq!(turns(&app, odo), ["count", "one two three four", "again", "one two three four"]);
}

#[test]
fn a_disabled_agent_can_be_cancelled_and_despawned() {
    let engine = echo().endless();
    let mut app = app(&engine);
    let agents = [spawn(&mut app, "A"), spawn(&mut app, "B")];
    for agent in agents {
        ask(&mut app, agent, "x");
        updates(&mut app, 3);
        disable(&mut app, agent);
    }
    app.world_mut().trigger(Cancel::new(agents[0]));
    app.world_mut().despawn(agents[1]);
    updates(&mut app, 3);
    assert_eq!(log(&app).only("finished"), ["Cancelled"; 2]);
    assert!(speech(&app, agents[0]).is_silent());
    assert_eq!(engine.agents(), 1);
}
