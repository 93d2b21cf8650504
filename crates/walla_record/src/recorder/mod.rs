//! Records the session of a client.
//!
//! | data | frame side | thread `walla-record` |
//! |---|---|---|
//! | [`Front`]: the buffer that is being filled | owns, under a lock that only host threads take | never |
//! | queue of full buffers | `push` | `pop` |
//! | queue of empty buffers | `pop` | `push` |
//! | file | never | owns |
//! | [`Shared`]: state, error, bytes | reads, sets | reads, sets |
//!
//! Rules:
//! 1. The frame side encodes records into a buffer and never waits for the thread: a full queue
//!    ends the recording.
//! 2. A buffer is handed over when it is full, and at the latest 100 ms after its first record if
//!    the host calls the client; [`EngineClient::max_wait`] lets a host without frames call it.
//! 3. The thread writes a chunk, and asks the system to store it, every half second in which there
//!    were records.

mod front;
mod shared;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walla_runtime::{
    Capabilities, Command, Engine, EngineClient, EngineState, EngineStats, Event, FrameBudget,
    ModelCard, ReplyEvent, TrySendError,
};

use self::front::Front;
pub(crate) use self::shared::Shared;
pub use self::shared::{RecordingFile, RecordingStatus};
use crate::error::RecordError;
use crate::format::{Clock, Item};
use crate::recording::EngineInfo;

/// A buffer of this size is full.
const BUFFER_BYTES: usize = 64 << 10;

/// Capacity of a new buffer: records of the largest usual size fit behind the limit.
const BUFFER_CAPACITY: usize = BUFFER_BYTES + (8 << 10);

/// Number of buffers that may wait for the disk: at least 25 seconds, because a buffer has at least
/// 100 ms or 64 KiB.
const MAX_BUFFERS: usize = 256;

/// Maximum bytes in these buffers: a command may have megabytes.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// Maximum time in a buffer, in microseconds.
const BUFFER_MICROS: u64 = 100_000;

/// Maximum wait for the last chunk when the recorder is dropped.
const MAX_CLOSE: Duration = Duration::from_secs(2);

/// A client that records the commands and events of its host. It behaves as the client that it
/// contains.
///
/// A recording that cannot go on, because the disk is full or too slow, ends with a warning in the
/// log and an error in [`status`](Self::status); the session continues.
///
/// A recording contains personas, conversations, notes and the texts of players. It contains no API
/// keys, because these are options of a remote engine and no part of commands.
pub struct Recorder {
    front: Mutex<Front>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    begun: Instant,
    frame: AtomicU64,
    /// The address of the card that is in the recording: a fallback has another one.
    card: AtomicUsize,
    /// The host wants details for a recording too.
    is_host_logged: AtomicBool,
    has_tokens: bool,
    /// The engine has ended; the recording ends when no event is left.
    is_engine_ended: AtomicBool,
    // Dropped last, behind the end of the recording.
    client: Box<dyn EngineClient>,
}

impl Recorder {
    /// Records the session of `client` to a file. An existing recording is replaced.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::NotARecording`] if the path names another file,
    /// [`RecordError::InUse`], [`RecordError::Thread`].
    pub fn new(path: impl Into<PathBuf>, client: impl EngineClient) -> Result<Self, RecordError> {
        Ok(Self::with_file(RecordingFile::create(path)?, Box::new(client)))
    }

    /// Records the session of `client` to a file that was created before.
    #[must_use]
    pub fn with_file(file: RecordingFile, client: Box<dyn EngineClient>) -> Self {
        let RecordingFile { shared, thread } = file;
        let has_tokens = client.set_logged(true);
        Self {
            front: Mutex::new(Front::new()),
            shared,
            thread: Some(thread),
            begun: Instant::now(),
            frame: AtomicU64::new(0),
            card: AtomicUsize::new(0),
            is_host_logged: AtomicBool::new(false),
            has_tokens,
            is_engine_ended: AtomicBool::new(false),
            client,
        }
    }

    /// State of the recording.
    #[must_use]
    pub fn status(&self) -> RecordingStatus {
        RecordingStatus(Arc::clone(&self.shared))
    }

    fn has_ended(&self) -> bool {
        self.shared.error.get().is_some() || self.shared.is_closing.load(Ordering::Relaxed)
    }

