//! Mouths of agents: from sentences to events of the playback.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::query::Allow;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use bevy_time::Time;
use walla_runtime::ReplyId;
use walla_types::{FNV1A, fnv1a};
use walla_voice::{
    Mouth, MouthEvent, MouthReader, Position, SayError, SentenceId, SpeakOptions, Timing,
    Viseme as MouthShape, VoiceError,
};

use super::events::{Interrupt, Say, SpeechEnd, SpeechEnded, SpeechStarted, Viseme, Word};
use super::files::VoiceFiles;
use super::{Voice, VoiceSource, VoiceThread};
use crate::ask::Cancel;
use crate::bridge::EngineBridge;
use crate::conversation::Conversation;
use crate::cues::AgentCues;
use crate::sentence::ReplySentence;

/// Sentences of an agent that wait for its voice. More are dropped, with a warning.
const MAX_LINES: usize = 256;
/// Mouths that are made in one frame: each allocates its second of sound.
const MAX_NEW_MOUTHS: usize = 8;

/// The end of a sentence that was not begun.
const UNHEARD: SpeechEnd = SpeechEnd::Interrupted { heard_bytes: 0 };

/// The speech of an agent with [`Voice`] at this moment, as it sounds.
#[derive(Component, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Debug))]
#[component(clone_behavior = Ignore)]
pub struct Speaking {
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    mouth: Option<Mouth>,
    /// A source that could not be loaded.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    failed: Option<VoiceSource>,
    /// The source of the mouth.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    source: VoiceSource,
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    gain: f32,
    /// Until the host takes it.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    pub(super) reader: ReaderSlot,
    /// Fraction of a sample that the plugin has to read.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    pace: f64,
    /// Oldest first; the first ones are in the mouth.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    lines: VecDeque<Line>,
    /// The reply of the last sentence, and the number of replies with sentences so far.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    replies: (Option<ReplyId>, u32),
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    shape: MouthShape,
    /// The reply of the sentence that was spoken last, and the bytes of it up to there.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    spoken: Option<(ReplyId, u32)>,
    /// Replies up to this one were cancelled. Their later sentences are not spoken.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    silenced: Option<ReplyId>,
}

/// The reader of a mouth, until something plays it.
#[derive(Clone, Debug, Default)]
pub(super) struct ReaderSlot(Arc<Mutex<Option<MouthReader>>>);

impl ReaderSlot {
    pub(super) fn new(reader: Option<MouthReader>) -> Self {
        Self(Arc::new(Mutex::new(reader)))
    }

    /// `None` while another thread takes it.
    fn lock(&self) -> Option<MutexGuard<'_, Option<MouthReader>>> {
        self.0.try_lock().ok()
    }

    pub(super) fn take(&self) -> Option<MouthReader> {
        self.lock()?.take()
    }

    /// Whether it is the same one.
    #[cfg(feature = "voice_playback")]
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[cfg(feature = "voice_playback")]
    pub(super) fn is_full(&self) -> bool {
        self.lock().is_some_and(|slot| slot.is_some())
    }
}

/// A sentence that is not spoken to its end.
#[derive(Debug)]
struct Line {
    reply_id: ReplyId,
    tag: u64,
    text: Arc<str>,
    /// Bytes of the reply up to its end.
    end_bytes: u32,
    /// Number of the reply among all replies of the agent.
    number: u32,
    /// Its place in the mouth.
    sentence: Option<SentenceId>,
    timing: Timing,
    /// Samples of the whole sentence.
    samples: Option<u64>,
    has_started: bool,
    error: Option<String>,
    /// It is no part of the conversation any more, and ends when its turn comes.
    is_dropped: bool,
    visemes: usize,
    words: usize,
}

impl Line {
    /// Another one for each sentence, so that a repeated text varies, and the same one in a replay.
    fn seed(&self, seed: u64) -> u64 {
        let place = u64::from(self.number) << 32 | u64::from(self.end_bytes);
        let numbers = [seed, place].map(u64::to_le_bytes);
        fnv1a(fnv1a(FNV1A, numbers.as_flattened()), self.text.as_bytes())
    }
}

