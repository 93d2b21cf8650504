//! The table "Lifecycle" in the documentation of the crate: a test for each row.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::agent::{AgentContext, AgentReasoning, Constraint, ContextPolicy};
use bevy_walla::engine::{AgentSpec, Command};
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use bevy_walla::reply::SpeechState;
use bevy_walla::scripted::ScriptedEngine;
use walla_doubles::synth::{self, Mixture, Model};

/// Events that observers of entities have received.
#[derive(Resource, Default)]
struct OnEntity(Vec<&'static str>);

fn observed(app: &mut App, persona: &str) -> Entity {
    app.init_resource::<OnEntity>();
    let mut agent = app.world_mut().spawn(Agent::persona(persona));
    agent
        .observe(|_: On<ReplyDelta>, mut seen: ResMut<OnEntity>| seen.0.push("delta"))
        .observe(|_: On<ReplyFinished>, mut seen: ResMut<OnEntity>| seen.0.push("finished"));
    agent.id()
}

fn counter() -> ScriptedEngine {
    ScriptedEngine::new(|_, _| "one two three four five six".into())
}

#[test]
fn a_despawn_ends_replies_as_cancelled_without_entity_observers() {
    let mut app = app(&counter());
    let odo = observed(&mut app, "Odo");
    ask(&mut app, odo, "count");
    ask(&mut app, odo, "again");
    updates(&mut app, 3);
    app.world_mut().despawn(odo);
    let before = app.world().resource::<OnEntity>().0.len();
    let mut ended = app.world().resource::<Messages<ReplyFinished>>().get_cursor();
    updates(&mut app, 2);
    assert_eq!(app.world().resource::<OnEntity>().0.len(), before);
    assert_eq!(log(&app).only("finished"), ["Cancelled"; 2], "global observers");
    let messages = app.world().resource::<Messages<ReplyFinished>>();
    assert!(ended.read(messages).all(|end| end.agent == odo));
    assert_eq!(log(&app).ends(), 2);
}

#[test]
fn a_removed_agent_keeps_its_other_components_and_observers() {
    let mut app = app(&counter());
    let odo = observed(&mut app, "Odo");
    ask(&mut app, odo, "count");
    updates(&mut app, 4);
    assert_eq!(speech(&app, odo).state(), SpeechState::Talking);
    app.world_mut().entity_mut(odo).insert(AgentSeed(5)).remove::<Agent>();
    updates(&mut app, 3);
    assert_eq!(log(&app).only("finished"), ["Cancelled"]);
    assert_eq!(app.world().resource::<OnEntity>().0.last(), Some(&"finished"));
    assert_eq!(app.world().get::<AgentSeed>(odo), Some(&AgentSeed(5)));
    assert!(speech(&app, odo).is_silent());
    assert_eq!(turns(&app, odo), [""; 0], "the text so far is not added");
}

#[test]
fn an_overwritten_agent_changes_the_persona_and_cancels_nothing() {
    let mut app = app(&echo());
    let odo = observed(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 3);
    app.world_mut().entity_mut(odo).insert(Agent::persona("Sir Odo"));
    ask(&mut app, odo, "y");
    updates(&mut app, 12);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 2]);
    assert_eq!(turns(&app, odo), ["x", "Odo: x", "y", "Sir Odo: y"]);
}

/// Sets one component to another value, and removes it.
type Setting = (fn(&mut EntityWorldMut), fn(&mut EntityWorldMut));

const SETTINGS: [Setting; 9] = [
    (
        |agent| _ = agent.insert(AgentSampling::greedy()),
        |agent| _ = agent.remove::<AgentSampling>(),
    ),
    (|agent| _ = agent.insert(AgentSeed(7)), |agent| _ = agent.remove::<AgentSeed>()),
    (
        |agent| _ = agent.insert(VoiceRate::tokens_per_second(6.0)),
        |agent| _ = agent.remove::<VoiceRate>(),
    ),
    (|agent| _ = agent.insert(AgentPriority(3)), |agent| _ = agent.remove::<AgentPriority>()),
    (|agent| _ = agent.insert(LevelOfDetail(2)), |agent| _ = agent.remove::<LevelOfDetail>()),
    (|agent| _ = agent.insert(ReplyLimits::tokens(9)), |agent| _ = agent.remove::<ReplyLimits>()),
    (
        |agent| _ = agent.insert(AgentContext(ContextPolicy::Refuse)),
        |agent| _ = agent.remove::<AgentContext>(),
    ),
    (
        |agent| _ = agent.insert(AgentReasoning::thinking(77)),
        |agent| _ = agent.remove::<AgentReasoning>(),
    ),
    (
        |agent| _ = agent.insert(AgentConstraint(Constraint::choice(["yes", "no"]))),
        |agent| _ = agent.remove::<AgentConstraint>(),
    ),
];