    /// Ends the recording. The thread writes the rest.
    fn close(&self) {
        if !self.has_ended() {
            let now = self.now();
            let mut front = self.lock();
            self.put(&mut front, now, Item::End(None));
            self.hand_over(&mut front);
        }
        self.shared.is_closing.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn now(&self) -> Clock {
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let micros = millis.saturating_mul(1_000);
        Clock { frame: self.frame.load(Ordering::Relaxed), micros }
    }

    fn lock(&self) -> MutexGuard<'_, Front> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record.
    fn put(&self, front: &mut Front, now: Clock, record: Item<'_>) {
        match front.put(now, record) {
            Ok(()) => self.hand_over_full(front),
            Err(error) => self.give_up(front, error),
        }
    }

    /// Ends the recording with the records so far.
    fn give_up(&self, front: &mut Front, error: RecordError) {
        // Before the error, which the thread sees as the last buffer's mark.
        self.hand_over(front);
        self.shared.fail(error);
    }

    fn hand_over_full(&self, front: &mut Front) {
        if front.buffer.len() >= BUFFER_BYTES {
            self.hand_over(front);
        }
    }

    /// Sends the buffer to the thread that writes.
    fn hand_over(&self, front: &mut Front) {
        // The thread returns buffers, so that the steady state allocates nothing.
        let next = self.shared.empty.pop();
        let next = next.unwrap_or_else(|| Vec::with_capacity(BUFFER_CAPACITY));
        let full = std::mem::replace(&mut front.buffer, next);
        let bytes = self.shared.waiting_bytes.fetch_add(full.len(), Ordering::Relaxed);
        // One buffer may have any size.
        let has_room = bytes == 0 || bytes + full.len() <= MAX_WAITING_BYTES;
        if !has_room || self.shared.full.push(full).is_err() {
            self.shared.fail(RecordError::Behind { bytes });
        }
    }

    /// Sends a buffer that has waited long enough.
    fn hand_over_old(&self, front: &mut Front, now: Clock) {
        let age = now.micros.saturating_sub(front.begun_micros);
        if !front.buffer.is_empty() && age >= BUFFER_MICROS {
            self.hand_over(front);
        }
    }

    /// Records the engine when it is ready, and when another device has taken over.
    fn record_engine(&self, front: &mut Front, now: Clock) {
        let Some(card) = self.client.model() else { return };
        // A fallback to another device has another card, so comparing addresses is enough.
        let address = std::ptr::from_ref(card).addr();
        if self.card.swap(address, Ordering::Relaxed) != address {
            let engine = EngineInfo::new(card, self.has_tokens);
            self.put(front, now, Item::Engine(Cow::Owned(engine)));
        }
    }

    /// Records received events.
    fn received(&self, events: &[Event]) {
        if self.has_ended() {
            return;
        }
        if events.is_empty() && self.is_engine_ended.load(Ordering::Relaxed) {
            return self.close();
        }
        let now = self.now();
        let mut front = self.lock();
        self.record_engine(&mut front, now);
        events.iter().for_each(|event| self.put(&mut front, now, event.into()));
        self.hand_over_old(&mut front, now);
    }

    /// Whether an event is for the host.
    fn is_for_host(&self, event: &Event) -> bool {
        !matches!(event.what, ReplyEvent::Logged(_)) || self.is_host_logged.load(Ordering::Relaxed)
    }
}

impl EngineClient for Recorder {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        // A copy of a cache changes no text, and is not recorded.
        if self.has_ended() || matches!(command, Command::CopyCache { .. }) {
            return self.client.try_send(command);
        }
        let now = self.now();
        // Until the command is in the recording or refused, so that its events follow it.
        let mut front = self.lock();
        let mark = front.mark();
        // Before it is sent, because the engine takes it only if its queue has room.
        let put = front.put(now, Item::Command(Cow::Borrowed(&command)));
        self.client.try_send(command).inspect_err(|_| front.restore(mark))?;
        match put {
            Ok(()) => self.hand_over_full(&mut front),
            Err(error) => self.give_up(&mut front, error),
        }
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        loop {
            let event = self.client.try_recv();
            self.received(event.as_slice());
            if event.as_ref().is_none_or(|event| self.is_for_host(event)) {
                return event;
            }
        }
    }

    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        loop {
            let received = self.client.try_recv_many(most, events);
            self.received(events.get(before..).unwrap_or_default());
            let mut at = 0;
            events.retain(|event| {
                at += 1;
                at <= before || self.is_for_host(event)
            });
            // Without an event for the host it would take the end of a part for the end of all.
            if received == 0 || events.len() > before {
                return events.len() - before;
            }
        }
    }

    fn frame(&self) {
        self.frame.fetch_add(1, Ordering::Relaxed);
        self.client.frame();
    }

    fn set_paused(&self, is_paused: bool) {
        if !self.has_ended() {
            let now = self.now();
            self.put(&mut self.lock(), now, Item::Paused(is_paused));
        }
        self.client.set_paused(is_paused);
    }

    fn set_logged(&self, is_logged: bool) -> bool {
        self.is_host_logged.store(is_logged, Ordering::Relaxed);
        self.has_tokens
    }

    fn state(&self) -> EngineState {
        self.client.state()
    }

    fn stats(&self) -> EngineStats {
        self.client.stats()
    }

    fn capabilities(&self) -> Capabilities {
        self.client.capabilities()
    }

    fn model(&self) -> Option<&ModelCard> {
        self.client.model()
    }

    fn set_budget(&self, budget: FrameBudget) {
        self.client.set_budget(budget);
    }

    fn set_reserved(&self, time: Duration) {
        self.client.set_reserved(time);
    }

    fn budget(&self) -> Option<FrameBudget> {
        self.client.budget()
    }

    fn max_wait(&self) -> Option<Duration> {
        let is_waiting = !self.has_ended() && !self.lock().buffer.is_empty();
        let own = is_waiting.then_some(Duration::from_micros(BUFFER_MICROS));
        own.into_iter().chain(self.client.max_wait()).min()
    }

    fn stop(&self) {
        self.client.stop();
    }

    /// As the engine, and whether the recording is written, so that a program that waits for it
    /// before its exit has the whole recording.
    fn is_ended(&self) -> bool {
        let is_ended = self.client.is_ended();
        if is_ended {
            // The host may not have received the last events.
            self.is_engine_ended.store(true, Ordering::Relaxed);
        }
        is_ended && self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn local(&self) -> Option<&Engine> {
        self.client.local()
    }

    fn register_waker(&self, waker: &Waker) {
        self.client.register_waker(waker);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
        let Some(thread) = self.thread.take() else { return };
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < MAX_CLOSE {
            thread::sleep(Duration::from_micros(200));
        }
    }
}
