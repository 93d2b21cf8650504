//! Cues: stage directions as events, apart from speech.

use crate::common::dice::Dice;
use crate::common::*;
use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::cues::{AgentCues, Cues, ReplyCue, UnknownCues};
use bevy_walla::memories::Memorizes;
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
fn text_that_was_held_back_is_spoken_at_the_end_of_a_cancelled_reply() {
    let (mut app, greta) = greta("Well (I think that it is so and", Cues::new());
    ask(&mut app, greta, "?");
    updates(&mut app, 5);
    assert_eq!(speech(&app, greta).text(), "Well ");
    app.world_mut().trigger(Cancel::new(greta));
    updates(&mut app, 3);
    let spoken = speech(&app, greta).text().to_owned();
    assert!(spoken.starts_with("Well (I"), "{spoken}");
    assert_eq!(turns(&app, greta).last(), Some(&spoken));
    assert_eq!(heard(&app).deltas, spoken);
}

#[test]
fn memories_have_no_cues() {
    let (mut app, greta) = greta(TEXT, Cues::new());
    app.add_plugins(WallaMemoryPlugin::default().without_embedding_model());
    app.world_mut().entity_mut(greta).insert(Memorizes::default());
    reply(&mut app, greta);
    let memory = app.world().get::<bevy_walla::memories::AgentMemory>(greta).unwrap();
    let texts: Vec<&str> = memory.iter().map(|(_, entry)| &*entry.text).collect();
    assert_eq!(texts.len(), 1);
    assert!(texts[0].ends_with("I said: \"Three silver. No less! So?\""), "{texts:?}");
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
