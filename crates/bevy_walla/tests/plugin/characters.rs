//! Characters and lore as assets.

use std::path::Path;

use crate::common::dice::Dice;
use crate::common::*;
use bevy_app::{App, TaskPoolPlugin};
use bevy_asset::io::embedded::EmbeddedAssetRegistry;
use bevy_asset::{AssetPlugin, AssetServer, Assets};
use bevy_ecs::prelude::*;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::agent::AgentEngine;
use bevy_walla::characters::{
    Character, CharacterApplied, CharacterError, CharacterHandle, WallaCharacterPlugin,
};
use bevy_walla::conversation::Speaker;
use bevy_walla::cues::{AgentCues, CueMarks, Cues, UnknownCues};
use bevy_walla::engine::Command;
use bevy_walla::memories::{AgentKnowledge, AgentMemory, RecallOptions};
use bevy_walla::memory::Entry;
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyError;
use bevy_walla::scripted::ScriptedEngine;
use serde::Deserialize;

const FILE: &str = "greta.character.ron";

/// An app whose assets are files in this folder.
fn app_in(folder: &Path, engine: &ScriptedEngine) -> App {
    let mut app = app(engine);
    let options = RecallOptions { max_time: TIMEOUT, ..RecallOptions::default() };
    let assets = AssetPlugin {
        file_path: folder.to_str().unwrap().to_owned(),
        watch_for_changes_override: Some(false),
        ..AssetPlugin::default()
    };
    app.add_plugins((TaskPoolPlugin::default(), assets))
        .add_plugins(WallaMemoryPlugin::default().without_embedding_model().options(options))
        .add_plugins(WallaCharacterPlugin)
        .init_resource::<Applications>()
        .add_observer(|_: On<CharacterApplied>, mut count: ResMut<Applications>| count.0 += 1);
    app
}

/// How many times a character was applied.
#[derive(Resource, Default)]
struct Applications(usize);

fn applied(app: &App) -> usize {
    app.world().resource::<Applications>().0
}

fn spawn_from(app: &mut App, path: &str) -> Entity {
    let handle = app.world().resource::<AssetServer>().load(path.to_owned());
    app.world_mut().spawn(CharacterHandle(handle)).id()
}

/// Writes the file and loads it again, as hot reloading does.
fn rewrite(app: &mut App, folder: &Path, text: &str) {
    std::fs::write(folder.join(FILE), text).unwrap();
    app.world().resource::<AssetServer>().reload(FILE);
}

fn reply(app: &mut App, agent: Entity, question: &str) -> String {
    let ends = log(app).ends();
    ask(app, agent, question);
    run_until(app, |app| log(app).ends() > ends);
    turns(app, agent).pop().unwrap_or_default()
}

#[test]
fn an_ask_waits_for_the_character() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join(FILE),
        r#"(persona: "Greta", seed: 7, max_tokens: 99, stop: ["\n"], tokens_per_second: 6,
            priority: 2, sampling: (temperature: 0.5), examples: ["Hm."], reads: ["guards"])"#,
    )
    .unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    let greta = spawn_from(&mut app, FILE);
    ask(&mut app, greta, "one");
    ask(&mut app, greta, "two");
    run_until(&mut app, |app| log(app).ends() == 2);
    let persona = "Greta\n\nYou speak like this:\n- Hm.";
    let expected = ["one", "two"].map(|text| [text.into(), format!("{persona}: {text}")]);
    assert_eq!(turns(&app, greta), expected.concat());
    let agent = app.world().entity(greta);
    assert_eq!(agent.get::<Agent>().unwrap().persona, persona);
    assert_eq!(*agent.get::<AgentSeed>().unwrap(), AgentSeed(7));
    assert_eq!(*agent.get::<ReplyLimits>().unwrap(), ReplyLimits::tokens(99).stop_at("\n"));
    assert_eq!(*agent.get::<VoiceRate>().unwrap(), VoiceRate::tokens_per_second(6.0));
    assert_eq!(*agent.get::<AgentPriority>().unwrap(), AgentPriority(2));
    assert_eq!(agent.get::<AgentSampling>().unwrap().0.temperature(), 0.5);
    assert_eq!(*agent.get::<AgentKnowledge>().unwrap(), AgentKnowledge::reader(["guards"]));
    assert!(!agent.contains::<AgentEngine>() && !agent.contains::<AgentActions>());
    let adds = |command: &Command| matches!(command, Command::AddAgent { .. });
    assert_eq!(engine.commands().iter().filter(|command| adds(command)).count(), 1);
}

