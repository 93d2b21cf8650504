//! Replies that are spoken, with a scripted voice, and ears as streams.

#[allow(dead_code, reason = "some of it is for the tests of `walla_voice`")]
#[path = "../../../walla_voice/tests/engine/common.rs"]
mod double;

use std::sync::Arc;
use std::time::Duration;

use double::{Defective, Letters, Loud, Milliseconds, PIECE, letters};
use walla::voice::{
    EarEvent, EarOptions, Hearing, Mouth, MouthOptions, SpeakOptions, SpokenEvent, SpokenReply,
    VoiceEngine, VoiceOptions,
};
use walla::{Agent, AskOptions, Constraint, Cues, Engine, EngineOptions, Reply};

fn mouth(voice: &Arc<Letters>, engine: &VoiceEngine) -> Mouth {
    engine.mouth(Arc::clone(voice) as _, MouthOptions::default()).unwrap()
}

fn voice_engine() -> VoiceEngine {
    VoiceEngine::new(&VoiceOptions::default()).unwrap()
}

async fn smith() -> (Engine, Agent) {
    let engine = Engine::start(EngineOptions::demo()).await.unwrap();
    let smith = engine.agent("You are Greta, the smith.");
    (engine, smith)
}

fn ask(smith: &Agent, reply: &str) -> Reply {
    smith.ask_with("Hi.", AskOptions::constraint(Constraint::choice([reply])))
}

/// All samples; sentences, times and ends as texts.
async fn all(mut spoken: SpokenReply) -> (Vec<f32>, Vec<String>) {
    let (mut samples, mut events) = (Vec::new(), Vec::new());
    while let Some(event) = spoken.next().await {
        match event.unwrap() {
            SpokenEvent::Samples(more) => samples.extend(more),
            SpokenEvent::Sentence { text, .. } => events.push(text.to_string()),
            SpokenEvent::Times { timing, .. } => {
                events.push(format!("times of {}", timing.words.len()));
            }
            SpokenEvent::Made { samples, .. } => events.push(format!("{samples} samples")),
            SpokenEvent::Failed { error, .. } => events.push(error.to_string()),
            _ => {}
        }
    }
    (samples, events)
}

#[tokio::test]
async fn a_reply_is_spoken_while_it_is_written() {
    let (_engine, smith) = smith().await;
    let (voice, engine) = (Arc::default(), voice_engine());
    let spoken = ask(&smith, "Ab cd. Ef.").speak(mouth(&voice, &engine), SpeakOptions::default());
    assert_eq!(spoken.sample_rate(), 10_000);
    let (samples, mut events) = all(spoken).await;
    assert!(samples == [letters("Ab cd."), letters("Ef.")].concat());
    events.sort();
    let expected = ["3000 samples", "6000 samples", "Ab cd.", "Ef.", "times of 3", "times of 6"];
    assert_eq!(events, expected);
    // Cues are not spoken, and a sentence that fails does not end the others.
    let reply = ask(&smith, "*nods* Ab. C! D.").with_cues(Cues::new());
    let (samples, events) = all(reply.speak(mouth(&voice, &engine), SpeakOptions::default())).await;
    assert!(samples == [letters("Ab."), letters("C"), letters("D.")].concat());
    assert!(events.iter().any(|event| event.contains("scripted")), "{events:?}");
}

#[tokio::test]
async fn an_interrupt_keeps_what_was_played() {
    let (_engine, smith) = smith().await;
    let (voice, engine) = (Arc::default(), voice_engine());
    for (letters, kept) in [(0.0, 0), (1.6, 9), (3.2, 10), (4.8, 13)] {
        let mut mouth = mouth(&voice, &engine);
        let mut reader = mouth.take_reader().unwrap();
        let reply = ask(&smith, "*nods* Ab. Cde.").with_cues(Cues::new());
        let mut spoken = reply.speak(mouth, SpeakOptions::default());
        while spoken.next().await.is_some() {}
        let mut left = (letters * PIECE as f64) as usize;
        while left > 0 {
            left -= reader.read(&mut vec![0.0; left]);
        }
        let before = spoken.position();
        let heard = spoken.interrupt();
        assert_eq!("*nods* Ab. Cde."[..heard].trim_end().len(), kept, "{letters} letters");
        assert_eq!(spoken.position(), before);
        assert_eq!(reader.read(&mut [0.0; 100]), 0);
    }
}

#[tokio::test]
async fn an_interrupt_knows_times_that_no_task_has_waited_for() {
    let (_engine, smith) = smith().await;
    let (voice, engine) = (Arc::default(), voice_engine());
    let mut mouth = mouth(&voice, &engine);
    let mut reader = mouth.take_reader().unwrap();
    let mut spoken = ask(&smith, "Ab cd. Ef.").speak(mouth, SpeakOptions::default());
    while !matches!(spoken.next().await, Some(Ok(SpokenEvent::Sentence { .. }))) {}
    // The task is busy, and the mixer continues.
    let mut left = 5 * PIECE + 700;
    while left > 0 {
        left -= reader.read(&mut vec![0.0; left]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(spoken.interrupt(), "Ab cd.".len());
}

#[tokio::test]
async fn a_mouth_that_ends_ends_the_reply() {
    let (_engine, smith) = smith().await;
    let engine = voice_engine();
    // Its utterances panic when they are dropped.
    let voice = Defective { drop_panics: true, ..Defective::default() };
    let mouth = engine.mouth(Arc::new(voice), MouthOptions::default()).unwrap();
    let spoken = ask(&smith, "Ab. Cd. Ef.").speak(mouth, SpeakOptions::default());
    let (_, events) = all(spoken).await;
    let has_ended = |event: &&String| event.contains("has ended");
    assert!(events.iter().filter(has_ended).count() >= 2, "{events:?}");
    // Another mouth of the same thread speaks.
    let voice = Arc::default();
    let spoken = ask(&smith, "Ab.").speak(self::mouth(&voice, &engine), SpeakOptions::default());
    assert!(all(spoken).await.0 == letters("Ab."));
}

#[tokio::test]
async fn what_is_heard_is_a_stream() {
    let engine = voice_engine();
    let recognizer = Arc::<Milliseconds>::default();
    let ear = engine.ear(recognizer, Box::<Loud>::default(), EarOptions::default());
    let (ear, mut microphone) = ear.unwrap();
    let mut hearing = Hearing::new(ear);
    std::thread::spawn(move || {
        for level in [0.5, 0.0, 0.5] {
            for _ in 0..50 {
                microphone.push(&[level; 256], 16_000);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut texts = Vec::new();
    while let Some(event) = hearing.next().await {
        if let EarEvent::Final { transcript, .. } = event {
            texts.push(transcript.text);
        }
    }
    assert_eq!(texts, ["800", "800"], "the stream ends with the microphone");
}
