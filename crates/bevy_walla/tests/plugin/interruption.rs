//! Replies that are interrupted, and turns that are pushed while an agent speaks.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::ScheduleLabel as _;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::engine::{Command, EngineClient as _, EngineState, Prompt};
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyId;
use bevy_walla::scripted::ScriptedEngine;

#[test]
fn a_turn_pushed_during_a_reply_follows_the_exchange() {
    let mut app = app(&ScriptedEngine::new(|_, _| "one two three four".into()));
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    ask(&mut app, odo, "again");
    updates(&mut app, 4);
    let push = |app: &mut App, text: &str| {
        let mut talk = app.world_mut().get_mut::<Conversation>(odo).unwrap();
        talk.push(Speaker::User, text);
    };
    push(&mut app, "The door opens.");
    ask(&mut app, odo, "once more");
    updates(&mut app, 2);
    push(&mut app, "The door closes.");
    updates(&mut app, 30);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 3]);
    let said = "one two three four";
    let expected = ["count", said, "again", said, "The door opens.", "once more", said];
    assert_eq!(turns(&app, odo), [&expected[..], &["The door closes."]].concat());
}

#[test]
fn the_unfinished_end_of_a_cancelled_reply_is_no_sentence() {
    let mut app = app(&ScriptedEngine::new(|_, _| "Hello there. I am a smith.".into()));
    let [odo, greta] = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
    ask(&mut app, odo, "count");
    ask(&mut app, greta, "count");
    updates(&mut app, 6);
    assert!(speech(&app, odo).text().len() > "Hello there. I".len());
    app.world_mut().trigger(Cancel::new(odo));
    app.world_mut().despawn(greta);
    updates(&mut app, 5);
    assert_eq!(log(&app).only("finished"), ["Cancelled"; 2]);
    assert_eq!(log(&app).only("sentence"), ["Hello there."; 2]);
}

#[derive(Resource, Default)]
struct Spoken(Vec<ReplySentence>);

fn listen(app: &mut App) {
    app.init_resource::<Spoken>()
        .add_observer(|s: On<ReplySentence>, mut spoken: ResMut<Spoken>| spoken.0.push(*s));
}

#[test]
fn fragments_are_published_and_marked_when_enabled() {
    let settings = WallaSettings { publish_fragments: true, ..WallaSettings::default() };
    let engine = ScriptedEngine::new(|_, _| " Hello there.\n I am a smith. Yes.".into());
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    listen(&mut app);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "whole");
    updates(&mut app, 12);
    ask(&mut app, odo, "cut");
    updates(&mut app, 6);
    app.world_mut().trigger(Cancel::new(odo));
    updates(&mut app, 5);
    let spoken = &app.world().resource::<Spoken>().0;
    let spoken: Vec<_> = spoken.iter().map(|s| (&*s.text, s.end_bytes, s.is_fragment)).collect();
    let whole = [("Hello there.", 13, false), ("I am a smith.", 28, false), ("Yes.", 33, false)];
    assert_eq!(spoken[..3], whole);
    assert_eq!(spoken[3], whole[0]);
    let (text, end_bytes, is_fragment) = spoken[4];
    assert!(is_fragment && "I am a smith.".starts_with(text), "{text}");
    assert_eq!((spoken.len(), end_bytes as usize), (5, 15 + text.len()));
}

#[test]
fn a_reply_cancelled_after_a_full_stop_has_no_fragment() {
    let mut app = app(&ScriptedEngine::new(|_, _| "Hello there. Yes.".into()));
    listen(&mut app);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "hi");
    run_until_text(&mut app, odo, "Hello there.");
    app.world_mut().trigger(Cancel::new(odo));
    updates(&mut app, 5);
    let spoken = &app.world().resource::<Spoken>().0;
    assert!(spoken.iter().all(|sentence| !sentence.is_fragment));
    assert_eq!(spoken[0].text.as_str(), "Hello there.");
}

fn run_until_text(app: &mut App, agent: Entity, text: &str) {
    for _ in 0..50 {
        if speech(app, agent).text() == text {
            return;
        }
        app.update();
    }
    panic!("it never says {text:?}");
}