#[test]
fn a_character_has_cues() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"(persona: "Greta", cues: {"sigh": [], "smile": ["grins"]},
        unknown_cues: Keep, cue_marks: (brackets: false), only_known_cues: true)"#;
    std::fs::write(folder.path().join(FILE), text).unwrap();
    let mut app = app_in(folder.path(), &echo());
    let greta = spawn_from(&mut app, FILE);
    run_until(&mut app, |app| applied(app) == 1);
    let marks = CueMarks { brackets: false, ..CueMarks::default() };
    let cues = Cues::new().with_cue("sigh", [""; 0]).with_cue("smile", ["grins"]);
    let cues = cues.unknown(UnknownCues::Keep).marks(marks);
    let agent = app.world().entity(greta);
    let persona = &agent.get::<Agent>().unwrap().persona;
    assert_eq!(*persona, format!("Greta\n\n{}", cues.instruction().unwrap()));
    assert_eq!(agent.get::<AgentConstraint>().unwrap().0, cues.constraint());
    assert_eq!(*agent.get::<AgentCues>().unwrap(), AgentCues(cues));
    rewrite(&mut app, folder.path(), "(persona: \"Greta\")");
    run_until(&mut app, |app| applied(app) == 2);
    let agent = app.world().entity(greta);
    assert!(!agent.contains::<AgentCues>() && !agent.contains::<AgentConstraint>());
    assert_eq!(agent.get::<Agent>().unwrap().persona, "Greta");
}

#[cfg(feature = "speech")]
#[test]
fn a_character_has_a_voice() {
    use bevy_walla::voice::Voice;
    let folder = tempfile::tempdir().unwrap();
    let text = r#"(persona: "Greta", voice: (file: "greta.onnx", speed: 1.5, speaker: 2))"#;
    std::fs::write(folder.path().join(FILE), text).unwrap();
    let mut app = app_in(folder.path(), &echo());
    let greta = spawn_from(&mut app, FILE);
    run_until(&mut app, |app| applied(app) == 1);
    let voice = Voice { speaker: 2, ..Voice::file("greta.onnx").with_speed(1.5) };
    assert_eq!(*app.world().entity(greta).get::<Voice>().unwrap(), voice);
    rewrite(&mut app, folder.path(), "(persona: \"Greta\")");
    run_until(&mut app, |app| applied(app) == 2);
    assert!(!app.world().entity(greta).contains::<Voice>());
}

/// A change of the file: no reply ends, conversations stay, and the next prompt has the new
/// persona.
#[test]
fn living_agents_change_with_their_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "(persona: \"Old\", seed: 3)").unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    let agents: Vec<_> = (0..64).map(|_| spawn_from(&mut app, FILE)).collect();
    run_until(&mut app, |app| applied(app) == 64);
    let long = ["word"; 400].join(" ");
    for agent in &agents {
        app.world_mut().entity_mut(*agent).insert(AgentPriority(5));
        ask(&mut app, *agent, "before");
        ask(&mut app, *agent, &long);
    }
    run_until(&mut app, |app| log(app).ends() == 64);
    rewrite(&mut app, folder.path(), "(persona: \"New\")");
    run_until(&mut app, |app| applied(app) == 128);
    assert_eq!(log(&app).ends(), 64, "the second replies are still spoken");
    assert!(agents.iter().all(|agent| !speech(&app, *agent).is_silent()));
    run_until(&mut app, |app| log(app).ends() == 128);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 128]);
    for agent in &agents {
        ask(&mut app, *agent, "after");
        assert_eq!(*app.world().get::<AgentSeed>(*agent).unwrap(), AgentSeed::default());
        assert_eq!(
            *app.world().get::<AgentPriority>(*agent).unwrap(),
            AgentPriority(5),
            "the game's"
        );
    }
    run_until(&mut app, |app| log(app).ends() == 192);
    for agent in agents {
        let expected =
            ["before", "Old: before", &long, &format!("Old: {long}"), "after", "New: after"];
        assert_eq!(turns(&app, agent), expected);
    }
}

