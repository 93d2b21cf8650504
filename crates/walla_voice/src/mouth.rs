//! Sentences of one character: from texts to a stream of samples.
//!
//! ```text
//! host: say ──▶ queue of texts ──▶ thread: sound ──▶ ring of blocks ──▶ audio thread: read
//! host: try_event ◀── queue of events ◀──┘            └── position, underruns ──▶ host
//! ```
//!
//! Rules:
//! 1. Sentences are spoken in order. Each one has exactly one last block in the ring and exactly
//!    one last event, also if it was stopped or has failed.
//! 2. The reader alone counts played samples: the position is exact.
//! 3. A stop is a number, or a range of them: sentences before it, or inside, are dropped by the
//!    thread, and their blocks by the reader.
//! 4. The thread makes a piece only if its blocks, and the events of a piece, have room.
//! 5. Each queue has one sender and one receiver, and neither waits for the other one.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::engine::VoiceEngine;
use crate::error::VoiceError;
use crate::guard::{discard, guarded};
use crate::resample::RATES;
use crate::ring::{Level, Receiver, Sender, ring};
use crate::synthesizer::{SpeakOptions, SpeechSynthesizer, Step, Utterance};
use crate::timing::{Ends, Timing, duration};

/// Samples of a block of the ring.
const BLOCK: usize = 256;
/// Time in which the first sound of a voice that was silent should be there, and the part of it
/// that is left at least: voices that are heard have no gap as long as they have more than this
/// beyond the work for their next samples.
const MAX_START: Duration = Duration::from_millis(250);
const MIN_START: Duration = Duration::from_millis(100);
/// Events that the host has not taken.
const MAX_EVENTS: usize = 256;
/// Events of a piece of work, with the last one of a sentence.
const EVENTS_OF_A_PIECE: usize = 4;
/// Bytes of a sentence: longer ones are refused.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Settings of a [`Mouth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MouthOptions {
    /// Sentences that wait. Default 64; from 1 to 65,536.
    pub max_sentences: usize,
    /// Sound that is made ahead of the playback. Default 1 s: more survives longer pauses of the
    /// thread, and costs more work when a sentence is stopped. From 0.1 s to 60 s.
    pub ahead: Duration,
    /// Sound of a sentence that must be there before its playback begins, or all of it. Default
    /// 150 ms.
    pub prebuffer: Duration,
}

impl Default for MouthOptions {
    fn default() -> Self {
        Self {
            max_sentences: 64,
            ahead: Duration::from_secs(1),
            prebuffer: Duration::from_millis(150),
        }
    }
}

/// A sentence of a mouth. Later sentences have larger ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SentenceId(pub(crate) u32);

/// What happened to a sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum MouthEvent {
    /// The times of its next part are known.
    Planned {
        /// The sentence.
        sentence: SentenceId,
        /// Times, in samples of the sentence.
        timing: Timing,
    },
    /// All its samples are in the stream.
    Made {
        /// The sentence.
        sentence: SentenceId,
        /// Their number.
        samples: u64,
    },
    /// It was stopped before it was complete.
    Stopped {
        /// The sentence.
        sentence: SentenceId,
    },
    /// It cannot be spoken. Samples from before the failure are played.
    Failed {
        /// The sentence.
        sentence: SentenceId,
        /// Why.
        error: VoiceError,
    },
}

/// How far the playback is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The sentence that was read last; of a mouth that has not begun, one before the first.
    pub sentence: SentenceId,
    /// Samples of it that were read.
    pub samples: u64,
}

/// Why a text was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SayError {
    /// Too many sentences wait: try again when one has ended.
    #[error("too many sentences wait")]
    Full(String),
    /// Longer than 64 KiB.
    #[error("the text has {} bytes, at most {MAX_TEXT_BYTES}", .0.len())]
    TooLong(String),
    /// An option is out of range.
    #[error("{1}")]
    Option(String, VoiceError),
    /// The mouth [has ended](Mouth::has_ended).
    #[error("the voice thread has ended")]
    Stopped(String),
}

