//! Cues: stage directions as events, apart from speech.

use crate::common::dice::Dice;
use crate::common::*;
use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::cues::{AgentCues, Cues, ReplyCue, UnknownCues};
use bevy_walla::engines::EngineSet;
use bevy_walla::memories::{AgentMemory, Memorizes, MemoryTexts};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

/// Cues and sentences of all agents, in order.
#[derive(Resource, Default)]
struct Heard {
    cues: Vec<ReplyCue>,
    sentences: Vec<ReplySentence>,
    deltas: String,
    tokens: u32,
}

/// An app with one agent that answers with this text.
fn greta(text: &str, cues: Cues) -> (App, Entity) {
    let text = text.to_owned();
    let mut app = app(&ScriptedEngine::new(move |_, _| text.clone()));
    app.init_resource::<Heard>()
        .add_observer(|cue: On<ReplyCue>, mut heard: ResMut<Heard>| heard.cues.push(*cue))
        .add_observer(|its: On<ReplySentence>, mut heard: ResMut<Heard>| heard.sentences.push(*its))
        .add_observer(|delta: On<ReplyDelta>, mut heard: ResMut<Heard>| {
            heard.deltas.push_str(&delta.text);
            heard.tokens += delta.tokens;
        });
    let greta = app.world_mut().spawn((Agent::persona("Greta"), AgentCues(cues))).id();
    (app, greta)
}

fn reply(app: &mut App, agent: Entity) {
    let ends = log(app).ends();
    ask(app, agent, "Good day! *smiles* (laughs) [sighs]");
    run_until(app, |app| log(app).ends() > ends);
}

fn heard(app: &App) -> &Heard {
    app.world().resource::<Heard>()
}

const TEXT: &str = "*smiles* Three silver. (sighs deeply) No less! So? *nods*";

#[test]
fn speech_has_no_cues_and_the_conversation_keeps_them() {
    let (mut app, greta) = greta(TEXT, Cues::new());
    reply(&mut app, greta);
    let Heard { cues, sentences, deltas, .. } = heard(&app);
    let spoken = "Three silver. No less! So? ";
    assert_eq!((deltas.as_str(), speech(&app, greta).text()), (spoken, spoken));
    let cues: Vec<_> = cues.iter().map(|cue| (&*cue.name, cue.at_bytes, cue.reply_bytes)).collect();
    assert_eq!(cues, [("smiles", 0, 0), ("sighs deeply", 14, 23), ("nods", 27, 51)]);
    let sentences: Vec<_> = sentences.iter().map(|its| (&*its.text, its.end_bytes)).collect();
    assert_eq!(sentences, [("Three silver.", 22), ("No less!", 46), ("So?", 50)]);
    assert_eq!(turns(&app, greta).last().map(String::as_str), Some(TEXT));
}

#[test]
fn an_agent_without_the_component_speaks_as_before() {
    let (mut app, greta) = greta(TEXT, Cues::new());
    reply(&mut app, greta);
    app.world_mut().entity_mut(greta).remove::<AgentCues>();
    app.world_mut().resource_mut::<Heard>().deltas.clear();
    reply(&mut app, greta);
    assert_eq!((heard(&app).cues.len(), heard(&app).deltas.as_str()), (3, TEXT));
    let cues = Cues::new().with_cue("sigh", ["sighs"]).unknown(UnknownCues::Keep);
    app.world_mut().entity_mut(greta).insert(AgentCues(cues));
    reply(&mut app, greta);
    assert_eq!(heard(&app).cues.last().unwrap().name.as_str(), "sigh");
    assert_eq!(speech(&app, greta).text(), "*smiles* Three silver. No less! So? *nods*");
}

