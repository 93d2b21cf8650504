use std::path::PathBuf;
use std::sync::Arc;

use walla_voice::{
    MouthEvent, MouthOptions, SpeakOptions, SpeechSynthesizer, Step, Timing, Utterance,
    VoiceEngine, VoiceOptions,
};

/// A file of the parts that `cargo xtask voice` fetches.
pub fn part(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/voice").join(name)
}

/// All samples of an utterance, its times, and the number of pieces of work.
pub fn speak<V: SpeechSynthesizer + 'static>(
    voice: &Arc<V>,
    text: &str,
    options: &SpeakOptions,
) -> (Vec<f32>, Timing, usize) {
    let utterance = Arc::clone(voice).begin(text, options).unwrap();
    finish(utterance)
}

pub fn finish(mut utterance: Box<dyn Utterance>) -> (Vec<f32>, Timing, usize) {
    let (mut samples, mut timing, mut steps) = (Vec::new(), Timing::default(), 0);
    loop {
        steps += 1;
        match utterance.step(&mut samples).unwrap() {
            Step::Planned(part) => timing.append(part),
            Step::Working => {}
            Step::Ended => return (samples, timing, steps),
        }
    }
}

/// Speaks texts with a mouth, which checks the times of the voice.
pub fn say_all(voice: Arc<dyn SpeechSynthesizer>, texts: &[&str]) {
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    let mut mouth = engine.mouth(voice, MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    for text in texts {
        mouth.say((*text).to_owned(), SpeakOptions::default()).unwrap();
        loop {
            reader.read(&mut [0.0; 4096]);
            match mouth.try_event() {
                Some(MouthEvent::Made { .. }) => break,
                Some(MouthEvent::Planned { .. }) => {}
                Some(event) => panic!("{event:?} of {text:?}"),
                None => std::thread::yield_now(),
            }
        }
    }
}

/// Damages files, in the same way each time.
pub struct Damage(u64);

impl Damage {
    pub fn new() -> Self {
        Self(1)
    }

    /// A number below this one.
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % below
    }

    /// One to three damages in the first `limit` bytes (0: all) of a file.
    pub fn of(&mut self, file: &[u8], limit: usize) -> Vec<u8> {
        let mut bytes = file.to_vec();
        let limit = if limit > 0 { limit } else { bytes.len() };
        for _ in 0..=self.next(3) {
            let at = self.next(limit.min(bytes.len()));
            match self.next(8) {
                0 => bytes.truncate(at.max(1)),
                1 => _ = bytes.drain(at..(at + self.next(20)).min(bytes.len() - 1).max(at)),
                _ => bytes[at] = self.next(256) as u8,
            }
        }
        bytes
    }
}

/// Speaks to the end or to an error.
pub fn speak_if_possible(voice: Arc<impl SpeechSynthesizer + 'static>, text: &str) {
    let mut utterance = voice.begin(text, &SpeakOptions::default()).unwrap();
    let mut samples = Vec::new();
    while !matches!(utterance.step(&mut samples), Ok(Step::Ended) | Err(_)) {}
    assert!(samples.iter().all(|sample| sample.is_finite()));
}
