//! Memories of agents and lore in an app.

use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_time::{Fixed, Time, TimePlugin, TimeUpdateStrategy, Virtual};
use bevy_walla::agent::ForkCommands;
use bevy_walla::ask::{Cancel, Notes};
use bevy_walla::conversation::Speaker;
use bevy_walla::engine::Command;
use bevy_walla::memories::{
    AgentKnowledge, AgentMemory, EXCHANGE_TAG, EmbeddingState, Lore, Memorizes, MemoryService,
    MemoryTexts, MemoryTime, OBSERVATION_TAG, RecallOptions, Remember, RememberCommands,
};
use bevy_walla::memory::{Entry, Memory, StoreLimits};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

use crate::common::*;

fn with_memories(engine: &ScriptedEngine) -> App {
    with_plugin(engine, WallaMemoryPlugin::default().without_embedding_model())
}

fn with_plugin(engine: &ScriptedEngine, plugin: WallaMemoryPlugin) -> App {
    let mut app = app(engine);
    app.add_plugins(plugin.options(patient()));
    app
}

/// No search is late, also on a busy machine.
fn patient() -> RecallOptions {
    RecallOptions { max_time: TIMEOUT, ..RecallOptions::default() }
}

fn greta(app: &mut App, entries: &[&str]) -> Entity {
    let mut memory = AgentMemory::default();
    for text in entries {
        memory.add(Entry::new(*text)).unwrap();
    }
    let agent = app.world_mut().spawn((Agent::persona("Greta"), memory)).id();
    updates(app, 2);
    agent
}

/// The notes of each ask that the engine has received.
fn notes(engine: &ScriptedEngine) -> Vec<Vec<String>> {
    let commands = engine.commands().into_iter();
    let of_asks = commands.filter_map(|command| match command {
        Command::Ask { options, .. } => Some(options.notes),
        _ => None,
    });
    let texts = of_asks.map(|notes| {
        notes.map(|notes| notes.texts.iter().map(ToString::to_string).collect()).unwrap_or_default()
    });
    texts.collect()
}

/// Asks, and runs frames until the agent is silent.
fn ask(app: &mut App, engine: &ScriptedEngine, agent: Entity, question: &str) -> Vec<String> {
    app.world_mut().trigger(Ask::new(agent, question));
    run_until(app, |app| app.world().get::<Speech>(agent).is_some_and(Speech::is_silent));
    notes(engine).pop().expect("an ask was sent")
}

fn texts(app: &App, agent: Entity) -> Vec<String> {
    let memory = app.world().get::<AgentMemory>(agent).expect("it has a memory");
    memory.iter().map(|(_, entry)| entry.text.to_string()).collect()
}

#[test]
fn an_ask_carries_what_matches_it() {
    let engine = echo();
    let mut app = with_memories(&engine);
    let agent = greta(&mut app, &["The player owes 3 silver.", "The well is dry."]);
    assert_eq!(ask(&mut app, &engine, agent, "Is the well dry?"), ["The well is dry."]);
    assert_eq!(ask(&mut app, &engine, agent, "Hello!"), [""; 0]);
    // Written in the frame of the ask.
    app.world_mut().commands().remember(agent, "The mill burned down.");
    app.world_mut().flush();
    assert_eq!(ask(&mut app, &engine, agent, "And the mill?"), ["The mill burned down."]);
    app.world_mut().get_mut::<AgentMemory>(agent).unwrap().clear();
    assert_eq!(ask(&mut app, &engine, agent, "And the mill?"), [""; 0]);
    // In the frame in which the agent appears.
    let mut memory = AgentMemory::default();
    memory.add(Entry::new("Odo left.")).unwrap();
    let odo = app.world_mut().spawn((Agent::persona("Odo"), memory)).id();
    assert_eq!(ask(&mut app, &engine, odo, "Where is Odo?"), ["Odo left."]);
    // Without the component it knows nothing.
    app.world_mut().entity_mut(odo).remove::<AgentMemory>();
    assert_eq!(ask(&mut app, &engine, odo, "Where is Odo?"), [""; 0]);
}

