//! The engine and its clients.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use tokio::runtime::{self, Handle};
use tokio::sync::{Semaphore, mpsc, watch};
use walla_runtime::{
    Capabilities, Command, EngineClient, EngineError, EngineState, EngineStats, Event, TrySendError,
};

use crate::channels::{Channels, MAX_COMMANDS};
use crate::http::Server;
use crate::hub::Hub;
use crate::options::{OptionsError, RemoteOptions};

/// An engine on another machine, or in another program: a server of the chat completions protocol.
///
/// It has one thread for all its requests. Clones are handles to the same engine, which ends when
/// the last handle and client are dropped.
///
/// # Examples
/// ```no_run
/// use walla_remote::{ApiKey, RemoteEngine, RemoteOptions};
///
/// # fn main() -> Result<(), walla_remote::OptionsError> {
/// let mut options = RemoteOptions::new("https://inference.example.com/v1", "qwen3-32b");
/// options.key = Some(ApiKey::from_env("INFERENCE_KEY"));
/// let engine = RemoteEngine::start(options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RemoteEngine {
    shared: Arc<Shared>,
}

struct Shared {
    server: Arc<Server>,
    requests: Arc<Semaphore>,
    runtime: Handle,
    stop: watch::Sender<bool>,
    /// Dropped with the last handle, which ends the thread.
    _alive: mpsc::Sender<()>,
    /// Id of the process that started the engine. A fork of it has no threads.
    process: u32,
}

impl RemoteEngine {
    /// Starts the thread. No connection is made before the first ask.
    ///
    /// # Errors
    /// [`OptionsError`] names what cannot be used.
    pub fn start(options: RemoteOptions) -> Result<Self, OptionsError> {
        let server = Arc::new(Server::new(options)?);
        let requests = Arc::new(Semaphore::new(server.options.max_requests as usize));
        let thread_error = |error: std::io::Error| OptionsError::Thread(error.to_string());
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().map_err(thread_error)?;
        let handle = runtime.handle().clone();
        let (alive, mut gone) = mpsc::channel::<()>(1);
        std::thread::Builder::new()
            .name("walla-remote".into())
            .spawn(move || {
                // Nothing is sent: it ends when the last handle drops the sender.
                runtime.block_on(async { while gone.recv().await.is_some() {} });
                // A name that is being resolved does not delay the end.
                runtime.shutdown_background();
            })
            .map_err(thread_error)?;
        let (stop, _) = watch::channel(false);
        let process = std::process::id();
        let shared = Shared { server, requests, runtime: handle, stop, _alive: alive, process };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A new client, with separate agents. All clients share the limit of requests.
    #[must_use]
    pub fn client(&self) -> RemoteClient {
        let channels = Channels::new();
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let Shared { server, requests, runtime, stop, .. } = &*self.shared;
        let (server, requests) = (Arc::clone(server), Arc::clone(requests));
        let hub = Hub::new(server, requests, Arc::clone(&channels), received);
        runtime.spawn(hub.run(stop.subscribe()));
        RemoteClient { commands, channels, engine: self.clone() }
    }

    /// Options that the engine was started with.
    #[must_use]
    pub fn options(&self) -> &RemoteOptions {
        &self.shared.server.options
    }

    /// Host name and port of the server.
    #[must_use]
    pub fn server(&self) -> &str {
        self.shared.server.name()
    }

    /// What agents can ask of this engine.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.options().dialect.capabilities()
    }

    /// Requests the engine to stop, and returns at once. Every reply that has not ended fails with
    /// [`ReplyError::EngineGone`](walla_runtime::ReplyError::EngineGone).
    pub fn stop(&self) {
        self.shared.stop.send_replace(true);
    }

    /// State of the engine: ready until it is stopped. Whether the server answers is known only
    /// from replies.
    #[must_use]
    pub fn state(&self) -> EngineState {
        if std::process::id() != self.shared.process {
            EngineState::Failed(Arc::new(EngineError::Forked))
        } else if *self.shared.stop.borrow() {
            EngineState::Stopped
        } else {
            EngineState::Ready
        }
    }
}

impl fmt::Debug for RemoteEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEngine")
            .field("server", &self.server())
            .field("model", &self.options().model)
            .finish_non_exhaustive()
    }
}

/// One host of a remote engine. No call waits.
///
/// Dropping it drops its requests and removes its agents.
#[derive(Debug)]
pub struct RemoteClient {
    commands: mpsc::Sender<Command>,
    channels: Arc<Channels>,
    engine: RemoteEngine,
}

impl RemoteClient {
    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &RemoteEngine {
        &self.engine
    }
}

impl EngineClient for RemoteClient {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        if std::process::id() != self.engine.shared.process {
            return Err(TrySendError::Closed(command));
        }
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(command) => TrySendError::Full(command),
            mpsc::error::TrySendError::Closed(command) => TrySendError::Closed(command),
        })
    }

    fn try_recv(&self) -> Option<Event> {
        self.channels.try_recv()
    }

    /// A server needs no grants.
    fn frame(&self) {}

    /// In a pause no request begins. Replies in progress continue, because the server does.
    fn set_paused(&self, is_paused: bool) {
        self.channels.set_paused(is_paused);
    }

    fn state(&self) -> EngineState {
        match self.engine.state() {
            EngineState::Ready if self.channels.is_ended() => EngineState::Stopped,
            state => state,
        }
    }

    fn stats(&self) -> EngineStats {
        self.channels.stats()
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn stop(&self) {
        self.engine.stop();
    }

    fn is_ended(&self) -> bool {
        self.channels.is_ended()
    }

    fn register_waker(&self, waker: &Waker) {
        self.channels.waker.register(waker);
    }
}