/// Sentences of one character, on the side of the game. Dropping it stops them.
#[derive(Debug)]
pub struct Mouth {
    shared: Arc<Shared>,
    said: Sender<Said>,
    events: Receiver<MouthEvent>,
    engine: VoiceEngine,
    reader: Option<MouthReader>,
    /// Id of the last sentence.
    last: u32,
}

impl Mouth {
    /// Speaks a sentence behind the others. Never waits.
    ///
    /// # Errors
    /// [`SayError`] returns the text.
    pub fn say(&mut self, text: String, options: SpeakOptions) -> Result<SentenceId, SayError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(SayError::TooLong(text));
        }
        if let Err(error) = options.check() {
            return Err(SayError::Option(text, error));
        }
        if self.shared.has_ended() {
            return Err(SayError::Stopped(text));
        }
        let id = self.last + 1;
        let said = Said { id, text, options };
        if let Err(said) = self.said.push(said) {
            return Err(SayError::Full(said.text));
        }
        self.last = id;
        self.shared.last.store(id, Ordering::Release);
        self.engine.wake();
        Ok(SentenceId(id))
    }

    /// Stops all sentences so far. The playback stops at the next read, within one piece of work
    /// the thread stops too. Returns the position: exactly these samples of its sentence were
    /// read.
    /// A read that runs at this moment on another thread may still add to it; then
    /// [`position`](Self::position) has the final value, until the next sentence is read.
    pub fn stop(&mut self) -> Position {
        self.shared.first_kept.store(self.last + 1, Ordering::SeqCst);
        self.shared.reader_waker.wake();
        self.engine.wake();
        self.position()
    }

    /// Stops the sentences so far behind this one, which is spoken to its end.
    pub fn stop_after(&mut self, sentence: SentenceId) {
        let (from, to) = self.shared.skipped().into_inner();
        let first = sentence.0.saturating_add(1);
        // An earlier call may have stopped some of them.
        let from = if sentence.0 < to { from.min(first) } else { first };
        let skipped = u64::from(from) << 32 | u64::from(self.last);
        self.shared.skipped.store(skipped, Ordering::SeqCst);
        self.shared.reader_waker.wake();
        self.engine.wake();
    }

    /// The place of the playback.
    #[must_use]
    pub fn position(&self) -> Position {
        self.shared.position()
    }

    /// Whether the reader, taken or not, exists.
    #[must_use]
    pub fn has_reader(&self) -> bool {
        self.shared.has_reader.load(Ordering::SeqCst)
    }

    /// Whether all sentences were read to their ends or stopped.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.is_idle()
    }

    /// The next event.
    pub fn try_event(&mut self) -> Option<MouthEvent> {
        let event = self.events.pop();
        // The thread may have waited for this room.
        if event.is_some() && self.events.level().room() == EVENTS_OF_A_PIECE {
            self.engine.wake();
        }
        event
    }

    /// As [`try_event`](Self::try_event), for a task that waits for one. `None`: the mouth
    /// [has ended](Self::has_ended).
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<MouthEvent>> {
        self.shared.waker.register(context.waker());
        match self.try_event() {
            Some(event) => Poll::Ready(Some(event)),
            None if self.shared.has_ended() => Poll::Ready(self.try_event()),
            None => Poll::Pending,
        }
    }

    /// Whether the thread, or this mouth's part of it, has ended: nothing more will be spoken.
    /// Sentences in work have no last event then, and the finished part of them is played. A voice
    /// that panics in a drop ends its mouth, and no other one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// The stream of samples, once: for the thread that mixes sound.
    pub fn take_reader(&mut self) -> Option<MouthReader> {
        self.reader.take()
    }

    /// Samples per second of the stream.
    #[must_use]
    pub fn sample_rate(&self) -> u32 {
        self.shared.sample_rate
    }

    /// Loudness: the factor of all samples from the next read on. Default 1; from 0 to 16.
    pub fn set_gain(&self, gain: f32) {
        let gain = if gain.is_finite() { gain.clamp(0.0, 16.0) } else { 1.0 };
        self.shared.gain.store(gain.to_bits(), Ordering::Relaxed);
    }

    /// Samples of silence that the reader had to insert inside of sentences, because the thread had
    /// not made the next ones in time.
    #[must_use]
    pub fn underrun_samples(&self) -> u64 {
        self.shared.underruns.load(Ordering::Relaxed)
    }
}