#[test]
fn lore_is_shared_and_secrets_have_readers() {
    let engine = echo();
    let mut app = with_memories(&engine);
    let lore = "The mill burned down.\n\n[visible_to: guards]\nThe mayor burned the mill.";
    app.insert_resource(Lore::from_text(lore).unwrap());
    let smith = greta(&mut app, &[]);
    let guard = AgentKnowledge::reader(["guards"]);
    let guard = app.world_mut().spawn((Agent::persona("Odo"), guard)).id();
    let cook = AgentKnowledge { reads_lore: false, ..AgentKnowledge::default() };
    let cook = app.world_mut().spawn((Agent::persona("Ada"), cook)).id();
    let stranger = app.world_mut().spawn(Agent::persona("Nobody")).id();
    let question = "Who burned the mill?";
    assert_eq!(ask(&mut app, &engine, smith, question), ["The mill burned down."]);
    assert_eq!(ask(&mut app, &engine, guard, question).len(), 2);
    assert_eq!(ask(&mut app, &engine, cook, question), [""; 0]);
    assert_eq!(ask(&mut app, &engine, stranger, question), [""; 0]);
    // Lore and settings can change at any time.
    app.world_mut().resource_mut::<Lore>().add(Entry::new("The mill is rebuilt.")).unwrap();
    assert_eq!(ask(&mut app, &engine, guard, question).len(), 3);
    app.world_mut().get_mut::<AgentKnowledge>(guard).unwrap().max_entries = 1;
    assert_eq!(ask(&mut app, &engine, guard, question).len(), 1);
    app.insert_resource(Lore::from_text("Another mill.").unwrap());
    assert_eq!(ask(&mut app, &engine, smith, question), ["Another mill."]);
    app.insert_resource(Lore::default());
    assert_eq!(ask(&mut app, &engine, smith, question), [""; 0]);
}

/// An entry that a game adds itself is no older than one of a command.
#[test]
fn an_added_entry_happens_now() {
    let engine = echo();
    let mut app =
        with_plugin(&engine, WallaMemoryPlugin::default().without_embedding_model().manual_time());
    let now = Duration::from_hours(1_000);
    app.insert_resource(MemoryTime(now));
    let limits = StoreLimits { max_entries: 2, ..StoreLimits::default() };
    let mut memory = AgentMemory(Memory::new(limits));
    memory.add(Entry::new("Spawned.")).unwrap();
    let agent = app.world_mut().spawn((Agent::persona("A"), memory)).id();
    updates(&mut app, 2);
    let times = |app: &App| -> Vec<Duration> {
        let memory = app.world().get::<AgentMemory>(agent).unwrap();
        memory.iter().map(|(_, entry)| entry.time).collect()
    };
    assert_eq!(times(&app), [now]);
    // In the frame in which the game changes the time.
    let later = now + Duration::from_hours(10);
    app.insert_resource(MemoryTime(later));
    app.world_mut().get_mut::<AgentMemory>(agent).unwrap().add(Entry::new("Slept.")).unwrap();
    updates(&mut app, 1);
    assert_eq!(times(&app), [now, later]);
    app.world_mut().commands().remember(agent, "Woke.");
    app.world_mut().flush();
    assert_eq!(texts(&app, agent), ["Slept.", "Woke."], "the oldest is forgotten");
    app.world_mut().resource_mut::<Lore>().add(Entry::new("A king died.")).unwrap();
    updates(&mut app, 1);
    assert_eq!(app.world().resource::<Lore>().iter().next().unwrap().1.time, later);
}

