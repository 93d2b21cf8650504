use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use walla_voice::{
    DropReason, Ear, EarEvent, EarOptions, Microphone, MouthOptions, Recognition, RecognizeOptions,
    SegmentOptions, SpeakOptions, SpeechRecognizer, Transcript, VoiceEngine, VoiceError,
    VoiceOptions,
};

use crate::common::{
    DefectiveHearing, Dropped, Letters, Loud, Milliseconds, letters, read_all, wait,
};

fn ear(recognizer: &Arc<Milliseconds>, options: EarOptions) -> (Ear, Microphone) {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    engine.ear(Arc::clone(recognizer) as _, Box::new(Loud), options).unwrap()
}

/// Pushes sound of a level, as fast as the thread takes it.
fn push(microphone: &mut Microphone, ms: usize, level: f32) {
    for _ in 0..ms / 10 {
        wait(|| (microphone.room() > 4096).then_some(()));
        microphone.push(&[level; 160], 16_000);
    }
}

/// Everything until the ear has ended.
fn events(mut ear: Ear) -> Vec<String> {
    let mut events = Vec::new();
    wait(|| {
        while let Some(event) = ear.try_event() {
            events.push(match event {
                EarEvent::Begun { .. } => "begun".to_owned(),
                EarEvent::Partial { text } => format!("partial {text}"),
                EarEvent::Final { transcript, .. } => format!("final {}", transcript.text),
                EarEvent::Dropped { reason } => format!("{reason:?}"),
                EarEvent::Lost { .. } => "lost".to_owned(),
                EarEvent::Failed(_) => "failed".to_owned(),
                other => format!("{other:?}"),
            });
        }
        ear.has_ended().then_some(())
    });
    events
}

#[test]
fn utterances_become_texts() {
    let recognizer = Arc::new(Milliseconds::default());
    let options = EarOptions { partial_every: None, ..EarOptions::default() };
    let (mut ear, mut microphone) = ear(&recognizer, options);
    for (ms, text) in [(1000, "1000"), (2000, "2000")] {
        push(&mut microphone, 1000, 0.0);
        push(&mut microphone, ms, 0.5);
        push(&mut microphone, 1000, 0.0);
        assert!(matches!(wait(|| ear.try_event()), EarEvent::Begun { .. }));
        let EarEvent::Final { transcript, .. } = wait(|| ear.try_event()) else { panic!() };
        assert_eq!(transcript.text, text);
    }
    // The last one ends with the microphone.
    push(&mut microphone, 800, 0.5);
    drop(microphone);
    assert_eq!(events(ear), ["begun", "final 800"]);
}

#[test]
fn a_pause_is_recognised_in_advance() {
    let recognizer = Arc::new(Milliseconds::default());
    let segments =
        SegmentOptions { end_silence: Duration::from_millis(1000), ..SegmentOptions::default() };
    let options = EarOptions { partial_every: None, segments, ..EarOptions::default() };
    let (mut ear, mut microphone) = ear(&recognizer, options);
    push(&mut microphone, 1000, 0.5);
    push(&mut microphone, 400, 0.0);
    wait(|| (recognizer.steps.load(Ordering::SeqCst) == 3).then_some(()));
    assert!(matches!(ear.try_event(), Some(EarEvent::Begun { .. })));
    assert!(ear.is_speech() && ear.try_event().is_none(), "the utterance has not ended");
    // The speaker continues: the text is a partial one.
    push(&mut microphone, 500, 0.5);
    let Some(EarEvent::Partial { text }) = Some(wait(|| ear.try_event())) else { panic!() };
    assert_eq!(text, "1000");
    // The final text is there before the utterance ends, and is not recognised twice.
    push(&mut microphone, 900, 0.0);
    wait(|| (recognizer.steps.load(Ordering::SeqCst) == 6).then_some(()));
    push(&mut microphone, 200, 0.0);
    let EarEvent::Final { transcript, start, end, silence } = wait(|| ear.try_event()) else {
        panic!()
    };
    assert!((990..1010).contains(&silence.as_millis()), "{silence:?}");
    assert_eq!(transcript.text, "1500");
    assert_eq!(start, Duration::ZERO);
    assert!((2850..2950).contains(&end.as_millis()), "{end:?}");
    assert_eq!(recognizer.begun.load(Ordering::SeqCst), 2);
    assert!(!ear.is_speech());
}