impl Drop for Mouth {
    fn drop(&mut self) {
        self.stop();
        self.shared.is_closed.store(true, Ordering::SeqCst);
    }
}

/// The stream of samples of a [`Mouth`]: mono, at the voice's rate. It never blocks and allocates
/// nothing.
#[derive(Debug)]
pub struct MouthReader {
    shared: Arc<Shared>,
    blocks: Receiver<Block>,
    prebuffer: usize,
    block: Block,
    /// Samples of the block that were read.
    read: usize,
    /// A sentence has begun and its last block was not read.
    is_inside: bool,
}

/// Samples of one sentence.
#[derive(Clone, Copy, Debug)]
struct Block {
    sentence: u32,
    /// Index of the first sample in the sentence.
    first: u32,
    length: u16,
    /// Nothing of the sentence follows.
    is_last: bool,
    samples: [f32; BLOCK],
}

const EMPTY: Block =
    Block { sentence: 0, first: 0, length: 0, is_last: true, samples: [0.0; BLOCK] };

impl MouthReader {
    /// Fills `out` with the next samples, from -1 to 1, then with silence. Returns the
    /// number of samples of speech.
    pub fn read(&mut self, out: &mut [f32]) -> usize {
        let (filled, missing) = self.take(out);
        let silence = out.get_mut(filled..).unwrap_or_default();
        silence.fill(0.0);
        if missing {
            self.shared.underruns.fetch_add(silence.len() as u64, Ordering::Relaxed);
        }
        filled
    }

    /// As [`read`](Self::read), for a task that waits for samples, without silence. Returns their
    /// number; 0: all sentences so far were read or stopped, or `out` is empty.
    pub fn poll_read(&mut self, context: &mut Context<'_>, out: &mut [f32]) -> Poll<usize> {
        self.shared.reader_waker.register(context.waker());
        match self.take(out) {
            (0, _) if !out.is_empty() && !self.is_idle() => Poll::Pending,
            (count, _) => Poll::Ready(count),
        }
    }

    /// Takes samples. Returns their number, and whether some are missing in a sentence.
    fn take(&mut self, out: &mut [f32]) -> (usize, bool) {
        let gain = f32::from_bits(self.shared.gain.load(Ordering::Relaxed));
        let (mut filled, mut missing) = (0, false);
        while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            if !self.has_samples() {
                let is_kept = self.is_inside && self.shared.is_kept(self.block.sentence);
                missing = is_kept && !self.shared.has_ended();
                break;
            }
            let length = usize::from(self.block.length);
            let samples = self.block.samples.get(self.read..length).unwrap_or_default();
            for (out, sample) in rest.iter_mut().zip(samples) {
                *out = (sample * gain).clamp(-1.0, 1.0);
            }
            let count = rest.len().min(samples.len());
            self.read += count;
            filled += count;
            self.publish();
        }
        (filled, missing)
    }

    /// Whether all sentences so far were read or stopped.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.is_idle()
    }

    /// Whether nothing will follow: the [`Mouth`] was dropped.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.is_closed.load(Ordering::SeqCst)
    }

    /// Samples per second.
    #[must_use]
    pub fn sample_rate(&self) -> u32 {
        self.shared.sample_rate
    }

    /// Takes blocks until one has a sample to read.
    fn has_samples(&mut self) -> bool {
        loop {
            let is_kept = self.shared.is_kept(self.block.sentence);
            if is_kept && self.read < usize::from(self.block.length) {
                return true;
            }
            if self.block.is_last && self.is_inside {
                self.is_inside = false;
                self.shared.done.store(self.block.sentence, Ordering::Release);
            }
            let blocks = self.blocks.level().len();
            if !self.is_inside && !self.shared.may_begin(blocks, self.prebuffer) {
                return false;
            }
            let Some(block) = self.blocks.pop() else { return false };
            self.is_inside = true;
            (self.block, self.read) = (block, 0);
        }
    }

    fn publish(&self) {
        let samples = self.block.first.saturating_add(self.read as u32);
        let position = u64::from(self.block.sentence) << 32 | u64::from(samples);
        self.shared.position.store(position, Ordering::Release);
    }
}