/// In both orders, also for entities between the two plugins.
#[test]
fn the_order_of_the_plugins_does_not_matter() {
    let engine = echo();
    let memories = || WallaMemoryPlugin::default().without_embedding_model().options(patient());
    for is_first in [true, false] {
        let mut app = App::new();
        let client = WallaPlugin::new(&engine);
        let spawn = |app: &mut App, name: &str| {
            let memory = (Agent::persona(name), Memorizes::default());
            let agent = app.world_mut().spawn(memory).id();
            app.world_mut().commands().remember(agent, "Triggered.");
            app.world_mut().flush();
            let entry = Entry::new("Written.");
            app.world_mut().write_message(Remember { agent, entry, time: None });
            agent
        };
        let between = if is_first {
            app.add_plugins(memories());
            let agent = spawn(&mut app, "A");
            app.add_plugins(client);
            agent
        } else {
            app.add_plugins((client, memories()));
            spawn(&mut app, "A")
        };
        let behind = spawn(&mut app, "B");
        assert!(app.world().contains_resource::<MemoryService>(), "{is_first}");
        app.finish();
        app.cleanup();
        updates(&mut app, 3);
        for agent in [between, behind] {
            assert_eq!(texts(&app, agent), ["Triggered.", "Written."], "{is_first}");
            assert_eq!(ask(&mut app, &engine, agent, "written?"), ["Written."], "{is_first}");
            assert_eq!(texts(&app, agent).len(), 3, "{is_first}: the exchange");
            app.world_mut().entity_mut(agent).remove::<AgentMemory>();
            assert_eq!(ask(&mut app, &engine, agent, "written?"), [""; 0], "{is_first}");
        }
    }
}

#[test]
fn turns_become_entries() {
    let engine = echo();
    let mut app =
        with_plugin(&engine, WallaMemoryPlugin::default().without_embedding_model().manual_time());
    let agent = app.world_mut().spawn((Agent::persona("A"), Memorizes::default())).id();
    app.insert_resource(MemoryTime(Duration::from_secs(90)));
    updates(&mut app, 2);
    ask(&mut app, &engine, agent, "one?");
    let mut talk = app.world_mut().get_mut::<Conversation>(agent).unwrap();
    talk.push(Speaker::Observation, "It rains.");
    talk.push(Speaker::User, "not an observation");
    updates(&mut app, 2);
    let exchange = "The player said: \"one?\" I said: \"A: one?\"";
    assert_eq!(texts(&app, agent), [exchange, "It rains."]);
    let entries: Vec<Entry> = {
        let memory = app.world().get::<AgentMemory>(agent).unwrap();
        memory.iter().map(|(_, entry)| entry.clone()).collect()
    };
    assert_eq!([&*entries[0].tags[0], &*entries[1].tags[0]], [EXCHANGE_TAG, OBSERVATION_TAG]);
    assert!(entries.iter().all(|entry| entry.time == Duration::from_secs(90)));
    // Recent turns are in the conversation, and are not found.
    assert_eq!(ask(&mut app, &engine, agent, "It rains one"), [""; 0]);
    app.world_mut().get_mut::<AgentKnowledge>(agent).unwrap().recent_skipped = 0;
    let found = ask(&mut app, &engine, agent, "Rains?");
    assert_eq!((found[0].as_str(), found.len()), ("It rains.", 2));
    // Edited and restored turns are no news.
    let before = texts(&app, agent).len();
    let turns = app.world().get::<Conversation>(agent).unwrap().clone();
    app.world_mut().entity_mut(agent).insert(turns);
    updates(&mut app, 3);
    assert_eq!(texts(&app, agent).len(), before);
    // Texts are the game's; each kind can be switched off.
    app.insert_resource(MemoryTexts {
        exchange: |_| None,
        observation: |turn| Some(turn.text.to_uppercase()),
    });
    let mut talk = app.world_mut().get_mut::<Conversation>(agent).unwrap();
    talk.push(Speaker::Observation, "snow");
    ask(&mut app, &engine, agent, "two?");
    assert_eq!(texts(&app, agent)[before..], ["SNOW"]);
    app.world_mut().get_mut::<Memorizes>(agent).unwrap().observations = false;
    let mut talk = app.world_mut().get_mut::<Conversation>(agent).unwrap();
    talk.push(Speaker::Observation, "hail");
    updates(&mut app, 3);
    assert_eq!(texts(&app, agent).len(), before + 1);
}