/// A recogniser that returns this text at once, and counts.
#[derive(Debug)]
struct Says(&'static str, Arc<AtomicUsize>);

impl SpeechRecognizer for Says {
    fn max_samples(&self) -> usize {
        30 * 16_000
    }

    fn begin(
        self: Arc<Self>,
        _: &[f32],
        _: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError> {
        Ok(Box::new(AtOnce(self)))
    }
}

#[derive(Debug)]
struct AtOnce(Arc<Says>);

impl Recognition for AtOnce {
    fn step(&mut self) -> Result<Option<Transcript>, VoiceError> {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Transcript { text: self.0.0.to_owned(), ..Transcript::default() }))
    }
}

/// The silence behind an utterance with this text, in milliseconds.
fn silence_behind(text: &'static str, sentence_silence: Option<Duration>) -> u128 {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let options = EarOptions { partial_every: None, sentence_silence, ..EarOptions::default() };
    let count = Arc::new(AtomicUsize::new(0));
    let recognizer = Arc::new(Says(text, Arc::clone(&count)));
    let (mut ear, mut microphone) = engine.ear(recognizer, Box::new(Loud), options).unwrap();
    push(&mut microphone, 1000, 0.5);
    push(&mut microphone, 100, 0.0);
    wait(|| (count.load(Ordering::SeqCst) == 1).then_some(()));
    push(&mut microphone, 900, 0.0);
    wait(|| match ear.try_event() {
        Some(EarEvent::Final { end, .. }) => Some(end.as_millis() - 1000),
        _ => None,
    })
}

#[test]
fn a_whole_sentence_ends_sooner() {
    let sentence_silence = EarOptions::default().sentence_silence;
    let sentence = silence_behind("Do you sell swords?", sentence_silence);
    assert!((130..160).contains(&sentence), "{sentence}");
    for (text, silence) in [("Good morning.", sentence_silence), ("Do you sell swords?", None)] {
        let silence = silence_behind(text, silence);
        assert!((500..600).contains(&silence), "{text} {silence}");
    }
}

#[test]
fn partial_texts_come_while_someone_speaks() {
    let recognizer = Arc::new(Milliseconds::default());
    let partial_every = Some(Duration::from_millis(500));
    let options = EarOptions { partial_every, ..EarOptions::default() };
    let (ear, mut microphone) = ear(&recognizer, options);
    for _ in 0..30 {
        push(&mut microphone, 100, 0.5);
        // The text is there before more is said.
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(microphone);
    let events = events(ear);
    let partial = events.iter().filter(|event| event.starts_with("partial")).count();
    assert!((2..=6).contains(&partial), "{events:?}");
    assert_eq!(events.last().unwrap(), "final 3000");
}

#[test]
fn utterances_without_a_text_have_a_reason() {
    let options = EarOptions { partial_every: None, ..EarOptions::default() };
    let recognizer = Arc::new(Milliseconds::default());
    let (ear, mut microphone) = ear(&recognizer, options.clone());
    // Short; without words; the recogniser fails; the detector fails.
    for (ms, level) in [(100, 0.5), (1000, 0.0), (6000, 0.5), (1000, 0.0), (500, 0.25), (1000, 0.0)]
    {
        push(&mut microphone, ms, level);
    }
    push(&mut microphone, 20, 0.125);
    push(&mut microphone, 500, 0.5);
    drop(microphone);
    let mut events = events(ear);
    // Texts come when they are ready: the next utterance may have begun.
    events.sort();
    events.dedup();
    assert_eq!(events, ["Failed", "NoWords", "Short", "begun", "failed", "final 520"]);
    let unclear = Arc::new(Milliseconds { log_probability: -1.5, ..Milliseconds::default() });
    let (ear, mut microphone) = self::ear(&unclear, options);
    push(&mut microphone, 500, 0.5);
    drop(microphone);
    assert_eq!(self::events(ear), ["begun", "Unclear"]);
    let _ = DropReason::Full;
}

#[test]
fn a_muted_ear_hears_nothing_and_bad_samples_are_silence() {
    let recognizer = Arc::new(Milliseconds::default());
    let (ear, mut microphone) = ear(&recognizer, EarOptions::default());
    ear.set_muted(true);
    push(&mut microphone, 1000, 0.5);
    wait(|| (microphone.room() == 480 * 512).then_some(()));
    ear.set_muted(false);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        push(&mut microphone, 1000, bad);
    }
    for rate in [0, 1, 3_999, u32::MAX] {
        microphone.push(&[0.5; 16_000], rate);
    }
    microphone.push(&[], 16_000);
    drop(microphone);
    assert_eq!(events(ear), Vec::<String>::new());
}