impl Drop for MouthReader {
    fn drop(&mut self) {
        self.shared.has_reader.store(false, Ordering::SeqCst);
    }
}

/// State that host, thread and reader share.
#[derive(Debug)]
struct Shared {
    waker: AtomicWaker,
    /// Of a task that waits for samples.
    reader_waker: AtomicWaker,
    blocks: Arc<Level>,
    sample_rate: u32,
    /// Id of the last sentence that was said; of the last one that was read to its end; of the last
    /// one that is complete in the ring; of the first one that was not stopped.
    last: AtomicU32,
    done: AtomicU32,
    made: AtomicU32,
    first_kept: AtomicU32,
    /// First and last sentence that were stopped behind one that was not.
    skipped: AtomicU64,
    has_reader: AtomicBool,
    /// Sentence and samples: see [`Position`].
    position: AtomicU64,
    gain: AtomicU32,
    underruns: AtomicU64,
    ended: AtomicU32,
    is_closed: AtomicBool,
}

/// A text to speak.
#[derive(Debug)]
struct Said {
    id: u32,
    text: String,
    options: SpeakOptions,
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) != 0
    }

    fn is_idle(&self) -> bool {
        let is_done = self.done.load(Ordering::Acquire) == self.last.load(Ordering::Acquire);
        is_done || (self.has_ended() && self.blocks.is_empty())
    }

    /// Whether a sentence was not stopped.
    fn is_kept(&self, sentence: u32) -> bool {
        let first_kept = self.first_kept.load(Ordering::SeqCst);
        sentence >= first_kept && !self.skipped().contains(&sentence)
    }

    /// Sentences that were stopped behind one that was not.
    fn skipped(&self) -> RangeInclusive<u32> {
        let skipped = self.skipped.load(Ordering::SeqCst);
        (skipped >> 32) as u32..=skipped as u32
    }

    fn position(&self) -> Position {
        let position = self.position.load(Ordering::Acquire);
        let sentence = SentenceId((position >> 32) as u32);
        Position { sentence, samples: position & u64::from(u32::MAX) }
    }

    /// Whether the next sentence has enough blocks.
    fn may_begin(&self, blocks: usize, prebuffer: usize) -> bool {
        let is_made = self.made.load(Ordering::Acquire) > self.done.load(Ordering::Acquire);
        blocks > 0 && (is_made || blocks >= prebuffer || self.has_ended())
    }
}

/// A mouth and its part of the thread.
pub(crate) fn new(
    voice: Arc<dyn SpeechSynthesizer>,
    options: MouthOptions,
    engine: VoiceEngine,
) -> Result<(Mouth, Job), VoiceError> {
    let MouthOptions { max_sentences, ahead, prebuffer } = options;
    if !(1..=65_536).contains(&max_sentences) {
        let value = max_sentences.to_string();
        let (name, expected) = ("max_sentences", "1 to 65,536".to_owned());
        return Err(VoiceError::Option { name, value, expected });
    }
    if !(Duration::from_millis(100)..=Duration::from_mins(1)).contains(&ahead) {
        let value = format!("{ahead:?}");
        return Err(VoiceError::Option {
            name: "ahead",
            value,
            expected: "0.1 s to 60 s".to_owned(),
        });
    }
    let rate = guarded(|| Ok(voice.sample_rate()))?;
    if !RATES.contains(&rate) {
        let value = rate.to_string();
        let (name, expected) = ("sample_rate", "4,000 to 384,000".to_owned());
        return Err(VoiceError::Option { name, value, expected });
    }
    let blocks = |time: Duration| (time.as_secs_f64() * f64::from(rate)) as usize / BLOCK + 1;
    let (said, texts) = ring(max_sentences);
    let (events, taken_events) = ring(MAX_EVENTS);
    let (made, blocks_to_read) = ring(blocks(ahead));
    let shared = Arc::new(Shared {
        waker: AtomicWaker::new(),
        reader_waker: AtomicWaker::new(),
        blocks: Arc::clone(made.level()),
        sample_rate: rate,
        last: AtomicU32::new(0),
        done: AtomicU32::new(0),
        made: AtomicU32::new(0),
        first_kept: AtomicU32::new(1),
        skipped: AtomicU64::new(1 << 32),
        has_reader: AtomicBool::new(true),
        position: AtomicU64::new(0),
        gain: AtomicU32::new(1.0_f32.to_bits()),
        underruns: AtomicU64::new(0),
        ended: AtomicU32::new(0),
        is_closed: AtomicBool::new(false),
    });
    let prebuffer = blocks(prebuffer.min(ahead / 2));
    let reader = MouthReader {
        shared: Arc::clone(&shared),
        blocks: blocks_to_read,
        prebuffer,
        block: EMPTY,
        read: 0,
        is_inside: false,
    };
    let job = Job {
        voice,
        shared: Arc::clone(&shared),
        said: texts,
        events,
        blocks: made,
        current: None,
        samples: VecDeque::new(),
        piece: Vec::new(),
        waits_since: None,
        usual_work: Duration::ZERO,
        work: Duration::ZERO,
    };
    let mouth = Mouth { shared, said, events: taken_events, engine, reader: Some(reader), last: 0 };
    Ok((mouth, job))
}