/// Words of another character are remembered as its words.
#[test]
fn the_speaker_of_a_question_is_remembered() {
    let engine = echo();
    let mut app = with_memories(&engine);
    let agent = (Agent::persona("A"), Name::new("Ada"), Memorizes::default());
    let agent = app.world_mut().spawn(agent).id();
    let odo = app.world_mut().spawn(Name::new("Odo")).id();
    let nameless = app.world_mut().spawn_empty().id();
    updates(&mut app, 2);
    let said = |app: &mut App, ask: Ask| {
        app.world_mut().trigger(ask);
        run_until(app, |app| app.world().get::<Speech>(agent).is_some_and(Speech::is_silent));
        texts(app, agent).pop().unwrap()
    };
    let by = |speaker: Entity| Ask::new(agent, "Hi.").with_speaker(speaker);
    assert_eq!(said(&mut app, by(odo)), "Odo said: \"Hi.\" I said: \"A: Hi.\"");
    // A repetition is of the same speaker, and replaces its entry.
    assert_eq!(said(&mut app, Ask::again(agent)), "Odo said: \"Hi.\" I said: \"A: Hi.\"");
    assert_eq!(texts(&app, agent).len(), 1);
    assert_eq!(said(&mut app, by(nameless)), "Someone said: \"Hi.\" I said: \"A: Hi.\"");
    let of_player = Ask::new(agent, "Hi.");
    assert_eq!(said(&mut app, of_player), "The player said: \"Hi.\" I said: \"A: Hi.\"");
    // The game's own texts get all of it.
    app.insert_resource(MemoryTexts {
        exchange: |turn| {
            let names = (turn.agent_name, turn.speaker_name, turn.question, turn.text);
            Some(format!("{} {:?} {names:?}", turn.agent, turn.speaker))
        },
        observation: |turn| Some(format!("{} {:?} {}", turn.agent, turn.agent_name, turn.text)),
    });
    let names = (Some("Ada"), Some("Odo"), Some("Hi."), "A: Hi.");
    assert_eq!(said(&mut app, by(odo)), format!("{agent} {:?} {names:?}", Some(odo)));
    app.world_mut().get_mut::<Conversation>(agent).unwrap().push(Speaker::Observation, "Rain.");
    updates(&mut app, 2);
    assert_eq!(texts(&app, agent).pop().unwrap(), format!("{agent} Some(\"Ada\") Rain."));
    // Entries of other speakers are recognised in a loaded conversation, and can be undone.
    app.insert_resource(MemoryTexts::default());
    let fresh = app.world_mut().spawn((Agent::persona("A"), Memorizes::default())).id();
    updates(&mut app, 1);
    app.world_mut().trigger(Ask::new(fresh, "Hi.").with_speaker(odo));
    run_until(&mut app, |app| app.world().get::<Speech>(fresh).is_some_and(Speech::is_silent));
    let talk = app.world().get::<Conversation>(fresh).unwrap().clone();
    let memory = app.world().get::<AgentMemory>(fresh).unwrap().clone();
    let loaded = (Agent::persona("A"), Memorizes::default(), memory, talk);
    let loaded = app.world_mut().spawn(loaded).id();
    updates(&mut app, 2);
    app.world_mut().get_mut::<Conversation>(loaded).unwrap().rewind(2);
    updates(&mut app, 2);
    assert_eq!(texts(&app, loaded), [""; 0]);
}