#[test]
fn a_bad_file_keeps_the_old_character() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "(persona: \"Old\")").unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    let greta = spawn_from(&mut app, FILE);
    assert_eq!(reply(&mut app, greta, "a"), "Old: a");
    rewrite(&mut app, folder.path(), "(persona: \"New\", max_tokens: -1)");
    let id = app.world().get::<CharacterHandle>(greta).unwrap().0.id();
    let is_failed = |app: &App| app.world().resource::<AssetServer>().load_state(id).is_failed();
    run_until(&mut app, is_failed);
    updates(&mut app, 3);
    assert_eq!(reply(&mut app, greta, "b"), "Old: b");
    assert_eq!(applied(&app), 1);
    rewrite(&mut app, folder.path(), "(persona: \"New\")");
    run_until(&mut app, |app| applied(app) == 2);
    assert_eq!(reply(&mut app, greta, "c"), "New: c");
}

/// Each ask has an end, and a corrected file makes the agent speak.
#[test]
fn asks_of_an_agent_without_a_character_fail_with_the_place_of_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let bad = "(\n    persona: \"Greta\",\n    sampling: (top_k: \"many\"),\n)";
    std::fs::write(folder.path().join(FILE), bad).unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    app.add_observer(|failed: On<ReplyFailed>| {
        assert!(matches!(failed.error, ReplyError::NoCharacter { .. }), "{failed:?}");
    });
    let greta = spawn_from(&mut app, FILE);
    let missing = spawn_from(&mut app, "no-such.character.ron");
    for agent in [greta, missing] {
        ask(&mut app, agent, "early");
    }
    run_until(&mut app, |app| log(app).ends() == 2);
    ask(&mut app, greta, "late");
    run_until(&mut app, |app| log(app).ends() == 3);
    let failures = log(&app).only("failed").join("\n");
    for part in [FILE, "line 3, column ", "field `sampling.top_k`", "no-such.character.ron"] {
        assert!(failures.contains(part), "{part}: {failures}");
    }
    assert!(turns(&app, greta).is_empty() && speech(&app, greta).is_silent());
    rewrite(&mut app, folder.path(), "(persona: \"Greta\")");
    run_until(&mut app, |app| applied(app) == 1);
    assert_eq!(reply(&mut app, greta, "now"), "Greta: now");
    // A cancel ends an ask that waits.
    let waiting = app.world_mut().spawn(CharacterHandle::default()).id();
    ask(&mut app, waiting, "never");
    updates(&mut app, 3);
    app.world_mut().commands().entity(waiting).despawn();
    app.world_mut().flush();
    run_until(&mut app, |app| log(app).ends() == 5);
    assert!(log(&app).only("finished").contains(&"Cancelled"));
}

/// Hands an item over.
#[derive(Debug, Deserialize, JsonSchema)]
#[allow(dead_code, reason = "calls are not looked at")]
struct Give {
    item: String,
}

#[test]
fn actions_are_named_with_their_choices() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"(persona: "Greta", action_policy: Required,
        actions: {"give": {"item": ["nails"]}, "no_such": {}})"#;
    std::fs::write(folder.path().join(FILE), text).unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    app.add_action::<Give>();
    let greta = spawn_from(&mut app, FILE);
    run_until(&mut app, |app| applied(app) == 1);
    let expected = AgentActions::new()
        .policy(bevy_walla::actions::ActionPolicy::Required)
        .allow::<Give>()
        .choices::<Give>("item", ["nails"]);
    let actions = app.world().get::<AgentActions>(greta).unwrap();
    assert_eq!(actions.specs(), expected.specs());
    rewrite(&mut app, folder.path(), "(persona: \"Greta\")");
    run_until(&mut app, |app| applied(app) == 2);
    assert!(!app.world().entity(greta).contains::<AgentActions>());
}

