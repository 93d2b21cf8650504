//! Voices and ears, with a scripted synthesiser and recogniser.

#[allow(dead_code, reason = "some of it is for the tests of `walla_voice`")]
#[path = "../../../walla_voice/tests/engine/common.rs"]
mod double;
mod faults;

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_walla::cues::{AgentCues, Cues};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use bevy_walla::voice::{
    BargeIn, Heard, HearingDropped, HearingFailed, HearingPartial, HearingStarted, Interrupt,
    ListenerEar, Microphone, MouthReader, MouthShape, Speaking, SpeechEnded, SpeechStarted, Viseme,
    Voice, VoiceListener, VoiceSource, WallaVoicePlugin, Word,
};
use double::{Letters, Loud, Milliseconds, PIECE};

/// Published events, in order.
#[derive(Resource, Default)]
struct Seen(Vec<String>);

fn with_voices(text: &str) -> App {
    let text = text.to_owned();
    let mut app = app(&ScriptedEngine::new(move |_, _| text.clone()));
    app.add_plugins(WallaVoicePlugin::default())
        .init_resource::<Seen>()
        .add_observer(|its: On<SpeechStarted>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("begin {}", its.text));
        })
        .add_observer(|its: On<Word>, mut seen: ResMut<Seen>| seen.0.push(its.text().to_owned()))
        .add_observer(|its: On<Viseme>, mut seen: ResMut<Seen>| {
            seen.0.push(its.shape.name().to_owned());
        })
        .add_observer(|its: On<SpeechEnded>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("end {} {:?}", its.text, its.reason));
        });
    app
}

fn greta(app: &mut App) -> Entity {
    let voice = Voice::of(Arc::<Letters>::default());
    app.world_mut().spawn((Agent::persona("Greta"), voice)).id()
}

fn seen(app: &App) -> Vec<&str> {
    app.world().resource::<Seen>().0.iter().map(String::as_str).collect()
}

fn speaking(app: &App, agent: Entity) -> &Speaking {
    app.world().get::<Speaking>(agent).unwrap()
}

/// Asks, and takes the stream of samples when the reply is there.
fn reply(app: &mut App, agent: Entity) {
    let ends = log(app).ends();
    ask(app, agent, "Hi.");
    run_until(app, |app| log(app).ends() > ends);
}

fn reader(app: &mut App, agent: Entity) -> MouthReader {
    run_until(app, |app| speaking(app, agent).sample_rate().is_some());
    app.world_mut().get_mut::<Speaking>(agent).unwrap().take_reader().unwrap()
}

/// Plays exactly this many samples of speech.
fn play(app: &mut App, reader: &mut MouthReader, mut samples: usize) {
    let mut block = [0.0; 64];
    run_until(app, |_| {
        let count = samples.min(block.len());
        samples -= reader.read(&mut block[..count]);
        samples == 0
    });
    updates(app, 2);
}

/// Plays all speech. Returns its samples.
fn play_all(app: &mut App, agent: Entity, reader: &mut MouthReader) -> usize {
    let mut played = 0;
    run_until(app, |app| {
        played += reader.read(&mut [0.0; 64]);
        !speaking(app, agent).is_speaking()
    });
    played
}

fn ends(app: &App) -> Vec<&str> {
    seen(app).into_iter().filter(|line| line.starts_with("end")).collect()
}

fn run_to_silence(app: &mut App, agent: Entity) {
    run_until(app, |app| !speaking(app, agent).is_speaking());
}

#[test]
fn a_reply_is_spoken_and_its_events_follow_the_playback() {
    let mut app = with_voices("Ab. C.");
    let greta = greta(&mut app);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    updates(&mut app, 5);
    assert_eq!(seen(&app), [""; 0], "nothing was played");
    play(&mut app, &mut reader, 1);
    assert_eq!(seen(&app), ["begin Ab.", "aa", "A"]);
    assert_eq!(speaking(&app, greta).shape(), MouthShape::Aa);
    assert_eq!(speaking(&app, greta).sentence(), Some("Ab."));
    play(&mut app, &mut reader, PIECE);
    assert_eq!(seen(&app)[3..], ["b"]);
    play(&mut app, &mut reader, 2 * PIECE - 1);
    assert_eq!(seen(&app)[4..], [".", "end Ab. Spoken", "sil"]);
    play(&mut app, &mut reader, 2 * PIECE);
    let rest = ["begin C.", "aa", "C", ".", "end C. Spoken", "sil"];
    assert_eq!(seen(&app)[7..], rest);
    assert!(!speaking(&app, greta).is_speaking());
    assert_eq!(speaking(&app, greta).shape(), MouthShape::Silence);
}

