//! Conversations that a game rewinds, edits, asks again and copies.

use bevy_ecs::prelude::*;
use bevy_walla::agent::ForkCommands;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::Speaker;
use bevy_walla::engine::{Command, EngineState, Prompt};
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyError;

use crate::common::*;

/// A scripted engine that counts its asks, an app with an agent, and the agent.
fn talk() -> (bevy_app::App, bevy_walla::scripted::ScriptedEngine, Entity) {
    let engine = echo();
    let mut app = app(&engine);
    let agent = spawn(&mut app, "A");
    for question in ["one", "two"] {
        app.world_mut().trigger(Ask::new(agent, question));
        updates(&mut app, 20);
    }
    (app, engine, agent)
}

fn texts(app: &bevy_app::App, agent: Entity) -> Vec<String> {
    let talk = app.world().get::<Conversation>(agent).expect("an agent has one");
    talk.turns().iter().map(|turn| turn.text.clone()).collect()
}

#[test]
fn a_reply_is_asked_again_with_its_question_and_a_seed() {
    let (mut app, engine, agent) = talk();
    let before = texts(&app, agent);
    let sent = engine.commands().len();
    app.world_mut().trigger(Ask::again(agent).with_seed(7).with_tag(3));
    updates(&mut app, 20);
    let commands = engine.commands().split_off(sent);
    let [Command::SetConversation { turns, .. }, Command::Ask { prompt, options, .. }] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(turns.len(), 2);
    assert_eq!((prompt, options.seed), (&Prompt::Chat("two".into()), Some(7)));
    assert_eq!(texts(&app, agent), before, "the same question, and an echo");
    // What follows the reply is removed too.
    app.world_mut().get_mut::<Conversation>(agent).unwrap().push(Speaker::Observation, "rain");
    app.world_mut().trigger(Ask::again(agent));
    updates(&mut app, 20);
    assert_eq!(texts(&app, agent), before);
}

#[test]
fn without_a_reply_an_ask_for_it_fails_and_nothing_changes() {
    let (mut app, _engine, agent) = talk();
    app.world_mut().get_mut::<Conversation>(agent).unwrap().clear();
    app.world_mut().get_mut::<Conversation>(agent).unwrap().push(Speaker::User, "hello");
    updates(&mut app, 2);
    let mut failures = Vec::new();
    app.add_observer(|failed: On<ReplyFailed>, mut failures: ResMut<Failures>| {
        failures.0.push(failed.error.clone());
    });
    app.insert_resource(Failures(Vec::new()));
    app.world_mut().trigger(Ask::again(agent));
    updates(&mut app, 3);
    failures.append(&mut app.world_mut().resource_mut::<Failures>().0);
    assert_eq!(failures, [ReplyError::NoReply]);
    assert_eq!(texts(&app, agent), ["hello"]);
}

/// A repetition that ends without an answer puts the removed turns back.
#[test]
fn a_repetition_without_an_answer_loses_no_turn() {
    let (mut app, engine, agent) = talk();
    let mut talk = app.world_mut().get_mut::<Conversation>(agent).unwrap();
    talk.push(Speaker::Observation, "rain");
    updates(&mut app, 2);
    let before = texts(&app, agent);
    // Cancelled in the frame of the ask, before the engine has begun, and when it has begun; turns
    // that are pushed meanwhile follow.
    let mut expected = before.clone();
    for frames in 0..4 {
        app.world_mut().trigger(Ask::again(agent));
        updates(&mut app, frames);
        let pushed = format!("after {frames}");
        let mut talk = app.world_mut().get_mut::<Conversation>(agent).unwrap();
        talk.push(Speaker::Observation, pushed.clone());
        app.world_mut().trigger(Cancel::heard(agent, 0));
        updates(&mut app, 20);
        expected.push(pushed);
        assert_eq!(texts(&app, agent), expected, "after {frames} frames");
    }
    let in_engine = engine.commands().into_iter().rev().find_map(|command| match command {
        Command::SetConversation { turns, .. } => Some(turns),
        _ => None,
    });
    let in_engine = in_engine.expect("it was sent again");
    assert_eq!(in_engine.len(), expected.len(), "{in_engine:?}");
    // Two repetitions in one frame repeat the same reply.
    app.world_mut().get_mut::<Conversation>(agent).unwrap().rewind(5);
    updates(&mut app, 2);
    for _ in 0..2 {
        app.world_mut().trigger(Ask::again(agent));
    }
    updates(&mut app, 20);
    assert_eq!(texts(&app, agent), before[..4]);
}

/// Nothing is put back into a conversation that the game has replaced meanwhile.
#[test]
fn a_repetition_restores_no_replaced_conversation() {
    let (mut app, _engine, agent) = talk();
    app.world_mut().trigger(Ask::again(agent));
    updates(&mut app, 1);
    app.world_mut().get_mut::<Conversation>(agent).unwrap().clear();
    updates(&mut app, 20);
    assert!(texts(&app, agent).is_empty());
}

/// Without an engine a repetition fails, and the conversation is as before.
#[test]
fn a_repetition_that_the_engine_loses_keeps_the_reply() {
    let (mut app, engine, agent) = talk();
    let before = texts(&app, agent);
    app.world_mut().trigger(Ask::again(agent));
    engine.set_state(EngineState::Stopped);
    updates(&mut app, 20);
    assert_eq!(texts(&app, agent), before);
}

#[derive(Resource)]
struct Failures(Vec<ReplyError>);