/// The part of a mouth that the thread has.
#[derive(Debug)]
pub(crate) struct Job {
    voice: Arc<dyn SpeechSynthesizer>,
    shared: Arc<Shared>,
    said: Receiver<Said>,
    events: Sender<MouthEvent>,
    blocks: Sender<Block>,
    current: Option<Sentence>,
    /// Samples of the current sentence that are not in the ring.
    samples: VecDeque<f32>,
    piece: Vec<f32>,
    /// Since when a sentence waits for its first sound, while nothing is heard.
    waits_since: Option<Instant>,
    /// Work from samples to the next ones: of the last time or somewhat more, and so far.
    usual_work: Duration,
    work: Duration,
}

/// A sentence in work.
#[derive(Debug)]
struct Sentence {
    id: u32,
    text: String,
    /// Ends of the times so far.
    ends: Ends,
    /// `None`: all samples were made.
    utterance: Option<Box<dyn Utterance>>,
    /// Samples that are in the ring.
    stored: u32,
}

impl Sentence {
    fn new(id: u32, text: String, utterance: Option<Box<dyn Utterance>>) -> Self {
        Self { id, text, ends: Ends::default(), utterance, stored: 0 }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.ended.store(1, Ordering::SeqCst);
        self.shared.waker.wake();
        self.shared.reader_waker.wake();
        // Guarded alone: if the drop of the voice panicked too, the process would abort.
        discard(self.current.take());
    }
}

impl Job {
    /// Whether the host has dropped the mouth and its reader.
    pub(crate) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Moves samples to the ring and ends stopped sentences, without computing.
    pub(crate) fn store(&mut self) {
        loop {
            let Some(sentence) = &mut self.current else {
                let Some(said) = self.next_stopped() else { return };
                self.current = Some(Sentence::new(said.id, said.text, None));
                self.event(MouthEvent::Stopped { sentence: SentenceId(said.id) });
                continue;
            };
            let is_kept = self.shared.is_kept(sentence.id);
            if !is_kept && sentence.utterance.take().is_some() {
                let sentence = SentenceId(sentence.id);
                self.event(MouthEvent::Stopped { sentence });
                continue;
            }
            if !is_kept {
                self.samples.clear();
            }
            let is_complete = sentence.utterance.is_none();
            if self.samples.len() < BLOCK && !is_complete {
                return;
            }
            let mut block = Block { sentence: sentence.id, first: sentence.stored, ..EMPTY };
            let length = self.samples.len().min(BLOCK);
            for (to, from) in block.samples.iter_mut().zip(self.samples.iter()) {
                *to = *from;
            }
            block.length = length as u16;
            block.is_last = is_complete && length == self.samples.len();
            if self.blocks.push(block).is_err() {
                return;
            }
            let is_last = block.is_last;
            self.samples.drain(..length);
            sentence.stored = sentence.stored.saturating_add(length as u32);
            if is_last {
                self.shared.made.store(sentence.id, Ordering::Release);
                self.current = None;
            }
            self.shared.reader_waker.wake();
        }
    }