/// A recogniser that computes until the test lets it end.
#[derive(Debug, Default)]
struct Gate {
    is_computing: AtomicBool,
    held: Mutex<()>,
}

impl SpeechRecognizer for Gate {
    fn max_samples(&self) -> usize {
        30 * 16_000
    }

    fn begin(
        self: Arc<Self>,
        _: &[f32],
        _: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError> {
        Ok(Box::new(AtGate(self)))
    }
}

#[derive(Debug)]
struct AtGate(Arc<Gate>);

impl Recognition for AtGate {
    fn step(&mut self) -> Result<Option<Transcript>, VoiceError> {
        self.0.is_computing.store(true, Ordering::SeqCst);
        let _held = self.0.held.lock().unwrap();
        Ok(Some(Transcript { text: "Yes.".to_owned(), ..Transcript::default() }))
    }
}

#[test]
fn samples_that_nobody_takes_are_counted() {
    let recognizer = Arc::<Gate>::default();
    let held = recognizer.held.lock().unwrap();
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let made = engine.ear(Arc::clone(&recognizer) as _, Box::new(Loud), EarOptions::default());
    let (mut ear, mut microphone) = made.unwrap();
    push(&mut microphone, 500, 0.5);
    push(&mut microphone, 400, 0.0);
    wait(|| recognizer.is_computing.load(Ordering::SeqCst).then_some(()));
    // The thread takes nothing now. Blocks of any length take their samples, and another rate one.
    let room = microphone.room();
    for _ in 0..100 {
        microphone.push(&[0.0; 16], 16_000);
    }
    assert_eq!(microphone.room(), room - 1600);
    microphone.push(&[0.0; 16], 48_000);
    assert_eq!(microphone.room(), room - 1617);
    microphone.push(&vec![0.0; microphone.room() + 1000], 16_000);
    let lost = wait(|| match ear.try_event() {
        Some(EarEvent::Lost { samples }) => Some(samples),
        _ => None,
    });
    assert_eq!((lost, microphone.room()), (1000, 0));
    microphone.push(&[0.0; 7], 22_050);
    assert!(matches!(ear.try_event(), Some(EarEvent::Lost { samples: 7 })));
    drop(held);
    wait(|| matches!(ear.try_event(), Some(EarEvent::Final { .. })).then_some(()));
}

#[test]
fn rates_of_any_device_are_heard() {
    for rate in [8_000, 11_025, 22_050, 44_100, 48_000, 96_000] {
        let recognizer = Arc::new(Milliseconds::default());
        let (ear, mut microphone) =
            ear(&recognizer, EarOptions { partial_every: None, ..EarOptions::default() });
        // A tone: a level that changes is heard with ripples.
        let tone =
            |at: usize| 0.5 * (at as f32 * 440.0 * std::f32::consts::TAU / rate as f32).sin();
        let samples: Vec<f32> = (0..rate as usize * 3 / 2).map(tone).collect();
        for block in samples.chunks(333) {
            wait(|| (microphone.room() > 1024).then_some(()));
            microphone.push(block, rate);
        }
        drop(microphone);
        let events = events(ear);
        let [begun, text] = &events[..] else { panic!("{rate}: {events:?}") };
        assert_eq!(begun, "begun");
        let ms: usize = text.strip_prefix("final ").unwrap().parse().unwrap();
        assert!((1380..=1500).contains(&ms), "{rate}: {ms}");
    }
}

#[test]
fn wrong_options_are_errors() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    for max_length in [Duration::ZERO, Duration::from_secs(31), Duration::MAX] {
        let segments = SegmentOptions { max_length, ..SegmentOptions::default() };
        let options = EarOptions { segments, ..EarOptions::default() };
        let result = engine.ear(Arc::new(Milliseconds::default()), Box::new(Loud), options);
        assert!(matches!(result, Err(VoiceError::Option { .. })));
    }
    let default = SegmentOptions { max_length: Duration::from_secs(1), ..Default::default() };
    let (half, more) = (Duration::from_millis(500), Duration::from_millis(501));
    for (segments, is_right) in [
        (SegmentOptions { pre_roll: half, ..default.clone() }, true),
        (SegmentOptions { pre_roll: more, ..default.clone() }, false),
        (SegmentOptions { pre_roll: Duration::MAX, ..default.clone() }, false),
        (SegmentOptions { end_silence: more, ..default.clone() }, false),
        (SegmentOptions { min_speech: half, ..default.clone() }, true),
        (SegmentOptions { min_speech: more, ..default }, false),
    ] {
        let options = EarOptions { segments, ..EarOptions::default() };
        let result = engine.ear(Arc::new(Milliseconds::default()), Box::new(Loud), options);
        match result {
            Ok(_) => assert!(is_right),
            Err(error) => assert!(matches!(error, VoiceError::Option { .. }) && !is_right),
        }
    }
}

