//! Voices and recognisers that load on threads.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bevy_ecs::prelude::*;
use walla_voice::{SpeechRecognizer, SpeechSynthesizer, VoiceActivity};

use super::{RecognizerSource, VoiceSource};

/// Time after which a failed load is tried again: the file may be there by then.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The result of a load, when it is there.
type Slot<T> = Arc<OnceLock<Result<T, String>>>;

/// A load, and when its failure was seen.
#[derive(Debug)]
struct Loading<T> {
    slot: Slot<T>,
    failed_at: Option<Instant>,
}

/// Loaded voices and recognisers by their paths: each file is loaded once for all agents.
#[derive(Resource, Debug, Default)]
pub(crate) struct VoiceFiles {
    voices: HashMap<Arc<str>, Loading<Arc<dyn SpeechSynthesizer>>>,
    recognizers: HashMap<Arc<str>, Loading<Arc<dyn SpeechRecognizer>>>,
}

impl VoiceFiles {
    /// The voice of a source; `None`: it loads. An empty source has none.
    pub(super) fn voice(
        &mut self,
        source: &VoiceSource,
    ) -> Option<Result<Arc<dyn SpeechSynthesizer>, String>> {
        match source {
            VoiceSource::None => Some(Err("the agent's Voice has no source".to_owned())),
            VoiceSource::Synthesizer(voice) => Some(Ok(Arc::clone(voice))),
            VoiceSource::File(path) => loaded(&mut self.voices, path, load_voice),
        }
    }

    /// As [`voice`](Self::voice), of a recogniser.
    pub(super) fn recognizer(
        &mut self,
        source: &RecognizerSource,
    ) -> Option<Result<Arc<dyn SpeechRecognizer>, String>> {
        match source {
            RecognizerSource::None => Some(Err("the VoiceListener has no recognizer".to_owned())),
            RecognizerSource::Recognizer(recognizer) => Some(Ok(Arc::clone(recognizer))),
            RecognizerSource::Folder(path) => loaded(&mut self.recognizers, path, load_recognizer),
        }
    }
}

/// The voice or recogniser of a path. The first caller starts the load.
fn loaded<T: Clone + Debug + Send + Sync + 'static>(
    loads: &mut HashMap<Arc<str>, Loading<T>>,
    path: &Arc<str>,
    load: fn(&str) -> Result<T, String>,
) -> Option<Result<T, String>> {
    let now = Instant::now();
    let is_old = |at: Instant| now.saturating_duration_since(at) > RETRY_AFTER;
    if loads.get(path).and_then(|loading| loading.failed_at).is_some_and(is_old) {
        loads.remove(path);
    }
    let loading = loads.entry(Arc::clone(path)).or_insert_with(|| {
        let slot: Slot<T> = Arc::default();
        let (filled, path) = (Arc::clone(&slot), Arc::clone(path));
        let thread = std::thread::Builder::new().name("walla-voice-load".to_owned());
        let thread = thread.spawn(move || {
            walla_voice::enter_low_priority();
            let loads = std::panic::AssertUnwindSafe(|| load(&path));
            let result = std::panic::catch_unwind(loads).unwrap_or_else(|panic| {
                Err(format!("the load panicked: {}", walla_voice::panic_text(&*panic)))
            });
            if let Err(error) = &result {
                tracing::warn!(target: "walla::voice", path = &*path, error, "not loaded");
            }
            let _ = filled.set(result);
        });
        if let Err(error) = thread {
            let _ = slot.set(Err(error.to_string()));
        }
        Loading { slot, failed_at: None }
    });
    let result = loading.slot.get().cloned();
    if matches!(result, Some(Err(_))) {
        loading.failed_at.get_or_insert(now);
    }
    result
}

#[cfg(feature = "voice")]
fn load_voice(path: &str) -> Result<Arc<dyn SpeechSynthesizer>, String> {
    let path = resolved(path)?;
    let voice = walla_voice::Piper::load(path, walla_voice::PiperOptions::default());
    voice.map(|voice| voice as Arc<dyn SpeechSynthesizer>).map_err(|error| error.to_string())
}

#[cfg(feature = "voice")]
fn load_recognizer(folder: &str) -> Result<Arc<dyn SpeechRecognizer>, String> {
    let tokens = resolved(&format!("{folder}/tokenizer.json"))?;
    let folder = tokens.parent().unwrap_or(&tokens);
    let whisper = walla_voice::Whisper::load(folder, walla_voice::WhisperOptions::default());
    whisper.map(|it| it as Arc<dyn SpeechRecognizer>).map_err(|error| error.to_string())
}

#[cfg(feature = "voice")]
fn resolved(path: &str) -> Result<std::path::PathBuf, String> {
    crate::engines::resolve_model(path.as_ref()).map_err(|error| error.to_string())
}

#[cfg(feature = "voice")]
pub(super) fn activity() -> Result<Box<dyn VoiceActivity>, String> {
    Ok(Box::new(walla_voice::Earshot::default()))
}

#[cfg(not(feature = "voice"))]
const MISSING: &str = "the program is built without the feature `voice`";

#[cfg(not(feature = "voice"))]
fn load_voice(path: &str) -> Result<Arc<dyn SpeechSynthesizer>, String> {
    Err(format!("{path}: {MISSING}"))
}

#[cfg(not(feature = "voice"))]
fn load_recognizer(folder: &str) -> Result<Arc<dyn SpeechRecognizer>, String> {
    Err(format!("{folder}: {MISSING}"))
}

#[cfg(not(feature = "voice"))]
pub(super) fn activity() -> Result<Box<dyn VoiceActivity>, String> {
    Err(MISSING.to_owned())
}
