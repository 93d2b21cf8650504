//! Voices and hosts that misbehave, and the part of a reply that is kept then.

use std::collections::HashMap;

use bevy_walla::voice::{
    RecognizerSource, Say, SegmentOptions, SpeakOptions, SpeechSynthesizer, Step, Timed, Timing,
    Utterance, VoiceError,
};

use super::*;

/// A piece of work of a [`Script`].
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// The times: each byte of the text is a word of `PIECE` samples.
    Times,
    Samples(usize),
    Fail,
}

/// A voice with the same pieces for each text; none for a text without letters. Its utterances may
/// panic on drop, which is outside of their steps.
#[derive(Clone, Debug)]
struct Script {
    pieces: Vec<Piece>,
    panics: bool,
}

impl SpeechSynthesizer for Script {
    fn sample_rate(&self) -> u32 {
        10_000
    }

    fn begin(
        self: Arc<Self>,
        text: &str,
        _: &SpeakOptions,
    ) -> Result<Box<dyn Utterance>, VoiceError> {
        let mut script = Self::clone(&self);
        if !text.chars().any(char::is_alphabetic) {
            script.pieces.clear();
        }
        script.pieces.reverse();
        Ok(Box::new(Acting { script, bytes: text.len() }))
    }
}

#[derive(Debug)]
struct Acting {
    script: Script,
    bytes: usize,
}

