//! Brings events from the engine's one queue to the replies that wait for them.
//!
//! A thread of its own does that, so that no task of the host has to: it sleeps until the engine wakes it, and it is the only one
//! that receives. Commands that the engine's queue cannot take at once wait here, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use walla_runtime::{Client, Command, GenerationId, ReplyEvent, TrySendError};

/// How often the thread looks whether the hub is gone, or whether the command queue has room again.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Hub {
    pub client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Replies in progress. Unbounded channels, but each reply's is bounded by the tokens that it may have.
    replies: HashMap<GenerationId, UnboundedSender<ReplyEvent>>,
    backlog: VecDeque<Command>,
}

impl Hub {
    pub fn start(client: Client) -> std::io::Result<Arc<Self>> {
        let hub = Arc::new(Self { client, state: Mutex::new(State::default()) });
        let weak = Arc::downgrade(&hub);
        std::thread::Builder::new().name("walla-async".into()).spawn(move || pump(&weak))?;
        Ok(hub)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command, behind those that wait already.
    pub fn send(&self, command: Command) {
        let mut state = self.state();
        state.backlog.push_back(command);
        self.flush(&mut state);
    }

    /// Sends an ask; its events go to `events`.
    pub fn ask(
        &self,
        generation: GenerationId,
        command: Command,
        events: UnboundedSender<ReplyEvent>,
    ) {
        let mut state = self.state();
        state.replies.insert(generation, events);
        state.backlog.push_back(command);
        self.flush(&mut state);
    }

    fn flush(&self, state: &mut State) {
        while let Some(command) = state.backlog.pop_front() {
            match self.client.try_send(command) {
                Ok(()) => {}
                Err(TrySendError::Full(command)) => {
                    state.backlog.push_front(command);
                    return;
                }
                // The engine is gone: closing the channels tells the replies.
                Err(TrySendError::Closed(_)) => {
                    state.backlog.clear();
                    state.replies.clear();
                }
            }
        }
    }

    fn route(&self) {
        let mut state = self.state();
        while let Some(event) = self.client.try_recv() {
            let is_terminal = event.what.is_terminal();
            if let Some(events) = state.replies.get(&event.generation) {
                // A reply that was dropped does not listen: its events end here.
                let _listening = events.send(event.what);
            }
            if is_terminal {
                state.replies.remove(&event.generation);
            }
        }
        self.flush(&mut state);
        if self.client.engine().state().is_over() {
            state.replies.clear();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn pump(hub: &Weak<Hub>) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    while let Some(hub) = hub.upgrade() {
        // Register first: an event after this wakes us, an event before it is routed below.
        hub.client.register_waker(&waker);
        hub.route();
        drop(hub);
        std::thread::park_timeout(LOOK);
    }
}
