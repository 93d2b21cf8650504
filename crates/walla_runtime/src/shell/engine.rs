use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walla_model::tokenizer::Tokenizer;
use walla_plan::governor::BucketError;

use super::shared::Shared;
use super::thread::spawn_device_thread;
use super::watchdog::watch;
use crate::api::EngineStats;
use crate::clock::Clock;
use crate::engine_core::{EngineCore, Loader};
use crate::options::{Deadlines, EngineError, FrameBudget};
use crate::status::{EngineState, ModelCard};

/// Maximum time that the last handle waits for the device thread to end. Destroying a CUDA context
/// takes 57 to 87 ms on an H100, and unmapping the cache of a 1B model up to 15 ms more
/// (`tests/tests/exit_gpu.rs`).
const MAX_JOIN: Duration = Duration::from_millis(300);

/// A model on a device, with a dedicated thread. Clones are handles to the same engine.
///
/// Dropping the last handle (of [`Engine`] and [`Client`](crate::Client) together) stops the
/// engine. The drop waits 300 ms at most and then lets the thread end in the background.
/// [`Engine::stop`] does not wait.
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
        let shared = Arc::new(Shared::new(command_queue, event_queue));
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

    /// # Errors
    /// The reason why the engine has ended.
    pub(super) fn check_alive(&self) -> Result<(), EngineError> {
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
    /// resumes the replies with unchanged output. [`Client::set_paused`](crate::Client::set_paused)
    /// pauses one client and keeps the budget.
    ///
    /// Unlike [`EngineOptions::budget`](crate::EngineOptions::budget) it also applies to
    /// [free-running](crate::Pacing::FreeRunning) clients, in windows of 1/60 s.
    pub fn set_budget(&self, budget: impl Into<FrameBudget>) {
        self.handle.shared.controls.set_budget(budget.into());
        self.handle.shared.ring();
    }

    /// Replaces a client's reservation: [`Client::set_reserved`](crate::Client::set_reserved).
    pub(super) fn reserve(&self, before_nanos: u64, nanos: u64) {
        self.handle.shared.controls.reserve(before_nanos, nanos);
        self.handle.shared.ring();
    }

    /// The budget that was set last, or the one of the options. It may not be in effect yet:
    /// [`stats`](Self::stats) has the one in effect. Never waits.
    #[must_use]
    pub fn budget(&self) -> FrameBudget {
        self.handle.shared.controls.latest_budget()
    }

    /// The device thread has this budget from its options.
    pub(super) fn begin_with_budget(&self, budget: FrameBudget) {
        self.handle.shared.controls.begin_with(budget);
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
        self.handle.shared.controls.set_kv_tokens(tokens);
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

    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("state", &self.state()).finish_non_exhaustive()
    }
}

/// Drops a handle of an engine, or an owner of one, on a separate thread: the drop of the last
/// handle waits for the device thread, which a frame must not do. If no thread can be started, the
/// caller drops it.
pub fn drop_on_thread(handle: impl Send + 'static) {
    let thread = thread::Builder::new().name("walla-unload".into());
    if let Err(error) = thread.spawn(move || drop(handle)) {
        tracing::warn!(target: "walla::load", %error, "no thread to unload an engine");
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
        while !self.shared.is_ended() && start.elapsed() < MAX_JOIN {
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
