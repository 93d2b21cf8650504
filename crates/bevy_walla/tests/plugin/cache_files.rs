//! Saved caches through the plugin: with a tiny model, and with engines that have none.

use std::path::Path;
use std::sync::OnceLock;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::cache::{CacheCommands, CacheEnded, CacheError, KvFileError};
use bevy_walla::engine::{Command, EngineState};
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use walla_doubles::synth::{self, Mixture, Model};

use crate::common::*;

const PERSONA: &str =
    "the inn stands by the ford and the river sings all night to whoever listens to it";

/// Ends of copies and replies.
#[derive(Resource, Default)]
struct Ends {
    copies: Vec<CacheEnded>,
    finished: Vec<ReplyFinished>,
}

fn listen(app: &mut App) {
    app.init_resource::<Ends>()
        .add_observer(|e: On<CacheEnded>, mut ends: ResMut<Ends>| ends.copies.push(e.clone()))
        .add_observer(|e: On<ReplyFinished>, mut ends: ResMut<Ends>| ends.finished.push(*e));
}

fn real() -> App {
    static TINY: OnceLock<Vec<u8>> = OnceLock::new();
    let model =
        TINY.get_or_init(|| synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap());
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(4),
        context_tokens: 512,
        ..EngineOptions::new(ModelSource::Static(model))
    };
    let mut app = app_with(WallaPlugin::new(options));
    listen(&mut app);
    app
}

fn ends(app: &App) -> &Ends {
    app.world().resource::<Ends>()
}

fn greta() -> impl Bundle {
    (Agent::persona(PERSONA), ReplyLimits::tokens(12), AgentSeed(6))
}

fn save(app: &mut App, agent: Entity, path: &Path) {
    app.world_mut().commands().save_cache(agent, path);
    app.world_mut().flush();
}

fn load(app: &mut App, agent: Entity, path: &Path) {
    app.world_mut().commands().load_cache(agent, path);
    app.world_mut().flush();
}

fn said(app: &mut App, agent: Entity, question: &str) -> (String, ReplyFinished) {
    let before = ends(app).finished.len();
    ask(app, agent, question);
    run_until(app, |app| ends(app).finished.len() > before);
    (turns(app, agent).pop().unwrap(), ends(app).finished[before])
}

#[test]
fn a_game_that_was_loaded_goes_on_with_the_cache_of_its_agent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("greta.kv");
    let mut app = real();
    let agent = app.world_mut().spawn(greta()).id();
    said(&mut app, agent, "Who are you?");
    let talk = app.world().get::<Conversation>(agent).unwrap().clone();
    save(&mut app, agent, &path);
    run_until(&mut app, |app| ends(app).copies.len() == 1);
    let [CacheEnded { result: Ok(saved), is_load: false, .. }] = &ends(&app).copies[..] else {
        panic!("{:?}", ends(&app).copies)
    };
    let of = &ends(&app).copies[0];
    assert_eq!((of.agent, &*of.path), (agent, &*path));
    assert_eq!(saved.file_bytes, std::fs::metadata(&path).unwrap().len());
    assert!(saved.tokens > PERSONA.len() as u32, "{saved:?}");
    let tokens = saved.tokens;
    let (expected, warm) = said(&mut app, agent, "And now?");
    // Another run of the game: the ask of the same frame waits for the load.
    let mut app = real();
    let agent = app.world_mut().spawn((greta(), talk)).id();
    load(&mut app, agent, &path);
    let (text, reply) = said(&mut app, agent, "And now?");
    assert_eq!(text, expected);
    let [loaded] = &ends(&app).copies[..] else { panic!("{:?}", ends(&app).copies) };
    let loaded_tokens = loaded.result.as_ref().map(|copied| copied.tokens);
    assert_eq!((loaded.agent, loaded.is_load, loaded_tokens), (agent, true, Ok(tokens)));
    let evaluated = |reply: &ReplyFinished| reply.usage.prompt_tokens - reply.usage.cached_tokens;
    assert_eq!(evaluated(&reply), evaluated(&warm));
    // A damaged file: an event, and the agent speaks.
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let other = app.world_mut().spawn(greta()).id();
    load(&mut app, other, &path);
    said(&mut app, other, "Who are you?");
    let [_, failed] = &ends(&app).copies[..] else { panic!("{:?}", ends(&app).copies) };
    let error = CacheError::File(KvFileError::Checksum { part: "contents" });
    assert_eq!((failed.agent, failed.is_load, &failed.result), (other, true, &Err(error)));
}

#[test]
fn copies_that_are_not_possible_are_events() {
    let engine = echo();
    let mut app = app(&engine);
    listen(&mut app);
    let agent = spawn(&mut app, "A");
    let stone = app.world_mut().spawn_empty().id();
    save(&mut app, stone, Path::new("stone.kv"));
    load(&mut app, agent, Path::new("a.kv"));
    ask(&mut app, agent, "one");
    updates(&mut app, 20);
    let commands = engine.commands();
    let [Command::AddAgent { .. }, Command::CopyCache { .. }, Command::Ask { .. }] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    let failed = |app: &App| {
        let all = ends(app).copies.iter();
        let error = |e: &CacheEnded| e.result.clone().expect_err("no copy is possible");
        let mut all: Vec<_> = all.map(|e| (e.agent, e.is_load, error(e))).collect();
        all.sort_by_key(|(agent, ..)| *agent != stone);
        all
    };
    let expected =
        [(stone, false, CacheError::UnknownAgent), (agent, true, CacheError::Unsupported)];
    assert_eq!(failed(&app), expected);
    assert_eq!(ends(&app).finished.len(), 1);
    assert_eq!(messages::<CacheEnded>(&app), 0, "they were read or have aged");
    // An agent that is despawned, and an engine that ends.
    save(&mut app, agent, Path::new("a.kv"));
    app.world_mut().despawn(agent);
    let last = spawn(&mut app, "B");
    updates(&mut app, 2);
    engine.set_state(EngineState::Stopped);
    updates(&mut app, 2);
    save(&mut app, last, Path::new("b.kv"));
    updates(&mut app, 3);
    let errors: Vec<_> = failed(&app).split_off(2).into_iter().map(|(.., error)| error).collect();
    assert_eq!(errors, [CacheError::UnknownAgent, CacheError::EngineGone]);
}