#[test]
fn a_conversation_is_rewound_and_edited() {
    let (mut app, engine, agent) = talk();
    let before = texts(&app, agent);
    let mut talk = app.world_mut().get_mut::<Conversation>(agent).unwrap();
    let removed = talk.rewind(1);
    assert_eq!(removed.len(), 1);
    assert_eq!(talk.set_text(0, "ONE").as_deref(), Some("one"));
    assert_eq!(talk.set_text(99, "x"), None);
    assert!(talk.rewind(0).is_empty());
    let sent = engine.commands().len();
    updates(&mut app, 2);
    let commands = engine.commands().split_off(sent);
    assert!(matches!(&commands[..], [Command::SetConversation { .. }]), "{commands:?}");
    assert_eq!(texts(&app, agent), ["ONE", &before[1], "two"]);
    assert_eq!(app.world_mut().get_mut::<Conversation>(agent).unwrap().rewind(99).len(), 3);
}

#[test]
fn a_copy_of_an_agent_is_a_fork_in_the_engine() {
    let (mut app, engine, agent) = talk();
    app.world_mut().entity_mut(agent).insert((AgentSeed(5), VoiceRate::tokens_per_second(4.0)));
    updates(&mut app, 1);
    let sent = engine.commands().len();
    let copy = app.world_mut().commands().fork_agent(agent);
    let gone = app.world_mut().spawn_empty().id();
    app.world_mut().despawn(gone);
    let empty = app.world_mut().commands().fork_agent(gone);
    app.world_mut().flush();
    updates(&mut app, 2);
    let commands = engine.commands().split_off(sent);
    let [Command::ForkAgent { agent: forked, source, spec: Some(spec) }] = &commands[..] else {
        panic!("{commands:?}")
    };
    let first = engine.commands().iter().find_map(|command| match command {
        Command::AddAgent { agent, .. } => Some(*agent),
        _ => None,
    });
    assert!(forked != source && Some(*source) == first);
    assert_eq!((spec.persona.as_str(), spec.voice_rate, spec.turns.len()), ("A", Some(4.0), 4));
    assert_eq!(texts(&app, copy), texts(&app, agent));
    assert!(app.world().get::<Agent>(empty).is_none());
    // Each has its own future.
    app.world_mut().trigger(Ask::new(copy, "three"));
    updates(&mut app, 20);
    assert_eq!((texts(&app, copy).len(), texts(&app, agent).len()), (6, 4));
}

/// While a reply is in progress, the repetition is of this reply.
#[test]
fn a_reply_in_progress_is_asked_again() {
    for frames in 0..4 {
        let (mut app, engine, agent) = talk();
        let mut expected = texts(&app, agent);
        let sent = engine.commands().len();
        app.world_mut().trigger(Ask::new(agent, "three"));
        updates(&mut app, frames);
        app.world_mut().trigger(Ask::again(agent).with_seed(9));
        updates(&mut app, 20);
        expected.extend(["three".to_owned(), "A: three".to_owned()]);
        assert_eq!(texts(&app, agent), expected, "{frames}");
        let mut asks = engine.commands().split_off(sent);
        asks.retain(|command| matches!(command, Command::Ask { .. }));
        let Some(Command::Ask { prompt, options, .. }) = asks.last() else { panic!("{asks:?}") };
        assert_eq!((prompt, options.seed), (&Prompt::Chat("three".into()), Some(9)));
    }
}

/// An aside is heard by its events alone: no turn, no sentence, no text of the speech.
#[test]
fn an_aside_leaves_no_turn_and_no_sentence() {
    #[derive(Resource, Default)]
    struct Aside {
        deltas: String,
        tags: Vec<u64>,
        sentences: usize,
        ends: Vec<u64>,
    }
    let (mut app, _engine, agent) = talk();
    let before = texts(&app, agent);
    app.init_resource::<Aside>();
    app.add_observer(|delta: On<ReplyDelta>, mut aside: ResMut<Aside>| {
        aside.deltas.push_str(&delta.text);
        aside.tags.push(delta.tag);
    });
    app.add_observer(|_: On<ReplySentence>, mut aside: ResMut<Aside>| aside.sentences += 1);
    app.add_observer(|end: On<ReplyFinished>, mut aside: ResMut<Aside>| aside.ends.push(end.tag));
    let spoken = speech(&app, agent).text().to_owned();
    app.world_mut().trigger(Ask::new(agent, "mood?").aside().with_tag(5));
    for _ in 0..20 {
        app.update();
        assert!(speech(&app, agent).is_silent());
        assert_eq!(speech(&app, agent).text(), spoken);
    }
    let aside = app.world().resource::<Aside>();
    assert_eq!((aside.deltas.as_str(), aside.sentences), ("A: mood?", 0));
    assert!(!aside.tags.is_empty() && aside.tags.iter().all(|tag| *tag == 5));
    assert_eq!(aside.ends, [5]);
    assert_eq!(texts(&app, agent), before);
    // The next sentence carries its tag.
    #[derive(Resource, Default)]
    struct Tags(Vec<u64>);
    app.init_resource::<Tags>();
    app.add_observer(|said: On<ReplySentence>, mut tags: ResMut<Tags>| tags.0.push(said.tag));
    app.world_mut().trigger(Ask::new(agent, "three").with_tag(6));
    updates(&mut app, 20);
    assert_eq!(app.world().resource::<Tags>().0, [6]);
    assert_eq!(texts(&app, agent).len(), before.len() + 2);
}
