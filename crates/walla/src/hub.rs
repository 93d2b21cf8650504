//! What hosts hold of an engine: a way to its [pump], which does all that could take time.
//!
//! | what | hosts | pump |
//! |---|---|---|
//! | messages | send | receives |
//! | [`Changes`] of each agent | set | takes |
//! | [`Bounds`] | reserve | releases |
//! | the client's commands and events | never | sends, receives |
//! | state, counters, names, settings of the engine (atomics) | read, set | reads |
//! | replies in progress, commands that wait for room | never | all of it |
//!
//! Rules:
//! 1. A host's call is one send into a channel without locks, whatever the pump is at. What one
//!    thread sends arrives in order.
//! 2. The pump asks engine and channel to wake it *before* it looks at them, and sleeps only after
//!    a look that found nothing.
//! 3. A reply ends by the engine's terminal event if the engine took the ask, else by the reason
//!    for which the pump refused it. Nothing else ends one: an engine that has ended may still
//!    have events in flight.
//! 4. Everything that hosts send is bounded. Asks are [reserved](Bounds) before they are sent.
//!    Changes of an agent are not messages: [`Changes`] keeps the latest of each kind, and one
//!    message announces them. The pump reads no message while the engine's queue is full.
//! 5. The last handle of an engine waits for its device thread. That is the pump's: hosts give
//!    theirs up before the channel closes, and the pump keeps its own until then.

mod bounds;
mod changes;
mod pump;

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use walla_runtime::{
    AgentId, AgentSpec, Client, Engine, GenerationId, Prompt, ReplyError, ReplyEvent, Turn,
};

pub(crate) use bounds::BoundsMax;
use bounds::{AskPermit, Bounds};
pub(crate) use changes::Changes;
use pump::Pump;

/// From a host to the pump.
enum Message {
    /// There are changes of this agent.
    Changed(Arc<Changes>),
    Ask {
        agent: Arc<Changes>,
        generation: GenerationId,
        prompt: Prompt,
        events: UnboundedSender<ReplyEvent>,
        permit: AskPermit,
    },
    /// Ends a reply. `heard_bytes`: the host heard no more of it.
    Cancel { agent: AgentId, generation: GenerationId, heard_bytes: Option<u32> },
    /// Waits for the end of the device thread.
    AwaitEnd(oneshot::Sender<()>),
}

/// All handles of an engine share one.
#[derive(Debug)]
pub(crate) struct Hub {
    // Before the channel, which closes when it goes: rule 5.
    client: Arc<Client>,
    messages: UnboundedSender<Message>,
    bounds: Arc<Bounds>,
}

impl Hub {
    /// Starts the pump. The channel tells the share loaded and closes when the engine is ready or
    /// over.
    pub fn start(
        client: Client,
        bounds_max: BoundsMax,
    ) -> std::io::Result<(Self, UnboundedReceiver<f32>)> {
        let client = Arc::new(client);
        let (messages, inbox) = unbounded_channel();
        let (loading, loaded) = unbounded_channel();
        let pump = Pump::new(Arc::clone(&client), inbox, loading);
        std::thread::Builder::new().name("walla-async".into()).spawn(move || pump.run())?;
        let bounds = Arc::new(Bounds::new(bounds_max));
        Ok((Self { client, messages, bounds }, loaded))
    }

    pub fn engine(&self) -> &Engine {
        self.client.engine()
    }

    /// Pauses the agents of all handles of this engine.
    pub fn set_paused(&self, is_paused: bool) {
        self.client.set_paused(is_paused);
    }

    /// Adds an agent. `None`: there are too many.
    pub fn add_agent(&self, spec: AgentSpec) -> Option<Arc<Changes>> {
        let permit = Bounds::reserve_agent(&self.bounds)?;
        let changes = Arc::new(Changes::new(self.client.new_agent(), spec, permit));
        self.send(Message::Changed(Arc::clone(&changes)));
        Some(changes)
    }

    /// Why an agent that was not added fails.
    pub fn too_many_agents(&self) -> ReplyError {
        ReplyError::TooManyAgents { agents_max: self.bounds.max().slots }
    }

    /// Changes all but the conversation.
    pub fn change(&self, agent: &Arc<Changes>, spec: AgentSpec) {
        if agent.set_spec(spec) {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    /// Replaces the conversation, and cancels all that was asked before.
    pub fn set_conversation(&self, agent: &Arc<Changes>, turns: Vec<Turn>) {
        // Names count up: earlier asks have lower names.
        let asked_before = self.client.new_generation();
        if agent.set_turns(turns, asked_before) {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    pub fn remove_agent(&self, agent: &Arc<Changes>) {
        if agent.remove() {
            self.send(Message::Changed(Arc::clone(agent)));
        }
    }

    /// Asks; what happens to the reply comes through the channel, which closes without a terminal
    /// event only if the pump has gone.
    ///
    /// # Errors
    /// [`ReplyError::TooManyAsks`] with the prompt.
    pub fn ask(
        &self,
        agent: &Arc<Changes>,
        prompt: Prompt,
    ) -> Result<(GenerationId, UnboundedReceiver<ReplyEvent>), (Prompt, ReplyError)> {
        let permit = match Bounds::reserve_ask(&self.bounds, &prompt) {
            Ok(permit) => permit,
            Err(error) => return Err((prompt, error)),
        };
        let generation = self.client.new_generation();
        let (events, heard) = unbounded_channel();
        let agent = Arc::clone(agent);
        self.send(Message::Ask { agent, generation, prompt, events, permit });
        Ok((generation, heard))
    }

    pub fn cancel(&self, agent: AgentId, generation: GenerationId, heard_bytes: Option<u32>) {
        self.send(Message::Cancel { agent, generation, heard_bytes });
    }

    /// Waits until the device thread has ended.
    pub async fn ended(&self) {
        let (told, end) = oneshot::channel();
        self.send(Message::AwaitEnd(told));
        // An error: the pump has gone, and nobody else could tell.
        let _gone = end.await;
    }

    fn send(&self, message: Message) {
        if self.engine().is_forked() {
            return; // There is no pump in this process. The message's channels close, which reports it.
        }
        // The pump goes after the last hub. If it broke, the channels in the message close, which
        // says so.
        let _broken = self.messages.send(message);
    }
}
