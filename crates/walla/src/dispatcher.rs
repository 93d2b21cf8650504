//! The hosts' side of an engine: a channel to its event loop, which does all work that can take
//! time.
//!
//! | data | hosts | event loop |
//! |---|---|---|
//! | messages | send | receives |
//! | [`Changes`] of each agent | set | takes |
//! | [`Bounds`] | reserve | releases |
//! | the client's commands and events | never | sends, receives |
//! | state, counters, names, settings of the engine (atomics) | read, set | reads |
//! | replies in progress, commands that wait for capacity | never | owns |
//!
//! Rules:
//! 1. A host's call is one send into a channel without locks, in any state of the event loop.
//!    Messages of one thread arrive in order.
//! 2. The event loop registers its waker with engine and channel *before* it polls them, and sleeps
//!    only after a poll that found nothing.
//! 3. A reply ends by the engine's terminal event if the engine accepted the ask, otherwise by the
//!    reason for which the event loop refused it. Nothing else ends a reply: an engine that has
//!    ended may still have events in flight.
//! 4. All host input is bounded. Asks are [reserved](Bounds) before they are sent. Changes of an
//!    agent are not messages: [`Changes`] keeps the latest of each kind, and one message announces
//!    them. The event loop reads no message while the engine's queue is full.
//! 5. The drop of an engine's last handle waits for its device thread. This must happen in the
//!    event loop: hosts drop their handles before the channel closes, and the event loop keeps its
//!    own until then.

mod bounds;
mod changes;
mod event_loop;

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use walla_memory::RecallClient;
use walla_runtime::walla_trace::TraceFile;
use walla_runtime::{
    AgentId, AgentSpec, AskOptions, CacheError, CacheTicket, ConversationEdit, Detail,
    EngineClient, EngineError, EngineState, Prompt, ReplyError, ReplyEvent, ReplyId, Turn,
};

pub(crate) use bounds::BoundsMax;
use bounds::{AskPermit, Bounds};
pub(crate) use changes::Changes;
use event_loop::EventLoop;

use crate::agent::TryAskError;

/// From a host to the event loop.
enum Message {
    /// The agent has pending changes.
    Changed(Arc<Changes>),
    Ask {
        agent: Arc<Changes>,
        reply_id: ReplyId,
        /// Turns that are appended before it.
        turns: Vec<Turn>,
        prompt: Prompt,
        options: AskOptions,
        events: UnboundedSender<ReplyEvent>,
        permit: AskPermit,
    },
    /// Changes turns of a conversation.
    Edit {
        agent: Arc<Changes>,
        /// Number among the replies: a later conversation replaces this one.
        number: ReplyId,
        edit: ConversationEdit,
        permit: AskPermit,
        /// Receives the end of the change.
        taken: oneshot::Sender<()>,
    },
    /// Adds a copy of an agent.
    Fork { agent: Arc<Changes>, source: Arc<Changes>, taken: oneshot::Sender<()> },
    /// Saves or loads the cache of an agent.
    CopyCache { agent: Arc<Changes>, ticket: CacheTicket, permit: AskPermit },
    /// Cancels a reply. `heard_bytes`: the part of its text that was heard, if it is to be
    /// shortened.
    Cancel { agent: AgentId, reply_id: ReplyId, heard_bytes: Option<u32> },
    /// Replies after the device thread has ended.
    AwaitEnd(oneshot::Sender<()>),
}

/// Shared by all handles of an engine.
pub(crate) struct Dispatcher {
    // The only client of the hosts. Declared before the channel, so that it is dropped before the
    // channel closes, and no host drops the last client, which waits: rule 5.
    client: RecallClient,
    messages: UnboundedSender<Message>,
    bounds: Arc<Bounds>,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.client.state();
        f.debug_struct("Dispatcher").field("state", &state).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// Starts the event loop, which holds the trace file until the engine has ended. The channel
    /// reports the fraction loaded and closes when the engine is ready or has ended.
    pub fn start(
        client: RecallClient,
        max_bounds: BoundsMax,
        trace: Option<TraceFile>,
    ) -> std::io::Result<(Self, UnboundedReceiver<f32>)> {
        // Unbounded, so that no send waits: `Bounds` limits what hosts put into it (rule 4).
        let (messages, inbox) = unbounded_channel();
        let (loading, loaded) = unbounded_channel();
        let event_loop = EventLoop::new(client.clone(), inbox, loading, trace);
        std::thread::Builder::new().name("walla-async".into()).spawn(move || event_loop.run())?;
        let bounds = Arc::new(Bounds::new(max_bounds));
        Ok((Self { client, messages, bounds }, loaded))
    }

    pub fn client(&self) -> &RecallClient {
        &self.client
    }

    /// Whether this process is a fork of the one that started the engine.
    pub fn is_forked(&self) -> bool {
        let EngineState::Failed(error) = self.client.state() else { return false };
        matches!(*error, EngineError::Forked)
    }

