//! One reply from ask to end, and changes of the game in between.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::engine::{Command, EngineState};
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use bevy_walla::reply::{ReplyError, SpeechState};
use bevy_walla::scripted::ScriptedEngine;

#[test]
fn a_reply_emits_deltas_sentences_components_and_one_end() {
    let engine = ScriptedEngine::new(|_, _| "Three silver. Well made!".into());
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    ask(&mut app, greta, "How much?");
    assert_eq!(speech(&app, greta).state(), SpeechState::Asked, "an ask is open at once");
    app.update();
    assert_eq!(speech(&app, greta).state(), SpeechState::Asked);
    app.update();
    assert_eq!(speech(&app, greta).state(), SpeechState::Thinking);
    assert_eq!(speech(&app, greta).question(), "How much?");
    app.update();
    assert_eq!(speech(&app, greta).state(), SpeechState::Talking);
    assert_eq!(speech(&app, greta).text(), "Three");
    updates(&mut app, 5);
    assert!(speech(&app, greta).is_silent());
    assert_eq!(speech(&app, greta).text(), "Three silver. Well made!");
    assert_eq!(turns(&app, greta), ["How much?", "Three silver. Well made!"]);
    let expected = [
        "started",
        "delta Three",
        "delta  silver.",
        "delta  Well",
        "sentence Three silver.",
        "delta  made!",
        "sentence Well made!",
        "finished EndOfTurn",
    ];
    assert_eq!(log(&app).0, expected);
}

#[test]
fn events_reach_observers_of_the_entity_and_messages_reach_readers() {
    #[derive(Resource, Default)]
    struct Heard {
        by_entity: usize,
        by_reader: usize,
        finished: usize,
    }
    let mut app = app(&echo());
    app.init_resource::<Heard>().add_systems(
        Update,
        |mut deltas: MessageReader<ReplyDelta>,
         mut ends: MessageReader<ReplyFinished>,
         mut heard: ResMut<Heard>| {
            heard.by_reader += deltas.read().count();
            heard.finished += ends.read().count();
        },
    );
    let a = spawn(&mut app, "A");
    let b = spawn(&mut app, "B");
    app.world_mut()
        .entity_mut(a)
        .observe(|_: On<ReplyDelta>, mut heard: ResMut<Heard>| heard.by_entity += 1);
    ask(&mut app, a, "x");
    ask(&mut app, b, "x");
    updates(&mut app, 8);
    let heard = app.world().resource::<Heard>();
    assert_eq!((heard.by_entity, heard.by_reader, heard.finished), (2, 4, 2));
}

#[test]
fn all_ways_to_ask_are_equivalent() {
    let mut app = app(&echo());
    let agents: Vec<_> = (0..4).map(|_| spawn(&mut app, "A")).collect();
    ask(&mut app, agents[0], "hi");
    app.world_mut().write_message(Ask::new(agents[1], "hi"));
    app.world_mut().commands().ask(agents[2], "hi");
    app.world_mut().commands().entity(agents[3]).ask("hi");
    app.world_mut().flush();
    updates(&mut app, 8);
    for agent in agents {
        assert_eq!(turns(&app, agent), ["hi", "A: hi"]);
    }
}

#[test]
fn asks_of_one_agent_are_answered_in_order() {
    let mut app = app(&echo());
    let odo = spawn(&mut app, "Odo");
    for question in ["one", "two", "three"] {
        ask(&mut app, odo, question);
    }
    updates(&mut app, 20);
    assert_eq!(turns(&app, odo), ["one", "Odo: one", "two", "Odo: two", "three", "Odo: three"]);
    assert!(speech(&app, odo).is_silent());
}

#[test]
fn too_many_asks_of_one_agent_are_refused() {
    let settings = WallaSettings { max_asks_per_agent: 2, ..WallaSettings::default() };
    let mut app = app_with(WallaPlugin::new(&echo()).settings(settings));
    let odo = spawn(&mut app, "Odo");
    for question in ["one", "two", "three"] {
        ask(&mut app, odo, question);
    }
    updates(&mut app, 20);
    assert_eq!(log(&app).only("failed"), [ReplyError::Busy { waiting: 2 }.to_string()]);
    assert_eq!(turns(&app, odo).len(), 4);
}

#[test]
fn without_a_limit_every_ask_is_answered_in_order() {
    let settings = WallaSettings { max_asks_per_agent: u32::MAX, ..WallaSettings::default() };
    let mut app = app_with(WallaPlugin::new(&echo()).settings(settings));
    let odo = spawn(&mut app, "Odo");
    let questions: Vec<String> = (0..30).map(|number| format!("{number}?")).collect();
    for question in &questions {
        ask(&mut app, odo, question);
    }
    updates(&mut app, 200);
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    let asked: Vec<String> = turns(&app, odo).into_iter().step_by(2).collect();
    assert_eq!(asked, questions);
}

