//! What hosts hold of an engine: a way to its [pump], which does all that could take time.
//!
//! | what | hosts | pump |
//! |---|---|---|
//! | messages | send | receives |
//! | the client's commands and events | never | sends, receives |
//! | state, counters, names, settings of the engine (atomics) | read, set | reads |
//! | replies in progress, what waits for room, agents that the engine has no room for | never | all of it |
//!
//! Rules:
//! 1. A host's call is one send into a channel without locks, whatever the pump is at. What one thread sends arrives in order.
//! 2. The pump asks engine and channel to wake it *before* it looks at them, and sleeps only after a look that found nothing.
//! 3. A reply ends by the engine's terminal event if the engine took the ask, else by the reason for which the engine refused it.
//!    Nothing else ends one: an engine that is over may still have events on their way.
//! 4. The pump keeps who an agent is until an event says that the engine has it; until then each ask offers the agent again.
//! 5. The last handle of an engine waits for its device thread. That is the pump's: hosts give theirs up before the channel closes,
//!    and the pump keeps its own until then.

mod pump;

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use walla_runtime::{AgentId, Client, Command, Engine, GenerationId, Prompt, ReplyEvent};

use pump::Pump;

/// From a host to the pump.
enum Message {
    Tell(Command),
    Ask {
        agent: AgentId,
        generation: GenerationId,
        prompt: Prompt,
        events: UnboundedSender<ReplyEvent>,
    },
    /// To be told when the device thread has ended.
    AwaitEnd(oneshot::Sender<()>),
}

/// All handles of an engine share one.
#[derive(Debug)]
pub(crate) struct Hub {
    // Before the channel, which closes when it goes: rule 5.
    client: Arc<Client>,
    messages: UnboundedSender<Message>,
}

impl Hub {
    /// Starts the pump. The channel tells the share loaded and closes when the engine is ready or over.
    pub fn start(client: Client) -> std::io::Result<(Self, UnboundedReceiver<f32>)> {
        let client = Arc::new(client);
        let (messages, inbox) = unbounded_channel();
        let (loading, loaded) = unbounded_channel();
        let pump = Pump::new(Arc::clone(&client), inbox, loading);
        std::thread::Builder::new().name("walla-async".into()).spawn(move || pump.run())?;
        Ok((Self { client, messages }, loaded))
    }

    pub fn engine(&self) -> &Engine {
        self.client.engine()
    }

    pub fn new_agent(&self) -> AgentId {
        self.client.new_agent()
    }

    /// Sends a command, behind those that wait already.
    pub fn tell(&self, command: Command) {
        self.send(Message::Tell(command));
    }

    /// Asks; what happens to the reply comes through the channel, which closes without a terminal event only if the pump has gone.
    pub fn ask(
        &self,
        agent: AgentId,
        prompt: Prompt,
    ) -> (GenerationId, UnboundedReceiver<ReplyEvent>) {
        let generation = self.client.new_generation();
        let (events, heard) = unbounded_channel();
        self.send(Message::Ask { agent, generation, prompt, events });
        (generation, heard)
    }

    /// Waits until the device thread has ended.
    pub async fn ended(&self) {
        let (told, end) = oneshot::channel();
        self.send(Message::AwaitEnd(told));
        // An error: the pump has gone, and nobody else could tell.
        let _gone = end.await;
    }

    fn send(&self, message: Message) {
        // The pump goes after the last hub. If it broke, the channels in the message close, which says so.
        let _broken = self.messages.send(message);
    }
}
