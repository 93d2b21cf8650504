//! Ears: from the microphone of a player to asks.

use std::sync::Arc;
use std::time::Duration;

use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::query::Allow;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_voice::{
    DropReason, Ear, EarEvent, EarOptions, Microphone, RecognizeOptions, SegmentOptions,
    SpeechRecognizer, VoiceActivity, VoiceError,
};

use super::files::{self, VoiceFiles};
use super::{Interrupt, Speaking, VoiceThread};
use crate::ask::{Ask, Prompt};
use crate::speech::Speech;

/// Where the recogniser of a [`VoiceListener`] comes from.
#[derive(Clone, Debug, Default)]
pub enum RecognizerSource {
    /// Nowhere: it hears nothing.
    #[default]
    None,
    /// A folder with a converted Whisper model: `encoder.onnx`, `decoder.onnx` (or
    /// `encoder.int8.onnx`, `decoder.int8.onnx`) and `tokenizer.json`.
    /// It loads on a thread, once for all listeners. A relative path is looked up as for
    /// [`WallaPlugin::model`](crate::WallaPlugin::model).
    Folder(Arc<str>),
    /// Another recogniser.
    Recognizer(Arc<dyn SpeechRecognizer>),
}

impl PartialEq for RecognizerSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Folder(a), Self::Folder(b)) => a == b,
            (Self::Recognizer(a), Self::Recognizer(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// When a player who speaks interrupts the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Default, Clone, Debug, PartialEq, Hash))]
pub enum BargeIn {
    /// Never: the ask waits for the end of the reply.
    Never,
    /// When the first words are recognised: noise does not interrupt. About a second after the
    /// begin.
    #[default]
    Words,
    /// As soon as there is speech.
    Speech,
}

/// Hears a player. The game pushes the samples of a microphone ([`ListenerEar::take_microphone`]).
///
/// The text is a [`Heard`] event, and the prompt of an [`Ask`] if there is an
/// [agent](Self::agent). It is untrusted, as all texts of players. If the player speaks again
/// before anything of the answer sounds, all words are one ask.
#[derive(Component, Clone, Debug)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Component, Default, Clone, Debug))]
#[require(ListenerEar)]
pub struct VoiceListener {
    /// Recognises speech. A change makes another microphone.
    pub recognizer: RecognizerSource,
    /// Finds speech; `None`: the built-in detector. A change applies with the next microphone.
    pub activity: Option<fn() -> Box<dyn VoiceActivity>>,
    /// Whom it asks; `None`: the game decides with [`Heard`].
    pub agent: Option<Entity>,
    /// The name of the player in the prompt ([`Prompt::named`]).
    pub name: Option<Arc<str>>,
    /// When the player interrupts the agent. Default: [`BargeIn::Words`].
    pub barge_in: BargeIn,
    /// Whether it hears nothing while the agent speaks. For loudspeakers without echo cancellation:
    /// the agent would hear itself. A player cannot interrupt it then. Default: `false`.
    pub is_deaf_to_agent: bool,
    /// Language of the player as a code (`en`); `None`: the recogniser finds it. A change of this
    /// and of the following settings applies with the next microphone.
    pub language: Option<Arc<str>>,
    /// When an utterance begins and ends.
    pub segments: SegmentOptions,
    /// Silence that ends a whole sentence ([`EarOptions::sentence_silence`]).
    pub sentence_silence: Option<Duration>,
    /// Time between partial texts; `None`: none, and [`BargeIn::Words`] waits for the whole text.
    pub partial_every: Option<Duration>,
    /// Texts with a lower mean log-probability are dropped ([`EarOptions::min_log_probability`]).
    pub min_log_probability: f32,
}

impl Default for VoiceListener {
    fn default() -> Self {
        Self {
            recognizer: RecognizerSource::None,
            activity: None,
            agent: None,
            name: None,
            barge_in: BargeIn::default(),
            is_deaf_to_agent: false,
            language: None,
            segments: SegmentOptions::default(),
            sentence_silence: EarOptions::default().sentence_silence,
            partial_every: EarOptions::default().partial_every,
            min_log_probability: EarOptions::default().min_log_probability,
        }
    }
}

impl VoiceListener {
    /// With a [folder](RecognizerSource::Folder).
    #[must_use]
    pub fn new(folder: impl Into<Arc<str>>) -> Self {
        Self { recognizer: RecognizerSource::Folder(folder.into()), ..Self::default() }
    }

    /// With another recogniser and detector, such as `|| Box::new(Earshot::default())`. A text
    /// with a mark at its end is taken for a whole sentence: a recogniser that ends every text with
    /// one needs [`sentence_silence`](Self::sentence_silence) `None`.
    #[must_use]
    pub fn of(
        recognizer: Arc<dyn SpeechRecognizer>,
        activity: fn() -> Box<dyn VoiceActivity>,
    ) -> Self {
        let recognizer = RecognizerSource::Recognizer(recognizer);
        Self { recognizer, activity: Some(activity), ..Self::default() }
    }

    /// Asks this agent.
    #[must_use]
    pub fn asks(self, agent: Entity) -> Self {
        Self { agent: Some(agent), ..self }
    }

    /// Interrupts the agent in this case.
    #[must_use]
    pub fn with_barge_in(self, barge_in: BargeIn) -> Self {
        Self { barge_in, ..self }
    }

    fn prompt(&self, text: &str) -> Prompt {
        match &self.name {
            Some(name) => Prompt::named(Arc::clone(name), text),
            None => Prompt::from(text),
        }
    }

    fn options(&self) -> EarOptions {
        EarOptions {
            segments: self.segments.clone(),
            sentence_silence: self.sentence_silence,
            partial_every: self.partial_every,
            min_log_probability: self.min_log_probability,
            recognize: RecognizeOptions { language: self.language.as_deref().map(str::to_owned) },
            ..EarOptions::default()
        }
    }
}

/// The ear of a [`VoiceListener`].
#[derive(Component, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Debug))]
#[component(clone_behavior = Ignore)]
pub struct ListenerEar {
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    ear: Option<Ear>,
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    microphone: Option<Microphone>,
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    source: RecognizerSource,
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    has_failed: bool,
    /// The last ask, until something of its answer sounds; and whether it is of this frame.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    unanswered: Option<(Arc<str>, bool)>,
    /// Words before, whose answer the player has interrupted before it sounded.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    before: Option<Arc<str>>,
    /// Utterances that have begun and not ended.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    open: u32,
    /// The player has interrupted the agent with this utterance.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    has_interrupted: bool,
}

impl ListenerEar {
    /// Where the host pushes samples, on any thread. `None` until the recogniser is loaded, and
    /// when it was taken. There is a new one when the recogniser has changed, and when the old one
    /// was dropped.
    pub fn take_microphone(&mut self) -> Option<Microphone> {
        self.microphone.take()
    }

    /// Whether someone speaks.
    #[must_use]
    pub fn is_speech(&self) -> bool {
        self.ear.as_ref().is_some_and(Ear::is_speech)
    }
}

/// A player begins to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct HearingStarted {
    /// The entity with [`VoiceListener`].
    #[event_target]
    pub listener: Entity,
}

/// The text of a player who still speaks. It replaces earlier partial texts.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct HearingPartial {
    /// The entity with [`VoiceListener`].
    #[event_target]
    pub listener: Entity,
    /// The text. Untrusted.
    pub text: Arc<str>,
}