#[test]
fn an_interrupted_reply_is_kept_as_far_as_it_was_heard() {
    let mut app = app(&ScriptedEngine::new(|_, question| format!("{question} One two. Three.")));
    listen(&mut app);
    let odo = spawn(&mut app, "Odo");
    for question in ["a", "b", "c"] {
        ask(&mut app, odo, question);
    }
    updates(&mut app, 40);
    assert_eq!(turns(&app, odo).len(), 6);
    // The voice is at the first sentence of the second reply when the player interrupts; another
    // question waits.
    ask(&mut app, odo, "d");
    updates(&mut app, 4);
    let sentence = app.world().resource::<Spoken>().0[2];
    assert_eq!(sentence.text.as_str(), "b One two.");
    app.world_mut().trigger(Cancel::heard_until(&sentence));
    ask(&mut app, odo, "e");
    updates(&mut app, 20);
    let ended = log(&app).only("finished");
    assert_eq!(ended, ["EndOfTurn", "EndOfTurn", "EndOfTurn", "Cancelled", "EndOfTurn"]);
    let expected = ["a", "a One two. Three.", "b", "b One two.", "e", "e One two. Three."];
    assert_eq!(turns(&app, odo), expected);
    // In mid-reply, as a message; nothing of it was heard.
    ask(&mut app, odo, "f");
    updates(&mut app, 4);
    app.world_mut().write_message(Cancel::heard(odo, 0));
    updates(&mut app, 5);
    assert_eq!(turns(&app, odo), expected);
    ask(&mut app, odo, "g");
    updates(&mut app, 5);
    app.world_mut().trigger(Cancel::heard(odo, 3));
    updates(&mut app, 5);
    assert_eq!(turns(&app, odo)[6..], ["g", "g O"]);
    assert!(speech(&app, odo).is_silent());
}

#[test]
fn interruptions_are_sent_to_the_engine() {
    let engine = ScriptedEngine::new(|_, question| format!("{question} One two. Three."));
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    for question in ["a", "b"] {
        ask(&mut app, odo, question);
    }
    updates(&mut app, 30);
    ask(&mut app, odo, "c");
    updates(&mut app, 4);
    let asked: Vec<_> = engine.commands().into_iter().filter_map(asked).collect();
    let [a, b, c] = asked[..] else { panic!("{asked:?}") };
    let sent = engine.commands().len();
    app.world_mut().trigger(Cancel { agent: odo, reply_id: Some(a), heard_bytes: Some(2) });
    updates(&mut app, 2);
    let commands = engine.commands();
    let mut told: Vec<_> = commands[sent..]
        .iter()
        .map(|command| match command {
            Command::CancelHeard { reply_id, heard_bytes, .. } => (*reply_id, *heard_bytes),
            other => panic!("{other:?}"),
        })
        .collect();
    told.sort_unstable();
    assert_eq!(told, [(a, 2), (b, 0), (c, 0)]);
    assert_eq!(turns(&app, odo), ["a", "a "]);
}

fn asked(command: Command) -> Option<ReplyId> {
    if let Command::Ask { reply_id, .. } = command { Some(reply_id) } else { None }
}

#[test]
fn pushed_turns_reach_the_engine_in_the_order_of_the_asks() {
    // The engine takes one command a frame, so that most wait in the plugin.
    let engine = echo().command_queue(1);
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    for question in ["one", "two"] {
        ask(&mut app, odo, question);
    }
    updates(&mut app, 1);
    app.world_mut().get_mut::<Conversation>(odo).unwrap().push(Speaker::User, "x");
    ask(&mut app, odo, "three");
    updates(&mut app, 1);
    app.world_mut().get_mut::<Conversation>(odo).unwrap().push(Speaker::User, "y");
    updates(&mut app, 40);
    let told: Vec<String> = engine
        .commands()
        .into_iter()
        .flat_map(|command| match command {
            Command::AddAgent { spec, .. } => spec.turns,
            Command::AppendTurns { turns, .. } | Command::SetConversation { turns, .. } => turns,
            Command::Ask { prompt: Prompt::Chat(text), .. } => {
                vec![Turn::new(Speaker::User, text)]
            }
            other => panic!("{other:?}"),
        })
        .map(|turn| turn.text)
        .collect();
    assert_eq!(told, ["one", "two", "x", "three", "y"]);
    let expected = ["one", "Odo: one", "two", "Odo: two", "x", "three", "Odo: three", "y"];
    assert_eq!(turns(&app, odo), expected);
}

/// Pushes a numbered turn to every conversation.
fn push_numbered(mut talks: Query<&mut Conversation>, mut number: Local<u32>) {
    for mut talk in &mut talks {
        talk.push(Speaker::User, format!("turn {}", *number));
        *number += 1;
    }
}

/// Turns and questions in the order in which the engine received them.
fn received(engine: &ScriptedEngine) -> Vec<String> {
    let texts = |turns: Vec<Turn>| turns.into_iter().map(|turn| turn.text).collect();
    let each = engine.commands().into_iter().map(|command| match command {
        Command::AddAgent { spec, .. } => texts(spec.turns),
        Command::AppendTurns { turns, .. } => texts(turns),
        Command::Ask { prompt: Prompt::Chat(question), .. } => vec![question],
        _ => Vec::new(),
    });
    each.flatten().collect()
}