#[test]
fn without_a_mixer_mouths_move_at_the_pace_of_the_time() {
    let mut app = with_voices("Ab.");
    let greta = greta(&mut app);
    reply(&mut app, greta);
    run_to_silence(&mut app, greta);
    assert_eq!(seen(&app), ["begin Ab.", "aa", "A", "b", ".", "end Ab. Spoken", "sil"]);
}

fn last_turn(app: &App, agent: Entity) -> Option<String> {
    turns(app, agent).last().cloned()
}

#[test]
fn an_interrupt_keeps_what_was_heard() {
    for (letters, kept, heard) in [
        (0.4, None, 0),
        (1.6, Some("Ab"), 2),
        (3.0, Some("Ab."), 0),
        (3.4, Some("Ab. "), 0),
        (4.6, Some("Ab. Cd"), 2),
    ] {
        let mut app = with_voices("Ab. Cde. F.");
        let greta = greta(&mut app);
        let mut reader = reader(&mut app, greta);
        reply(&mut app, greta);
        play(&mut app, &mut reader, (letters * PIECE as f64) as usize);
        app.world_mut().trigger(Interrupt { agent: greta });
        updates(&mut app, 3);
        let turn = last_turn(&app, greta);
        let kept = kept.map(str::trim_end);
        assert_eq!(turn.as_deref().map(str::trim_end), kept, "{letters} letters");
        let ends = ends(&app);
        assert_eq!(ends.len(), 3, "{ends:?}");
        let interrupted = format!("Interrupted {{ heard_bytes: {heard} }}");
        assert!(ends.iter().any(|end| end.ends_with(&interrupted)), "{ends:?} of {letters}");
        assert!(!speaking(&app, greta).is_speaking());
        assert_eq!(reader.read(&mut [0.0; 100]), 0, "it is silent at once");
        // The next reply is spoken.
        app.world_mut().resource_mut::<Seen>().0.clear();
        reply(&mut app, greta);
        play(&mut app, &mut reader, 1);
        assert_eq!(seen(&app), ["begin Ab.", "aa", "A"]);
    }
}

#[test]
fn an_interrupt_within_a_reply_keeps_the_spoken_sentences() {
    let words = "one two three four five six seven eight nine ten";
    for is_spoken in [false, true] {
        let mut app = with_voices(&format!("Ab. {words} {words} {words}"));
        let greta = greta(&mut app);
        let mut reader = reader(&mut app, greta);
        ask(&mut app, greta, "Hi.");
        let (mut played, goal) = (0, if is_spoken { 3 * PIECE } else { 0 });
        run_until(&mut app, |app| speaking(app, greta).is_speaking());
        updates(&mut app, 1);
        while played < goal {
            played += reader.read(&mut [0.0; 3 * PIECE][..goal - played]);
            std::thread::sleep(Duration::from_millis(1));
        }
        updates(&mut app, 2);
        assert_eq!(speaking(&app, greta).is_speaking(), !is_spoken);
        assert_eq!(log(&app).ends(), 0, "the reply goes on");
        app.world_mut().trigger(Interrupt { agent: greta });
        run_until(&mut app, |app| log(app).ends() == 1);
        updates(&mut app, 3);
        let kept = is_spoken.then_some("Ab.");
        assert_eq!(last_turn(&app, greta).as_deref(), kept);
    }
}