#[test]
fn a_removed_setting_is_sent_as_its_default() {
    for (index, (set, remove)) in SETTINGS.into_iter().enumerate() {
        let engine = echo();
        let mut app = app(&engine);
        let [odo, greta] = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
        set(&mut app.world_mut().entity_mut(odo));
        updates(&mut app, 2);
        let before = engine.commands().len();
        remove(&mut app.world_mut().entity_mut(odo));
        updates(&mut app, 2);
        let changes = engine.commands().split_off(before);
        let [Command::ChangeAgent { spec, .. }] = &*changes else { panic!("{index}: {changes:?}") };
        assert_eq!(**spec, AgentSpec::new("Odo"), "setting {index}");
        // Without an agent it changes nothing.
        app.world_mut().entity_mut(greta).remove::<Agent>();
        updates(&mut app, 2);
        let before = engine.commands().len();
        remove(&mut app.world_mut().entity_mut(greta));
        updates(&mut app, 2);
        assert_eq!(engine.commands().len(), before, "setting {index}");
    }
}

#[test]
fn a_despawn_is_no_change_of_the_settings() {
    let engine = echo();
    let mut app = app(&engine);
    let [odo, greta] = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
    ask(&mut app, odo, "x");
    updates(&mut app, 2);
    let before = engine.commands().len();
    app.world_mut().despawn(odo);
    app.world_mut().entity_mut(greta).remove_with_requires::<Agent>();
    updates(&mut app, 3);
    let commands = engine.commands().split_off(before);
    let is_end =
        |command: &Command| matches!(command, Command::RemoveAgent { .. } | Command::Cancel { .. });
    assert!(commands.iter().all(is_end), "{commands:?}");
    assert_eq!(engine.agents(), 0);
    assert_eq!(log(&app).only("finished"), ["Cancelled"]);
}

#[test]
fn a_dialogue_continues_without_a_speech() {
    let mut app = app(&echo());
    let odo = observed(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 3);
    app.world_mut().entity_mut(odo).remove::<Speech>();
    ask(&mut app, odo, "y");
    updates(&mut app, 12);
    assert_eq!(turns(&app, odo), ["x", "Odo: x", "y", "Odo: y"]);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 2]);
}

/// The prompt of a later reply contains the exchange that only the engine has.
#[test]
fn the_engine_keeps_its_copy_of_a_removed_conversation() {
    #[derive(Resource, Default)]
    struct Prompts(Vec<u32>);
    let model = synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap();
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(1),
        ..EngineOptions::new(ModelSource::Static(Box::leak(model.into_boxed_slice())))
    };
    let mut app = app_with(WallaPlugin::new(options));
    app.init_resource::<Prompts>().add_observer(
        |began: On<ReplyStarted>, mut prompts: ResMut<Prompts>| prompts.0.push(began.prompt_tokens),
    );
    let odo = app.world_mut().spawn((Agent::persona("A"), ReplyLimits::tokens(4))).id();
    for reply in 1..=3 {
        ask(&mut app, odo, "Who?");
        run_until(&mut app, |app| log(app).ends() == reply);
        app.world_mut().entity_mut(odo).remove::<Conversation>();
    }
    let prompts = &app.world().resource::<Prompts>().0;
    assert!(prompts.is_sorted_by(|before, after| before < after), "{prompts:?}");
}

#[test]
fn a_clone_is_a_silent_agent_with_a_copy_of_the_conversation() {
    let engine = counter();
    let mut app = app(&engine);
    let odo = observed(&mut app, "Odo");
    app.world_mut().entity_mut(odo).insert(AgentSeed(5));
    ask(&mut app, odo, "count");
    updates(&mut app, 12);
    ask(&mut app, odo, "again");
    ask(&mut app, odo, "once more");
    updates(&mut app, 3);
    let clone = app.world_mut().entity_mut(odo).clone_and_spawn();
    assert!(speech(&app, clone).is_silent() && speech(&app, clone).text().is_empty());
    assert_eq!(turns(&app, clone), ["count", "one two three four five six"]);
    assert_eq!(app.world().get::<AgentSeed>(clone), Some(&AgentSeed(5)));
    updates(&mut app, 30);
    assert_eq!(log(&app).ends(), 3, "its open asks are not copied");
    assert_eq!(turns(&app, clone).len(), 2);
    assert_eq!(engine.agents(), 2);
    let before = app.world().resource::<OnEntity>().0.len();
    ask(&mut app, clone, "and you?");
    updates(&mut app, 12);
    assert_eq!(turns(&app, clone)[2..], ["and you?", "one two three four five six"]);
    assert_eq!(app.world().resource::<OnEntity>().0.len(), before, "observers are not copied");
    assert_eq!(turns(&app, odo).len(), 6);
}
