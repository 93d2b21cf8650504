//! Inspectors, scenes and the remote protocol access the plugin's types by reflection.

use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_ecs::reflect::{ReflectEvent, ReflectMessage, ReflectResource};
use bevy_reflect::prelude::*;
use bevy_walla::ask::Prompt;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::engine::{AgentSpec, Command};
use bevy_walla::prelude::*;
use bevy_walla::reply::{FinishReason, InlineText, MAX_DELTA_BYTES, ReplyId, SpeechState, Usage};
use bevy_walla::scripted::ScriptedEngine;

use crate::common::{app, echo, spawn, speech, updates};

/// Public types that a derive makes components, resources, messages or events, as they are in the
/// sources of the crate, with these derives.
fn public_types() -> Vec<(String, Vec<String>)> {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut types = Vec::new();
    let mut paths = vec![sources];
    while let Some(path) = paths.pop() {
        let is_of = |feature: &str| path.file_stem().is_some_and(|stem| stem == feature);
        let is_off = is_of("lod") && !cfg!(feature = "lod")
            || is_of("overlay") && !cfg!(feature = "overlay")
            || is_of("playback") && !cfg!(feature = "voice_playback")
            || is_of("voice") && !cfg!(feature = "speech");
        if path.is_dir() && !is_off {
            paths.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        if is_off || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let mut derives = Vec::new();
        for line in source.lines() {
            if let Some(list) = line.strip_prefix("#[derive(") {
                let list = list.trim_end_matches(")]");
                derives = list.split(", ").map(str::to_owned).collect();
            } else if let Some(rest) = line.strip_prefix("pub struct ") {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                let kinds = ["Component", "Resource", "Message", "EntityEvent", "Event"];
                derives.retain(|derive| kinds.contains(&&**derive));
                types.push((name.to_owned(), std::mem::take(&mut derives)));
            } else if line.contains("struct ") || line.contains("enum ") {
                derives.clear();
            }
        }
    }
    types.retain(|(_, kinds)| !kinds.is_empty());
    types
}

/// `Walla` holds the engine, which no tool can create or copy.
#[test]
fn all_public_types_are_registered() {
    let mut app = app(&echo());
    app.add_plugins((WallaMemoryPlugin::default(), bevy_walla::groups::WallaGroupPlugin));
    #[cfg(feature = "speech")]
    app.add_plugins(bevy_walla::voice::WallaVoicePlugin::default());
    #[cfg(feature = "overlay")]
    app.add_plugins(bevy_walla::overlay::WallaOverlayPlugin::default());
    #[cfg(feature = "lod")]
    app.add_plugins((bevy_walla::lod::WallaLodPlugin, bevy_walla::lod::WallaLodRoutingPlugin));
    #[cfg(feature = "voice_playback")]
    app.register_type::<bevy_walla::voice::SpatialVoice>()
        .register_type::<bevy_walla::voice::VoiceOutput>();
    #[cfg(feature = "assets")]
    app.add_plugins((
        bevy_app::TaskPoolPlugin::default(),
        bevy_asset::AssetPlugin::default(),
        bevy_walla::characters::WallaCharacterPlugin,
    ));
    app.update();
    let registry = app.world().resource::<AppTypeRegistry>().read();
    let types = public_types();
    let names: Vec<&str> = types.iter().map(|(name, _)| name.as_str()).collect();
    for known in ["Agent", "Ask", "Conversation", "ReplyFinished", "ReplySentence", "WallaReady"] {
        assert!(names.contains(&known), "{names:?}");
    }
    assert_eq!(names.contains(&"WallaOverlay"), cfg!(feature = "overlay"), "{names:?}");
    // These have no fields to show, and `ActionCall` is generic: a game registers its own types.
    let hidden = [
        "Walla",
        "WallaEngines",
        "MemoryService",
        "MemoryTexts",
        "WallaRecorder",
        "ActionCall",
        "VoiceThread",
    ];
    let is_registered = |name: &str| !hidden.contains(&name);
    for (name, kinds) in types.iter().filter(|(name, _)| is_registered(name)) {
        let Some(registered) = registry.get_with_short_type_path(name) else {
            panic!("{name} is not registered")
        };
        for kind in kinds {
            let has_data = match kind.as_str() {
                "Component" => registered.data::<ReflectComponent>().is_some(),
                "Resource" => registered.data::<ReflectResource>().is_some(),
                "Message" => registered.data::<ReflectMessage>().is_some(),
                _ => registered.data::<ReflectEvent>().is_some(),
            };
            assert!(has_data, "{name} is no reflected {kind}");
        }
    }
}

/// The fields of a reply's messages can be read by name.
#[test]
fn messages_have_fields() {
    let finished = ReplyFinished {
        agent: Entity::PLACEHOLDER,
        reply_id: ReplyId(3),
        tag: 7,
        reason: FinishReason::Stop { index: 2 },
        usage: Usage { reply_tokens: 5, ..Usage::default() },
    };
    let finished: &dyn Reflect = &finished;
    assert_eq!(finished.reflect_path("reply_id.0").unwrap().try_downcast_ref(), Some(&3_u64));
    assert_eq!(finished.path::<u64>("tag").unwrap(), &7);
    assert_eq!(finished.path::<u32>("reason.index").unwrap(), &2);
    assert_eq!(finished.path::<u32>("usage.reply_tokens").unwrap(), &5);
    let mut text = InlineText::new();
    text.push("Three silver.");
    let delta =
        ReplyDelta { agent: Entity::PLACEHOLDER, reply_id: ReplyId(3), tag: 0, text, tokens: 3 };
    let delta: &dyn Reflect = &delta;
    let text = delta.path::<InlineText<MAX_DELTA_BYTES>>("text").unwrap();
    assert_eq!(
        (text.as_str(), format!("{text:?}").as_str()),
        ("Three silver.", r#""Three silver.""#)
    );
}

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
fn an_agent_is_spawned_and_changed_by_reflection() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = app.world_mut().spawn_empty().id();
    let agent = component(app.world(), "Agent");
    let registry = app.world().resource::<AppTypeRegistry>().clone();
    let persona = Agent::persona("You are Greta.");
    agent.insert(&mut app.world_mut().entity_mut(greta), &persona, &registry.read());
    app.update();
    set(&mut app, greta, ("VoiceRate", "0"), Some(6.0_f32));
    set(&mut app, greta, ("ReplyLimits", "max_tokens"), 9_u32);
    app.update();
    let spec = changed(&engine);
    assert_eq!((spec.persona.as_str(), spec.voice_rate), ("You are Greta.", Some(6.0)));
    assert_eq!(spec.max_reply_tokens, 9);
}

#[test]
fn an_invalid_rate_is_none_from_every_source() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    app.update();
    set(&mut app, greta, ("VoiceRate", "0"), Some(f32::NAN));
    app.update();
    assert_eq!(changed(&engine).voice_rate, None);
}

#[test]
fn replies_can_be_read_and_asked_for_by_reflection() {
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

#[test]
fn an_ask_is_made_by_reflection() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    let mut ask = bevy_reflect::structs::DynamicStruct::default();
    ask.insert("agent", greta);
    ask.insert("prompt", Prompt::Chat("Hello".into()));
    ask.insert("tag", 7_u64);
    let whole = <Ask as FromReflect>::from_reflect(&ask);
    assert_eq!(whole, Some(Ask::new(greta, "Hello").with_tag(7)));
    ask.insert("prompt", Prompt::Raw("Hello".into()));
    let whole = <Ask as FromReflect>::from_reflect(&ask);
    assert_eq!(whole, Some(Ask::new(greta, Prompt::Raw("Hello".into())).with_tag(7)));
}

#[test]
fn a_restored_conversation_counts_as_an_edit() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    app.update();
    let saved = Conversation::new([
        Turn::new(Speaker::User, "Who are you?"),
        Turn::new(Speaker::Agent, "Greta."),
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