impl Utterance for Acting {
    fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError> {
        match self.script.pieces.pop() {
            None => Ok(Step::Ended),
            Some(Piece::Fail) => Err(VoiceError::Failed("scripted".to_owned())),
            Some(Piece::Samples(count)) => {
                out.resize(out.len() + count, 0.1);
                Ok(Step::Working)
            }
            Some(Piece::Times) => {
                let at = |index: usize| (index * PIECE) as u64;
                let word =
                    |index| Timed { value: index..index + 1, start: at(index), end: at(index + 1) };
                let words = (0..self.bytes).map(word).collect();
                let samples = 0..at(self.bytes);
                Ok(Step::Planned(Timing { samples, words, ..Timing::default() }))
            }
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        assert!(!self.script.panics, "scripted");
    }
}

fn acting(app: &mut App, pieces: &[Piece], panics: bool) -> Entity {
    let script = Script { pieces: pieces.to_vec(), panics };
    let voice = Voice::of(Arc::new(script));
    app.world_mut().spawn((Agent::persona("Greta"), voice)).id()
}

/// Reads exactly this many samples while the game does not update.
fn stall(reader: &mut MouthReader, mut samples: usize) {
    let mut block = [0.0; 64];
    while samples > 0 {
        let count = samples.min(block.len());
        samples -= reader.read(&mut block[..count]);
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn what_was_heard_while_the_game_stalled_is_kept() {
    let mut app = with_voices("Ab cd ef. Gh.");
    let greta = greta(&mut app);
    let mut reader = reader(&mut app, greta);
    ask(&mut app, greta, "Hi.");
    run_until(&mut app, |app| log(app).ends() == 1);
    updates(&mut app, 1);
    stall(&mut reader, 8 * PIECE + 700);
    app.world_mut().trigger(Interrupt { agent: greta });
    updates(&mut app, 3);
    assert_eq!(last_turn(&app, greta).as_deref(), Some("Ab cd ef."));
    let [first, second] = ends(&app)[..] else { panic!("{:?}", seen(&app)) };
    assert_eq!(first, "end Ab cd ef. Interrupted { heard_bytes: 9 }");
    assert_eq!(second, "end Gh. Interrupted { heard_bytes: 0 }");
    assert_eq!(index_of(&app, "begin Ab cd ef."), Some(0));
}

#[test]
fn a_sentence_without_sound_is_not_heard_before_its_turn() {
    for text in ["Ab cd ef. 😀", "Ab cd ef. Gh."] {
        let mut app = with_voices(text);
        let greta = acting(&mut app, &[Piece::Times, Piece::Samples(9 * PIECE)], false);
        let mut reader = reader(&mut app, greta);
        reply(&mut app, greta);
        play(&mut app, &mut reader, PIECE + 700);
        std::thread::sleep(Duration::from_millis(20));
        updates(&mut app, 3);
        app.world_mut().trigger(Interrupt { agent: greta });
        updates(&mut app, 3);
        assert_eq!(last_turn(&app, greta).as_deref(), Some("Ab"), "{text}");
        assert!(ends(&app)[1].ends_with("heard_bytes: 0 }"), "{:?}", ends(&app));
    }
}

#[test]
fn a_cancel_within_the_reply_ends_the_sentences_behind_it() {
    let mut app = with_voices("Ab. Cd. Ef.");
    let greta = greta(&mut app);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut reader, 1);
    // The second sentence is in the mouth already.
    std::thread::sleep(Duration::from_millis(20));
    updates(&mut app, 3);
    app.world_mut().trigger(bevy_walla::ask::Cancel::heard(greta, 3));
    updates(&mut app, 3);
    let played = 1 + play_all(&mut app, greta, &mut reader);
    assert_eq!(played, 3 * PIECE);
    let texts: Vec<_> = ends(&app).iter().map(|end| &end[4..7]).collect();
    assert_eq!(texts, ["Ab.", "Cd.", "Ef."], "in order");
    // The next reply is spoken.
    reply(&mut app, greta);
    play(&mut app, &mut reader, 1);
    assert_eq!(seen(&app).last(), Some(&"A"));
}

#[test]
fn times_are_no_condition_of_a_voice() {
    let mut app = with_voices("One two three four.");
    let greta = acting(&mut app, &[Piece::Samples(4 * PIECE), Piece::Samples(4 * PIECE)], false);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut reader, 4 * PIECE);
    assert_eq!(seen(&app), ["begin One two three four."]);
    app.world_mut().trigger(Interrupt { agent: greta });
    updates(&mut app, 3);
    assert_eq!(last_turn(&app, greta).as_deref(), Some("One two"));
}

#[test]
fn a_sentence_that_fails_late_ends_behind_its_sound() {
    let mut app = with_voices("Ab. Cd.");
    let pieces = [Piece::Times, Piece::Samples(2 * PIECE), Piece::Fail];
    let greta = acting(&mut app, &pieces, false);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    std::thread::sleep(Duration::from_millis(20));
    updates(&mut app, 3);
    assert!(speaking(&app, greta).is_speaking());
    play(&mut app, &mut reader, 2 * PIECE);
    play_all(&mut app, greta, &mut reader);
    let order = ["begin Ab.", "end Ab. Failed", "begin Cd.", "end Cd. Failed"];
    let order = order.map(|line| index_of(&app, line).unwrap_or_else(|| panic!("{line}")));
    assert!(order.is_sorted(), "{:?}", seen(&app));
}

#[test]
fn a_mixer_that_drops_its_stream_gets_another_one() {
    let mut app = with_voices("Ab. Cd.");
    let greta = greta(&mut app);
    let mut first = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut first, PIECE);
    drop(first);
    run_to_silence(&mut app, greta);
    assert_eq!(ends(&app).len(), 2, "{:?}", seen(&app));
    let mut second = reader(&mut app, greta);
    reply(&mut app, greta);
    play(&mut app, &mut second, 1);
    assert_eq!(speaking(&app, greta).sentence(), Some("Ab."));
}

#[test]
fn each_sentence_of_an_interrupted_reply_has_an_end() {
    #[derive(Resource, Default)]
    struct Written(usize);
    for frames in 0..4 {
        let text: String = ('a'..='z').map(|letter| format!("Say {letter}. ")).collect();
        let mut app = with_voices(&text);
        app.init_resource::<Written>()
            .add_observer(|_: On<ReplySentence>, mut written: ResMut<Written>| written.0 += 1);
        let greta = greta(&mut app);
        let _reader = reader(&mut app, greta);
        ask(&mut app, greta, "Hi.");
        run_until(&mut app, |app| speaking(app, greta).is_speaking());
        updates(&mut app, frames);
        app.world_mut().trigger(Interrupt { agent: greta });
        run_until(&mut app, |app| log(app).ends() == 1);
        updates(&mut app, 3);
        assert_eq!(ends(&app).len(), app.world().resource::<Written>().0);
    }
}