#[test]
fn asks_are_counted_as_waiting_until_an_agent_begins() {
    let engine = echo().starting_in(EngineState::Loading { fraction: 0.0 });
    let mut app = app(&engine);
    let agents = [spawn(&mut app, "A"), spawn(&mut app, "B")];
    for question in ["x", "y", "z"] {
        for agent in agents {
            ask(&mut app, agent, question);
        }
    }
    let waiting = |app: &App| app.world().resource::<Walla>().asks_waiting();
    for _ in 0..5 {
        updates(&mut app, 2);
        assert_eq!(waiting(&app), 6, "also those that the engine has");
    }
    engine.set_state(EngineState::Ready);
    updates(&mut app, 3);
    assert_eq!(waiting(&app), 4, "two have begun");
    app.world_mut().trigger(Cancel::new(agents[0]));
    app.world_mut().despawn(agents[1]);
    updates(&mut app, 4);
    assert_eq!(waiting(&app), 0);
    assert_eq!(log(&app).ends(), 6);
}

#[test]
fn a_cancel_ends_all_asks_and_keeps_partial_text() {
    let mut app = app(&ScriptedEngine::new(|_, _| "one two three four five six".into()));
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    ask(&mut app, odo, "again");
    updates(&mut app, 4);
    app.world_mut().trigger(Cancel::new(odo));
    ask(&mut app, odo, "once more");
    updates(&mut app, 20);
    assert_eq!(log(&app).only("finished"), ["Cancelled", "Cancelled", "EndOfTurn"]);
    let turns = turns(&app, odo);
    assert_eq!(turns.len(), 4, "the ask that never began leaves no trace");
    assert!(turns[1].starts_with("one two") && !turns[1].contains("six"), "{turns:?}");
    assert_eq!(turns[2..], ["once more", "one two three four five six"]);
}

#[test]
fn a_reply_cancelled_before_its_first_token_is_no_exchange() {
    let mut app = app(&ScriptedEngine::new(|_, _| "one two".into()));
    let odo = spawn(&mut app, "Odo");
    app.add_observer(|began: On<ReplyStarted>, mut commands: Commands| {
        commands.cancel(began.agent);
    });
    ask(&mut app, odo, "count");
    updates(&mut app, 10);
    assert_eq!(log(&app).only("finished"), ["Cancelled"]);
    assert_eq!(turns(&app, odo), Vec::<String>::new());
}

#[test]
fn an_ask_and_then_a_cancel_in_one_frame_never_reach_the_engine() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    updates(&mut app, 2);
    let sent = engine.commands().len();
    ask(&mut app, odo, "hi");
    app.world_mut().write_message(Ask::new(odo, "ho"));
    app.world_mut().trigger(Cancel::new(odo));
    updates(&mut app, 10);
    assert_eq!(log(&app).only("finished"), ["Cancelled"; 2]);
    assert_eq!(engine.commands().len(), sent);
    assert!(speech(&app, odo).is_silent() && turns(&app, odo).is_empty());
}

#[test]
fn asks_and_cancels_of_a_frame_apply_in_order() {
    let mut app = app(&echo());
    let [a, b] = ["A", "B"].map(|name| spawn(&mut app, name));
    for _ in 0..2 {
        let world = app.world_mut();
        let mut commands = world.commands();
        commands.ask(a, "one").ask(b, "one").cancel(a).cancel(a).ask(a, "two");
        commands.cancel(b).ask(a, "three").ask(b, "two");
        world.flush();
        updates(&mut app, 12);
    }
    let said_by_a = ["two", "A: two", "three", "A: three"];
    assert_eq!(turns(&app, a), [said_by_a, said_by_a].concat());
    assert_eq!(turns(&app, b), ["two", "B: two", "two", "B: two"]);
}

#[test]
fn a_cancel_message_applies_before_the_asks_of_its_frame() {
    let mut app = app(&echo());
    let odo = spawn(&mut app, "Odo");
    for frame in [false, true] {
        app.world_mut().write_message(Ask::new(odo, "hi"));
        updates(&mut app, usize::from(frame));
        app.world_mut().write_message(Cancel::new(odo));
        updates(&mut app, 8);
    }
    assert_eq!(log(&app).only("finished"), ["EndOfTurn", "Cancelled"]);
}

