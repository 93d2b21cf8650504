//! Inspectors, scenes and the remote protocol access the plugin's types by reflection.

mod common;

use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_reflect::prelude::*;
use bevy_walla::engine::{AgentSpec, Command};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

use common::{app, echo, spawn, speech, updates};

/// Finds a component by the name that a scene or a tool would use.
fn component(world: &World, name: &str) -> ReflectComponent {
    let registry = world.resource::<AppTypeRegistry>().read();
    let registered = registry.get_with_short_type_path(name);
    registered.and_then(|it| it.data::<ReflectComponent>()).cloned().expect(name)
}

/// Sets a field of an agent's component.
fn set<T: Reflect>(app: &mut App, agent: Entity, (name, path): (&str, &str), value: T) {
    let component = component(app.world(), name);
    let agent = app.world_mut().entity_mut(agent);
    let mut component = component.reflect_mut(agent).expect("an agent brings it");
    *component.path_mut::<T>(path).unwrap() = value;
}

/// The latest change that was sent to the engine.
fn changed(engine: &ScriptedEngine) -> Box<AgentSpec> {
    match engine.commands().pop() {
        Some(Command::ChangeAgent { spec, .. }) => spec,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_agent_is_made_and_changed_by_name() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = app.world_mut().spawn_empty().id();
    let agent = component(app.world(), "Agent");
    let registry = app.world().resource::<AppTypeRegistry>().clone();
    let persona = Agent::persona("You are Greta.");
    agent.insert(&mut app.world_mut().entity_mut(greta), &persona, &registry.read());
    app.update();
    set(&mut app, greta, ("VoiceRate", "0"), Some(6.0_f32));
    set(&mut app, greta, ("ReplyLimits", "tokens_max"), 9_u32);
    app.update();
    let spec = changed(&engine);
    assert_eq!((spec.persona.as_str(), spec.voice_rate), ("You are Greta.", Some(6.0)));
    assert_eq!(spec.reply_tokens_max, 9);
}

#[test]
fn a_rate_that_makes_no_sense_is_none_wherever_it_comes_from() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    app.update();
    set(&mut app, greta, ("VoiceRate", "0"), Some(f32::NAN));
    app.update();
    assert_eq!(changed(&engine).voice_rate, None);
}

#[test]
fn what_an_agent_says_can_be_watched_and_asked_for() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    let ask: Box<dyn Reflect> = Box::new(Ask::new(greta, "Hello there"));
    let registry = app.world().resource::<AppTypeRegistry>().clone();
    let registry = registry.read();
    let event = registry.get_with_short_type_path("Ask").unwrap().data::<ReflectEvent>().unwrap();
    event.trigger(app.world_mut(), ask.as_partial_reflect(), &registry);
    drop(registry);
    updates(&mut app, 20);
    let seen = component(app.world(), "Speech");
    let seen = seen.reflect(app.world().entity(greta)).unwrap();
    let said = seen.path::<String>("text").unwrap().clone();
    let heard = speech(&app, greta);
    assert!(!said.is_empty());
    assert_eq!((said.as_str(), heard.state()), (heard.text(), SpeechState::Silent));
}

/// Scenes and tools without knowledge of `AskKind` still work.
#[test]
fn an_ask_by_reflection_may_leave_out_its_kind() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    let mut ask = bevy_reflect::structs::DynamicStruct::default();
    ask.insert("agent", greta);
    ask.insert("text", "Hello".to_owned());
    ask.insert("tag", 7_u64);
    let whole = <Ask as FromReflect>::from_reflect(&ask);
    assert_eq!(whole, Some(Ask::new(greta, "Hello").tagged(7)));
    ask.insert("kind", AskKind::Raw);
    let whole = <Ask as FromReflect>::from_reflect(&ask);
    assert_eq!(whole, Some(Ask::new(greta, "Hello").tagged(7).raw()));
}

#[test]
fn a_restored_conversation_counts_as_an_edit() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    app.update();
    let saved = Conversation::new([
        Turn { speaker: Speaker::User, text: "Who are you?".into() },
        Turn { speaker: Speaker::Agent, text: "Greta.".into() },
    ]);
    let saved = PartialReflect::reflect_clone(&saved).unwrap();
    let conversation = component(app.world(), "Conversation");
    conversation.apply(app.world_mut().entity_mut(greta), saved.as_partial_reflect());
    app.update();
    let commands = engine.commands();
    let Some(Command::SetConversation { turns, .. }) = commands.last() else {
        panic!("{commands:?}")
    };
    assert_eq!(turns.len(), 2);
}