#[test]
fn an_interrupted_reply_is_not_spoken_further() {
    for updates_before in 0..8 {
        let sentences: String = ('a'..='z').map(|letter| format!("Say {letter}. ")).collect();
        let mut app = with_voices(&sentences);
        let greta = greta(&mut app);
        let _reader = reader(&mut app, greta);
        ask(&mut app, greta, "Hi.");
        run_until(&mut app, |app| speaking(app, greta).is_speaking());
        updates(&mut app, updates_before);
        assert_eq!(log(&app).ends(), 0, "the reply goes on");
        app.world_mut().trigger(Interrupt { agent: greta });
        run_until(&mut app, |app| {
            assert!(!speaking(app, greta).is_speaking(), "{updates_before}");
            log(app).ends() == 1
        });
        updates(&mut app, 3);
        assert!(!speaking(&app, greta).is_speaking(), "{updates_before}");
        // The next reply is spoken.
        ask(&mut app, greta, "And now?");
        run_until(&mut app, |app| speaking(app, greta).is_speaking());
    }
}

#[test]
fn an_interrupt_between_cues_keeps_what_was_heard() {
    let mut app = with_voices("*smiles* Ab *nods* cd. (sighs) E.");
    let greta = greta(&mut app);
    app.world_mut().entity_mut(greta).insert(AgentCues(Cues::new()));
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    // "Ab " and a part of "cd".
    play(&mut app, &mut reader, 3 * PIECE + PIECE * 7 / 10);
    app.world_mut().trigger(Interrupt { agent: greta });
    updates(&mut app, 3);
    assert_eq!(last_turn(&app, greta).as_deref(), Some("*smiles* Ab *nods* c"));
}

#[test]
fn what_is_no_part_of_the_conversation_is_not_spoken() {
    let mut app = with_voices("Ab. Cd. Ef. Gh.");
    let greta = greta(&mut app);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut reader, 1);
    // The voice continues up to there.
    app.world_mut().trigger(bevy_walla::ask::Cancel::heard(greta, 7));
    updates(&mut app, 3);
    let played = play_all(&mut app, greta, &mut reader);
    assert_eq!(played, 6 * PIECE - 1, "two sentences");
    assert_eq!(last_turn(&app, greta).as_deref(), Some("Ab. Cd."));
}

#[test]
fn each_sentence_ends_once_also_if_it_cannot_be_spoken() {
    // The voice panics at a question and fails at a call.
    let mut app = with_voices("Ab. C? D! E.");
    let greta = greta(&mut app);
    let silent = app.world_mut().spawn((Agent::persona("B"), Voice::default())).id();
    let missing = Voice::file("voices/no.onnx");
    let missing = app.world_mut().spawn((Agent::persona("C"), missing)).id();
    for agent in [greta, silent, missing] {
        app.world_mut().resource_mut::<Seen>().0.clear();
        reply(&mut app, agent);
        run_to_silence(&mut app, agent);
        let ends = ends(&app);
        assert_eq!(ends.len(), 4, "{ends:?}");
        let failed = |index: usize| ends[index].contains("Failed");
        let of_greta = agent == greta;
        assert_eq!([0, 1, 2, 3].map(failed), [!of_greta, true, true, !of_greta], "{ends:?}");
        assert_eq!(speaking(&app, agent).shape(), MouthShape::Silence);
    }
}

#[test]
fn another_voice_ends_the_sentence() {
    let mut app = with_voices("Ab. C.");
    let greta = greta(&mut app);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut reader, PIECE);
    let other = Arc::<Letters>::default();
    app.world_mut().get_mut::<Voice>(greta).unwrap().source = VoiceSource::Synthesizer(other);
    updates(&mut app, 3);
    assert_eq!(reader.read(&mut [0.0; 100]), 0);
    reply(&mut app, greta);
    run_to_silence(&mut app, greta);
    assert_eq!(seen(&app).last(), Some(&"sil"));
    app.world_mut().entity_mut(greta).remove::<Voice>();
    reply(&mut app, greta);
    updates(&mut app, 3);
    assert!(!speaking(&app, greta).is_speaking());
}