    /// A text that was stopped before its turn.
    fn next_stopped(&mut self) -> Option<Said> {
        // Texts are in order.
        let has_stopped = !self.shared.is_kept(self.shared.made.load(Ordering::Relaxed) + 1);
        if has_stopped && self.has_room_for_events() { self.said.pop() } else { None }
    }

    /// Time until the work for the samples that the host needs next must go on, if there is work to
    /// do.
    pub(crate) fn slack(&mut self) -> Option<Duration> {
        if !self.has_work() {
            return None;
        }
        let samples = self.blocks.level().len() * BLOCK;
        let has_begun = self.current.as_ref().is_some_and(|sentence| sentence.stored > 0);
        if samples > 0 || has_begun {
            self.waits_since = None;
            let time = duration(samples as u64, self.shared.sample_rate);
            return Some(time.saturating_sub(self.usual_work.saturating_sub(self.work)));
        }
        let waits_since = self.waits_since.get_or_insert_with(Instant::now);
        Some(MAX_START.saturating_sub(waits_since.elapsed()).max(MIN_START))
    }

    fn has_work(&self) -> bool {
        let has_work = match &self.current {
            Some(sentence) => sentence.utterance.is_some() && self.samples.len() < BLOCK,
            None => !self.said.level().is_empty(),
        };
        has_work && self.blocks.level().room() > 0 && self.has_room_for_events()
    }

    /// Whether there is something to do as soon as samples were read or events taken.
    pub(crate) fn waits_for_room(&self) -> bool {
        (self.current.is_some() || !self.said.level().is_empty()) && !self.has_work()
    }

    fn has_room_for_events(&self) -> bool {
        self.events.level().room() >= EVENTS_OF_A_PIECE
    }

    /// Does one piece of work, and measures it.
    pub(crate) fn step(&mut self) {
        let begin = Instant::now();
        let samples = self.samples.len();
        self.make();
        self.work += begin.elapsed();
        if self.samples.len() > samples {
            // Pieces differ, so longer ones are forgotten slowly.
            self.usual_work = self.work.max(self.usual_work * 9 / 10);
            self.work = Duration::ZERO;
        }
    }

    fn make(&mut self) {
        let (id, result) = match &mut self.current {
            Some(sentence) => {
                let Some(utterance) = &mut sentence.utterance else { return };
                self.piece.clear();
                let piece = &mut self.piece;
                let result = guarded(|| utterance.step(piece)).and_then(|step| {
                    if let Step::Planned(timing) = &step {
                        timing.check(&sentence.text, &mut sentence.ends)?;
                    }
                    Ok(step)
                });
                (sentence.id, result)
            }
            None => {
                let Some(Said { id, text, options }) = self.said.pop() else { return };
                let voice = Arc::clone(&self.voice);
                let begun = guarded(|| voice.begin(&text, &options));
                let (utterance, result) = match begun {
                    Ok(utterance) => (Some(utterance), Ok(Step::Working)),
                    Err(error) => (None, Err(error)),
                };
                self.current = Some(Sentence::new(id, text, utterance));
                self.piece.clear();
                (id, result)
            }
        };
        let finite = |sample: &f32| if sample.is_finite() { *sample } else { 0.0 };
        self.samples.extend(self.piece.iter().map(finite));
        let sentence = SentenceId(id);
        match result {
            Ok(Step::Working) => {}
            Ok(Step::Planned(timing)) => self.event(MouthEvent::Planned { sentence, timing }),
            Ok(Step::Ended) => {
                let current = self.current.as_mut();
                let stored = current.map_or(0, |current| {
                    current.utterance = None;
                    u64::from(current.stored)
                });
                let samples = stored + self.samples.len() as u64;
                self.event(MouthEvent::Made { sentence, samples });
            }
            Err(error) => {
                if let Some(current) = &mut self.current {
                    current.utterance = None;
                }
                self.event(MouthEvent::Failed { sentence, error });
            }
        }
    }

    fn event(&mut self, event: MouthEvent) {
        // There was room before the piece of work.
        let is_stored = self.events.push(event).is_ok();
        debug_assert!(is_stored, "the queue of events is full");
        self.shared.waker.wake();
    }
}
