//! Speech of characters.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[cfg(feature = "builtin")]
mod activity;
mod ear;
mod engine;
#[cfg(feature = "builtin")]
mod english;
mod error;
#[cfg(feature = "builtin")]
mod kokoro;
mod mouth;
#[cfg(feature = "builtin")]
mod onnx;
#[cfg(feature = "builtin")]
mod parts;
#[cfg(feature = "builtin")]
mod piper;
mod recognizer;
mod resample;
mod segments;
mod synthesizer;
mod timing;
mod viseme;
#[cfg(feature = "builtin")]
mod whisper;
mod worker;

#[cfg(feature = "builtin")]
pub use activity::{Earshot, Silero};
pub use ear::{DropReason, Ear, EarEvent, EarOptions, Microphone};
pub use engine::{VoiceEngine, VoiceOptions, VoiceStats};
#[cfg(feature = "builtin")]
pub use english::{Dialect, English};
pub use error::VoiceError;
#[cfg(feature = "builtin")]
pub use kokoro::{Kokoro, KokoroOptions};
pub use mouth::{Mouth, MouthEvent, MouthOptions, MouthReader, Position, SayError, SentenceId};
#[cfg(feature = "builtin")]
pub use piper::{Piper, PiperOptions};
pub use recognizer::{
    HEARING_RATE, Recognition, RecognizeOptions, SpeechRecognizer, Transcript, VoiceActivity,
};
pub use resample::Resampler;
pub use segments::SegmentOptions;
pub use synthesizer::{
    PhonemeWord, Phonemizer, SpeakOptions, SpeechSynthesizer, Step, Utterance, Variation,
};
pub use timing::{Timed, Timing, duration};
pub use viseme::Viseme;
#[cfg(feature = "builtin")]
pub use whisper::{Whisper, WhisperOptions};

/// Gives this thread the priority of the voice thread: for threads that load voices.
pub fn enter_low_priority() {
    walla_cpu::priority::ThreadClass::Embedder.enter();
}