/// An app with a listener, and its microphone.
fn with_listener(
    listener: impl FnOnce(VoiceListener) -> VoiceListener,
) -> (App, Entity, Entity, Microphone) {
    let mut app = with_voices("Abcdefghijklmnop.");
    let greta = greta(&mut app);
    let ear =
        VoiceListener::of(Arc::<Milliseconds>::default(), || Box::<Loud>::default()).asks(greta);
    app.add_observer(|_: On<HearingStarted>, mut seen: ResMut<Seen>| seen.0.push("hears".into()))
        .add_observer(|its: On<HearingPartial>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("partly {}", its.text));
        })
        .add_observer(|its: On<Heard>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("heard {}", its.text));
        })
        .add_observer(|its: On<HearingDropped>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("dropped {:?}", its.reason));
        })
        .add_observer(|its: On<HearingFailed>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("failed {}", its.reason));
        });
    let listener = app.world_mut().spawn(listener(ear)).id();
    updates(&mut app, 2);
    let microphone = app.world_mut().get_mut::<ListenerEar>(listener).unwrap().take_microphone();
    (app, greta, listener, microphone.unwrap())
}

/// Speech of this many milliseconds, or silence.
fn push(app: &mut App, microphone: &mut Microphone, milliseconds: usize, level: f32) {
    for _ in 0..milliseconds / 16 {
        microphone.push(&[level; 256], 16_000);
    }
    updates(app, 1);
}

fn index_of(app: &App, wanted: &str) -> Option<usize> {
    seen(app).iter().position(|line| line.starts_with(wanted))
}

#[test]
fn what_a_player_says_is_an_ask() {
    let (mut app, greta, _, mut microphone) = with_listener(|it| it);
    push(&mut app, &mut microphone, 640, 0.5);
    push(&mut app, &mut microphone, 800, 0.0);
    run_until(&mut app, |app| log(app).ends() == 1);
    assert!(index_of(&app, "hears") < index_of(&app, "heard 640"), "{:?}", seen(&app));
    assert_eq!(turns(&app, greta)[0], "640");
    let noise = seen(&app).len();
    push(&mut app, &mut microphone, 64, 0.5);
    push(&mut app, &mut microphone, 800, 0.0);
    run_until(&mut app, |app| seen(app)[noise..].contains(&"dropped Short"));
    assert_eq!(log(&app).ends(), 1);
}

#[test]
fn a_player_who_speaks_interrupts_the_agent_by_the_setting() {
    for barge_in in [BargeIn::Never, BargeIn::Words, BargeIn::Speech] {
        let (mut app, greta, _, mut microphone) = with_listener(|it| it.with_barge_in(barge_in));
        let mut reader = reader(&mut app, greta);
        reply(&mut app, greta);
        play(&mut app, &mut reader, 2 * PIECE + 900);
        push(&mut app, &mut microphone, 320, 0.5);
        run_until(&mut app, |app| index_of(app, "hears").is_some());
        updates(&mut app, 3);
        let interrupted = |app: &App| index_of(app, "end Abc").is_some();
        assert_eq!(interrupted(&app), barge_in == BargeIn::Speech);
        push(&mut app, &mut microphone, 1280, 0.5);
        run_until(&mut app, |app| index_of(app, "partly").is_some());
        updates(&mut app, 3);
        assert_eq!(interrupted(&app), barge_in != BargeIn::Never);
        push(&mut app, &mut microphone, 800, 0.0);
        run_until(&mut app, |app| log(app).ends() == 2);
        let heard = if barge_in == BargeIn::Never { "Abcdefghijklmnop." } else { "Abc" };
        assert_eq!(turns(&app, greta)[1], heard, "{barge_in:?}");
        assert_eq!(turns(&app, greta)[2], "1600");
    }
}

#[test]
fn a_deaf_listener_does_not_hear_the_agent() {
    let (mut app, greta, listener, mut microphone) =
        with_listener(|it| VoiceListener { is_deaf_to_agent: true, ..it });
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut reader, PIECE);
    push(&mut app, &mut microphone, 800, 0.5);
    std::thread::sleep(Duration::from_millis(50));
    updates(&mut app, 3);
    assert_eq!(index_of(&app, "hears"), None);
    let ear = |app: &App| app.world().get::<ListenerEar>(listener).unwrap().is_speech();
    assert!(!ear(&app));
    app.world_mut().trigger(Interrupt { agent: greta });
    updates(&mut app, 2);
    push(&mut app, &mut microphone, 320, 0.5);
    run_until(&mut app, |app| index_of(app, "hears").is_some());
}