/// The rule is the one of all settings of an ask.
#[test]
fn notes_of_an_ask_replace_the_found_entries() {
    let engine = echo();
    let mut app = with_memories(&engine);
    let agent = greta(&mut app, &["The well is dry."]);
    let mut asked = |known: Notes| {
        app.world_mut().trigger(Ask::new(agent, "Is the well dry?").with_notes(known));
        run_until(&mut app, |app| app.world().get::<Speech>(agent).is_some_and(Speech::is_silent));
        notes(&engine).pop().unwrap()
    };
    assert_eq!(asked(Notes::new(["It rains."])), ["It rains."]);
    assert_eq!(asked(Notes::new([""; 0])), [""; 0]);
    assert_eq!(ask(&mut app, &engine, agent, "Is the well dry?"), ["The well is dry."]);
}

/// The latest turns are left out only while they are in the conversation.
#[test]
fn memorized_turns_are_found_when_they_left_the_conversation() {
    let engine = echo();
    let mut app =
        with_plugin(&engine, WallaMemoryPlugin::default().without_embedding_model().manual_time());
    let agent = app.world_mut().spawn((Agent::persona("A"), Memorizes::default())).id();
    updates(&mut app, 2);
    ask(&mut app, &engine, agent, "My name is Ben.");
    let question = "What is my name?";
    assert_eq!(ask(&mut app, &engine, agent, question), [""; 0], "it is in the conversation");
    let saved = app.world().get::<AgentMemory>(agent).unwrap().save();
    let talk = app.world().get::<Conversation>(agent).unwrap().clone();
    let load = || AgentMemory(Memory::load(&saved, StoreLimits::default()).unwrap());
    // Saved games with and without the conversation.
    let persona = || (Agent::persona("A"), Memorizes::default());
    let with = app.world_mut().spawn((persona(), load(), talk)).id();
    let without = app.world_mut().spawn((persona(), load())).id();
    let no_longer = app.world_mut().spawn((Agent::persona("A"), load())).id();
    updates(&mut app, 2);
    assert_eq!(ask(&mut app, &engine, with, question), [""; 0]);
    assert_eq!(ask(&mut app, &engine, without, question).len(), 2);
    assert_eq!(ask(&mut app, &engine, no_longer, question).len(), 2);
    // Turns that were loaded can be undone too.
    app.world_mut().get_mut::<Conversation>(with).unwrap().rewind(4);
    updates(&mut app, 2);
    assert_eq!(texts(&app, with).len(), 1);
    app.world_mut().get_mut::<Conversation>(agent).unwrap().clear();
    updates(&mut app, 2);
    assert_eq!(ask(&mut app, &engine, agent, question).len(), 2);
}

/// Undone turns are forgotten: repeated replies, rewinds, edits. A new conversation is no undo.
#[test]
fn undone_turns_are_forgotten() {
    let engine = echo();
    let mut app =
        with_plugin(&engine, WallaMemoryPlugin::default().without_embedding_model().manual_time());
    let agent = app.world_mut().spawn((Agent::persona("A"), Memorizes::default())).id();
    updates(&mut app, 2);
    app.world_mut().get_mut::<AgentMemory>(agent).unwrap().add(Entry::new("Mine.")).unwrap();
    let said = |text: &str| format!("The player said: \"{text}\" I said: \"A: {text}\"");
    let talk = |app: &mut App, edit: fn(&mut Conversation)| {
        edit(&mut app.world_mut().get_mut::<Conversation>(agent).unwrap());
        updates(app, 3);
    };
    ask(&mut app, &engine, agent, "one");
    ask(&mut app, &engine, agent, "two");
    talk(&mut app, |talk| talk.push(Speaker::Observation, "It rains."));
    assert_eq!(texts(&app, agent), ["Mine.", &said("one"), &said("two"), "It rains."]);
    // A repetition removes the observation behind the reply too, and its reply is a new entry.
    app.world_mut().trigger(Ask::again(agent));
    run_until(&mut app, |app| app.world().get::<Speech>(agent).is_some_and(Speech::is_silent));
    updates(&mut app, 2);
    assert_eq!(texts(&app, agent), ["Mine.", &said("one"), &said("two")]);
    // One that fails puts the turns back.
    app.world_mut().trigger(Ask::again(agent));
    updates(&mut app, 1);
    app.world_mut().trigger(Cancel::heard(agent, 0));
    updates(&mut app, 20);
    assert_eq!(texts(&app, agent), ["Mine.", &said("one"), &said("two")]);
    // An edit, and a rewind.
    talk(&mut app, |talk| drop(talk.set_text(0, "other")));
    assert_eq!(texts(&app, agent), ["Mine.", &said("two")]);
    ask(&mut app, &engine, agent, "three");
    talk(&mut app, |talk| drop(talk.rewind(2)));
    assert_eq!(texts(&app, agent), ["Mine.", &said("two")]);
    // The memory stays when the conversation is another one.
    talk(&mut app, Conversation::clear);
    ask(&mut app, &engine, agent, "four");
    talk(&mut app, |talk| drop(talk.rewind(2)));
    assert_eq!(texts(&app, agent), ["Mine.", &said("two")]);
    // Entries of another memory have the same ids.
    ask(&mut app, &engine, agent, "five");
    let mut other = AgentMemory::default();
    for text in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        other.add(Entry::new(text)).unwrap();
    }
    app.world_mut().entity_mut(agent).insert(other);
    talk(&mut app, |talk| drop(talk.rewind(2)));
    assert_eq!(texts(&app, agent).len(), 8);
}