#[test]
fn turns_that_are_pushed_anywhere_in_a_frame_are_sent_once_and_in_order() {
    use WallaSystems::{Collect, Publish, Submit};
    let push = || IntoScheduleConfigs::into_configs(push_numbered);
    let places = [
        (PostUpdate.intern(), push().after(Collect).before(Submit)),
        (First.intern(), push().ambiguous_with_all()),
        (PreUpdate.intern(), push().before(Publish)),
        (PreUpdate.intern(), push().after(Publish)),
        (Update.intern(), push()),
        (PostUpdate.intern(), push().before(Collect)),
        (PostUpdate.intern(), push().after(Submit)),
    ];
    for (place, (schedule, system)) in places.into_iter().enumerate() {
        let engine = echo();
        let mut app = app(&engine);
        app.add_systems(schedule, system);
        let odo = spawn(&mut app, "Odo");
        for frame in 0..40 {
            if [2, 5, 6, 11, 17].contains(&frame) {
                ask(&mut app, odo, &format!("question {frame}"));
            }
            app.update();
        }
        let said = turns(&app, odo);
        let replies = said.iter().filter(|turn| turn.starts_with("Odo: ")).count();
        assert_eq!(replies, 5, "place {place}");
        let mut known: Vec<_> =
            said.into_iter().filter(|turn| !turn.starts_with("Odo: ")).collect();
        let received = received(&engine);
        // The newest turn was pushed after the last collection.
        known.truncate(received.len());
        assert!(received.len() >= 39 + 5, "place {place}: {received:?}");
        assert_eq!(received, known, "place {place}");
    }
}

/// The engine begins the reply between Publish and Collect of the frame with the interruption.
#[test]
fn a_reply_interrupted_before_its_started_event_is_not_kept() {
    let loading = EngineState::Loading { fraction: 0.0 };
    let engine = ScriptedEngine::new(|_, _| "one two three".into()).starting_in(loading);
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    app.update(); // the ask is sent
    let speaking = engine.clone();
    app.add_systems(Update, move |mut commands: Commands, mut is_done: Local<bool>| {
        if !std::mem::replace(&mut *is_done, true) {
            speaking.set_state(EngineState::Ready);
            speaking.frame(); // the reply starts
            speaking.frame(); // "one"
            commands.trigger(Cancel::heard(odo, 0));
        }
    });
    updates(&mut app, 6);
    let sent = engine.commands();
    let told = sent.iter().filter_map(|command| match command {
        Command::CancelHeard { heard_bytes, .. } => Some(*heard_bytes),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [0], "the engine drops the exchange");
    assert_eq!(turns(&app, odo), [""; 0], "so does the component");
}

/// Later asks drop pushed turns of a bounded conversation. Exchanges of earlier asks stay in order,
/// and no turn is sent twice.
#[test]
fn dropped_turns_keep_the_order_of_exchanges() {
    let settings = WallaSettings { max_conversation_turns: 4, ..WallaSettings::default() };
    let engine = echo();
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "q1");
    ask(&mut app, odo, "q2");
    app.update();
    app.world_mut().get_mut::<Conversation>(odo).unwrap().push(Speaker::Observation, "It rains.");
    app.update();
    ask(&mut app, odo, "q3");
    updates(&mut app, 30);
    assert_eq!(turns(&app, odo), ["q1", "Odo: q1", "q2", "Odo: q2", "q3", "Odo: q3"]);
    assert_eq!(received(&engine), ["q1", "q2", "It rains.", "q3"]);
}

/// As above. The commands of another agent delay the commands of the pushed turn until a reply has
/// ended.
#[test]
fn a_turn_dropped_before_sending_is_not_replaced_by_another() {
    let settings = WallaSettings {
        max_conversation_turns: 4,
        max_commands_per_frame: 1,
        ..WallaSettings::default()
    };
    let engine = echo();
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    let [odo, greta] = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
    updates(&mut app, 3);
    ask(&mut app, odo, "q1");
    app.update();
    (0..8).for_each(|_| ask(&mut app, greta, "hi"));
    app.update();
    app.world_mut().get_mut::<Conversation>(odo).unwrap().push(Speaker::Observation, "It rains.");
    ask(&mut app, odo, "q2"); // the turn is dropped
    updates(&mut app, 60);
    assert_eq!(turns(&app, odo), ["q1", "Odo: q1", "q2", "Odo: q2"]);
    let sent: Vec<_> = received(&engine).into_iter().filter(|text| text != "hi").collect();
    assert_eq!(sent, ["q1", "q2"]);
}
