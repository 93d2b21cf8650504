//! An engine behind a router.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use walla_runtime::{
    AgentId, AgentSpec, AskOptions, Command, Engine, EngineClient, EngineState, FrameBudget,
    Prompt, ReplyId, TrySendError, drop_on_thread,
};

use crate::health::Breaker;

/// Identifies an engine: a later one with the same name is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub u64);

/// An engine behind a router.
pub(crate) struct Child {
    pub key: Key,
    pub name: Arc<str>,
    pub client: Box<dyn EngineClient>,
    pub breaker: Breaker,
    /// Its part of a frame budget that it shares.
    pub weight: f32,
    /// Commands that did not fit into its queue, oldest first.
    outbox: VecDeque<Command>,
    /// Asks that it can receive no more, because it has ended.
    pub lost: Vec<(AgentId, ReplyId)>,
    is_closed: bool,
    /// Replies in progress.
    pub replies: u32,
    /// No agent begins a reply on it, and it is dropped when the last one has ended.
    pub is_retired: bool,
    /// The engine that takes its place once it is ready.
    pub successor: Option<Box<dyn EngineClient>>,
    /// Its beginning and its end were reported ([`State::changes`](crate::state::State::changes)).
    pub is_ready_reported: bool,
    pub is_over_reported: bool,
    /// The budget that it was given.
    pub budget: Option<FrameBudget>,
    /// See [`Child::find_device`].
    pub device: Option<(Arc<str>, bool)>,
    /// Asks that have moved to a substitute.
    pub moved: u64,
}

/// Maximum number of commands that wait for the queue of an engine before its router accepts no
/// further ones.
pub(crate) const MAX_OUTBOX: usize = 1_024;

impl Child {
    pub fn new(key: Key, name: Arc<str>, client: Box<dyn EngineClient>, weight: f32) -> Self {
        Self {
            key,
            name,
            client,
            breaker: Breaker::default(),
            weight,
            outbox: VecDeque::new(),
            lost: Vec::new(),
            is_closed: false,
            replies: 0,
            is_retired: false,
            successor: None,
            is_ready_reported: false,
            is_over_reported: false,
            budget: None,
            device: None,
            moved: 0,
        }
    }

    /// Whether it cannot answer any more.
    pub fn is_over(&self) -> bool {
        self.is_closed || self.client.state().is_over()
    }

    /// Whether it can answer and has the features that an ask needs.
    pub fn can_do(&self, spec: &AgentSpec, prompt: &Prompt, options: &AskOptions) -> bool {
        !self.is_over() && self.client.capabilities().check(spec, prompt, options).is_ok()
    }

    pub fn is_full(&self) -> bool {
        self.outbox.len() >= MAX_OUTBOX
    }

    /// Sends a command, behind all earlier ones.
    pub fn send(&mut self, command: Command) {
        self.outbox.push_back(command);
        self.flush();
    }

    /// Sends commands up to the capacity of the queue.
    pub fn flush(&mut self) {
        while let Some(command) = self.outbox.pop_front() {
            if self.is_closed {
                self.lose(&command);
                continue;
            }
            match self.client.try_send(command) {
                Ok(()) => {}
                Err(TrySendError::Full(command)) => {
                    self.outbox.push_front(command);
                    return;
                }
                Err(TrySendError::Closed(command)) => {
                    self.is_closed = true;
                    self.lose(&command);
                }
            }
        }
    }

    fn lose(&mut self, command: &Command) {
        if let Command::Ask { agent, reply_id, .. } = command {
            self.lost.push((*agent, *reply_id));
        }
    }

    /// Why it cannot answer.
    pub fn reason(&self) -> String {
        match self.client.state() {
            EngineState::Failed(error) => error.to_string(),
            _ => "the engine was stopped".to_owned(),
        }
    }

    /// Whether its successor is ready.
    pub fn can_be_replaced(&self) -> bool {
        let state = self.successor.as_ref().map(|successor| successor.state());
        matches!(state, Some(EngineState::Ready))
    }

    /// Whether it has use for frames.
    pub fn has_work(&self) -> bool {
        self.replies > 0 || self.client.stats().background_agents > 0
    }

    /// The device of this machine that it runs on, known once it is ready, and whether it is a GPU.
    pub fn find_device(&mut self) -> Option<&(Arc<str>, bool)> {
        if self.device.is_none() {
            let model = self.client.local().and_then(Engine::model)?;
            self.device = Some((model.device.name.as_str().into(), model.device.gpu.is_some()));
        }
        self.device.as_ref()
    }
}

/// The engine with this key.
pub(crate) fn find(children: &mut [Child], key: Key) -> Option<&mut Child> {
    children.iter_mut().find(|child| child.key == key)
}

/// Drops the client of an engine on a separate thread. `unloading` counts clients that are not
/// dropped yet.
pub(crate) fn drop_aside(client: Box<dyn EngineClient>, unloading: &Arc<AtomicUsize>) {
    struct Counted(Option<Box<dyn EngineClient>>, Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.fetch_sub(1, Ordering::AcqRel);
        }
    }
    unloading.fetch_add(1, Ordering::AcqRel);
    // The count falls after the drop, so that at 0 all memory is released.
    drop_on_thread(Counted(Some(client), Arc::clone(unloading)));
}