#[test]
fn a_recogniser_that_panics_in_a_drop_ends_its_ear_alone() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let options = EarOptions { partial_every: None, ..EarOptions::default() };
    let good = Arc::new(Milliseconds::default());
    let (good, mut good_microphone) = engine.ear(good, Box::new(Loud), options.clone()).unwrap();
    for has_three in [false, true] {
        let part = || DefectiveHearing {
            drop_panics: true,
            dropped: Dropped(has_three),
            ..DefectiveHearing::default()
        };
        let ear = engine.ear(Arc::new(part()), Box::new(part()), options.clone());
        let (bad, mut microphone) = ear.unwrap();
        push(&mut microphone, 1000, 0.5);
        push(&mut microphone, 1000, 0.0);
        // Nothing waits for the microphone's end.
        assert_eq!(events(bad), ["begun"]);
        let room = microphone.room();
        microphone.push(&[0.5; 100], 48_000);
        assert_eq!(microphone.room(), room, "it is not held up by an ear that has ended");
    }
    push(&mut good_microphone, 1000, 0.5);
    drop(good_microphone);
    assert_eq!(events(good), ["begun", "final 1000"]);
}

#[test]
fn sizes_are_asked_once_and_guarded() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let part = |calls: usize| DefectiveHearing { sizes: calls.into(), ..Default::default() };
    for calls in [[0, 1], [1, 0]] {
        let [recognizer, activity] = calls.map(part);
        let ear = engine.ear(Arc::new(recognizer), Box::new(activity), EarOptions::default());
        assert!(matches!(ear, Err(VoiceError::Failed(_))));
    }
    let [recognizer, activity] = [1, 1].map(part);
    let ear = engine.ear(Arc::new(recognizer), Box::new(activity), EarOptions::default());
    let (ear, mut microphone) = ear.unwrap();
    push(&mut microphone, 1010, 0.5);
    drop(microphone);
    assert_eq!(events(ear).last().unwrap(), "NoWords");
}