    /// Adds an agent. `None`: there are too many.
    pub fn add_agent(&self, spec: AgentSpec) -> Option<Arc<Changes>> {
        let permit = Bounds::reserve_agent(&self.bounds)?;
        let changes = Arc::new(Changes::new(AgentId::unique(), spec, permit));
        self.send(Message::Changed(Arc::clone(&changes)));
        Some(changes)
    }

    /// Why an agent that was not added fails.
    pub fn too_many_agents(&self) -> ReplyError {
        ReplyError::TooManyAgents { max_agents: self.bounds.max().slots }
    }

    /// Changes everything except the conversation.
    pub fn change(&self, agent: &Arc<Changes>, spec: AgentSpec) {
        if agent.set_spec(spec) {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    /// Changes only the level of detail.
    pub fn set_detail(&self, agent: &Arc<Changes>, detail: Detail) {
        if agent.set_detail(detail) {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    /// Replaces the conversation, and cancels all earlier asks.
    pub fn set_conversation(&self, agent: &Arc<Changes>, turns: Vec<Turn>) {
        // Reply ids are increasing: earlier asks have lower ones.
        let asked_before = ReplyId::unique();
        if agent.set_turns(turns, asked_before) {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    /// Changes turns of a conversation. The future ends when the event loop has taken the change.
    ///
    /// # Errors
    /// [`ReplyError::TooManyAsks`].
    pub fn edit(
        &self,
        agent: &Arc<Changes>,
        edit: ConversationEdit,
    ) -> Result<impl Future<Output = ()> + use<>, ReplyError> {
        let bytes = match &edit {
            ConversationEdit::Text { text, .. } => text.len(),
            _ => 0,
        };
        // Reserved first: a refused change must not reach the channel, which has no bound.
        let permit = Bounds::reserve_bytes(&self.bounds, bytes as u64)?;
        let (taken, end) = oneshot::channel();
        let (agent, number) = (Arc::clone(agent), ReplyId::unique());
        self.send(Message::Edit { agent, number, edit, permit, taken });
        // An error means that the event loop has ended, and with it all conversations.
        Ok(async move { _ = end.await })
    }

    /// Adds a copy of an agent, once the event loop has taken all earlier changes of the source, at
    /// which the future ends.
    ///
    /// # Errors
    /// [`ReplyError::TooManyAgents`].
    pub fn fork(
        &self,
        source: &Arc<Changes>,
    ) -> Result<(Arc<Changes>, impl Future<Output = ()> + use<>), ReplyError> {
        let permit = Bounds::reserve_agent(&self.bounds).ok_or_else(|| self.too_many_agents())?;
        let copy = Arc::new(Changes::of_fork(AgentId::unique(), permit));
        let (taken, end) = oneshot::channel();
        let (agent, source) = (Arc::clone(&copy), Arc::clone(source));
        self.send(Message::Fork { agent, source, taken });
        Ok((copy, async move { _ = end.await }))
    }

    /// Saves or loads the cache of an agent, which takes `bytes` bytes until then.
    pub fn copy_cache(&self, agent: &Arc<Changes>, ticket: CacheTicket, bytes: usize) {
        match Bounds::reserve_bytes(&self.bounds, bytes as u64) {
            Ok(permit) => {
                self.send(Message::CopyCache { agent: Arc::clone(agent), ticket, permit });
            }
            Err(_) => ticket.fail(CacheError::Busy),
        }
    }

    pub fn remove_agent(&self, agent: &Arc<Changes>) {
        if agent.remove() {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    /// Sends an ask, and turns that precede it. The reply's events arrive through the channel,
    /// which closes without a terminal event only if the event loop has ended.
    ///
    /// # Errors
    /// [`ReplyError::TooManyAsks`] with the ask.
    pub fn ask(
        &self,
        agent: &Arc<Changes>,
        turns: Vec<Turn>,
        prompt: Prompt,
        options: AskOptions,
    ) -> Result<(ReplyId, UnboundedReceiver<ReplyEvent>), TryAskError> {
        let permit = match Bounds::reserve_ask(&self.bounds, &turns, &prompt, &options) {
            Ok(permit) => permit,
            Err(reason) => {
                let options = Box::new(options);
                return Err(TryAskError { prompt, options, reason });
            }
        };
        let reply_id = ReplyId::unique();
        let (events, heard) = unbounded_channel();
        let agent = Arc::clone(agent);
        self.send(Message::Ask { agent, reply_id, turns, prompt, options, events, permit });
        Ok((reply_id, heard))
    }

    pub fn cancel(&self, agent: AgentId, reply_id: ReplyId, heard_bytes: Option<u32>) {
        self.send(Message::Cancel { agent, reply_id, heard_bytes });
    }

    /// Waits until the device thread has ended.
    pub async fn ended(&self) {
        let (ended, end) = oneshot::channel();
        self.send(Message::AwaitEnd(ended));
        // An error means that the event loop has ended, and the device thread cannot be awaited.
        let _gone = end.await;
    }

    fn send(&self, message: Message) {
        if self.is_forked() {
            // No event loop in this process: the closed channels of the message report it.
            return;
        }
        // The event loop ends after the last dispatcher. If it panicked, the channels in the
        // message close, which reports the failure.
        let _broken = self.messages.send(message);
    }
}
