//! Speech of characters: from texts to sound with the shapes of mouths, and from sound to texts.
//!
//! A [`VoiceEngine`] is a thread of low priority with a budget per frame. It speaks for any number
//! of [`Mouth`]s and listens for any number of [`Ear`]s, in pieces of work of about 25 ms, the one
//! that is needed first before the others. Nothing on the side of the host ever waits.
//!
//! ```text
//! say ▶ queue of texts ▶ ┌ thread walla-voice ────────────────┐ ▶ ring of samples ▶ MouthReader
//! Microphone ▶ samples ▶ │ synthesis, detection, recognition  │ ▶ events: times, texts
//!                        └────────────────────────────────────┘
//! ```
//!
//! Engines of speech are behind traits: [`SpeechSynthesizer`], [`Phonemizer`],
//! [`SpeechRecognizer`], [`VoiceActivity`]. Feature `builtin` has some in pure Rust: `Piper` and
//! `Kokoro` voices, `English` phonemes, `Whisper`, `Earshot` and `Silero`. The crate contains no
//! voice and no recogniser's model; `docs/voice.md` names some.
//!
//! Networks are ONNX files, which are programs: load files that you trust. A damaged one is an
//! error, also if an operator panics, so a program that is built with `panic = "abort"` ends there.
//!
//! # Examples
//! A sentence with the times of its mouth:
//! ```no_run
//! # #[cfg(feature = "builtin")]
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use walla_voice::{MouthEvent, MouthOptions, Piper, SpeakOptions, VoiceEngine, VoiceOptions};
//! let engine = VoiceEngine::new(&VoiceOptions::default())?;
//! let voice = Piper::load("greta.onnx", Default::default())?;
//! let mut mouth = engine.mouth(voice, MouthOptions::default())?;
//! let mut reader = mouth.take_reader().ok_or("it was taken")?;
//! mouth.say("Three silver.".to_owned(), SpeakOptions::default())?;
//! let mut block = [0.0; 512];
//! while !mouth.is_idle() {
//!     let count = reader.read(&mut block); // on the thread of the sound card
//!     while let Some(event) = mouth.try_event() {
//!         if let MouthEvent::Planned { timing, .. } = event {
//!             println!("{:?}", timing.visemes);
//!         }
//!     }
//! #   let _ = count;
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[cfg(feature = "builtin")]
mod activity;
mod ear;
mod engine;
#[cfg(feature = "builtin")]
mod english;
mod error;
mod guard;
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
mod ring;
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

/// The text of a panic, for its error.
#[doc(hidden)]
#[must_use]
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason")
}

/// Gives this thread the priority of the voice thread: for threads that load voices.
pub fn enter_low_priority() {
    walla_cpu::priority::ThreadClass::Embedder.enter();
}
