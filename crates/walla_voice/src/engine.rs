//! The thread of voices, and its handle.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use walla_cpu::budget::Grants;
use walla_cpu::priority::ThreadClass;
use walla_types::Mark;

use crate::ear::{self, Ear, EarOptions, Microphone};
use crate::error::VoiceError;
use crate::guard::discard;
use crate::mouth::{self, Mouth, MouthOptions};
use crate::recognizer::{SpeechRecognizer, VoiceActivity};
use crate::synthesizer::SpeechSynthesizer;
use crate::worker;

/// New mouths and ears that the thread has not taken yet.
const MAX_COMMANDS: usize = 4096;

/// A thread of low priority that speaks and listens for any number of characters.
///
/// It does one piece of work at a time, the most urgent one first: the text of the player's words,
/// then the sound that is needed soonest. The thread ends within one piece when the last handle (of
/// this type, of a [`Mouth`] or an [`Ear`]) is dropped.
#[derive(Clone)]
pub struct VoiceEngine {
    owner: Arc<Owner>,
}

/// Settings of a [`VoiceEngine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceOptions {
    /// Computing time for each [`frame`](VoiceEngine::frame), on average: what up to 15 frames
    /// leave is kept for later ones, and a piece of work (about 25 ms) is not interrupted: an
    /// overrun is deducted from later frames, up to 15 budgets.
    /// Default `None`: no limit, the thread's low priority alone.
    pub budget: Option<Duration>,
    /// Whether the thread has a lower priority than the host's. Default `true`; `false` for tools
    /// that do nothing else.
    pub low_priority: bool,
}

impl Default for VoiceOptions {
    fn default() -> Self {
        Self { budget: None, low_priority: true }
    }
}

/// Counters of a [`VoiceEngine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VoiceStats {
    /// Time of all pieces of work.
    pub busy: Duration,
    /// Time of the longest piece.
    pub longest: Duration,
    /// Pieces of work. Hearing the next samples of all microphones is one.
    pub pieces: u64,
}

impl VoiceEngine {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn new(options: &VoiceOptions) -> Result<Self, VoiceError> {
        let shared = Arc::new(Shared::new(options));
        let threads_shared = Arc::clone(&shared);
        let low_priority = options.low_priority;
        let thread = std::thread::Builder::new().name("walla-voice".to_owned());
        let thread = thread.spawn(move || {
            if low_priority && !ThreadClass::Embedder.enter() {
                tracing::debug!("the voice thread keeps its priority");
            }
            worker::run(&threads_shared);
        });
        let thread = thread.map_err(VoiceError::Thread)?;
        let _ = shared.thread.set(thread.thread().clone());
        Ok(Self { owner: Arc::new(Owner(shared)) })
    }

    /// Creates a mouth: a stream of sentences in one voice. Never waits.
    ///
    /// # Errors
    /// If an option is out of range, the thread has ended, or too many mouths are created at once.
    pub fn mouth(
        &self,
        voice: Arc<dyn SpeechSynthesizer>,
        options: MouthOptions,
    ) -> Result<Mouth, VoiceError> {
        let (mouth, job) = mouth::new(voice, options, self.clone())?;
        self.send(Command::Mouth(Box::new(job)))?;
        Ok(mouth)
    }

    /// Creates an ear, and the microphone that it hears. Never waits.
    ///
    /// # Errors
    /// As for [`mouth`](Self::mouth).
    pub fn ear(
        &self,
        recognizer: Arc<dyn SpeechRecognizer>,
        activity: Box<dyn VoiceActivity>,
        options: EarOptions,
    ) -> Result<(Ear, Microphone), VoiceError> {
        let (ear, microphone, job) = ear::new(recognizer, activity, options, self.clone())?;
        self.send(Command::Ear(Box::new(job)))?;
        Ok((ear, microphone))
    }

    /// Grants the time of a frame, if there is a [budget](VoiceOptions::budget). Never waits.
    pub fn frame(&self) {
        let shared = &self.owner.0;
        shared.grants.frame();
        if shared.waits_for_frame.take() {
            shared.wake();
        }
    }

