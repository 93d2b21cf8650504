use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use walla_model::tokenizer::Tokenizer;
use walla_plan::governor::BucketError;

use super::client_slots::ClientSlots;
use super::controls::{Control, Controls};
use super::heartbeat::Heartbeat;
use super::thread::Loader;
use super::watchdog::watch;
use super::{CLIENTS_MAX, EngineCore, INCARNATIONS_MAX, JOIN_MAX, spawn_device_thread};
use crate::api::{Command, EngineStats, Event, Pacing};
use crate::client::Client;
use crate::clock::Clock;
use crate::mailbox::{Mailbox, TrySendError};
use crate::options::{Deadlines, EngineError};
use crate::state::{EngineState, ModelCard, Status};

/// Minimum of a client's limit on open generations: eight asks of each of 8,192 agents. With a
/// lower limit, a cancel would wait behind asks.
const OPEN_MAX: usize = 1 << 16;

/// State shared by hosts and the device thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) status: Status,
    /// Clients that the device thread has not admitted yet.
    pub(super) joining: Mailbox<Arc<ClientChannels>>,
    /// Number of clients: joining, seated, or dropped but not yet removed.
    pub(super) clients: AtomicU32,
    agents_named: AtomicU64,
    generations_named: AtomicU64,
    stop: AtomicBool,
    pub(super) controls: Controls,
    /// Device threads by incarnation. The first is set before a handle exists that could ring.
    device_threads: [OnceLock<Thread>; INCARNATIONS_MAX],
    /// Incarnation of the device thread that owns the engine. Beyond the last one, no thread owns
    /// it.
    incarnation: AtomicU32,
    pub(super) heartbeat: Heartbeat,
    /// Clients. The device thread locks them briefly, never during a call of the device.
    client_slots: Mutex<ClientSlots>,
    watchdog_thread: OnceLock<Thread>,
    /// The device and its memory are released or given up.
    ended: AtomicBool,
    /// Id of the process that started the engine. A fork of it has no threads.
    process: u32,
    command_queue: usize,
    event_queue: usize,
}

impl Shared {
    /// Makes the device thread check all its inputs again.
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

