use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use walla_model::tokenizer::Tokenizer;
use walla_plan::governor::BucketError;

use super::controls::{Control, Controls};
use super::heartbeat::Heartbeat;
use super::seats::Seats;
use super::thread::Loader;
use super::watchdog::watch;
use super::{CLIENTS_MAX, EngineCore, INCARNATIONS_MAX, JOIN_MAX, spawn_device_thread};
use crate::api::{Command, EngineStats, Event, Pacing};
use crate::client::Client;
use crate::clock::Clock;
use crate::mailbox::{Mailbox, TrySendError};
use crate::options::{Deadlines, EngineError};
use crate::state::{EngineState, ModelCard, Status};

/// Open generations of a client, at least: eight asks of each of 8,192 agents. With fewer, a cancel
/// would wait behind asks.
const OPEN_MAX: usize = 1 << 16;

/// What hosts and the device thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) status: Status,
    /// Clients on their way to the device thread.
    pub(super) joining: Mailbox<Arc<Post>>,
    /// Clients on their way, seated, or gone but not yet removed.
    pub(super) clients: AtomicU32,
    agents_named: AtomicU64,
    generations_named: AtomicU64,
    stop: AtomicBool,
    pub(super) controls: Controls,
    /// Device threads by incarnation. The first is set before there is a handle that could ring.
    device_threads: [OnceLock<Thread>; INCARNATIONS_MAX],
    /// Which device thread the engine listens to: beyond the last, none.
    incarnation: AtomicU32,
    pub(super) heartbeat: Heartbeat,
    /// Clients. Locked by the device thread for moments, never during a call of the device.
    seats: Mutex<Seats>,
    watchdog_thread: OnceLock<Thread>,
    /// Device and memory are given back, or given up.
    ended: AtomicBool,
    /// The process that started the engine: in a fork of it there are no threads.
    process: u32,
    command_queue: usize,
    event_queue: usize,
}

impl Shared {
    /// Makes the device thread look at everything again.
    pub(crate) fn ring(&self) {
        let incarnation = self.incarnation.load(Ordering::Acquire) as usize;
        if let Some(thread) = self.device_threads.get(incarnation).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    /// Whether this process is a fork of the one that started the engine.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn set_ended(&self) {
        self.heartbeat.rest();
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.watchdog_thread.get() {
            thread.unpark();
        }
    }