#[test]
fn entries_are_written_by_events_and_messages() {
    let engine = echo();
    let mut app =
        with_plugin(&engine, WallaMemoryPlugin::default().without_embedding_model().manual_time());
    let agent = greta(&mut app, &[]);
    app.insert_resource(MemoryTime(Duration::from_secs(7)));
    app.world_mut().write_message(Remember::new(agent, Entry::new("message")));
    let at = Some(Duration::from_secs(3));
    app.world_mut().trigger(Remember { time: at, ..Remember::new(agent, Entry::new("event")) });
    // Neither ends the game: no memory, no text, no entity.
    let stranger = app.world_mut().spawn(Agent::persona("B")).id();
    app.world_mut().trigger(Remember::new(stranger, Entry::new("lost")));
    app.world_mut().trigger(Remember::new(agent, Entry::new(" ")));
    let gone = app.world_mut().spawn_empty().id();
    app.world_mut().despawn(gone);
    app.world_mut().write_message(Remember::new(gone, Entry::new("lost")));
    updates(&mut app, 2);
    let memory = app.world().get::<AgentMemory>(agent).unwrap();
    let found: Vec<_> = memory.iter().map(|(_, its)| (&*its.text, its.time.as_secs())).collect();
    assert_eq!(found, [("event", 3), ("message", 7)]);
}

#[test]
fn memories_are_saved_restored_and_copied() {
    let engine = echo();
    let mut app = with_memories(&engine);
    let agent = greta(&mut app, &["The well is dry."]);
    let json = serde_json::to_string(app.world().get::<AgentMemory>(agent).unwrap()).unwrap();
    let restored: AgentMemory = serde_json::from_str(&json).unwrap();
    assert_eq!(&restored, app.world().get::<AgentMemory>(agent).unwrap());
    let other = app.world_mut().spawn((Agent::persona("B"), restored)).id();
    assert_eq!(ask(&mut app, &engine, other, "The well?"), ["The well is dry."]);
    let copy = app.world_mut().commands().fork_agent(agent);
    app.world_mut().flush();
    app.world_mut().get_mut::<AgentMemory>(agent).unwrap().clear();
    assert_eq!(ask(&mut app, &engine, copy, "The well?"), ["The well is dry."]);
    assert_eq!(ask(&mut app, &engine, agent, "The well?"), [""; 0]);
    // A save of another program, or a damaged one, is an error.
    for bad in
        ["{}", "[]", &json.replace("\"version\":1", "\"version\":9"), &json[..json.len() / 2]]
    {
        assert!(serde_json::from_str::<AgentMemory>(bad).is_err(), "{bad}");
    }
    let lore = Lore::from_text("The mill burned down.").unwrap();
    let json = serde_json::to_string(&lore).unwrap();
    assert_eq!(serde_json::from_str::<Lore>(&json).unwrap(), lore);
    let few = StoreLimits { max_entries: 0, ..StoreLimits::default() };
    assert!(Memory::load(&lore.save(), few).unwrap().is_empty());
}