/// The text of a player.
#[derive(Clone, Debug, PartialEq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct Heard {
    /// The entity with [`VoiceListener`].
    #[event_target]
    pub listener: Entity,
    /// The text. Untrusted.
    pub text: Arc<str>,
    /// Mean logarithm of the probability of its tokens: near 0 it is certain.
    pub log_probability: f32,
    /// Its language as a code, if the recogniser knows several.
    pub language: Option<Arc<str>>,
    /// How long the player spoke.
    pub duration: Duration,
}

/// Something was heard that has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct HearingDropped {
    /// The entity with [`VoiceListener`].
    #[event_target]
    pub listener: Entity,
    /// Why.
    pub reason: DropReason,
}

/// A [`VoiceListener`] cannot hear, or not all: its recogniser is not loaded or has failed, or
/// samples of the microphone were lost.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Clone, Debug, PartialEq))]
pub struct HearingFailed {
    /// The entity with [`VoiceListener`].
    #[event_target]
    pub listener: Entity,
    /// Why.
    pub reason: Arc<str>,
}

/// Publishes the events of all ears since the last frame, and asks.
pub(super) fn hear(
    mut listeners: Query<(Entity, Ref<VoiceListener>, &mut ListenerEar)>,
    agents: Query<(Option<&Speaking>, Option<&Speech>)>,
    thread: Res<VoiceThread>,
    mut files: ResMut<VoiceFiles>,
    mut commands: Commands,
) {
    for (listener, settings, mut ear) in &mut listeners {
        let state = ear.bypass_change_detection();
        // Its microphone was dropped, or its part of the thread has failed.
        let has_ended = state.ear.as_ref().is_some_and(Ear::has_ended);
        if state.source != settings.recognizer || has_ended {
            state.forget(listener, &mut commands);
        }
        state.has_failed &= !settings.is_changed();
        if state.ear.is_none()
            && !state.has_failed
            && let Err(reason) = state.prepare(&settings, &thread, &mut files)
        {
            state.has_failed = true;
            commands.trigger(HearingFailed { listener, reason: reason.into() });
        }
        let agent = settings.agent.and_then(|agent| agents.get(agent).ok());
        let is_speaking = agent.and_then(|agent| agent.0).is_some_and(Speaking::is_speaking);
        // A reply that is not spoken yet can be interrupted too.
        let mut is_busy =
            is_speaking || agent.and_then(|its| its.1).is_some_and(|its| !its.is_silent());
        let sounds = agent.and_then(|its| its.0).is_some_and(|its| its.sentence().is_some());
        match &mut state.unanswered {
            Some((_, is_new)) if *is_new => *is_new = false,
            unanswered if sounds || !is_busy => *unanswered = None,
            _ => {}
        }
        let has_voice = agent.is_some_and(|its| its.0.is_some());
        if let Some(ear) = &state.ear {
            ear.set_muted(settings.is_deaf_to_agent && is_speaking);
        }
        while let Some(event) = state.ear.as_mut().and_then(Ear::try_event) {
            match event {
                EarEvent::Begun { .. } => {
                    state.open += 1;
                    state.has_interrupted = false;
                    commands.trigger(HearingStarted { listener });
                    if is_busy && settings.barge_in == BargeIn::Speech {
                        state.interrupt(settings.agent, &mut commands);
                    }
                }
                EarEvent::Partial { text } => {
                    commands.trigger(HearingPartial { listener, text: text.into() });
                    if is_busy && settings.barge_in != BargeIn::Never {
                        state.interrupt(settings.agent, &mut commands);
                    }
                }
                EarEvent::Final { transcript, start, end, .. } => {
                    state.open = state.open.saturating_sub(1);
                    let text: Arc<str> = transcript.text.into();
                    commands.trigger(Heard {
                        listener,
                        text: Arc::clone(&text),
                        log_probability: transcript.log_probability,
                        language: transcript.language.map(Into::into),
                        duration: end.saturating_sub(start),
                    });
                    if let Some(agent) = settings.agent {
                        if is_busy && settings.barge_in != BargeIn::Never {
                            state.interrupt(Some(agent), &mut commands);
                        }
                        let text = match state.before.take() {
                            Some(before) => format!("{before} {text}").into(),
                            None => text,
                        };
                        state.ask(agent, &settings, text, has_voice, &mut commands);
                        // The answer has not begun: later events of this frame do not end it.
                        is_busy = false;
                    }
                }
                EarEvent::Dropped { reason } => {
                    state.open = state.open.saturating_sub(1);
                    commands.trigger(HearingDropped { listener, reason });
                    // Without more words, the words before are asked again.
                    if let (Some(agent), Some(text)) = (settings.agent, state.before.take()) {
                        state.ask(agent, &settings, text, has_voice, &mut commands);
                        is_busy = false;
                    }
                }
                EarEvent::Lost { samples } => {
                    let reason = format!("{samples} samples of the microphone were lost").into();
                    commands.trigger(HearingFailed { listener, reason });
                }
                EarEvent::Failed(error) => {
                    let reason = error.to_string().into();
                    commands.trigger(HearingFailed { listener, reason });
                }
                _ => {}
            }
        }
    }
}