#[test]
fn agents_that_lose_their_voice_or_their_life_end_their_sentences() {
    for despawns in [false, true] {
        let mut app = with_voices("Ab. Cd.");
        let greta = greta(&mut app);
        let mut reader = reader(&mut app, greta);
        reply(&mut app, greta);
        play(&mut app, &mut reader, PIECE);
        if despawns {
            app.world_mut().despawn(greta);
        } else {
            app.world_mut().entity_mut(greta).remove_with_requires::<Voice>();
        }
        updates(&mut app, 3);
        assert_eq!(ends(&app).len(), 2, "{:?}", seen(&app));
        assert_eq!(seen(&app).last(), Some(&"sil"));
        assert_eq!(reader.read(&mut [0.0; 64]), 0);
    }
}

#[test]
fn a_voice_that_panics_outside_of_its_work_harms_no_other_one() {
    let mut app = with_voices("Ab.");
    let bad = acting(&mut app, &[Piece::Times, Piece::Samples(PIECE)], true);
    let good = greta(&mut app);
    let mut mixer = reader(&mut app, good);
    for _ in 0..3 {
        reply(&mut app, bad);
        run_to_silence(&mut app, bad);
        assert_eq!(ends(&app).len(), 1, "{:?}", seen(&app));
        app.world_mut().resource_mut::<Seen>().0.clear();
        reply(&mut app, good);
        play(&mut app, &mut mixer, 3 * PIECE);
        run_to_silence(&mut app, good);
        assert_eq!(seen(&app), ["begin Ab.", "aa", "A", "b", ".", "end Ab. Spoken", "sil"]);
        app.world_mut().resource_mut::<Seen>().0.clear();
    }
}

#[test]
fn hundreds_of_voices_may_begin_in_one_frame() {
    let mut app = with_voices("A.");
    let slow = Letters { time: Duration::from_millis(200), ..Letters::default() };
    let slow = app.world_mut().spawn((Agent::persona("Odo"), Voice::of(Arc::new(slow)))).id();
    reply(&mut app, slow);
    updates(&mut app, 2);
    let agents: Vec<Entity> = (0..300).map(|_| greta(&mut app)).collect();
    for agent in &agents {
        ask(&mut app, *agent, "Hi.");
    }
    run_until(&mut app, |app| log(app).ends() == 301);
    for agent in agents {
        run_to_silence(&mut app, agent);
    }
    assert!(ends(&app).iter().all(|end| end.ends_with("Spoken")), "{:?}", ends(&app));
}

#[test]
fn a_player_who_goes_on_before_the_answer_sounds_asks_with_all_words() {
    for stalls in [true, false] {
        let (mut app, greta, _, mut microphone) = with_listener(|it| it);
        let mut reader = reader(&mut app, greta);
        reply(&mut app, greta);
        play(&mut app, &mut reader, PIECE + 400);
        let mut push = |app: &mut App, milliseconds: usize, level: f32| {
            for _ in 0..milliseconds / 16 {
                microphone.push(&[level; 256], 16_000);
                std::thread::sleep(Duration::from_micros(500));
            }
            if !stalls {
                updates(app, 2);
            }
        };
        push(&mut app, 1600, 0.5);
        push(&mut app, 800, 0.0);
        std::thread::sleep(Duration::from_millis(50));
        push(&mut app, 320, 0.5);
        std::thread::sleep(Duration::from_millis(100));
        updates(&mut app, 1);
        push(&mut app, 800, 0.0);
        let asked = |app: &App| turns(app, greta).contains(&"1600 320".to_owned());
        run_until(&mut app, |app| asked(app));
        assert_eq!(turns(&app, greta)[..2], ["Hi.", "A"], "{stalls}");
        // A noise ends the answer and has no words.
        push(&mut app, 64, 0.5);
        push(&mut app, 800, 0.0);
        run_until(&mut app, |app| index_of(app, "dropped").is_some());
        updates(&mut app, 3);
        assert!(asked(&app));
    }
}