/// How asks ended, by their tags.
#[derive(Resource, Default)]
struct Tags(Vec<(&'static str, u64)>);

#[test]
fn every_event_of_an_ask_carries_its_tag() {
    let settings = WallaSettings { max_asks_per_agent: 2, ..WallaSettings::default() };
    let engine = echo();
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    app.init_resource::<Tags>()
        .add_observer(|e: On<ReplyStarted>, mut tags: ResMut<Tags>| tags.0.push(("began", e.tag)))
        .add_observer(|e: On<ReplyFinished>, mut tags: ResMut<Tags>| tags.0.push(("ended", e.tag)))
        .add_observer(|e: On<ReplyFailed>, mut tags: ResMut<Tags>| tags.0.push(("failed", e.tag)));
    let told = |app: &mut App, frames| {
        updates(app, frames);
        std::mem::take(&mut app.world_mut().resource_mut::<Tags>().0)
    };
    let odo = spawn(&mut app, "Odo");
    let stone = app.world_mut().spawn_empty().id();
    let mut commands = app.world_mut().commands();
    commands.ask(odo, "one").ask_tagged(odo, "two", 2).ask_tagged(odo, "three", u64::MAX);
    commands.entity(stone).ask_tagged("four", 4);
    app.world_mut().flush();
    // A refused ask ends before earlier asks, so the relative order is not defined.
    let refused = [("failed", u64::MAX), ("failed", 4)];
    let answered = [("began", 0), ("ended", 0), ("began", 2), ("ended", 2)];
    assert_eq!(told(&mut app, 20), [&refused[..], &answered[..]].concat());
    app.world_mut().commands().ask_tagged(odo, "five", 5).cancel(odo).ask_tagged(odo, "six", 6);
    app.world_mut().flush();
    assert_eq!(told(&mut app, 3), [("ended", 5), ("began", 6)]);
    app.world_mut().trigger(Ask::new(odo, "seven").with_tag(7));
    engine.set_state(EngineState::Stopped);
    assert_eq!(told(&mut app, 3), [("failed", 6), ("failed", 7)]);
}

#[test]
fn an_edited_persona_applies_from_the_next_reply() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    ask(&mut app, greta, "x");
    updates(&mut app, 8);
    app.world_mut().get_mut::<Agent>(greta).unwrap().persona = "Old Greta".into();
    app.world_mut().get_mut::<AgentPriority>(greta).unwrap().0 = 7;
    ask(&mut app, greta, "x");
    updates(&mut app, 8);
    assert_eq!(turns(&app, greta), ["x", "Greta: x", "x", "Old Greta: x"]);
    let changes: Vec<_> = engine
        .commands()
        .into_iter()
        .filter_map(|command| match command {
            Command::ChangeAgent { spec, .. } => Some(spec.priority),
            _ => None,
        })
        .collect();
    assert_eq!(changes, [7], "two edits in a frame are one change");
}

#[test]
fn spawned_and_replaced_conversations_become_the_history() {
    let engine = echo();
    let mut app = app(&engine);
    let old = Conversation::new([Turn::new(Speaker::User, "q"), Turn::new(Speaker::Agent, "a")]);
    let greta = app.world_mut().spawn((Agent::persona("Greta"), old.clone())).id();
    ask(&mut app, greta, "x");
    updates(&mut app, 8);
    assert_eq!(turns(&app, greta).len(), 4);
    *app.world_mut().get_mut::<Conversation>(greta).unwrap() = old.clone();
    updates(&mut app, 2);
    app.world_mut().entity_mut(greta).insert(Conversation::default());
    updates(&mut app, 2);
    let histories: Vec<usize> = engine
        .commands()
        .into_iter()
        .filter_map(|command| match command {
            Command::AddAgent { spec, .. } => Some(spec.turns.len()),
            Command::SetConversation { turns, .. } => Some(turns.len()),
            _ => None,
        })
        .collect();
    assert_eq!(histories, [2, 2, 0]);
}

#[test]
fn replacing_the_conversation_ends_its_asks() {
    let mut app = app(&ScriptedEngine::new(|_, _| "one two three four five six".into()));
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    ask(&mut app, odo, "again");
    updates(&mut app, 4);
    app.world_mut().get_mut::<Conversation>(odo).unwrap().clear();
    ask(&mut app, odo, "afresh");
    updates(&mut app, 20);
    assert_eq!(log(&app).only("finished"), ["Cancelled", "Cancelled", "EndOfTurn"]);
    assert_eq!(turns(&app, odo), ["afresh", "one two three four five six"]);
}

#[test]
fn asking_a_non_agent_entity_fails() {
    let mut app = app(&echo());
    let stone = app.world_mut().spawn_empty().id();
    ask(&mut app, stone, "hello?");
    updates(&mut app, 2);
    assert_eq!(log(&app).only("failed"), [ReplyError::UnknownAgent.to_string()]);
}

#[test]
fn asks_wait_for_the_model() {
    let engine = echo().starting_in(EngineState::Loading { fraction: 0.5 });
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    ask(&mut app, greta, "x");
    updates(&mut app, 100);
    assert!(log(&app).0.is_empty());
    assert_eq!(speech(&app, greta).state(), SpeechState::Asked);
    assert_eq!(messages::<WallaReady>(&app), 0);
    engine.set_state(EngineState::Ready);
    app.update();
    assert_eq!(messages::<WallaReady>(&app), 1);
    updates(&mut app, 8);
    assert_eq!(turns(&app, greta), ["x", "Greta: x"]);
}

#[test]
fn an_engine_that_cannot_start_is_one_message_and_failed_asks() {
    let mut app = app_with(WallaPlugin::new(EngineOptions {
        max_agents: Some(0),
        ..EngineOptions::new(ModelSource::Static(b"no model"))
    }));
    let greta = spawn(&mut app, "Greta");
    ask(&mut app, greta, "x");
    app.update();
    assert_eq!(messages::<WallaFailed>(&app), 1);
    updates(&mut app, 10);
    assert!(app.world().resource::<Walla>().is_failed());
    let failed = log(&app).only("failed").concat();
    assert!(failed.contains("max_agents"), "{failed}");
    assert_eq!(log(&app).ends(), 1);
    assert!(speech(&app, greta).is_silent());
}

#[cfg(not(feature = "demo"))]
#[test]
fn a_missing_model_emits_a_message_with_instructions() {
    let mut app = app_with(WallaPlugin::default());
    app.update();
    let WallaState::Failed(error) = app.world().resource::<Walla>().state() else {
        panic!("a failed state")
    };
    assert!(error.to_string().contains("WallaPlugin::model"));
}

#[test]
fn an_engine_that_fails_ends_every_ask_once() {
    for state in [EngineState::Ready, EngineState::Loading { fraction: 0.0 }] {
        let engine = echo().command_queue(3).starting_in(state);
        let mut app = app(&engine);
        let agents: Vec<_> = (0..5).map(|_| spawn(&mut app, "A")).collect();
        for &agent in &agents {
            ask(&mut app, agent, "x");
            ask(&mut app, agent, "y");
        }
        updates(&mut app, 2);
        engine.set_state(EngineState::Stopped);
        updates(&mut app, 3);
        assert_eq!(log(&app).ends(), 10, "{:?}", log(&app).0);
        ask(&mut app, agents[0], "anybody?");
        updates(&mut app, 3);
        assert_eq!(log(&app).ends(), 11);
        assert!(agents.iter().all(|&agent| speech(&app, agent).is_silent()));
    }
}

/// The asks of one frame cost time in proportion to their number, also without their limit.
#[test]
fn many_asks_of_an_agent_take_linear_time() {
    let time = |asks: usize| {
        let engine = echo();
        let mut app = app(&engine);
        let mut settings = app.world_mut().resource_mut::<WallaSettings>();
        settings.max_asks_per_agent = u32::MAX;
        let agent = spawn(&mut app, "A");
        updates(&mut app, 2);
        for _ in 0..asks {
            app.world_mut().write_message(Ask::new(agent, "Hello"));
        }
        let begun = std::time::Instant::now();
        app.update();
        begun.elapsed().as_secs_f64()
    };
    // 16 times as many asks: 256 times as long if each one looks at all others.
    let best = |asks: usize| (0..3).map(|_| time(asks)).fold(f64::INFINITY, f64::min);
    let (few, many) = (best(4_000), best(64_000));
    assert!(many < 80.0 * few, "{few} s and {many} s");
}

#[test]
fn texts_are_scored_without_a_turn_or_speech() {
    #[derive(Resource, Default)]
    struct Heard(Vec<bevy_walla::reply::ReplyScores>);
    let mut app = app(&echo());
    app.init_resource::<Heard>().add_observer(
        |scores: On<bevy_walla::reply::ReplyScores>, mut heard: ResMut<Heard>| {
            heard.0.push(scores.clone());
        },
    );
    let greta = spawn(&mut app, "Greta");
    let moods = ["quite friendly", "wary"];
    app.world_mut().trigger(Ask::new(greta, "Your mood?").scoring(moods).with_tag(7));
    updates(&mut app, 4);
    let heard = &app.world().resource::<Heard>().0;
    assert_eq!((heard.len(), heard[0].agent, heard[0].tag), (1, greta, 7));
    assert_eq!((heard[0].scores.len(), heard[0].scores[0].tokens), (2, 2));
    assert_eq!(heard[0].best().map(|best| best.index), Some(0));
    assert_eq!(log(&app).0, ["started", "finished Scored"]);
    assert!(turns(&app, greta).is_empty() && speech(&app, greta).is_silent());
    ask(&mut app, greta, "And now?");
    updates(&mut app, 9);
    assert_eq!(turns(&app, greta).len(), 2);
    assert_eq!(app.world().resource::<Heard>().0.len(), 1);
}