impl Speaking {
    /// Whether it speaks, or sentences wait.
    #[must_use]
    pub fn is_speaking(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The shape of the mouth.
    #[must_use]
    pub fn shape(&self) -> MouthShape {
        self.shape
    }

    /// The sentence that is spoken; of a text in parts, once its playback has begun.
    #[must_use]
    pub fn sentence(&self) -> Option<&str> {
        self.lines.front().filter(|line| line.has_started).map(|line| &*line.text)
    }

    /// The stream of samples for the host's mixer: mono, at [`sample_rate`](Self::sample_rate).
    /// `None` until the voice is loaded, and when it was taken. There is a new one when the source
    /// of the [`Voice`] has changed; the old one ends with silence.
    pub fn take_reader(&mut self) -> Option<MouthReader> {
        self.reader.take()
    }

    /// Samples per second of the voice; `None` until it is loaded.
    #[must_use]
    pub fn sample_rate(&self) -> Option<u32> {
        self.mouth.as_ref().map(Mouth::sample_rate)
    }

    /// Samples of silence in the middle of sentences, because they were not made in time.
    #[must_use]
    pub fn underrun_samples(&self) -> u64 {
        self.mouth.as_ref().map_or(0, Mouth::underrun_samples)
    }
}

/// A fixed text waits for its turn.
pub(super) fn say_text(
    say: On<Say>,
    mut agents: Query<&mut Speaking, (With<Voice>, Allow<Disabled>)>,
    mut commands: Commands,
) {
    let Ok(mut speaking) = agents.get_mut(say.agent) else { return };
    let number = &mut speaking.replies.1;
    *number = number.wrapping_add(1);
    let line = Line::new(ReplyId::NONE, say.tag, Arc::clone(&say.text), 0, *number);
    speaking.push(say.agent, line, &mut commands);
}

/// A sentence waits for its turn.
pub(super) fn say(
    sentence: On<ReplySentence>,
    mut agents: Query<&mut Speaking, (With<Voice>, Allow<Disabled>)>,
    mut commands: Commands,
) {
    let Ok(mut speaking) = agents.get_mut(sentence.agent) else { return };
    let (last, number) = &mut speaking.replies;
    if last.replace(sentence.reply_id) != Some(sentence.reply_id) {
        *number = number.wrapping_add(1);
    }
    let number = *number;
    let ReplySentence { agent, reply_id, tag, end_bytes, .. } = *sentence;
    let mut line = Line::new(reply_id, tag, sentence.text.as_str().into(), end_bytes, number);
    line.is_dropped = speaking.silenced.is_some_and(|last| reply_id <= last);
    speaking.push(agent, line, &mut commands);
}

impl Speaking {
    fn push(&mut self, agent: Entity, line: Line, commands: &mut Commands) {
        let is_full = self.lines.len() >= MAX_LINES;
        if is_full {
            tracing::warn!(target: "walla::voice", %agent, "its voice is too far behind");
        }
        if is_full || (line.is_dropped && self.lines.is_empty()) {
            commands.trigger(line.ended(agent, UNHEARD));
        } else {
            self.lines.push_back(line);
        }
    }
}

impl Line {
    fn new(reply_id: ReplyId, tag: u64, text: Arc<str>, end_bytes: u32, number: u32) -> Self {
        Self {
            reply_id,
            tag,
            text,
            end_bytes,
            number,
            sentence: None,
            timing: Timing::default(),
            samples: None,
            has_started: false,
            error: None,
            is_dropped: false,
            visemes: 0,
            words: 0,
        }
    }

    /// Whether a model has written it.
    fn is_of_reply(&self) -> bool {
        self.reply_id != ReplyId::NONE
    }

    fn ended(self, agent: Entity, reason: SpeechEnd) -> SpeechEnded {
        let Self { reply_id, tag, text, .. } = self;
        SpeechEnded { agent, reply_id, tag, text, reason }
    }

