use std::path::PathBuf;
use std::sync::Arc;

use walla_voice::{SpeakOptions, SpeechSynthesizer, Step, Timing, Utterance};

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