/// A listener that is disabled hears nothing.
pub(super) fn rest(mut disabled: Query<&mut ListenerEar, (With<VoiceListener>, With<Disabled>)>) {
    for mut ear in &mut disabled {
        let Some(ear) = &mut ear.bypass_change_detection().ear else { continue };
        ear.set_muted(true);
        while ear.try_event().is_some() {}
    }
}

/// Without its component, an entity has no ear.
pub(super) fn removed(
    removed: On<Remove<VoiceListener>>,
    mut ears: Query<&mut ListenerEar, Allow<Disabled>>,
    mut commands: Commands,
) {
    if let Ok(mut ear) = ears.get_mut(removed.entity) {
        ear.forget(removed.entity, &mut commands);
    }
}

impl ListenerEar {
    fn ask(
        &mut self,
        agent: Entity,
        settings: &VoiceListener,
        text: Arc<str>,
        has_voice: bool,
        commands: &mut Commands,
    ) {
        commands.trigger(Ask::new(agent, settings.prompt(&text)));
        self.unanswered = has_voice.then_some((text, true));
    }

    /// Interrupts the agent, once for an utterance.
    fn interrupt(&mut self, agent: Option<Entity>, commands: &mut Commands) {
        if let Some(agent) = agent
            && !std::mem::replace(&mut self.has_interrupted, true)
        {
            if let Some((text, _)) = self.unanswered.take() {
                self.before = Some(text);
            }
            commands.trigger(Interrupt { agent });
        }
    }

    /// Drops the ear. Utterances that have no text yet get none.
    fn forget(&mut self, listener: Entity, commands: &mut Commands) {
        for _ in 0..self.open {
            commands.trigger(HearingDropped { listener, reason: DropReason::Stopped });
        }
        *self = Self::default();
    }

    /// Makes the ear, when the recogniser is loaded.
    fn prepare(
        &mut self,
        settings: &VoiceListener,
        thread: &VoiceThread,
        files: &mut VoiceFiles,
    ) -> Result<(), String> {
        self.source.clone_from(&settings.recognizer);
        let Some(recognizer) = files.recognizer(&settings.recognizer) else { return Ok(()) };
        let recognizer = recognizer?;
        let activity = match settings.activity {
            Some(new) => std::panic::catch_unwind(new).map_err(|_| "the detector panicked")?,
            None => files::activity()?,
        };
        let engine = thread.engine.as_ref().ok_or("there is no voice thread")?;
        match engine.ear(recognizer, activity, settings.options()) {
            Ok((ear, microphone)) => {
                (self.ear, self.microphone) = (Some(ear), Some(microphone));
                Ok(())
            }
            // The thread has not taken others yet.
            Err(VoiceError::Busy) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}