    fn client_slots(&self) -> MutexGuard<'_, ClientSlots> {
        // No method of `ClientSlots` leaves it inconsistent on a panic.
        self.client_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the engine from its device thread. Returns the number of the next one.
    pub(super) fn disown(&self) -> u32 {
        // The lock ensures that the thread is not inside an operation on client slots or status.
        let _seats = self.client_slots();
        self.incarnation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns client slots and status for device thread number `number`, or `None` if it has been
    /// disowned.
    pub(super) fn own(&self, number: u32) -> Option<Owned<'_>> {
        let client_slots = self.client_slots();
        let is_current = self.incarnation.load(Ordering::Acquire) == number;
        is_current.then_some(Owned { client_slots, status: &self.status })
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

/// State that the device thread may change while it owns the engine.
pub(super) struct Owned<'a> {
    pub client_slots: MutexGuard<'a, ClientSlots>,
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

/// Mailboxes and flags of a client.
#[derive(Debug)]
pub(crate) struct ClientChannels {
    pub(crate) commands: Mailbox<Command>,
    pub(crate) events: Mailbox<Event>,
    pub(crate) waker: AtomicWaker,
    /// A frame was granted.
    pub(crate) framed: AtomicBool,
    /// The host requests a pause.
    pub(crate) paused: AtomicBool,
    /// The client was dropped.
    pub(crate) gone: AtomicBool,
    pub(super) pacing: Pacing,
    /// Maximum number of open generations. At the limit, further commands wait in their mailbox,
    /// including cancels.
    pub(super) open_max: usize,
}

/// A model on a device, with a dedicated thread. Clones are handles to the same engine.
///
/// Dropping the last handle (of [`Engine`] and [`Client`] together) stops the engine. The drop
/// waits 300 ms at most and then lets the thread end in the background. [`Engine::stop`] does not
/// wait.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

/// Stops the engine when the last handle is dropped.
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the device thread with the core that `loader` loads.
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
            client_slots: Mutex::new(ClientSlots::default()),
            watchdog_thread: OnceLock::new(),
            ended: AtomicBool::new(false),
            process: std::process::id(),
            command_queue,
            event_queue,
        });
        let successor = loader.successor();
        let no_thread = |error: std::io::Error| EngineError::Thread(error.to_string());
        let thread = spawn_device_thread(&shared, clock.clone(), loader, 0).map_err(no_thread)?;
        // If the watchdog thread cannot be started, dropping this handle stops the device thread.
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

    /// A new host of this engine, with separate mailboxes.
    ///
    /// # Errors
    /// [`EngineError::TooManyClients`] beyond 16 concurrent clients (a dropped client counts until
    /// the device thread has removed it), [`EngineError::Failed`] or [`EngineError::Stopped`] if
    /// the engine has ended.
    pub fn client(&self, pacing: Pacing) -> Result<Client, EngineError> {
        let shared = &self.handle.shared;
        self.check_alive()?;
        let clients_max = CLIENTS_MAX as u32;
        let one_more = |clients: u32| (clients < clients_max).then_some(clients + 1);
        let counted = shared.clients.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if counted.is_err() {
            return Err(EngineError::TooManyClients { clients_max });
        }
        let channels = Arc::new(ClientChannels {
            commands: Mailbox::new(shared.command_queue),
            events: Mailbox::new(shared.event_queue),
            waker: AtomicWaker::new(),
            framed: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            pacing,
            open_max: shared.event_queue.max(OPEN_MAX),
        });
        match shared.joining.try_send(Arc::clone(&channels)) {
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
        Ok(Client::new(self.clone(), channels))
    }

    fn check_alive(&self) -> Result<(), EngineError> {
        match self.state() {
            EngineState::Loading { .. } | EngineState::Ready => Ok(()),
            EngineState::Failed(error) => Err(EngineError::Failed(error)),
            EngineState::Stopped => Err(EngineError::Stopped),
        }
    }

    /// State of the engine. Never waits.
    #[must_use]
    pub fn state(&self) -> EngineState {
        if self.handle.shared.is_forked() {
            return EngineState::Failed(Arc::new(EngineError::Forked));
        }
        self.handle.shared.status.state()
    }

    /// The loaded model and its device. `None` until the engine is ready.
    #[must_use]
    pub fn model(&self) -> Option<&ModelCard> {
        self.handle.shared.status.card()
    }

    /// The model's tokenizer: for [biases](walla_types::LogitBias),
    /// [stop tokens](crate::AgentSpec::stop_tokens), [masks](walla_types::TokenMask),
    /// [prompts of tokens](crate::Prompt::Tokens), or to count the tokens of a text. `None` until
    /// the engine is ready.
    ///
    /// A long text takes milliseconds to encode: do not encode it in a frame, but pass a clone to
    /// another thread.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.handle.shared.status.tokenizer()
    }

    /// Counters as of the latest round of the device thread. Never waits.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.handle.shared.status.stats()
    }

    /// Errors of predicted step costs, for each bucket of rows that has been measured, as of some
    /// ten steps ago. Never waits.
    #[must_use]
    pub fn prediction_errors(&self) -> Vec<BucketError> {
        self.handle.shared.status.errors()
    }

    /// Changes the device-time budget of a frame, from the next frame on; `None`: no limit. Never
    /// waits. A setting made before the engine is ready applies when it is.
    ///
    /// Zero pauses all agents at once: no step begins, steps in flight are collected, and the
    /// device thread sleeps. Asks are queued; cancels and removals apply. The next non-zero budget
    /// resumes the replies with unchanged output. [`Client::set_paused`] pauses one client and
    /// keeps the budget.
    ///
    /// Unlike [`EngineOptions::budget`](crate::EngineOptions::budget) it also applies to
    /// [free-running](Pacing::FreeRunning) clients, in windows of 1/60 s.
    pub fn set_budget(&self, budget: Option<Duration>) {
        self.set(Control::Budget(budget));
    }

    /// Changes the KV cache capacity in tokens, shared by all agents, up to the capacity reserved
    /// at load ([`EngineOptions::kv_tokens`](crate::EngineOptions::kv_tokens)). A game reduces it
    /// when it needs the memory. Never waits.
    ///
    /// If the cache holds more, idle agents lose their cache first, then agents of the lowest
    /// priority. No text is lost: an agent that continues recomputes its history when pages are
    /// free. A reply that cannot fit in the remaining capacity fails with
    /// [`ReplyError::NoPages`](crate::ReplyError::NoPages).
    ///
    /// The memory is returned to the system between two steps, if the device supports it (a GPU
    /// with virtual memory management, in pieces of at least a sixteenth of the cache;
    /// [`EngineStats::kv_bytes`](crate::EngineStats::kv_bytes) reports the size). It is allocated
    /// again when the capacity rises. If another program has taken it, the cache keeps its size,
    /// and [`EngineStats::pages_refused`](crate::EngineStats::pages_refused) reports the number of
    /// missing pages. Call this again later.
    pub fn set_kv_tokens(&self, tokens: u32) {
        self.set(Control::KvTokens(tokens));
    }

    fn set(&self, control: Control) {
        self.handle.shared.controls.set(control);
        self.handle.shared.ring();
    }

    /// Requests the engine to stop and returns at once. Every reply that has not ended fails with
    /// [`ReplyError::EngineGone`](crate::ReplyError::EngineGone), and [`Engine::state`] becomes
    /// [`EngineState::Stopped`].
    pub fn stop(&self) {
        self.handle.shared.stop.store(true, Ordering::Release);
        self.handle.shared.ring();
    }

    /// Whether the engine has ended: every reply has ended, and the device and its memory are
    /// released, or given up after a [deadline](crate::Deadlines).
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.handle.shared.is_ended() || self.handle.shared.is_forked()
    }

    /// Whether this process is a fork of the one that started the engine. Its threads do not exist
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
            return; // The thread belongs to the parent process.
        }
        if thread.thread().id() == thread::current().id() {
            return; // Dropped by a task's waker on the device thread, which cannot join itself.
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