    pub(super) fn set_device_thread(&self, number: u32, thread: Thread) {
        if let Some(place) = self.device_threads.get(number as usize) {
            let _first = place.set(thread);
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        // None of their methods leaves them half changed.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops listening to the device thread. Returns the number of the next one.
    pub(super) fn disown(&self) -> u32 {
        // With the lock, so that the thread is not in the middle of something.
        let _seats = self.seats();
        self.incarnation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Seats and status for device thread number `number`; `None` if it has been disowned.
    pub(super) fn own(&self, number: u32) -> Option<Owned<'_>> {
        let seats = self.seats();
        let is_current = self.incarnation.load(Ordering::Acquire) == number;
        is_current.then_some(Owned { seats, status: &self.status })
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn name_agent(&self) -> u64 {
        self.agents_named.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn name_generation(&self) -> u64 {
        self.generations_named.fetch_add(1, Ordering::Relaxed)
    }
}

/// What the device thread may change as long as the engine listens to it.
pub(super) struct Owned<'a> {
    pub seats: MutexGuard<'a, Seats>,
    status: &'a Status,
}

impl Owned<'_> {
    pub fn set_fraction(&self, fraction: f32) {
        self.status.set_fraction(fraction);
    }

    pub fn set_ready(&self, card: ModelCard, tokenizer: Option<Arc<Tokenizer>>) {
        self.status.set_ready(card, tokenizer);
    }

    pub fn set_failed(&self, error: EngineError) {
        self.status.set_failed(error);
    }

    pub fn set_stopped(&self) {
        self.status.set_stopped();
    }
}

/// A client's mailboxes.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) commands: Mailbox<Command>,
    pub(crate) events: Mailbox<Event>,
    pub(crate) waker: AtomicWaker,
    /// A frame was granted.
    pub(crate) framed: AtomicBool,
    /// The host wants a pause.
    pub(crate) paused: AtomicBool,
    /// The client was dropped.
    pub(crate) gone: AtomicBool,
    pub(super) pacing: Pacing,
    /// Open generations, at most. Further commands wait in their mailbox, cancels included.
    pub(super) open_max: usize,
}

/// A model on a device, with a thread of its own. Clones are handles to the same engine.
///
/// Dropping the last handle (of [`Engine`] and [`Client`] together) stops it: the drop waits 300 ms
/// at most and then leaves the thread to end by itself. [`Engine::stop`] ends it without waiting.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

/// What the last handle drops.
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread with whatever core `loader` makes.
    pub(crate) fn launch<C: EngineCore + 'static>(
        (command_queue, event_queue): (usize, usize),
        clock: Clock,
        deadlines: Deadlines,
        loader: impl Loader<C> + Send + 'static,
    ) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            status: Status::new(),
            joining: Mailbox::new(CLIENTS_MAX),
            clients: AtomicU32::new(0),
            agents_named: AtomicU64::new(1),
            generations_named: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            controls: Controls::new(),
            device_threads: [const { OnceLock::new() }; INCARNATIONS_MAX],
            incarnation: AtomicU32::new(0),
            heartbeat: Heartbeat::default(),
            seats: Mutex::new(Seats::default()),
            watchdog_thread: OnceLock::new(),
            ended: AtomicBool::new(false),
            process: std::process::id(),
            command_queue,
            event_queue,
        });
        let successor = loader.successor();
        let no_thread = |error: std::io::Error| EngineError::Thread(error.to_string());
        let thread = spawn_device_thread(&shared, clock.clone(), loader, 0).map_err(no_thread)?;
        // The handle stops the device thread if there is no thread to watch it.
        let engine =
            Self { handle: Arc::new(Handle { shared: Arc::clone(&shared), thread: Some(thread) }) };
        if deadlines.load.or(deadlines.step).is_some() {
            let of_watchdog = Arc::clone(&shared);
            let watchdog = thread::Builder::new()
                .name("walla-watchdog".into())
                .spawn(move || watch(&of_watchdog, &clock, deadlines, successor))
                .map_err(no_thread)?;
            let _first = shared.watchdog_thread.set(watchdog.thread().clone());
        }
        Ok(engine)
    }

    /// A new host of this engine, with mailboxes of its own.
    ///
    /// # Errors
    /// [`EngineError::TooManyClients`] beyond 16 at a time (a dropped client counts until the
    /// device thread has seen it go), [`EngineError::Failed`] or [`EngineError::Stopped`] if the
    /// engine is over.
    pub fn client(&self, pacing: Pacing) -> Result<Client, EngineError> {
        let shared = &self.handle.shared;
        self.check_alive()?;
        let clients_max = CLIENTS_MAX as u32;
        let one_more = |clients: u32| (clients < clients_max).then_some(clients + 1);
        let counted = shared.clients.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if counted.is_err() {
            return Err(EngineError::TooManyClients { clients_max });
        }
        let post = Arc::new(Post {
            commands: Mailbox::new(shared.command_queue),
            events: Mailbox::new(shared.event_queue),
            waker: AtomicWaker::new(),
            framed: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            pacing,
            open_max: shared.event_queue.max(OPEN_MAX),
        });
        match shared.joining.try_send(Arc::clone(&post)) {
            Ok(()) => shared.ring(),
            Err(refused) => {
                shared.clients.fetch_sub(1, Ordering::AcqRel);
                return Err(match (refused, self.check_alive()) {
                    (TrySendError::Closed(_), Err(over)) => over,
                    (TrySendError::Closed(_), Ok(())) => EngineError::Stopped,
                    (TrySendError::Full(_), _) => EngineError::TooManyClients { clients_max },
                });
            }
        }
        Ok(Client::new(self.clone(), post))
    }

    fn check_alive(&self) -> Result<(), EngineError> {
        match self.state() {
            EngineState::Loading { .. } | EngineState::Ready => Ok(()),
            EngineState::Failed(error) => Err(EngineError::Failed(error)),
            EngineState::Stopped => Err(EngineError::Stopped),
        }
    }

    /// How the engine is. Never waits.
    #[must_use]
    pub fn state(&self) -> EngineState {
        if self.handle.shared.is_forked() {
            return EngineState::Failed(Arc::new(EngineError::Forked));
        }
        self.handle.shared.status.state()
    }

    /// What was loaded; `None` until the engine is ready.
    #[must_use]
    pub fn model(&self) -> Option<&ModelCard> {
        self.handle.shared.status.card()
    }

    /// The model's tokenizer: for [biases](walla_types::LogitBias), [stop
    /// tokens](crate::AgentSpec::stop_tokens), [masks](walla_types::TokenMask), [prompts of
    /// tokens](crate::Prompt::Tokens), or to count what a text takes of a context. `None` until the
    /// engine is ready.
    ///
    /// A long text takes milliseconds to encode: nothing to do in a frame, but a clone can go to a
    /// thread of its own.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.handle.shared.status.tokenizer()
    }

    /// Counters as of the latest round of the device thread. Never waits.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.handle.shared.status.stats()
    }

    /// How far measured steps were from their predictions, for each bucket of rows that has been
    /// measured: as of some ten steps ago. Never waits.
    #[must_use]
    pub fn prediction_errors(&self) -> Vec<BucketError> {
        self.handle.shared.status.errors()
    }

    /// Changes the device time of a frame, from the next frame on; `None`: no limit. Never waits;
    /// before the engine is ready the setting is kept until it is.
    ///
    /// Zero pauses all agents at once: no step begins, those in flight are collected, and the
    /// device thread sleeps. Asks queue, cancels and removals count. The next budget that is not
    /// zero resumes with the same tokens. [`Client::set_paused`] pauses one client and keeps the
    /// budget.
    ///
    /// Unlike [`EngineOptions::budget`](crate::EngineOptions::budget) it also holds for
    /// [free-running](Pacing::FreeRunning) clients, in windows of 1/60 s.
    pub fn set_budget(&self, budget: Option<Duration>) {
        self.set(Control::Budget(budget));
    }

    /// Changes how many tokens all agents' conversations together keep on the device, up to what
    /// was reserved when the model was loaded
    /// ([`EngineOptions::kv_tokens`](crate::EngineOptions::kv_tokens)): for a game that needs the
    /// memory, or an ordered retreat before it does. Never waits.
    ///
    /// If they hold more, idle agents lose their cache first, then those of the lowest priority.
    /// Nobody loses a word: who speaks on reads its history again when there is room. A reply that
    /// cannot fit in what is left fails with [`ReplyError::NoPages`](crate::ReplyError::NoPages).
    ///
    /// The memory itself goes back to the system between two steps, where the device can (a GPU
    /// with virtual memory management, in pieces of a sixteenth of the cache or more;
    /// [`EngineStats::kv_bytes`](crate::EngineStats::kv_bytes) tells). It comes back when tokens
    /// rise, unless somebody else has taken it: then the cache stays as it is, and
    /// [`EngineStats::pages_refused`](crate::EngineStats::pages_refused) says how many pages are
    /// missing. Ask again later.
    pub fn set_kv_tokens(&self, tokens: u32) {
        self.set(Control::KvTokens(tokens));
    }

    fn set(&self, control: Control) {
        self.handle.shared.controls.set(control);
        self.handle.shared.ring();
    }

    /// Asks the engine to stop, and returns at once. Every reply that has not ended fails with
    /// [`ReplyError::EngineGone`](crate::ReplyError::EngineGone); [`Engine::state`] turns to
    /// [`EngineState::Stopped`].
    pub fn stop(&self) {
        self.handle.shared.stop.store(true, Ordering::Release);
        self.handle.shared.ring();
    }

    /// Whether the engine has ended: the device and its memory are given back, or given up after a
    /// [deadline](crate::Deadlines), and every reply has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.handle.shared.is_ended() || self.handle.shared.is_forked()
    }

    /// Whether this process is a fork of the one that started the engine: its threads do not exist
    /// here, every command is refused, and [`state`](Self::state) is [`EngineError::Forked`].
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.handle.shared.is_forked()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        let Some(thread) = self.thread.take() else { return };
        if self.shared.is_forked() {
            return; // The thread is the parent's.
        }
        if thread.thread().id() == thread::current().id() {
            return; // Dropped by a task's waker: the thread cannot wait for itself.
        }
        let start = Instant::now();
        while !self.shared.is_ended() && start.elapsed() < JOIN_MAX {
            thread::sleep(Duration::from_micros(500));
        }
        if thread.is_finished() {
            // The thread catches its panics and has reported them.
            let _caught = thread.join();
        } else if !self.shared.is_ended() {
            tracing::debug!("the device thread still frees its device: it ends when that is done");
        }
    }
}
