//! Ears: from the samples of a microphone to texts.
//!
//! ```text
//! audio thread: Microphone::push ──▶ ring of samples ──▶ thread: rate, activity, segments, text
//! host: Ear::try_event ◀── queue of events ◀──┘
//! ```
//!
//! Rules:
//! 1. The microphone never waits: samples that the ring cannot hold are counted and reported. A
//!    change of its rate is a mark between samples.
//! 2. The thread recognises an utterance when its speaker has been silent for a moment
//!    ([`EarOptions::eager_silence`]). If the speaker continues, that text becomes a partial one;
//!    otherwise it is the final one, and is there when the utterance ends, which is sooner if it is
//!    a whole sentence ([`EarOptions::sentence_silence`]).
//! 3. Each utterance has exactly one end: a final text, or the reason why it has no text.
//! 4. The thread hears a part of what waits, so that the sound of mouths is made in between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::engine::VoiceEngine;
use crate::error::VoiceError;
use crate::guard::{discard, guarded};
use crate::recognizer::{
    HEARING_RATE, Recognition, RecognizeOptions, SpeechRecognizer, Transcript, VoiceActivity,
};
use crate::resample::{RATES, Resampler};
use crate::ring::{Receiver, Sender, ring};
use crate::segments::{Change, SegmentOptions, Segments, samples};
use crate::timing::duration;

/// Samples of the ring: 5 s at 48,000 samples a second.
const MAX_SAMPLES: usize = 480 * 512;
/// Marks are numbers that are not finite, with the rate in the lowest bits: no rate has more.
const MARK: u32 = 0x7fc0_0000;
/// Samples that are heard at once. A block ends at a change of the rate too.
const BLOCK: usize = 512;
/// Sound and blocks that are heard before other work: a few milliseconds of work.
const MAX_HEARD: Duration = Duration::from_millis(500);
const MAX_BLOCKS: usize = 400;
/// Rates of a microphone whose weights are kept: they are expensive.
const MAX_RESAMPLERS: usize = 4;
/// Events that the host has not taken.
const MAX_EVENTS: usize = 256;
/// Bytes of a text: the rest of a longer one is dropped.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Pieces of a recognition that precede other work.
const MAX_URGENT_STEPS: u32 = 1024;
/// Utterances that wait for their text.
const MAX_WAITING: usize = 8;

/// Settings of an [`Ear`].
#[derive(Clone, Debug, PartialEq)]
pub struct EarOptions {
    /// When an utterance begins and ends.
    pub segments: SegmentOptions,
    /// Silence after which the text is recognised in advance. Default 50 ms: the built-in detector
    /// reports it 150 ms late. `None`: when the utterance has ended, which costs less work and
    /// answers later.
    pub eager_silence: Option<Duration>,
    /// Silence that ends an utterance whose text in advance is a whole sentence: three words or
    /// more, with a full stop, question mark or exclamation mark at the end. Default 130 ms;
    /// `None`: [`SegmentOptions::end_silence`], as for other texts. If the speaker continues after
    /// it, that is another utterance.
    pub sentence_silence: Option<Duration>,
    /// Time between partial texts while someone speaks. Default 1 s; `None`: no partial texts.
    pub partial_every: Option<Duration>,
    /// Texts with a lower mean log-probability are dropped, partial ones too: mostly noise.
    /// Default -1.
    pub min_log_probability: f32,
    /// Settings of the recogniser.
    pub recognize: RecognizeOptions,
}

impl Default for EarOptions {
    fn default() -> Self {
        Self {
            segments: SegmentOptions::default(),
            eager_silence: Some(Duration::from_millis(50)),
            sentence_silence: Some(Duration::from_millis(130)),
            partial_every: Some(Duration::from_secs(1)),
            min_log_probability: -1.0,
            recognize: RecognizeOptions::default(),
        }
    }
}

/// An event of an ear. Times count from the first sample of the microphone.
#[derive(Debug)]
#[non_exhaustive]
pub enum EarEvent {
    /// Someone begins to speak.
    Begun {
        /// When.
        at: Duration,
    },
    /// The text of an utterance so far. Replaces earlier partial texts.
    Partial {
        /// The text.
        text: String,
    },
    /// The text of an utterance that has ended.
    Final {
        /// The text.
        transcript: Transcript,
        /// Begin of the utterance, with the sound before it.
        start: Duration,
        /// End of the utterance, with the silence behind it.
        end: Duration,
        /// That silence, as the detector has found it.
        silence: Duration,
    },
    /// An utterance has no text.
    Dropped {
        /// Why.
        reason: DropReason,
    },
    /// Samples of the microphone were lost, because the thread did not take them in time.
    Lost {
        /// Their number, at the microphone's rate.
        samples: u64,
    },
    /// The recogniser or the detector failed. The next utterance is tried again.
    Failed(VoiceError),
}