#[test]
fn a_listener_without_its_component_or_disabled_hears_nothing() {
    for is_disabled in [false, true] {
        let (mut app, greta, listener, mut microphone) = with_listener(|it| it);
        let settings = app.world().get::<VoiceListener>(listener).unwrap().clone();
        let mut entity = app.world_mut().entity_mut(listener);
        if is_disabled {
            entity.insert(bevy_ecs::entity_disabling::Disabled);
        } else {
            entity.remove::<VoiceListener>();
        }
        updates(&mut app, 2);
        for _ in 0..3 {
            push(&mut app, &mut microphone, 640, 0.5);
            push(&mut app, &mut microphone, 800, 0.0);
        }
        std::thread::sleep(Duration::from_millis(50));
        updates(&mut app, 2);
        let mut entity = app.world_mut().entity_mut(listener);
        entity.remove::<bevy_ecs::entity_disabling::Disabled>();
        if !is_disabled {
            entity.insert(settings);
        }
        updates(&mut app, 5);
        assert_eq!((index_of(&app, "heard"), turns(&app, greta).len()), (None, 0));
        if !is_disabled {
            let mut ear = app.world_mut().get_mut::<ListenerEar>(listener).unwrap();
            microphone = ear.take_microphone().unwrap();
        }
        push(&mut app, &mut microphone, 640, 0.5);
        push(&mut app, &mut microphone, 800, 0.0);
        run_until(&mut app, |app| index_of(app, "heard 640").is_some());
    }
}

#[test]
fn a_listener_is_tried_again_when_its_settings_change() {
    let too_long =
        SegmentOptions { max_length: Duration::from_secs(99), ..SegmentOptions::default() };
    let mut app = with_voices("A.");
    let ear = VoiceListener::of(Arc::<Milliseconds>::default(), || Box::<Loud>::default());
    let listener = app.world_mut().spawn(VoiceListener { segments: too_long, ..ear }).id();
    app.add_observer(|its: On<HearingFailed>, mut seen: ResMut<Seen>| {
        seen.0.push(format!("failed {}", its.reason));
    });
    app.add_observer(|its: On<HearingDropped>, mut seen: ResMut<Seen>| {
        seen.0.push(format!("dropped {:?}", its.reason));
    });
    updates(&mut app, 5);
    assert!(seen(&app).len() == 1 && seen(&app)[0].contains("max_length"), "{:?}", seen(&app));
    let mut settings = app.world_mut().get_mut::<VoiceListener>(listener).unwrap();
    settings.segments = SegmentOptions::default();
    updates(&mut app, 2);
    let mut ear = app.world_mut().get_mut::<ListenerEar>(listener).unwrap();
    let mut microphone = ear.take_microphone().unwrap();
    // Another recogniser in the middle of an utterance.
    push(&mut app, &mut microphone, 640, 0.5);
    run_until(&mut app, |app| app.world().get::<ListenerEar>(listener).unwrap().is_speech());
    updates(&mut app, 1);
    let mut settings = app.world_mut().get_mut::<VoiceListener>(listener).unwrap();
    settings.recognizer = RecognizerSource::Recognizer(Arc::<Milliseconds>::default());
    updates(&mut app, 2);
    assert_eq!(seen(&app).last(), Some(&"dropped Stopped"));
}