#[test]
fn a_listener_says_why_it_cannot_hear() {
    let mut app = with_voices("A.");
    app.add_observer(|its: On<HearingFailed>, mut seen: ResMut<Seen>| {
        seen.0.push(format!("failed {}", its.reason));
    });
    app.world_mut().spawn(VoiceListener::new("no/model"));
    run_until(&mut app, |app| index_of(app, "failed").is_some());
    updates(&mut app, 5);
    assert_eq!(seen(&app).len(), 1, "once");
}

#[test]
fn members_of_a_group_wait_for_the_voice_and_keep_what_was_heard() {
    use bevy_walla::groups::{Group, GroupLine, GroupSay, MemberOf, WallaGroupPlugin};
    let mut app = with_voices("Ab. Cd.");
    app.add_plugins(WallaGroupPlugin).add_observer(
        |line: On<GroupLine>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("line {}: {}", line.name, line.text));
        },
    );
    let table = app.world_mut().spawn(Group { max_lines: 2, ..Group::default() }).id();
    let members = ["Greta", "Odo"].map(|name| {
        let member = greta(&mut app);
        app.world_mut().entity_mut(member).insert((Name::new(name), MemberOf(table)));
        member
    });
    let mut readers = members.map(|member| reader(&mut app, member));
    app.world_mut().trigger(GroupSay::new(table, "Alice", "Greta, what is the news?"));
    run_until(&mut app, |app| index_of(app, "line Greta").is_some());
    play(&mut app, &mut readers[0], PIECE);
    updates(&mut app, 20);
    assert_eq!((log(&app).ends(), index_of(&app, "line Odo")), (1, None), "Greta speaks");
    // She is interrupted in her second sentence.
    play(&mut app, &mut readers[0], 3 * PIECE);
    app.world_mut().trigger(GroupSay::new(table, "Alice", "Odo, is it true?"));
    run_until(&mut app, |app| index_of(app, "line Odo").is_some());
    let greta = turns(&app, members[0]);
    assert_eq!(greta[..2], ["Greta, what is the news?", "Ab. C"], "{greta:?}");
    let odo = turns(&app, members[1]);
    assert_eq!(odo, ["Greta, what is the news?", "Ab. C", "Odo, is it true?", "Ab. Cd."]);
    // The voice of Odo is not read until then.
    updates(&mut app, 20);
    assert_eq!(log(&app).ends(), 2);
    play(&mut app, &mut readers[1], 6 * PIECE);
    run_until(&mut app, |app| log(app).ends() == 3);
}

/// The recording has the asks and the replies; the seeds follow from them.
#[test]
fn a_replay_has_the_same_speech() {
    use bevy_walla::engines::EngineSetup;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evening.wrec");
    let engine = ScriptedEngine::new(|_, question| format!("Ab. {question} Ab."));
    let spoken = |plugin: WallaPlugin| {
        let mut app = App::new();
        app.add_plugins((plugin, WallaVoicePlugin::default())).init_resource::<Log>();
        let voice = Arc::<Letters>::default();
        let component = Voice { seed: 7, ..Voice::of(Arc::clone(&voice) as _) };
        let agent = app.world_mut().spawn((Agent::persona("Greta"), component)).id();
        updates(&mut app, 3);
        for question in ["Cd.", "Ef."] {
            app.world_mut().trigger(Ask::new(agent, question));
            updates(&mut app, 20);
            run_to_silence(&mut app, agent);
        }
        drop(app);
        voice.seeds.lock().unwrap().clone()
    };
    let first = spoken(WallaPlugin::new(&engine).record_to(&file));
    let texts: Vec<&str> = first.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["Ab.", "Cd.", "Ab.", "Ab.", "Ef.", "Ab."]);
    let mut seeds: Vec<u64> = first.iter().map(|(_, seed)| *seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 6, "a repeated text varies");
    assert_eq!(spoken(WallaPlugin::new(EngineSetup::replay_from(&file))), first);
}