/// Why an utterance has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Shorter than [`SegmentOptions::min_speech`].
    Short,
    /// The recogniser has found no words.
    NoWords,
    /// The text is not probable: [`EarOptions::min_log_probability`].
    Unclear,
    /// Too many utterances wait.
    Full,
    /// The recogniser failed: an [`EarEvent::Failed`] precedes.
    Failed,
    /// The host has dropped the ear before. For events of hosts; an ear does not report it.
    Stopped,
}

/// Texts of a microphone, on the side of the game.
#[derive(Debug)]
pub struct Ear {
    shared: Arc<Shared>,
    events: Receiver<EarEvent>,
    engine: VoiceEngine,
}

impl Ear {
    /// The next event.
    pub fn try_event(&mut self) -> Option<EarEvent> {
        let lost = self.shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            return Some(EarEvent::Lost { samples: lost });
        }
        let event = self.events.pop();
        if event.is_some() && self.events.level().room() == 1 {
            self.engine.wake();
        }
        event
    }

    /// As [`try_event`](Self::try_event), for a task that waits for one. `None`: the microphone was
    /// dropped and all is recognised, or the thread has ended.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<EarEvent>> {
        self.shared.waker.register(context.waker());
        match self.try_event() {
            Some(event) => Poll::Ready(Some(event)),
            None if self.shared.ended.load(Ordering::SeqCst) => Poll::Ready(self.try_event()),
            None => Poll::Pending,
        }
    }

    /// Whether nothing more will come: the microphone was dropped and all events were taken.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::SeqCst) && self.events.level().is_empty()
    }

    /// Whether someone speaks at this moment.
    #[must_use]
    pub fn is_speech(&self) -> bool {
        self.shared.is_speech.load(Ordering::Relaxed)
    }

    /// While it is muted, the ear hears silence: for the time of the program's own speech.
    pub fn set_muted(&self, is_muted: bool) {
        self.shared.is_muted.store(is_muted, Ordering::Relaxed);
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.engine.wake();
    }
}

/// The samples of an [`Ear`]: for the thread that records. It never waits.
#[derive(Debug)]
pub struct Microphone {
    shared: Arc<Shared>,
    engine: VoiceEngine,
    /// Bits of samples, and marks.
    samples: Sender<u32>,
    /// Of the last sample; 0: there was none.
    sample_rate: u32,
}

impl Microphone {
    /// Hears samples: mono, from -1 to 1, in a block of any length. Samples that are not finite are
    /// silence. Rates outside of 4,000 to 384,000 a second are ignored, as is all sound after the
    /// end of the ear.
    pub fn push(&mut self, samples: &[f32], sample_rate: u32) {
        if !RATES.contains(&sample_rate) || self.shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let count = samples.len().min(self.free());
        let (samples, lost) = samples.split_at(count);
        if !samples.is_empty() && self.sample_rate != sample_rate {
            // `free` has counted the mark.
            let is_marked = self.samples.push(MARK | sample_rate).is_ok();
            debug_assert!(is_marked, "the ring is full");
            self.sample_rate = sample_rate;
        }
        let finite = |sample: &f32| if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 };
        self.samples.extend(samples.iter().map(|sample| finite(sample).to_bits()));
        if !lost.is_empty() {
            self.shared.lost.fetch_add(lost.len() as u64, Ordering::Relaxed);
        }
        self.engine.wake();
    }

    /// Free capacity in samples: as many are taken without a loss, of any rate.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.shared.ended.load(Ordering::SeqCst) {
            return MAX_SAMPLES;
        }
        self.free()
    }

    fn free(&self) -> usize {
        // One place is kept for the mark of another rate.
        self.samples.level().room().saturating_sub(1)
    }
}

impl Drop for Microphone {
    fn drop(&mut self) {
        self.shared.has_microphone.store(false, Ordering::SeqCst);
        self.engine.wake();
    }
}

