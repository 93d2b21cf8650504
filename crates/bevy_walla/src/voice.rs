//! Voices of agents, and ears for players: speech out and in, within the frame.
//!
//! An agent with [`Voice`] speaks each [`ReplySentence`](crate::ReplySentence): the events
//! [`SpeechStarted`], [`Viseme`], [`Word`] and [`SpeechEnded`] follow the playback, and
//! [`Speaking`] has the shape of the mouth. All speech is made on one thread of low priority with a
//! budget per frame ([`WallaVoicePlugin`]). The samples are a stream that the host's mixer reads
//! ([`Speaking::take_reader`]); until something reads it, the plugin reads it at the pace of the
//! game's time, so that mouths also move without sound. `WallaVoicePlaybackPlugin` (feature
//! `voice_playback`) plays it with `bevy_audio`.
//!
//! A [`VoiceListener`] hears a player: it finds speech in the samples of a microphone, recognises
//! it, and asks an agent. If the player speaks while the agent does, the agent falls silent, and
//! its conversation keeps exactly the part that was heard ([`Interrupt`]).
//!
//! # Examples
//! ```no_run
//! # use bevy_app::App;
//! # use bevy_ecs::prelude::*;
//! use bevy_walla::prelude::*;
//! use bevy_walla::voice::{VoiceListener, Viseme, Voice, WallaVoicePlugin};
//!
//! fn setup(mut commands: Commands) {
//!     let greta = commands
//!         .spawn((Agent::persona("You are Greta, the smith."), Voice::file("voices/greta.onnx")))
//!         .observe(|viseme: On<Viseme>| println!("mouth: {:?}", viseme.shape))
//!         .id();
//!     commands.spawn(VoiceListener::new("whisper/tiny.en").asks(greta));
//! }
//!
//! # let mut app = App::new();
//! app.add_plugins(WallaVoicePlugin::default());
//! ```

use std::sync::Arc;
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_diagnostic::{Diagnostic, DiagnosticPath, Diagnostics, RegisterDiagnostic};
use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

use crate::systems::Schedules;

mod events;
mod files;
mod listener;
#[cfg(feature = "voice_playback")]
mod playback;
mod speaking;

pub use events::{Interrupt, Say, SpeechEnd, SpeechEnded, SpeechStarted, Viseme, Word};
use files::VoiceFiles;
pub use listener::{
    BargeIn, Heard, HearingDropped, HearingFailed, HearingPartial, HearingStarted, ListenerEar,
    RecognizerSource, VoiceListener,
};
#[cfg(feature = "voice_playback")]
pub use playback::{SpatialVoice, VoiceOutput, VoiceStream, WallaVoicePlaybackPlugin};
pub use speaking::Speaking;
#[cfg(feature = "voice")]
pub use walla_voice::{
    Dialect, Earshot, English, Kokoro, KokoroOptions, Piper, PiperOptions, Silero, Whisper,
    WhisperOptions,
};
pub use walla_voice::{
    DropReason, EarOptions, HEARING_RATE, Microphone, Mouth, MouthOptions, MouthReader,
    PhonemeWord, Phonemizer, Recognition, RecognizeOptions, SayError, SegmentOptions, SentenceId,
    SpeakOptions, SpeechRecognizer, SpeechSynthesizer, Step, Timed, Timing, Transcript, Utterance,
    Variation, Viseme as MouthShape, VoiceActivity, VoiceEngine, VoiceError, VoiceOptions,
    VoiceStats,
};

/// Where a [`Voice`] comes from.
#[derive(Clone, Debug, Default)]
pub enum VoiceSource {
    /// Nowhere: the agent has no voice.
    #[default]
    None,
    /// The ONNX file of a Piper voice, with its settings next to it (`.onnx.json`). It loads on a
    /// thread, once for all agents. A relative path is looked up as for
    /// [`WallaPlugin::model`](crate::WallaPlugin::model).
    File(Arc<str>),
    /// Another voice.
    Synthesizer(Arc<dyn SpeechSynthesizer>),
}

