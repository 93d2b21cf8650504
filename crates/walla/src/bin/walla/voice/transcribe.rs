//! `walla transcribe`.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use serde_json::json;
use walla_voice::{
    DropReason, Ear, EarEvent, EarOptions, Earshot, Microphone, RecognizeOptions, Transcript,
    VoiceEngine, VoiceError, VoiceOptions, Whisper, WhisperOptions,
};

use super::args::Transcribe;
use super::wav::Sound;
use super::{check_language, per_second, processor_time};
use crate::note::note;
use crate::{Failure, one_line};

/// Samples that are sent at once.
const BLOCK: usize = 512;
/// Utterances that wait for their text when more sound is sent: half of the ear's maximum.
const MAX_OPEN: usize = 4;
/// Time after which the ear is asked again.
const POLL: Duration = Duration::from_millis(2);

/// Why a file has no transcript.
#[derive(Debug, thiserror::Error)]
enum TranscribeError {
    /// A defect: the sound is sent as fast as the ear hears it.
    #[error("the ear has lost a part of the sound")]
    Lost,
}

pub fn run(arguments: &Transcribe) -> Result<(), Failure> {
    let mut sound = Sound::open(&arguments.file)?;
    let whisper = Whisper::load(&arguments.model, WhisperOptions::default())?;
    check_language(arguments.language.as_deref(), &whisper)?;
    let engine = VoiceEngine::new(&VoiceOptions { low_priority: false, ..Default::default() })?;
    // A text before the end of its utterance has no use here.
    let options = EarOptions {
        eager_silence: None,
        partial_every: None,
        recognize: RecognizeOptions { language: arguments.language.clone() },
        ..EarOptions::default()
    };
    let (ear, microphone) = engine.ear(whisper, Box::new(Earshot::default()), options)?;
    let is_json = arguments.json;
    let mut listener = Listener { ear, is_json, open: 0, written: 0, unclear: 0, short: 0 };
    let begin = processor_time();
    listener.hear(&mut sound, microphone)?;
    let Listener { written, unclear, short, .. } = listener;
    let plural = if written == 1 { "" } else { "s" };
    let dropped = [(unclear, "without words"), (short, "too short for speech")];
    let dropped = dropped.iter().filter(|(count, _)| *count > 0);
    let dropped: String = dropped.map(|(count, why)| format!(", {count} {why}")).collect();
    let (seconds, share) = (sound.time().as_secs_f64(), per_second(begin, sound.time()));
    note!(
        "walla: {written} utterance{plural}{dropped}, {seconds:.1} s of sound, {share:.3} s of \
         processor time for each"
    );
    Ok(())
}

/// Sends the sound and writes the texts.
struct Listener {
    ear: Ear,
    is_json: bool,
    /// Utterances that have begun and have no text yet.
    open: usize,
    written: u64,
    unclear: u64,
    short: u64,
}

impl Listener {
    /// Hears all of a file.
    fn hear(&mut self, sound: &mut Sound, mut microphone: Microphone) -> Result<(), Failure> {
        let all = microphone.room();
        // At most a second that the ear has not heard: few utterances begin in it.
        let max_ahead = (sound.rate() as usize).min(all / 2);
        let mut samples = Vec::with_capacity(BLOCK);
        loop {
            self.take_events()?;
            if self.ear.has_ended() {
                return Err(VoiceError::Stopped.into());
            }
            if self.open > MAX_OPEN || microphone.room() + max_ahead < all {
                std::thread::sleep(POLL);
                continue;
            }
            samples.clear();
            sound.read(BLOCK, &mut samples)?;
            if samples.is_empty() {
                break;
            }
            microphone.push(&samples, sound.rate());
        }
        drop(microphone);
        while !self.ear.has_ended() {
            self.take_events()?;
            std::thread::sleep(POLL);
        }
        if self.open > 0 { Err(VoiceError::Stopped.into()) } else { Ok(()) }
    }

    fn take_events(&mut self) -> Result<(), Failure> {
        while let Some(event) = self.ear.try_event() {
            match event {
                EarEvent::Begun { .. } => self.open += 1,
                EarEvent::Final { transcript, start, end, .. } => {
                    self.open = self.open.saturating_sub(1);
                    self.written += 1;
                    write(&transcript, [start, end], self.is_json)?;
                }
                EarEvent::Dropped { reason: DropReason::Full } | EarEvent::Lost { .. } => {
                    return Err(TranscribeError::Lost.into());
                }
                EarEvent::Dropped { reason } => {
                    self.open = self.open.saturating_sub(1);
                    match reason {
                        DropReason::Short => self.short += 1,
                        _ => self.unclear += 1,
                    }
                }
                EarEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Writes an utterance as a line.
fn write(
    transcript: &Transcript,
    [start, end]: [Duration; 2],
    is_json: bool,
) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if !is_json {
        let text = one_line(&transcript.text);
        return writeln!(out, "[{} - {}] {text}", Time(start), Time(end));
    }
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    let line = json!({
        "start": seconds(start),
        "end": seconds(end),
        "text": transcript.text,
        "log_probability": transcript.log_probability,
        "language": transcript.language,
    });
    writeln!(out, "{line}")
}

/// Minutes and seconds.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0.as_millis() / 10;
        let (minutes, rest) = (hundredths / 6_000, hundredths % 6_000);
        write!(f, "{minutes}:{:02}.{:02}", rest / 100, rest % 100)
    }
}
