//! Interfaces to engines that understand speech, and that find it in sound.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::VoiceError;

/// Samples per second of what recognisers and detectors hear.
pub const HEARING_RATE: u32 = 16_000;

/// Recognises speech. `Whisper` is the built-in one.
pub trait SpeechRecognizer: Debug + Send + Sync {
    /// Samples of the longest recording, at [`HEARING_RATE`]. An ear asks once.
    fn max_samples(&self) -> usize;

    /// Begins with a recording: mono, at [`HEARING_RATE`], from -1 to 1.
    ///
    /// # Errors
    /// If the recording is too long.
    fn begin(
        self: Arc<Self>,
        samples: &[f32],
        options: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError>;
}

/// A recording in work. Each [`step`](Self::step) is one piece of work; dropping it cancels the
/// rest.
pub trait Recognition: Debug + Send {
    /// Does the next piece of work. Returns the text at the end; an ear cuts it to 64 KiB.
    ///
    /// # Errors
    /// If the network fails. The recognition has ended then.
    fn step(&mut self) -> Result<Option<Transcript>, VoiceError>;
}

/// Settings of a recognition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecognizeOptions {
    /// Language of the speech as a code (`en`, `de`). Default `None`: the recogniser finds it, if
    /// it knows several.
    pub language: Option<String>,
}

/// The text of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The text; empty for a sound without words.
    pub text: String,
    /// Mean logarithm of the probability of its tokens: below -1, it is mostly wrong.
    pub log_probability: f32,
    /// The language as a code, if the recogniser knows several.
    pub language: Option<String>,
}

/// Distinguishes speech from other sound. `Earshot` is the built-in one.
pub trait VoiceActivity: Debug + Send {
    /// Samples of a frame, at [`HEARING_RATE`]. An ear asks once.
    fn frame_samples(&self) -> usize;

    /// The probability, from 0 to 1, that the next frame has speech. Frames follow each other.
    ///
    /// # Errors
    /// If the detector fails.
    fn push(&mut self, frame: &[f32]) -> Result<f32, VoiceError>;

    /// Forgets all frames: the next one is of another recording.
    fn reset(&mut self);
}