#[test]
fn fixed_lines_are_spoken_between_replies_and_are_no_conversation() {
    let mut app = with_voices("Ab.");
    let greta = greta(&mut app);
    let mut reader = reader(&mut app, greta);
    reply(&mut app, greta);
    app.world_mut().trigger(Say { tag: 7, ..Say::new(greta, "Cd.") });
    app.world_mut().trigger(Say::new(greta, "Ef."));
    play(&mut app, &mut reader, 4 * PIECE);
    assert_eq!(speaking(&app, greta).sentence(), Some("Cd."));
    app.world_mut().trigger(Interrupt { agent: greta });
    updates(&mut app, 3);
    let [first, second, third] = ends(&app)[..] else { panic!("{:?}", seen(&app)) };
    assert_eq!(first, "end Ab. Spoken");
    assert_eq!(second, "end Cd. Interrupted { heard_bytes: 1 }");
    assert_eq!(third, "end Ef. Interrupted { heard_bytes: 0 }");
    assert_eq!(turns(&app, greta), ["Hi.", "Ab."]);
}

/// Random histories: each sentence has one end, in the order of the sentences.
#[test]
fn sentences_end_once_and_in_order_after_any_history() {
    #[derive(Resource, Default)]
    struct Model(HashMap<Entity, [Vec<String>; 2]>);
    let texts = ["Ab. Cd. Ef.", "Say a. Say b? Say c! Say d.", "Ok.", "😀 😀.", "Äö ü. Ñandú."];
    for seed in 0..6_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut dice = |sides: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % sides
        };
        let mut app = app(&ScriptedEngine::new(move |_, question| {
            texts[question.len() % texts.len()].to_owned()
        }));
        app.add_plugins(WallaVoicePlugin::default())
            .init_resource::<Model>()
            .add_observer(
                |its: On<ReplySentence>,
                 voices: Query<(), With<Voice>>,
                 mut model: ResMut<Model>| {
                    if voices.contains(its.agent) {
                        let [said, _] = model.0.entry(its.agent).or_default();
                        said.push(its.text.to_string());
                    }
                },
            )
            .add_observer(|its: On<SpeechEnded>, mut model: ResMut<Model>| {
                let [_, ended] = model.0.entry(its.agent).or_default();
                ended.push(its.text.to_string());
            });
        let agents: Vec<Entity> = (0..6).map(|_| greta(&mut app)).collect();
        let mut readers = HashMap::new();
        for _ in 0..120 {
            let agent = agents[dice(6) as usize];
            match dice(10) {
                0..=2 => ask(&mut app, agent, &"x".repeat(dice(20) as usize + 1)),
                3 => app.world_mut().trigger(Interrupt { agent }),
                4 => {
                    let heard = dice(20) as u32;
                    app.world_mut().trigger(bevy_walla::ask::Cancel::heard(agent, heard));
                }
                5 => app.world_mut().trigger(bevy_walla::ask::Cancel::new(agent)),
                6 => {
                    app.world_mut().entity_mut(agent).remove::<Voice>();
                }
                7 => {
                    let voice = Voice::of(Arc::<Letters>::default());
                    app.world_mut().entity_mut(agent).insert(voice);
                }
                8 => {
                    let mut speaking = app.world_mut().get_mut::<Speaking>(agent).unwrap();
                    if let Some(reader) = speaking.take_reader() {
                        readers.insert(agent, reader);
                    }
                }
                _ => drop(readers.remove(&agent)),
            }
            for reader in readers.values_mut() {
                reader.read(&mut vec![0.0; dice(3000) as usize]);
            }
            updates(&mut app, dice(4) as usize);
        }
        run_until(&mut app, |app| {
            for reader in readers.values_mut() {
                reader.read(&mut [0.0; 4000]);
            }
            let is_silent = |agent: &Entity| {
                let speech = app.world().get::<Speech>(*agent).unwrap();
                !speaking(app, *agent).is_speaking() && speech.is_silent()
            };
            agents.iter().all(is_silent)
        });
        updates(&mut app, 3);
        for [said, ended] in app.world().resource::<Model>().0.values() {
            assert_eq!(said, ended, "seed {seed}");
        }
    }
}