/// Cancelled, removed and changed agents while their asks wait for a search.
#[test]
fn asks_that_wait_for_memories_end_once() {
    let engine = echo();
    let mut app = with_memories(&engine);
    for round in 0..12 {
        let agent = greta(&mut app, &["The well is dry."]);
        app.world_mut().trigger(Ask::new(agent, "The well?"));
        app.world_mut().trigger(Ask::new(agent, "And now?"));
        updates(&mut app, round / 4);
        match round % 4 {
            0 => app.world_mut().trigger(Cancel::new(agent)),
            1 => drop(app.world_mut().despawn(agent)),
            2 => app.world_mut().get_mut::<Conversation>(agent).unwrap().clear(),
            _ => drop(app.world_mut().entity_mut(agent).remove::<AgentMemory>()),
        }
        run_until(&mut app, |app| log(app).ends() == 2 * (round + 1));
    }
}

/// An app whose plugin runs in fixed time steps of 10 ms, and whose updates take `update`.
fn in_fixed_steps(engine: &ScriptedEngine, update: Duration) -> App {
    let plugin = WallaPlugin::new(engine);
    let mut app = app_with(plugin.schedules(FixedPreUpdate, FixedPostUpdate));
    app.add_plugins((
        TimePlugin,
        WallaMemoryPlugin::default().without_embedding_model().options(patient()),
    ))
    .insert_resource(Time::<Fixed>::from_duration(Duration::from_millis(10)))
    .insert_resource(TimeUpdateStrategy::ManualDuration(update));
    app.update(); // takes no time
    app
}

/// An agent knows nothing that it may not read any more, however many updates a time step has.
#[test]
fn removals_between_time_steps_are_seen() {
    let engine = echo();
    let mut app = in_fixed_steps(&engine, Duration::from_millis(1));
    app.insert_resource(Lore::from_text("[visible_to: guards]\nThe mill was burned.").unwrap());
    for round in 0..3 {
        let agent = greta(&mut app, &["The mill is Odo's."]);
        app.world_mut().entity_mut(agent).insert(AgentKnowledge::reader(["guards"]));
        assert_eq!(ask(&mut app, &engine, agent, "The mill?").len(), 2);
        let mut entity = app.world_mut().entity_mut(agent);
        let expected: &[&str] = match round {
            0 => {
                entity.remove::<AgentKnowledge>();
                &[]
            }
            1 => {
                entity.remove::<(AgentKnowledge, AgentMemory)>();
                &[]
            }
            _ => {
                entity.remove::<AgentMemory>();
                &["The mill was burned."]
            }
        };
        // The time step comes later.
        updates(&mut app, 5);
        assert_eq!(ask(&mut app, &engine, agent, "The mill?"), expected, "{round}");
    }
}

/// The time of memories is the time of the game, for all time steps of the plugin.
#[test]
fn the_game_time_does_not_depend_on_time_steps() {
    for millis in [1, 10, 35] {
        let engine = echo();
        let mut app = in_fixed_steps(&engine, Duration::from_millis(millis));
        updates(&mut app, 40);
        let expected = app.world().resource::<Time<Virtual>>().elapsed();
        assert_eq!(app.world().resource::<MemoryTime>().0, expected);
        assert_eq!(expected, Duration::from_millis(40 * millis));
    }
}

