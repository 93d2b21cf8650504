//! Verbs of speech.

pub mod args;
pub mod speak;
pub mod talk;
pub mod transcribe;
mod wav;

use std::sync::Arc;
use std::time::Duration;

use walla_voice::{Kokoro, KokoroOptions, Piper, PiperOptions, SpeechSynthesizer, Whisper};

use crate::Failure;
use args::VoiceArgs;

/// Loads a voice.
fn load(VoiceArgs { network, style }: &VoiceArgs) -> Result<Arc<dyn SpeechSynthesizer>, Failure> {
    Ok(match style {
        Some(style) => Kokoro::load(network, KokoroOptions::new(style))?,
        None => Piper::load(network, PiperOptions::default())?,
    })
}

/// `--language` with a code that the model does not know.
#[derive(Debug, thiserror::Error)]
#[error("--language {code}: the model knows {known}")]
struct LanguageError {
    code: String,
    known: String,
}

/// Refuses a language that the model does not know.
fn check_language(code: Option<&str>, whisper: &Whisper) -> Result<(), LanguageError> {
    let Some(code) = code else { return Ok(()) };
    let mut known: Vec<&str> = whisper.languages().collect();
    if known.is_empty() {
        known.push("en");
    }
    if known.iter().any(|known| known.eq_ignore_ascii_case(code)) {
        return Ok(());
    }
    Err(LanguageError { code: code.to_owned(), known: known.join(", ") })
}

/// Processor time of the program so far; elsewhere than on Unix the time since the first call.
#[cfg(unix)]
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(not(unix))]
fn processor_time() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed()
}

/// Processor time since an earlier one, for each second of sound.
fn per_second(since: Duration, sound: Duration) -> f64 {
    let time = processor_time().saturating_sub(since);
    time.as_secs_f64() / sound.as_secs_f64().max(1e-3)
}