#[test]
fn partial_texts_of_noise_are_not_reported() {
    for (log_probability, last) in [(-1.5, "Unclear"), (f32::NAN, "Unclear"), (-0.5, "final 3000")]
    {
        let recognizer = Milliseconds { log_probability, ..Milliseconds::default() };
        let partial_every = Some(Duration::from_millis(500));
        let options = EarOptions { partial_every, ..EarOptions::default() };
        let (ear, mut microphone) = ear(&Arc::new(recognizer), options);
        for _ in 0..30 {
            push(&mut microphone, 100, 0.5);
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(microphone);
        let events = events(ear);
        let has_partial = events.iter().any(|event| event.starts_with("partial"));
        assert_eq!((has_partial, &events.last().unwrap()[..]), (log_probability > -1.0, last));
    }
}

/// A recogniser that refuses recordings that are too long.
#[derive(Debug)]
struct Strict;

impl SpeechRecognizer for Strict {
    fn max_samples(&self) -> usize {
        16_000
    }

    fn begin(
        self: Arc<Self>,
        samples: &[f32],
        options: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError> {
        if samples.len() > self.max_samples() {
            return Err(VoiceError::Failed("too long".to_owned()));
        }
        Arc::new(Milliseconds::default()).begin(samples, options)
    }
}

#[test]
fn a_recogniser_gets_no_longer_recording_than_it_takes() {
    let max_length = Duration::from_secs(1);
    let segments = SegmentOptions { max_length, ..SegmentOptions::default() };
    let options = EarOptions { segments, ..EarOptions::default() };
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let (ear, mut microphone) = engine.ear(Arc::new(Strict), Box::new(Loud), options).unwrap();
    push(&mut microphone, 5000, 0.5);
    drop(microphone);
    let events = events(ear);
    assert!(!events.iter().any(|event| event == "failed"), "{events:?}");
    assert!(events.iter().filter(|event| event.starts_with("final")).count() >= 5, "{events:?}");
}

#[test]
fn a_microphone_that_changes_its_rate_does_not_hold_the_thread() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let recognizer = Arc::new(Milliseconds::default());
    let ear = engine.ear(recognizer, Box::new(Loud), EarOptions::default());
    let (mut ear, mut microphone) = ear.unwrap();
    for at in 0..450 {
        microphone.push(&[0.0; 512], [383_999, 191_999][at % 2]);
    }
    let mut mouth = engine.mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
    mouth.say("a".to_owned(), SpeakOptions::default()).unwrap();
    wait(|| mouth.try_event());
    wait(|| (microphone.room() == 480 * 512).then_some(()));
    assert!(ear.try_event().is_none(), "nothing is lost");
    // Weights are computed twice, not 450 times.
    let stats = engine.stats();
    assert!(stats.busy < Duration::from_secs(4), "{stats:?}");
    // Sound of a level is heard at all rates.
    for rate in [16_000, 8_000, 48_000, 22_050, 44_100, 16_000] {
        for _ in 0..rate / 400 {
            wait(|| (microphone.room() > 4096).then_some(()));
            microphone.push(&[0.5; 100], rate);
        }
    }
    drop(microphone);
    let text = events(ear).last().unwrap().clone();
    let ms: usize = text.strip_prefix("final ").unwrap().parse().unwrap();
    assert!((1400..=1500).contains(&ms), "{ms}");
}

#[test]
fn hearing_is_work_and_ends_with_the_ear() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let recognizer = Arc::new(Milliseconds::default());
    let ear = engine.ear(recognizer, Box::new(Loud), EarOptions::default());
    let (ear, mut microphone) = ear.unwrap();
    // Two seconds are four pieces.
    microphone.push(&[0.0; 32_000], 16_000);
    wait(|| (engine.stats().pieces >= 4).then_some(()));
    assert!(engine.stats().busy > Duration::ZERO);
    drop(ear);
    wait(|| {
        microphone.push(&[0.0; 16_000], 16_000);
        (microphone.room() == 480 * 512).then_some(())
    });
}

#[test]
fn a_recognition_that_never_ends_does_not_silence_mouths() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let recognizer = DefectiveHearing { transcript: None, ..DefectiveHearing::default() };
    let ear = engine.ear(Arc::new(recognizer), Box::new(Loud), EarOptions::default());
    let (mut ear, mut microphone) = ear.unwrap();
    push(&mut microphone, 1000, 0.5);
    push(&mut microphone, 1000, 0.0);
    assert!(matches!(wait(|| ear.try_event()), EarEvent::Begun { .. }));
    let mut mouth = engine.mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    mouth.say("abcdef".to_owned(), SpeakOptions::default()).unwrap();
    assert!(read_all(&mouth, &mut reader) == letters("abcdef"));
}

#[test]
fn texts_of_a_recogniser_have_a_bound() {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let text = "ä".repeat(100_000) + ".";
    let transcript = Transcript { text: format!("a{text}"), ..Transcript::default() };
    let recognizer =
        DefectiveHearing { transcript: Some(transcript), ..DefectiveHearing::default() };
    let ear = engine.ear(Arc::new(recognizer), Box::new(Loud), EarOptions::default());
    let (ear, mut microphone) = ear.unwrap();
    push(&mut microphone, 2000, 0.5);
    std::thread::sleep(Duration::from_millis(20));
    push(&mut microphone, 500, 0.5);
    drop(microphone);
    let events = events(ear);
    let length = |name: &str| {
        let text = events.iter().find_map(|event| event.strip_prefix(name));
        text.map(str::len)
    };
    // A character of two bytes does not fit into the last one.
    let max = Some((64 << 10) - 1);
    assert_eq!((length("partial "), length("final ")), (max, max));
}