#[test]
fn text_that_the_agent_did_not_write_creates_no_cues() {
    let (mut app, greta) = greta("Good day.", Cues::new());
    let mut talk = app.world_mut().get_mut::<Conversation>(greta).unwrap();
    talk.push(Speaker::Observation, "*The door opens.* (creaks)");
    talk.push_turn(Turn::new(Speaker::Agent, "[bows]"));
    reply(&mut app, greta);
    assert!(heard(&app).cues.is_empty());
}

#[test]
fn an_aside_is_not_separated() {
    let (mut app, greta) = greta(r#"["true", [true]]"#, Cues::new());
    app.world_mut().trigger(Ask::new(greta, "A list?").aside());
    run_until(&mut app, |app| log(app).ends() > 0);
    let Heard { cues, deltas, .. } = heard(&app);
    assert_eq!((cues.len(), deltas.as_str()), (0, r#"["true", [true]]"#));
}

#[test]
fn the_conversation_keeps_the_reply_up_to_the_sentence_that_was_heard() {
    let (mut app, greta) = greta(TEXT, Cues::new());
    reply(&mut app, greta);
    let second = heard(&app).sentences[1];
    app.world_mut().trigger(Cancel::heard_until(&second));
    updates(&mut app, 3);
    let kept = "*smiles* Three silver. (sighs deeply) No less!";
    assert_eq!(turns(&app, greta).last().map(String::as_str), Some(kept));
}

#[test]
fn a_direction_in_which_a_reply_was_cut_off_is_not_spoken() {
    let of = |cues| {
        let (mut app, greta) = greta("Well (I think that it is so and", cues);
        ask(&mut app, greta, "?");
        updates(&mut app, 5);
        assert_eq!(speech(&app, greta).text(), "Well ");
        app.world_mut().trigger(Cancel::new(greta));
        updates(&mut app, 3);
        let spoken = speech(&app, greta).text().to_owned();
        assert_eq!(heard(&app).deltas, spoken);
        let kept = turns(&app, greta).last().cloned().unwrap();
        assert!(kept.starts_with("Well (I"), "{kept}");
        (spoken, kept)
    };
    assert_eq!(of(Cues::new()).0, "Well ");
    // Text in parentheses is speech, unless it is a cue.
    let (spoken, kept) = of(Cues::new().with_cue("smile", ["smiles"]).unknown(UnknownCues::Keep));
    assert_eq!(spoken, kept);
}

#[test]
fn an_ask_that_ends_before_the_reply_has_none_of_its_text() {
    // A router ends asks that wait at once.
    let script = || ScriptedEngine::new(|_, _| "Well (I think that it is so and more".to_owned());
    let engines = EngineSet::new("small", &script()).with("large", &script());
    let mut app = app_with(WallaPlugin::engines(engines));
    #[derive(Resource, Default)]
    struct Spoken(Vec<(u64, String)>);
    app.init_resource::<Spoken>().add_observer(|delta: On<ReplyDelta>, mut all: ResMut<Spoken>| {
        all.0.push((delta.tag, delta.text.to_string()));
    });
    let greta = app.world_mut().spawn((Agent::persona("Greta"), AgentCues(Cues::new()))).id();
    for tag in [1, 2] {
        app.world_mut().trigger(Ask::new(greta, "?").with_tag(tag));
    }
    run_until(&mut app, |app| !app.world().resource::<Spoken>().0.is_empty());
    updates(&mut app, 3);
    app.world_mut().trigger(Cancel::new(greta));
    run_until(&mut app, |app| log(app).ends() == 2);
    let spoken = &app.world().resource::<Spoken>().0;
    assert!(spoken.iter().all(|(tag, _)| *tag == 1), "{spoken:?}");
}

#[test]
fn memories_have_no_cues() {
    let (mut app, greta) = greta(TEXT, Cues::new());
    app.add_plugins(WallaMemoryPlugin::default().without_embedding_model());
    app.world_mut().entity_mut(greta).insert(Memorizes::default());
    reply(&mut app, greta);
    let [text] = &memories(&app, greta)[..] else { panic!() };
    assert!(text.ends_with("I said: \"Three silver. No less! So?\""), "{text}");
    // A copy of both knows which entry was the reply.
    let talk = app.world().get::<Conversation>(greta).unwrap().clone();
    let memory = app.world().get::<AgentMemory>(greta).unwrap().clone();
    let parts = (Agent::persona("Greta"), AgentCues(Cues::new()), Memorizes::default());
    let copy = app.world_mut().spawn((parts, talk, memory)).id();
    updates(&mut app, 2);
    app.world_mut().trigger(Ask::again(copy));
    let ends = log(&app).ends();
    run_until(&mut app, |app| log(app).ends() > ends);
    assert_eq!(memories(&app, copy).len(), 1, "{:?}", memories(&app, copy));
    // The heard part alone.
    let first = heard(&app).sentences[0];
    app.world_mut().trigger(Cancel::heard_until(&first));
    updates(&mut app, 3);
    let [text] = &memories(&app, greta)[..] else { panic!() };
    assert!(text.ends_with("I said: \"Three silver.\""), "{text}");
    app.world_mut().trigger(Cancel::heard(greta, 0));
    updates(&mut app, 3);
    assert_eq!(memories(&app, greta), Vec::<String>::new(), "nothing was heard");
}

#[test]
fn a_question_that_a_gesture_answers_is_remembered() {
    let in_german = MemoryTexts {
        exchange: |turn| Some(format!("Der Spieler: „{}“ {:?}", turn.question?, turn.text)),
        ..MemoryTexts::default()
    };
    for (texts, expected) in [
        (MemoryTexts::default(), "The player said: \"The key is under the mat.\""),
        (in_german, "Der Spieler: „The key is under the mat.“ \"\""),
    ] {
        let (mut app, greta) = greta("*nods*", Cues::new());
        app.add_plugins(WallaMemoryPlugin::default().without_embedding_model());
        app.insert_resource(texts);
        app.world_mut().entity_mut(greta).insert(Memorizes::default());
        ask(&mut app, greta, "The key is under the mat.");
        run_until(&mut app, |app| log(app).ends() == 1);
        updates(&mut app, 3);
        assert_eq!(memories(&app, greta), [expected]);
    }
}

fn memories(app: &App, agent: Entity) -> Vec<String> {
    let memory = app.world().get::<AgentMemory>(agent).unwrap();
    memory.iter().map(|(_, entry)| entry.text.to_string()).collect()
}

/// Deltas, sentences, places and tokens of any reply agree with the text and its cues.
#[test]
fn random_replies_lose_nothing() {
    let mut dice = Dice::new(5);
    for _ in 0..150 {
        let words = ["*nods* ", "(a", "b) ", "Yes. ", "[so]", "No! ", "*", "\n", "one two ", "é…"];
        let text: String = (0..dice.throw(20)).map(|_| *dice.pick(&words).unwrap()).collect();
        let (mut app, greta) = greta(&text, Cues::new());
        reply(&mut app, greta);
        let (spoken, cues) = Cues::new().separate(&text);
        let Heard { cues: found, sentences, deltas, .. } = heard(&app);
        assert_eq!((deltas, speech(&app, greta).text()), (&spoken, &*spoken), "{text:?}");
        let places = |at: u32, text: &str| (at as usize, text.to_owned());
        let found: Vec<_> = found.iter().map(|cue| places(cue.at_bytes, &cue.text)).collect();
        let cues: Vec<_> = cues.into_iter().map(|cue| (cue.at_bytes, cue.text)).collect();
        assert_eq!(found, cues, "{text:?}");
        let said: String = sentences.iter().map(|its| &*its.text).collect();
        let no_space = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(no_space(&said), no_space(&spoken), "{text:?}");
        for sentence in sentences {
            let until = &text[..sentence.end_bytes as usize];
            assert!(until.ends_with(sentence.text.chars().next_back().unwrap()), "{text:?}");
        }
    }
}