impl PartialEq for VoiceSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::File(a), Self::File(b)) => a == b,
            (Self::Synthesizer(a), Self::Synthesizer(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// The voice of an agent. A change of the source interrupts it; other changes apply from the next
/// sentence on, the gain at once.
#[derive(Component, Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
#[require(Speaking)]
pub struct Voice {
    /// Where it comes from.
    pub source: VoiceSource,
    /// Speed, relative to the voice's own. Default 1; from 0.25 to 4.
    pub speed: f32,
    /// Loudness: the factor of all samples. Default 1; from 0 to 16.
    pub gain: f32,
    /// Speaker of a voice with several. Default 0.
    pub speaker: u32,
    /// Seed of the voice. The seed of a sentence is computed from it, from the text, from its place
    /// in the reply and from the number of replies that the agent has given before: a replay of a
    /// recording in the same game has the same samples, on the same kind of machine. Default 0.
    pub seed: u64,
    /// Variation of sound and durations. Default `None`: the voice's own.
    pub variation: Option<Variation>,
}

impl Default for Voice {
    fn default() -> Self {
        Self {
            source: VoiceSource::None,
            speed: 1.0,
            gain: 1.0,
            speaker: 0,
            seed: 0,
            variation: None,
        }
    }
}

impl Voice {
    /// A [file](VoiceSource::File).
    #[must_use]
    pub fn file(path: impl Into<Arc<str>>) -> Self {
        Self { source: VoiceSource::File(path.into()), ..Self::default() }
    }

    /// Another voice.
    #[must_use]
    pub fn of(synthesizer: Arc<dyn SpeechSynthesizer>) -> Self {
        Self { source: VoiceSource::Synthesizer(synthesizer), ..Self::default() }
    }

    /// With this speed.
    #[must_use]
    pub fn with_speed(self, speed: f32) -> Self {
        Self { speed, ..self }
    }

    /// With this loudness.
    #[must_use]
    pub fn with_gain(self, gain: f32) -> Self {
        Self { gain, ..self }
    }
}

/// Adds [`Voice`] and [`VoiceListener`].
///
/// Speech has a separate budget per frame, and an overrun is deducted from later frames. One
/// thread speaks and listens for all agents, with a priority below the game's. The diagnostic
/// [`WallaVoicePlugin::VOICE_MS`] has its time.
#[derive(Clone, Debug, Default)]
pub struct WallaVoicePlugin {
    options: VoiceOptions,
    mouths: MouthOptions,
}

impl WallaVoicePlugin {
    /// Computing time of speech per frame, in milliseconds.
    pub const VOICE_MS: DiagnosticPath = DiagnosticPath::const_new("walla/voice_ms");

    /// Settings of the thread.
    #[must_use]
    pub fn options(self, options: VoiceOptions) -> Self {
        Self { options, ..self }
    }

    /// Computing time per frame. Default: none, the thread's low priority alone.
    #[must_use]
    pub fn budget(self, budget: Duration) -> Self {
        let options = VoiceOptions { budget: Some(budget), ..self.options };
        Self { options, ..self }
    }

    /// Settings of all mouths: how much is made ahead of the playback.
    #[must_use]
    pub fn mouths(self, mouths: MouthOptions) -> Self {
        Self { mouths, ..self }
    }
}

/// The thread of voices.
#[derive(Resource, Debug)]
pub struct VoiceThread {
    /// `None`: the system has started no thread.
    engine: Option<VoiceEngine>,
    mouths: MouthOptions,
}

impl VoiceThread {
    /// The engine, for speech outside of agents; `None` if the system has started no thread.
    #[must_use]
    pub fn engine(&self) -> Option<&VoiceEngine> {
        self.engine.as_ref()
    }

    /// Counters of its work so far.
    #[must_use]
    pub fn stats(&self) -> VoiceStats {
        self.engine.as_ref().map(VoiceEngine::stats).unwrap_or_default()
    }
}

impl Plugin for WallaVoicePlugin {
    fn build(&self, app: &mut App) {
        let engine = VoiceEngine::new(&self.options);
        if let Err(error) = &engine {
            tracing::warn!(target: "walla::voice", %error, "no agent can speak");
        }
        app.insert_resource(VoiceThread { engine: engine.ok(), mouths: self.mouths })
            .init_resource::<VoiceFiles>()
            .register_diagnostic(Diagnostic::new(Self::VOICE_MS).with_suffix("ms"))
            .add_observer(speaking::say)
            .add_observer(speaking::say_text)
            .add_observer(speaking::interrupt)
            .add_observer(speaking::cancelled)
            .add_observer(speaking::removed)
            .add_observer(listener::removed);
        let systems = (listener::rest, listener::hear, speaking::speak, count).chain();
        Schedules::of(app).add_publish_system(app, systems);
        #[cfg(feature = "reflect")]
        app.register_type::<Voice>()
            .register_type::<Speaking>()
            .register_type::<Say>()
            .register_type::<SpeechStarted>()
            .register_type::<Viseme>()
            .register_type::<Word>()
            .register_type::<SpeechEnded>()
            .register_type::<Interrupt>()
            .register_type::<VoiceListener>()
            .register_type::<ListenerEar>()
            .register_type::<HearingStarted>()
            .register_type::<HearingPartial>()
            .register_type::<Heard>()
            .register_type::<HearingDropped>()
            .register_type::<HearingFailed>();
    }
}

fn count(thread: Res<VoiceThread>, mut diagnostics: Diagnostics, mut before: Local<Duration>) {
    let busy = thread.stats().busy;
    let spent = busy.saturating_sub(std::mem::replace(&mut before, busy));
    diagnostics.add_measurement(&WallaVoicePlugin::VOICE_MS, || spent.as_secs_f64() * 1e3);
    if let Some(engine) = &thread.engine {
        engine.frame();
    }
}