/// Notes of the latest ask.
fn notes(engine: &ScriptedEngine) -> Vec<String> {
    let commands = engine.commands().into_iter().rev();
    let mut asks = commands.filter_map(|command| match command {
        Command::Ask { options, .. } => Some(options.notes),
        _ => None,
    });
    let notes = asks.next().expect("an ask was sent");
    notes.map(|notes| notes.texts.iter().map(ToString::to_string).collect()).unwrap_or_default()
}

/// Lore is an asset too: it changes with its file, and a game can have it inside.
#[test]
fn lore_comes_from_assets() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("village")).unwrap();
    let path = format!("village/{FILE}");
    let text = r#"(persona: "Greta", lore: ["places.lore", "/all.lore.json"], reads: ["guards"])"#;
    std::fs::write(folder.path().join(&path), text).unwrap();
    let places = "The mill burned down.\n\n[visible_to: guards]\nThe thief is called Bertram.";
    std::fs::write(folder.path().join("village/places.lore"), places).unwrap();
    let all = r#"[{"text": "The well is dry."}]"#;
    std::fs::write(folder.path().join("all.lore.json"), all).unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    let inside = app.world().resource::<EmbeddedAssetRegistry>();
    let text = br#"(persona: "Odo", lore: ["odo.lore"])"#.as_slice();
    inside.insert_asset("odo.character.ron".into(), Path::new("game/odo.character.ron"), text);
    inside.insert_asset(
        "odo.lore".into(),
        Path::new("game/odo.lore"),
        b"A dog bit him.".as_slice(),
    );
    let greta = spawn_from(&mut app, &path);
    let odo = spawn_from(&mut app, "embedded://game/odo.character.ron");
    let mut memory = AgentMemory::default();
    memory.add(Entry::new("The player owes a dog.")).unwrap();
    app.world_mut().entity_mut(odo).insert(memory);
    let loaded = |app: &App, agent: Entity| {
        let id = app.world().get::<CharacterHandle>(agent).unwrap().0.id();
        app.world().resource::<AssetServer>().is_loaded_with_dependencies(id)
    };
    run_until(&mut app, |app| loaded(app, greta) && loaded(app, odo) && applied(app) == 2);
    updates(&mut app, 2);
    for (agent, question, expected) in [
        (greta, "The mill?", "The mill burned down."),
        (greta, "The thief?", "The thief is called Bertram."),
        (greta, "Is the well dry?", "The well is dry."),
        (odo, "bit", "A dog bit him."),
        (odo, "Who owes?", "The player owes a dog."),
    ] {
        drop(reply(&mut app, agent, question));
        assert_eq!(notes(&engine), [expected], "{question}");
    }
    drop(reply(&mut app, odo, "The mill?"));
    assert_eq!(notes(&engine), [""; 0]);
    std::fs::write(folder.path().join("village/places.lore"), "The mill was built again.").unwrap();
    app.world().resource::<AssetServer>().reload("village/places.lore");
    let is_new = |app: &App| {
        let files = app.world().resource::<Assets<bevy_walla::characters::LoreFile>>();
        files.iter().any(|(_, file)| file.0.iter().any(|(_, entry)| entry.text.contains("again")))
    };
    run_until(&mut app, is_new);
    updates(&mut app, 2);
    drop(reply(&mut app, greta, "The mill?"));
    assert_eq!(notes(&engine), ["The mill was built again."]);
}

