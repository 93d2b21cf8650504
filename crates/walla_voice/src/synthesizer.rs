//! Interface to engines that make speech.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::error::VoiceError;
use crate::timing::Timing;

/// Makes speech of texts. `Piper` and `Kokoro` are the built-in ones.
///
/// It should report the times of each part before its samples ([`Step::Planned`]): mouths move by
/// them, and they show which words were heard when speech is interrupted. Of a voice without times,
/// the heard words are estimated from the played share of the sound
/// ([`Timing::heard_bytes_of`]), and mouths do not move.
pub trait SpeechSynthesizer: Debug + Send + Sync {
    /// Samples per second of each utterance, from 4,000 to 384,000. A mouth asks once.
    fn sample_rate(&self) -> u32;

    /// Begins an utterance. The text may contain anything; what cannot be spoken is left out.
    ///
    /// # Errors
    /// If an option is out of range, or the text too long.
    fn begin(
        self: Arc<Self>,
        text: &str,
        options: &SpeakOptions,
    ) -> Result<Box<dyn Utterance>, VoiceError>;
}

/// An utterance in work. Each [`step`](Self::step) is one piece of work, so that a budget and a
/// cancel act between pieces; dropping it cancels the rest.
pub trait Utterance: Debug + Send {
    /// Does the next piece of work, and appends its samples (mono, from -1 to 1) to `out`. Samples
    /// that are not finite are silence.
    ///
    /// # Errors
    /// If the network fails. The utterance has ended then.
    fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError>;
}

/// Result of a piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The times of the next part are known, before its first sample: samples that were played
    /// without times count as not heard once others have times. The utterance fails if the times
    /// are not in order, also behind earlier parts, or are 2^48 or more, or if a word is not in the
    /// text or divides a character.
    Planned(Timing),
    /// There may be samples, and more work follows.
    Working,
    /// All samples were returned.
    Ended,
}

/// Settings of an utterance.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakOptions {
    /// Speed relative to the voice's own. Default 1; from 0.25 to 4.
    pub speed: f32,
    /// Speaker of a voice with several. Default 0.
    pub speaker: u32,
    /// Seed of the voice's random numbers: the same text, voice and seed give the same samples on
    /// the same kind of machine. Default 0.
    pub seed: u64,
    /// Variation of the sound and of the durations, from 0 to 2. Default `None`: the voice's own.
    pub variation: Option<Variation>,
    /// Frames (of about 12 ms of sound) of the first piece. Default 16: the first sound comes soon.
    pub first_piece_frames: u32,
    /// Frames of the other pieces. Default 32; from 1 to 65,536. A piece is not interrupted, and
    /// larger ones are hardly cheaper.
    pub piece_frames: u32,
}

/// Amount of random variation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variation {
    /// Of the sound.
    pub sound: f32,
    /// Of the durations of phonemes.
    pub durations: f32,
}

impl Default for SpeakOptions {
    fn default() -> Self {
        Self {
            speed: 1.0,
            speaker: 0,
            seed: 0,
            variation: None,
            first_piece_frames: 16,
            piece_frames: 32,
        }
    }
}

impl SpeakOptions {
    /// Checks the ranges.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn check(&self) -> Result<(), VoiceError> {
        let variation = self.variation.unwrap_or(Variation { sound: 0.0, durations: 0.0 });
        let floats = [
            ("speed", self.speed, 0.25..=4.0, "0.25 to 4"),
            ("variation.sound", variation.sound, 0.0..=2.0, "0 to 2"),
            ("variation.durations", variation.durations, 0.0..=2.0, "0 to 2"),
        ];
        for (name, value, range, expected) in floats {
            if !range.contains(&value) {
                let expected = expected.to_owned();
                return Err(VoiceError::Option { name, value: value.to_string(), expected });
            }
        }
        let frames =
            [("first_piece_frames", self.first_piece_frames), ("piece_frames", self.piece_frames)];
        for (name, value) in frames {
            if !(1..=65_536).contains(&value) {
                let expected = "1 to 65,536".to_owned();
                return Err(VoiceError::Option { name, value: value.to_string(), expected });
            }
        }
        Ok(())
    }
}

/// Turns a text into phonemes. `English` is the built-in one.
pub trait Phonemizer: Debug + Send + Sync {
    /// The words and punctuation marks of a text, in order. Texts without phonemes are left out.
    fn words(&self, text: &str) -> Vec<PhonemeWord>;
}

/// A word, or a punctuation mark, with its phonemes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhonemeWord {
    /// Byte range of the text.
    pub text: Range<usize>,
    /// Symbols of the voice: for most voices of the International Phonetic Alphabet as espeak
    /// writes it. A mark of punctuation is its own symbol.
    pub phonemes: String,
    /// Whether a space follows.
    pub has_space: bool,
}