/// State that host, thread and microphone share.
#[derive(Debug)]
struct Shared {
    waker: AtomicWaker,
    lost: AtomicU64,
    is_muted: AtomicBool,
    is_speech: AtomicBool,
    has_microphone: AtomicBool,
    /// The host has dropped the ear.
    is_closed: AtomicBool,
    /// The thread will send no more events.
    ended: AtomicBool,
}

/// An ear, its microphone, and their part of the thread.
pub(crate) fn new(
    recognizer: Arc<dyn SpeechRecognizer>,
    activity: Box<dyn VoiceActivity>,
    options: EarOptions,
    engine: VoiceEngine,
) -> Result<(Ear, Microphone, Job), VoiceError> {
    let longest = guarded(|| Ok(recognizer.max_samples()))?;
    let longest = duration(longest as u64, HEARING_RATE);
    let length = options.segments.max_length;
    if length > longest || length < Duration::from_secs(1) {
        let value = format!("{length:?}");
        let expected = "1 s to the longest recording of the recogniser".to_owned();
        return Err(VoiceError::Option { name: "max_length", value, expected });
    }
    let frame = guarded(|| Ok(activity.frame_samples()))?;
    if !(16..=HEARING_RATE as usize).contains(&frame) {
        let value = frame.to_string();
        let (name, expected) = ("frame_samples", "16 to 16,000".to_owned());
        return Err(VoiceError::Option { name, value, expected });
    }
    // Otherwise an utterance might be longer, or no speech be long enough.
    if 8 * frame > samples(length) {
        let value = frame.to_string();
        let expected = "at most an eighth of max_length".to_owned();
        return Err(VoiceError::Option { name: "frame_samples", value, expected });
    }
    let SegmentOptions { pre_roll, end_silence, min_speech, .. } = options.segments;
    let parts = [("pre_roll", pre_roll), ("end_silence", end_silence), ("min_speech", min_speech)];
    for (name, part) in parts {
        if part > length / 2 {
            let (value, expected) = (format!("{part:?}"), "at most half of max_length".to_owned());
            return Err(VoiceError::Option { name, value, expected });
        }
    }
    let (samples, microphone) = ring(MAX_SAMPLES + 1);
    let (sent, events) = ring(MAX_EVENTS);
    let shared = Arc::new(Shared {
        waker: AtomicWaker::new(),
        lost: AtomicU64::new(0),
        is_muted: AtomicBool::new(false),
        is_speech: AtomicBool::new(false),
        has_microphone: AtomicBool::new(true),
        is_closed: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let ear = Ear { shared: Arc::clone(&shared), events, engine: engine.clone() };
    let sender = Microphone { shared: Arc::clone(&shared), engine, samples, sample_rate: 0 };
    let segments = Segments::new(options.segments.clone());
    let job = Job {
        shared,
        recognizer: Some(recognizer),
        activity,
        frame,
        options,
        microphone,
        sent,
        block: Vec::new(),
        resamplers: VecDeque::new(),
        samples: Vec::new(),
        segments,
        events: VecDeque::new(),
        waiting: VecDeque::new(),
        current: None,
        eager: None,
        recognized_at: 0,
    };
    Ok((ear, sender, job))
}

/// The part of an ear that the thread has.
#[derive(Debug)]
pub(crate) struct Job {
    shared: Arc<Shared>,
    /// `None` in its drop alone.
    recognizer: Option<Arc<dyn SpeechRecognizer>>,
    activity: Box<dyn VoiceActivity>,
    /// Samples of its frames.
    frame: usize,
    options: EarOptions,
    microphone: Receiver<u32>,
    /// Events in flight to the host.
    sent: Sender<EarEvent>,
    /// Samples of the microphone, all of the first resampler's rate.
    block: Vec<f32>,
    /// With their rates. The first one is of the last mark.
    resamplers: VecDeque<(u32, Resampler)>,
    /// Samples that are less than a frame.
    samples: Vec<f32>,
    segments: Segments,
    /// Events that the queue could not hold.
    events: VecDeque<EarEvent>,
    /// Utterances that have ended.
    waiting: VecDeque<Utterance>,
    current: Option<Work>,
    /// The text of the utterance in progress, from a moment of silence.
    eager: Option<Result<Transcript, VoiceError>>,
    /// Samples of the utterance when its text was last recognised.
    recognized_at: usize,
}

/// Times of an utterance: its begin, its end, and the silence before the end.
type Span = [Duration; 3];

/// An utterance that has ended.
#[derive(Debug)]
struct Utterance {
    samples: Vec<f32>,
    span: Span,
    /// Its text, if it was recognised in advance.
    text: Option<Result<Transcript, VoiceError>>,
}

/// A recognition in work.
#[derive(Debug)]
struct Work {
    recognition: Box<dyn Recognition>,
    purpose: Purpose,
    /// Pieces so far.
    steps: u32,
}

#[derive(Debug)]
enum Purpose {
    /// Of the utterance in progress.
    Partial,
    /// Of it, in a moment of silence: perhaps its end.
    Eager,
    /// Of an utterance that has ended.
    Final(Span),
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.is_speech.store(false, Ordering::Relaxed);
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        // Guarded alone: if the drop of the detector panicked too, the process would abort.
        discard(self.current.take());
        discard(self.recognizer.take());
    }
}

impl Job {
    /// Whether there is nothing more to do.
    pub(crate) fn has_ended(&self) -> bool {
        if self.shared.is_closed.load(Ordering::SeqCst) {
            return true;
        }
        !self.shared.has_microphone.load(Ordering::SeqCst)
            && self.microphone.level().is_empty()
            && self.waiting.is_empty()
            && self.current.is_none()
            && self.events.is_empty()
            && !self.segments.is_speech()
    }

    /// Whether there is something to hear or to send.
    pub(crate) fn can_hear(&self) -> bool {
        if !self.events.is_empty() {
            return self.sent.level().room() > 0;
        }
        let has_microphone = self.shared.has_microphone.load(Ordering::SeqCst);
        !self.microphone.level().is_empty() || (!has_microphone && self.segments.is_speech())
    }

    /// Takes the next samples of the microphone. Returns whether there were some.
    pub(crate) fn hear(&mut self) -> bool {
        let (mut has_heard, mut heard) = (false, Duration::ZERO);
        // While the host takes no events, samples wait, and are lost in the end.
        for _ in 0..MAX_BLOCKS {
            if !self.events.is_empty() || heard >= MAX_HEARD {
                break;
            }
            let Some(mark) = self.take_block() else { break };
            has_heard = true;
            let rate = self.resamplers.front().map_or(HEARING_RATE, |(rate, _)| *rate);
            heard += duration(self.block.len() as u64, rate);
            self.block();
            self.send();
            if mark.is_some_and(|rate| self.change_rate(rate)) {
                break;
            }
        }
        let has_microphone = self.shared.has_microphone.load(Ordering::SeqCst);
        let is_over = !has_microphone && self.microphone.level().is_empty();
        if is_over && self.segments.is_speech() {
            // The rest, less than a frame, belongs to the utterance too.
            if !self.samples.is_empty() {
                self.samples.resize(self.frame, 0.0);
            }
            self.frames();
            if self.segments.is_speech() {
                let change = self.segments.end();
                self.change(change);
            }
        }
        self.shared.is_speech.store(self.segments.is_speech(), Ordering::Relaxed);
        self.send();
        has_heard
    }

    /// Takes the next samples of one rate, and the next rate if a mark follows them.
    fn take_block(&mut self) -> Option<Option<u32>> {
        self.block.clear();
        while self.block.len() < BLOCK
            && let Some(bits) = self.microphone.pop()
        {
            let sample = f32::from_bits(bits);
            if !sample.is_finite() {
                return Some(Some(bits & !MARK));
            }
            self.block.push(sample);
        }
        (!self.block.is_empty()).then_some(None)
    }

    /// The next samples have this rate. Returns whether its weights had to be computed.
    fn change_rate(&mut self, rate: u32) -> bool {
        let known = self.resamplers.iter().position(|(of, _)| *of == rate);
        match known.and_then(|known| self.resamplers.remove(known)) {
            Some((_, mut resampler)) => {
                resampler.reset();
                self.resamplers.push_front((rate, resampler));
            }
            None => {
                self.resamplers.truncate(MAX_RESAMPLERS - 1);
                self.resamplers.push_front((rate, Resampler::new(rate, HEARING_RATE)));
            }
        }
        known.is_none()
    }

    fn block(&mut self) {
        let Some((_, resampler)) = self.resamplers.front_mut() else { return };
        let first = self.samples.len();
        resampler.push(&self.block, &mut self.samples);
        if self.shared.is_muted.load(Ordering::Relaxed) {
            self.samples.iter_mut().skip(first).for_each(|sample| *sample = 0.0);
        }
        self.frames();
    }

    /// Takes all complete frames.
    fn frames(&mut self) {
        let samples = std::mem::take(&mut self.samples);
        let frames = samples.chunks_exact(self.frame);
        self.samples = frames.remainder().to_vec();
        for frame in frames {
            let activity = &mut self.activity;
            let probability = guarded(|| activity.push(frame)).unwrap_or_else(|error| {
                self.events.push_back(EarEvent::Failed(error));
                0.0
            });
            if let Some(change) = self.segments.push(frame, probability) {
                self.change(change);
            }
            self.advance();
        }
    }

    /// An utterance has begun or ended.
    fn change(&mut self, change: Change) {
        match change {
            Change::Begun => {
                (self.eager, self.recognized_at) = (None, 0);
                let at = duration(self.segments.start(), HEARING_RATE);
                self.events.push_back(EarEvent::Begun { at });
            }
            Change::Ended(samples) => {
                let end = self.segments.start();
                let start = end.saturating_sub(samples.len() as u64);
                let silence = self.segments.silence() as u64;
                let span = [start, end, silence].map(|at| duration(at, HEARING_RATE));
                match &mut self.current {
                    // It becomes the final text.
                    Some(Work { purpose: purpose @ Purpose::Eager, .. }) => {
                        *purpose = Purpose::Final(span);
                        return;
                    }
                    // Its end comes too late.
                    Some(Work { purpose: Purpose::Partial, .. }) => self.current = None,
                    _ => {}
                }
                let text = self.eager.take();
                if self.waiting.len() >= MAX_WAITING && text.is_none() {
                    self.drop_utterance(DropReason::Full);
                } else {
                    self.waiting.push_back(Utterance { samples, span, text });
                }
            }
            Change::Dropped => {
                if self.current.as_ref().is_some_and(|work| !work.is_final()) {
                    self.current = None;
                }
                self.drop_utterance(DropReason::Short);
            }
        }
    }

    /// Begins recognitions of the utterance in progress.
    fn advance(&mut self) {
        if !self.segments.is_speech() {
            return;
        }
        if self.segments.is_voiced() {
            // The speaker continues: the text in advance becomes a partial one.
            if let Some(Work { purpose: purpose @ Purpose::Eager, .. }) = &mut self.current {
                *purpose = Purpose::Partial;
            }
            if let Some(Ok(transcript)) = self.eager.take() {
                self.partial(transcript);
            }
        }
        let is_due = |silence: Duration| self.segments.silence() >= samples(silence);
        if let Some(Ok(transcript)) = &self.eager
            && self.options.sentence_silence.is_some_and(is_due)
            && !self.is_unclear(transcript)
            && is_sentence(&transcript.text)
        {
            let change = self.segments.end();
            return self.change(change);
        }
        if self.current.is_some() || !self.waiting.is_empty() {
            return;
        }
        let length = self.segments.samples().len();
        let new = length - self.recognized_at.min(length);
        if self.options.eager_silence.is_some_and(is_due) {
            // Once for each moment of silence.
            if self.eager.is_none() && new > self.segments.silence() {
                self.begin_running(Purpose::Eager);
            }
        } else if self.options.partial_every.is_some_and(|time| new >= samples(time))
            && self.segments.is_voiced()
        {
            self.begin_running(Purpose::Partial);
        }
    }

    /// Begins a recognition of the utterance in progress.
    fn begin_running(&mut self, purpose: Purpose) {
        self.recognized_at = self.segments.samples().len();
        let Some(recognizer) = self.recognizer.clone() else { return };
        let (samples, options) = (self.segments.samples(), &self.options.recognize);
        match guarded(|| recognizer.begin(samples, options)) {
            Ok(recognition) => self.current = Some(Work { recognition, purpose, steps: 0 }),
            Err(error) => self.events.push_back(EarEvent::Failed(error)),
        }
    }

    fn partial(&mut self, transcript: Transcript) {
        // Noise may not interrupt a character.
        if !transcript.text.is_empty() && !self.is_unclear(&transcript) {
            self.events.push_back(EarEvent::Partial { text: transcript.text });
        }
    }

    /// Time until the text of a recognition is needed, if there is one to do.
    pub(crate) fn slack(&self) -> Option<Duration> {
        let is_partial = |work: &Work| matches!(work.purpose, Purpose::Partial);
        match &self.current {
            Some(work) if is_partial(work) => Some(Duration::from_millis(300)),
            // One that never ends leaves time for mouths.
            Some(work) if work.steps > MAX_URGENT_STEPS => Some(Duration::from_millis(250)),
            Some(_) => Some(Duration::ZERO),
            None => (!self.waiting.is_empty()).then_some(Duration::ZERO),
        }
    }

    /// Does one piece of work.
    pub(crate) fn step(&mut self) {
        let Some(work) = &mut self.current else {
            self.begin_final();
            self.send();
            return;
        };
        work.steps = work.steps.saturating_add(1);
        let result = guarded(|| work.recognition.step());
        let result = match result {
            Ok(None) => return,
            Ok(Some(mut transcript)) => {
                cut(&mut transcript.text);
                if let Some(language) = &mut transcript.language {
                    cut(language);
                }
                Ok(transcript)
            }
            Err(error) => Err(error),
        };
        match self.current.take().map(|work| work.purpose) {
            Some(Purpose::Final(span)) => self.finish(result, span),
            Some(Purpose::Eager) => self.eager = Some(result),
            Some(Purpose::Partial) => match result {
                Ok(transcript) => self.partial(transcript),
                Err(error) => self.events.push_back(EarEvent::Failed(error)),
            },
            None => {}
        }
        self.send();
    }

    /// Begins with the next utterance that has ended.
    fn begin_final(&mut self) {
        let Some(Utterance { samples, span, text }) = self.waiting.pop_front() else { return };
        if let Some(text) = text {
            return self.finish(text, span);
        }
        let Some(recognizer) = self.recognizer.clone() else { return };
        match guarded(|| recognizer.begin(&samples, &self.options.recognize)) {
            Ok(recognition) => {
                let purpose = Purpose::Final(span);
                self.current = Some(Work { recognition, purpose, steps: 0 });
            }
            Err(error) => self.finish(Err(error), span),
        }
    }

    fn finish(&mut self, result: Result<Transcript, VoiceError>, span: Span) {
        let [start, end, silence] = span;
        match result {
            Err(error) => {
                self.events.push_back(EarEvent::Failed(error));
                self.drop_utterance(DropReason::Failed);
            }
            Ok(transcript) if transcript.text.is_empty() => {
                self.drop_utterance(DropReason::NoWords);
            }
            Ok(transcript) if self.is_unclear(&transcript) => {
                self.drop_utterance(DropReason::Unclear);
            }
            Ok(transcript) => {
                self.events.push_back(EarEvent::Final { transcript, start, end, silence });
            }
        }
    }

    fn is_unclear(&self, transcript: &Transcript) -> bool {
        let probability = transcript.log_probability;
        probability.is_nan() || probability < self.options.min_log_probability
    }

    fn drop_utterance(&mut self, reason: DropReason) {
        self.events.push_back(EarEvent::Dropped { reason });
    }

    /// Sends events as far as the queue has room.
    pub(crate) fn send(&mut self) {
        let mut has_sent = false;
        while let Some(event) = self.events.pop_front() {
            if let Err(event) = self.sent.push(event) {
                self.events.push_front(event);
                break;
            }
            has_sent = true;
        }
        if has_sent {
            self.shared.waker.wake();
        }
    }
}

/// Shortens a text of a recogniser to its bound.
fn cut(text: &mut String) {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text.shrink_to_fit();
    }
}

/// Whether a text is a whole sentence, of more than the two words that often precede another one.
fn is_sentence(text: &str) -> bool {
    let text = text.trim_end_matches(['"', '\'', '”', '’']);
    let is_ended = text.ends_with(['.', '?', '!', '。', '？', '！']) && !text.ends_with("..");
    is_ended && text.split_whitespace().nth(2).is_some()
}

impl Work {
    fn is_final(&self) -> bool {
        matches!(self.purpose, Purpose::Final(_))
    }
}

#[cfg(test)]
mod tests {
    use super::is_sentence;

    #[test]
    fn whole_sentences_are_known() {
        for text in ["Do you sell swords?", "I would like \"nails.\"", "Give me that!"] {
            assert!(is_sentence(text), "{text}");
        }
        for text in ["", ".", "Good morning.", "I would like", "I would like...", "Well, I would,"]
        {
            assert!(!is_sentence(text), "{text}");
        }
    }
}