    /// Its samples that were played; `u64::MAX`: all.
    fn played(&self, position: Position) -> u64 {
        match self.sentence {
            _ if self.is_dropped => 0,
            Some(sentence) if sentence < position.sentence => u64::MAX,
            Some(sentence) if sentence == position.sentence => position.samples,
            _ => 0,
        }
    }
}

impl Voice {
    fn options(&self, line: &Line) -> SpeakOptions {
        SpeakOptions {
            speed: self.speed,
            speaker: self.speaker,
            seed: line.seed(self.seed),
            variation: self.variation,
            ..SpeakOptions::default()
        }
    }
}

/// Components of an agent that is interrupted.
type Interrupted =
    (&'static mut Speaking, Option<&'static Conversation>, Option<&'static AgentCues>);

/// An agent that may speak.
type Talkers = (Entity, Option<&'static Voice>, &'static mut Speaking);

/// Lets mouths speak, and publishes the progress of the playback since the last frame.
pub(super) fn speak(
    mut agents: Query<Talkers>,
    thread: Res<VoiceThread>,
    mut files: ResMut<VoiceFiles>,
    time: Option<Res<Time>>,
    mut last: Local<Option<Instant>>,
    mut commands: Commands,
) {
    let now = Instant::now();
    let passed = last.replace(now).map_or(Duration::ZERO, |last| now - last);
    // An app without `TimePlugin` has no other time.
    let seconds = time.map_or(passed.as_secs_f64(), |time| time.delta_secs_f64());
    let mut new_mouths = 0;
    for (agent, voice, mut speaking) in &mut agents {
        let speaking = speaking.bypass_change_detection();
        let Some(voice) = voice else {
            // The component was removed.
            speaking.lose_mouth(agent, &mut commands);
            continue;
        };
        let is_other = |mouth: &Mouth| {
            // Its mixer has dropped the reader, or its part of the thread has failed.
            speaking.source != voice.source || !mouth.has_reader() || mouth.has_ended()
        };
        if speaking.mouth.as_ref().is_some_and(is_other) {
            speaking.lose_mouth(agent, &mut commands);
        }
        if speaking.mouth.is_none() {
            if new_mouths == MAX_NEW_MOUTHS || !speaking.prepare(voice, &thread, &mut files) {
                continue;
            }
            new_mouths += usize::from(speaking.mouth.is_some());
        }
        speaking.say_next(voice);
        speaking.play(seconds);
        speaking.publish(agent, &mut commands);
    }
}

impl Speaking {
    /// Makes the mouth. Returns `false` while the voice loads.
    fn prepare(&mut self, voice: &Voice, thread: &VoiceThread, files: &mut VoiceFiles) -> bool {
        let has_failed = self.failed.as_ref() == Some(&voice.source);
        if self.lines.is_empty() && (has_failed || matches!(voice.source, VoiceSource::None)) {
            return true;
        }
        self.failed = None;
        let Some(loaded) = files.voice(&voice.source) else { return false };
        let mouth = loaded.map(|synthesizer| match &thread.engine {
            Some(engine) => engine.mouth(synthesizer, thread.mouths),
            None => Err(VoiceError::Stopped),
        });
        match mouth.unwrap_or_else(|error| Err(VoiceError::Failed(error))) {
            // The thread has not taken others yet.
            Err(VoiceError::Busy) => return false,
            Ok(mut mouth) => {
                self.reader = ReaderSlot::new(mouth.take_reader());
                (self.mouth, self.gain) = (Some(mouth), f32::NAN);
                self.source.clone_from(&voice.source);
            }
            Err(error) => {
                // It is tried again with the next sentence.
                self.failed = Some(voice.source.clone());
                for line in &mut self.lines {
                    line.error.get_or_insert_with(|| error.to_string());
                }
            }
        }
        true
    }

    /// Gives the mouth the next sentences: one more than it speaks, so that there is no gap.
    fn say_next(&mut self, voice: &Voice) {
        let Some(mouth) = &mut self.mouth else { return };
        if self.gain.to_bits() != voice.gain.to_bits() {
            self.gain = voice.gain;
            mouth.set_gain(voice.gain);
        }
        let mut is_making = false;
        for line in self.lines.iter_mut().filter(|line| !line.is_dropped).take(2) {
            if line.sentence.is_none() && line.error.is_none() && !is_making {
                match mouth.say(line.text.as_ref().to_owned(), voice.options(line)) {
                    Ok(sentence) => line.sentence = Some(sentence),
                    Err(SayError::Full(_)) => return,
                    Err(error) => line.error = Some(error.to_string()),
                }
            }
            is_making = line.samples.is_none() && line.error.is_none();
        }
    }

    /// Reads the stream, unless the host has its reader.
    fn play(&mut self, seconds: f64) {
        let Some(mut slot) = self.reader.lock() else { return };
        let Some(reader) = &mut *slot else { return };
        self.pace += seconds * f64::from(reader.sample_rate());
        // A pause of the game is no reason to catch up.
        self.pace = self.pace.min(f64::from(reader.sample_rate()));
        let mut block = [0.0; 512];
        while self.pace >= 1.0 {
            let count = (self.pace as usize).min(block.len());
            let part = block.get_mut(..count).unwrap_or_default();
            reader.read(part);
            self.pace -= count as f64;
        }
    }

    /// Publishes the progress of the playback since the last frame.
    fn publish(&mut self, agent: Entity, commands: &mut Commands) {
        let Some(mouth) = &mut self.mouth else {
            for mut line in self.lines.drain(..) {
                let error = line.error.take().unwrap_or_default();
                let reason = if line.is_dropped { UNHEARD } else { SpeechEnd::Failed(error) };
                commands.trigger(line.ended(agent, reason));
            }
            return;
        };
        while let Some(event) = mouth.try_event() {
            let (MouthEvent::Planned { sentence, .. }
            | MouthEvent::Made { sentence, .. }
            | MouthEvent::Stopped { sentence }
            | MouthEvent::Failed { sentence, .. }) = &event
            else {
                continue;
            };
            let line = self.lines.iter_mut().find(|line| line.sentence == Some(*sentence));
            let Some(line) = line else { continue };
            match event {
                MouthEvent::Planned { timing, .. } => line.timing.append(timing),
                MouthEvent::Made { samples, .. } => line.samples = Some(samples),
                MouthEvent::Failed { error, .. } => line.error = Some(error.to_string()),
                _ => {}
            }
        }
        let (position, is_idle) = (mouth.position(), mouth.is_idle());
        let rate = mouth.sample_rate();
        while let Some(line) = self.lines.front_mut() {
            let played = line.played(position);
            line.publish(agent, played, rate, commands, &mut self.shape);
            let is_over = match (line.sentence, &line.error) {
                _ if line.is_dropped => true,
                (None, None) => false,
                (None, Some(_)) => true,
                // The samples from before the failure are played.
                (Some(_), Some(_)) => is_idle || played == u64::MAX,
                (Some(_), None) => line.samples.is_some_and(|samples| samples <= played),
            };
            if !is_over {
                break;
            }
            let Some(mut line) = self.lines.pop_front() else { break };
            if line.is_of_reply() && !line.is_dropped {
                self.spoken = Some((line.reply_id, line.end_bytes));
            }
            let reason = match line.error.take() {
                _ if line.is_dropped => UNHEARD,
                Some(error) => SpeechEnd::Failed(error),
                None => SpeechEnd::Spoken,
            };
            commands.trigger(line.ended(agent, reason));
        }
        if self.lines.front().is_none_or(|line| !line.has_started) {
            self.close(agent, commands);
        }
    }

    /// Closes the mouth.
    fn close(&mut self, agent: Entity, commands: &mut Commands) {
        if std::mem::take(&mut self.shape) != MouthShape::Silence {
            let (shape, duration) = (MouthShape::Silence, Duration::ZERO);
            commands.trigger(Viseme { agent, shape, duration });
        }
    }

    /// As [`fall_silent`](Self::fall_silent), and drops the mouth.
    fn lose_mouth(&mut self, agent: Entity, commands: &mut Commands) {
        self.fall_silent(agent, commands);
        (self.mouth, self.reader) = (None, ReaderSlot::default());
    }

    /// Stops all speech. Returns the reply that was spoken, the end of its sentence and the bytes
    /// of the sentence that were not heard.
    fn fall_silent(
        &mut self,
        agent: Entity,
        commands: &mut Commands,
    ) -> Option<(ReplyId, u32, usize)> {
        let mut heard = None;
        let (mut position, mut rate) = (Position::default(), 1);
        if let Some(mouth) = &mut self.mouth {
            (position, rate) = (mouth.stop(), mouth.sample_rate());
            // Sound that was played since the last frame.
            self.publish(agent, commands);
        }
        for line in self.lines.drain(..) {
            let played = line.played(position);
            let heard_bytes = line.timing.heard_bytes_of(&line.text, line.samples, played, rate);
            if line.is_of_reply() && (heard.is_none() || heard_bytes > 0) {
                heard = Some((line.reply_id, line.end_bytes, line.text.len() - heard_bytes));
            }
            commands.trigger(line.ended(agent, SpeechEnd::Interrupted { heard_bytes }));
        }
        self.close(agent, commands);
        heard
    }
}

impl Line {
    /// Publishes the start of the sentence, shapes and words up to this sample.
    fn publish(
        &mut self,
        agent: Entity,
        played: u64,
        rate: u32,
        commands: &mut Commands,
        mouth: &mut MouthShape,
    ) {
        // A sentence without sound does not begin.
        if played == 0 || self.samples == Some(0) {
            return;
        }
        let time = |samples| walla_voice::duration(samples, rate);
        if !std::mem::replace(&mut self.has_started, true) {
            let Self { reply_id, tag, .. } = *self;
            let duration = time(self.timing.samples.end.max(self.samples.unwrap_or(0)));
            let text = Arc::clone(&self.text);
            commands.trigger(SpeechStarted { agent, reply_id, tag, text, duration });
        }
        // Several may have begun since the last frame.
        while let Some(viseme) = self.timing.visemes.get(self.visemes)
            && viseme.start < played
        {
            self.visemes += 1;
            if std::mem::replace(mouth, viseme.value) != viseme.value {
                let duration = time(viseme.end.saturating_sub(viseme.start));
                commands.trigger(Viseme { agent, shape: viseme.value, duration });
            }
        }
        while let Some(word) = self.timing.words.get(self.words)
            && word.start < played
        {
            self.words += 1;
            let (sentence, range) = (Arc::clone(&self.text), word.value.clone());
            let duration = time(word.end.saturating_sub(word.start));
            commands.trigger(Word { agent, sentence, range, duration });
        }
    }
}

pub(super) fn interrupt(
    interrupt: On<Interrupt>,
    mut agents: Query<Interrupted, Allow<Disabled>>,
    bridge: Option<Res<EngineBridge>>,
    mut commands: Commands,
) {
    let agent = interrupt.agent;
    let open = bridge.as_deref().and_then(|bridge| bridge.open_reply(agent));
    let last = bridge.as_deref().and_then(|bridge| bridge.last_reply(agent));
    let heard = agents.get_mut(agent).ok().and_then(|(mut speaking, conversation, cues)| {
        speaking.silenced = speaking.silenced.max(last);
        let Some((reply_id, end_bytes, rest)) = speaking.fall_silent(agent, &mut commands) else {
            // Of a reply in progress, the rest was not heard.
            let (open, _) = open?;
            let spoken = speaking.spoken.filter(|(reply_id, _)| *reply_id == open);
            return Some((open, spoken.map_or(0, |(_, end_bytes)| end_bytes)));
        };
        let end = end_bytes as usize;
        let place = end.saturating_sub(rest);
        // With cues, the speech is shorter than the reply.
        let place = cues.map_or(place, |AgentCues(cues)| {
            let ended = conversation.and_then(|conversation| conversation.reply(reply_id));
            let open = open.filter(|(open, _)| *open == reply_id).map(|(_, text)| text);
            ended.or(open).map_or(place, |reply| cues.place_before(reply, end, rest))
        });
        Some((reply_id, u32::try_from(place).unwrap_or(u32::MAX)))
    });
    commands.trigger(match heard {
        Some((reply_id, heard_bytes)) => {
            Cancel { reply_id: Some(reply_id), ..Cancel::heard(agent, heard_bytes) }
        }
        None => Cancel::new(agent),
    });
}

/// Drops sentences that are not a part of the conversation any more.
pub(super) fn cancelled(
    cancel: On<Cancel>,
    mut agents: Query<&mut Speaking, Allow<Disabled>>,
    bridge: Option<Res<EngineBridge>>,
    mut commands: Commands,
) {
    let (Some(heard_bytes), Ok(mut speaking)) = (cancel.heard_bytes, agents.get_mut(cancel.agent))
    else {
        return;
    };
    let last = bridge.and_then(|bridge| bridge.last_reply(cancel.agent));
    speaking.silenced = speaking.silenced.max(last);
    let is_dropped = |line: &Line| {
        let named = cancel.reply_id;
        // Without a name it is the latest reply.
        let is_later = named.is_some_and(|named| line.reply_id > named);
        let is_named = named.is_none_or(|named| named == line.reply_id);
        line.is_of_reply() && (is_later || is_named && line.end_bytes > heard_bytes)
    };
    if speaking.lines.front().is_some_and(is_dropped) {
        speaking.fall_silent(cancel.agent, &mut commands);
        return;
    }
    // The sentence that is heard continues; the ones behind it end when it has ended.
    let speaking = &mut *speaking;
    let mut is_in_mouth = false;
    for line in speaking.lines.iter_mut().skip(1).filter(|line| is_dropped(line)) {
        line.is_dropped = true;
        is_in_mouth |= line.sentence.is_some();
    }
    let front = speaking.lines.front().and_then(|line| line.sentence);
    if let (true, Some(mouth), Some(front)) = (is_in_mouth, &mut speaking.mouth, front) {
        mouth.stop_after(front);
    }
}

/// The mouth of an agent without its component, or of a despawned one, has ends too.
pub(super) fn removed(
    removed: On<Remove<Speaking>>,
    mut agents: Query<&mut Speaking, Allow<Disabled>>,
    mut commands: Commands,
) {
    if let Ok(mut speaking) = agents.get_mut(removed.entity) {
        speaking.fall_silent(removed.entity, &mut commands);
    }
}
