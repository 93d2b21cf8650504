//! Conversations that are taken from an agent, inserted again, swapped and removed.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::engine::Command;
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

/// The conversations that replaced the engine's copy, in order.
fn replaced(engine: &ScriptedEngine) -> Vec<Vec<String>> {
    let texts = |turns: Vec<Turn>| turns.into_iter().map(|turn| turn.text).collect();
    let replaced = engine.commands().into_iter().filter_map(|command| match command {
        Command::SetConversation { turns, .. } => Some(texts(turns)),
        _ => None,
    });
    replaced.collect()
}

#[test]
fn a_reinserted_conversation_replaces_the_engines_history() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "hi");
    updates(&mut app, 8);
    ask(&mut app, odo, "what is new?");
    updates(&mut app, 2);
    let talk = app.world_mut().entity_mut(odo).take::<Conversation>().unwrap();
    updates(&mut app, 10); // the reply ends without a component; only the engine has it
    app.world_mut().entity_mut(odo).insert(talk);
    updates(&mut app, 3);
    assert_eq!(turns(&app, odo), ["hi", "Odo: hi"]);
    assert_eq!(replaced(&engine), [["hi", "Odo: hi"]]);
}

fn swap(mut talks: Query<&mut Conversation>) {
    let mut talks = talks.iter_mut();
    let (Some(mut first), Some(mut second)) = (talks.next(), talks.next()) else { return };
    std::mem::swap(&mut *first, &mut *second);
}

/// Two conversations change places while the engine's events are published, and are in their own
/// places before the plugin looks for edits.
#[test]
fn an_exchange_that_ends_while_its_conversation_is_swapped_is_resolved() {
    let engine = echo();
    let mut app = app(&engine);
    let agents = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
    ask(&mut app, agents[0], "hi");
    app.add_systems(PreUpdate, swap.before(WallaSystems::Publish)).add_systems(Update, swap);
    updates(&mut app, 12);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"]);
    let in_engine = replaced(&engine).pop().unwrap_or_else(|| vec!["hi".into(), "Odo: hi".into()]);
    assert_eq!(turns(&app, agents[0]), in_engine);
}

/// As above, between the collection of changes and the submission of commands.
#[test]
fn a_turn_that_is_swapped_away_before_it_is_sent_reaches_its_own_agent() {
    use WallaSystems::{Collect, Submit};
    let engine = echo();
    let mut app = app(&engine);
    let [odo, _] = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
    updates(&mut app, 2);
    app.world_mut().get_mut::<Conversation>(odo).unwrap().push(Speaker::Observation, "It rains.");
    let between = swap.after(Collect).before(Submit);
    app.add_systems(PostUpdate, between.run_if(run_once));
    updates(&mut app, 1);
    app.world_mut().run_system_cached(swap).unwrap();
    updates(&mut app, 2);
    assert_eq!(turns(&app, odo), ["It rains."]);
    assert!(replaced(&engine).contains(&vec!["It rains.".to_owned()]));
    let appended = |command: &Command| matches!(command, Command::AppendTurns { .. });
    assert!(!engine.commands().iter().any(appended), "it is sent once");
}

#[test]
fn the_engine_keeps_the_history_of_an_agent_without_conversation() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "hi");
    updates(&mut app, 8);
    app.world_mut().entity_mut(odo).remove::<Conversation>();
    // Asks that end before they begin: the engine alone knows whether it has the question.
    ask(&mut app, odo, "a");
    ask(&mut app, odo, "b");
    updates(&mut app, 1);
    app.world_mut().trigger(Cancel::new(odo));
    updates(&mut app, 8);
    assert_eq!(log(&app).ends(), 3);
    assert_eq!(replaced(&engine), [[""; 0]; 0], "nothing is sent without a component");
    app.world_mut().entity_mut(odo).insert(Conversation::default());
    updates(&mut app, 2);
    assert_eq!(replaced(&engine), [[""; 0]], "an inserted conversation replaces the engine's");
}

/// An edit that was not sent before the component was removed is not sent without it.
#[test]
fn a_removed_conversation_sends_no_edit() {
    let engine = echo();
    let settings = WallaSettings { max_commands_per_frame: 1, ..WallaSettings::default() };
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    let agents = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
    updates(&mut app, 4);
    for agent in agents {
        app.world_mut().get_mut::<Conversation>(agent).unwrap().clear();
    }
    app.update(); // one of the two edits is sent
    for agent in agents {
        app.world_mut().entity_mut(agent).remove::<Conversation>();
    }
    updates(&mut app, 4);
    assert_eq!(replaced(&engine).len(), 1);
    assert_eq!(app.world().resource::<Walla>().asks_waiting(), 0);
}