    /// Changes the budget; `None`: no limit.
    pub fn set_budget(&self, budget: Option<Duration>) {
        self.owner.0.grants.set(budget);
        self.owner.0.wake();
    }

    /// Lets the thread grant itself frames of this duration, for hosts without frames; `None`: the
    /// host calls [`frame`](Self::frame).
    pub fn set_frame_time(&self, time: Option<Duration>) {
        self.owner.0.grants.set_frame_time(time);
        self.owner.0.wake();
    }

    /// Counters of the thread's work so far.
    #[must_use]
    pub fn stats(&self) -> VoiceStats {
        let shared = &self.owner.0;
        let nanos = |count: &AtomicU64| Duration::from_nanos(count.load(Ordering::Relaxed));
        VoiceStats {
            busy: nanos(&shared.busy_nanos),
            longest: nanos(&shared.longest_nanos),
            pieces: shared.pieces.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn wake(&self) {
        self.owner.0.wake_if_idle();
    }

    fn send(&self, command: Command) -> Result<(), VoiceError> {
        let shared = &self.owner.0;
        if shared.ended.load(Ordering::SeqCst) {
            discard(command);
            return Err(VoiceError::Stopped);
        }
        if let Err(command) = shared.commands.push(command) {
            discard(command);
            return Err(VoiceError::Busy);
        }
        shared.wake();
        Ok(())
    }
}

impl fmt::Debug for VoiceEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VoiceEngine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Ends the thread when the last handle is dropped.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

/// A message to the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Mouth(Box<mouth::Job>),
    Ear(Box<ear::Job>),
}

/// State that handles and the thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub commands: ArrayQueue<Command>,
    pub grants: Grants,
    /// The thread sleeps until a frame.
    waits_for_frame: Mark,
    /// The thread sleeps until there is work.
    is_idle: Mark,
    stop: AtomicBool,
    /// The thread takes no commands any more.
    ended: AtomicBool,
    thread: OnceLock<Thread>,
    busy_nanos: AtomicU64,
    longest_nanos: AtomicU64,
    pieces: AtomicU64,
}

impl Shared {
    fn new(options: &VoiceOptions) -> Self {
        Self {
            commands: ArrayQueue::new(MAX_COMMANDS),
            grants: Grants::new(options.budget),
            waits_for_frame: Mark::new(false),
            is_idle: Mark::new(false),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            thread: OnceLock::new(),
            busy_nanos: AtomicU64::new(0),
            longest_nanos: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
        }
    }

    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// The thread ends: waiting commands are dropped, so that their handles see the end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        while let Some(command) = self.commands.pop() {
            discard(command);
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Wakes the thread if it has looked for work and found none: most calls cost one exchange.
    fn wake_if_idle(&self) {
        if self.is_idle.take() {
            self.wake();
        }
    }

    /// Sleeps until there may be work, at most `max_time`, unless `ready` after hosts can see that
    /// the thread sleeps.
    pub(crate) fn sleep(&self, max_time: Option<Duration>, ready: impl FnOnce() -> bool) {
        self.is_idle.set();
        self.park(max_time, ready);
        self.is_idle.take();
    }

    /// As [`sleep`](Self::sleep), until a frame or a change of the budget.
    pub(crate) fn sleep_until_frame(
        &self,
        max_time: Option<Duration>,
        ready: impl FnOnce() -> bool,
    ) {
        self.waits_for_frame.set();
        self.park(max_time, ready);
        self.waits_for_frame.take();
    }

    fn park(&self, max_time: Option<Duration>, ready: impl FnOnce() -> bool) {
        // A wake since the mark was set makes the thread return from `park` at once.
        if !ready() && !self.stops() {
            match max_time {
                Some(time) => std::thread::park_timeout(time),
                None => std::thread::park(),
            }
        }
    }

    /// Adds a piece of work to the statistics.
    pub(crate) fn count(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        self.pieces.fetch_add(1, Ordering::Relaxed);
    }
}