/// A saved game may have the latest possible time.
#[test]
fn the_end_of_time_is_no_problem() {
    let engine = echo();
    let mut app = with_memories(&engine);
    app.init_resource::<Time<Virtual>>().insert_resource(MemoryTime(Duration::MAX));
    let agent = greta(&mut app, &["The well is dry."]);
    app.world_mut().entity_mut(agent).insert(Memorizes::default());
    for _ in 0..2 {
        app.world_mut().resource_mut::<Time<Virtual>>().advance_by(Duration::from_secs(1));
        assert_eq!(ask(&mut app, &engine, agent, "Is it dry?"), ["The well is dry."]);
    }
    assert_eq!(*app.world().resource::<MemoryTime>(), MemoryTime(Duration::MAX));
}

#[test]
fn embedding_models_load_in_the_background() {
    let engine = echo();
    let state = |app: &App| app.world().resource::<MemoryService>().recall().embedding();
    let mut app = with_memories(&engine);
    updates(&mut app, 1);
    assert_eq!(state(&app), EmbeddingState::None);
    let mut app =
        with_plugin(&engine, WallaMemoryPlugin::default().embedding_model("no-such.gguf"));
    updates(&mut app, 2);
    assert_eq!(state(&app), EmbeddingState::None, "there are no entries");
    let agent = greta(&mut app, &["The well is dry."]);
    run_until(&mut app, |app| matches!(state(app), EmbeddingState::Failed(_)));
    let EmbeddingState::Failed(reason) = state(&app) else { panic!() };
    assert!(reason.contains("no-such.gguf"), "{reason}");
    assert_eq!(ask(&mut app, &engine, agent, "The well?"), ["The well is dry."]);
    let path =
        format!("{}/../walla_embed/tests/data/bert-mean-f32.gguf", env!("CARGO_MANIFEST_DIR"));
    let plugin = WallaMemoryPlugin::default().embedding_model(path);
    let mut app = with_plugin(&engine, plugin);
    let agent = greta(&mut app, &["the well is dry"]);
    // Function words are no words of a search.
    assert_eq!(ask(&mut app, &engine, agent, "is it of the"), ["the well is dry"]);
    let stats = app.world().resource::<MemoryService>().recall().stats();
    assert_eq!((stats.entries, stats.vectors, stats.late), (1, 1, 0));
}

/// The model inside the program finds an entry without any word of the question, in the first ask
/// too.
#[test]
#[cfg(feature = "minilm")]
fn memories_are_found_by_meaning() {
    let engine = echo();
    let mut app = with_plugin(&engine, WallaMemoryPlugin::default());
    let texts = ["The smith lost his hammer in the river.", "Odo's daughter married in spring."];
    let agent = greta(&mut app, &texts);
    assert_eq!(ask(&mut app, &engine, agent, "When was the wedding?")[..1], texts[1..]);
    assert_eq!(ask(&mut app, &engine, agent, "Which tool is under water?")[..1], texts[..1]);
    let recall = app.world().resource::<MemoryService>().recall();
    assert_eq!((recall.embedding(), recall.stats().without_vector), (EmbeddingState::Ready, 0));
}

#[test]
fn the_plugin_may_be_added_first_and_needs_an_engine_to_speak() {
    let engine = echo();
    let mut app = App::new();
    app.add_plugins((WallaMemoryPlugin::default(), WallaPlugin::new(&engine)));
    app.init_resource::<Log>();
    app.finish();
    app.cleanup();
    let agent = greta(&mut app, &["The well is dry."]);
    assert_eq!(ask(&mut app, &engine, agent, "The well?"), ["The well is dry."]);
    let mut app = App::new();
    app.add_plugins((WallaPlugin::model("no-such.gguf"), WallaMemoryPlugin::default()));
    app.init_resource::<Log>();
    let agent = greta(&mut app, &["The well is dry."]);
    app.world_mut().trigger(Ask::new(agent, "The well?"));
    run_until(&mut app, |app| app.world().get::<Speech>(agent).is_some_and(Speech::is_silent));
}