const WHOLE: &str = r#"(
    persona: "You are Greta.",
    examples: ["Hm.", "Iron is iron."],
    sampling: (temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05, repetition_penalty: 1.1),
    seed: 7,
    max_tokens: 120,
    stop: ["\n"],
    tokens_per_second: 6.0,
    voice: (file: "voices/greta.onnx", speed: 1.1),
    priority: -1,
    engine: "hero",
    max_reasoning_tokens: 200,
    lore: ["emberfall.lore"],
    reads: ["guards"],
    actions: {"sell": {"item": ["horseshoe", "nails"]}, "open_gate": {}},
    action_policy: Auto,
)"#;

#[test]
fn damaged_files_are_errors_with_their_place() {
    let whole = Character::from_ron(WHOLE).unwrap();
    assert_eq!(Character::from_ron(&format!("\u{feff}{WHOLE}")).unwrap(), whole);
    for (text, line, field) in [
        ("", 1, ""),
        ("(\n)", 1, ""),
        ("(persona: 1)", 1, "persona"),
        ("(persona: \"a\",\n personna: \"b\")", 2, "personna"),
        ("(persona: \"a\",\n sampling: (temperature: -1))", 2, "sampling"),
        ("(persona: \"a\",\n sampling: (top_p: \"x\"))", 2, "sampling.top_p"),
        ("(persona: \"a\",\n\n actions: {\"give\": {\"item\": [1]}})", 3, "actions.give.item[0]"),
        ("(persona: \"a\",\n voice: (file: \"a.onnx\",\n speed: 9))", 3, "voice.speed"),
        ("(persona: \"a\",\n voice: (speed: 1))", 2, "voice"),
        ("(persona: \"a\") rest", 1, ""),
    ] {
        let error = Character::from_ron(text).unwrap_err();
        let CharacterError::Content { line: at, field: of, .. } = &error else { panic!("{error}") };
        assert_eq!((*at, of.as_str()), (line, field), "{text:?}: {error}");
    }
    let long = format!("(persona: {:?})", "x".repeat(1 << 20));
    assert!(matches!(Character::from_ron(&long), Err(CharacterError::TooLong(_))));
    let deep = format!("(persona: {}", "(".repeat(100_000));
    assert!(Character::from_ron(&deep).is_err());
    let mut dice = Dice::new(59);
    let mut refused = 0;
    for _ in 0..1_000 {
        let mut bytes = WHOLE.as_bytes().to_vec();
        for _ in 0..1 + dice.throw(3) {
            let at = dice.throw(bytes.len().max(1) as u64) as usize;
            if bytes.is_empty() {
                break;
            }
            match dice.throw(3) {
                0 => drop(bytes.remove(at)),
                1 => bytes[at] = dice.throw(256) as u8,
                _ => bytes.truncate(at.max(1)),
            }
        }
        match Character::from_ron(&String::from_utf8_lossy(&bytes)) {
            Ok(_) => {}
            Err(CharacterError::Content { line, column, reason, .. }) => {
                refused += 1;
                assert!((1..=17).contains(&line) && column >= 1 && !reason.is_empty());
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 500, "{refused}");
}

/// An agent may speak first, before a question, with a conversation from a saved game.
#[test]
fn a_saved_conversation_continues_with_the_character() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "(persona: \"Greta\")").unwrap();
    let engine = echo();
    let mut app = app_in(folder.path(), &engine);
    let greta = spawn_from(&mut app, FILE);
    let mut talk = Conversation::default();
    talk.push(Speaker::User, "Hello");
    talk.push(Speaker::Agent, "Hm.");
    app.world_mut().entity_mut(greta).insert(talk);
    assert_eq!(reply(&mut app, greta, "And?"), "Greta: And?");
    assert_eq!(turns(&app, greta), ["Hello", "Hm.", "And?", "Greta: And?"]);
    let added = engine.commands().into_iter().find_map(|command| match command {
        Command::AddAgent { spec, .. } => Some((spec.persona.clone(), spec.turns.len())),
        _ => None,
    });
    assert_eq!(added.unwrap(), ("Greta".into(), 2));
}
