use std::sync::Arc;

use walla_runtime::{AgentId, AgentSpec, Command, Prompt, Turn};

use crate::hub::Hub;
use crate::reply::Reply;

/// Somebody who speaks. Dropping it cancels what it says and frees its memory.
#[derive(Debug)]
pub struct Agent {
    hub: Arc<Hub>,
    id: AgentId,
}

impl Agent {
    pub(crate) fn new(hub: Arc<Hub>, spec: AgentSpec) -> Self {
        let id = hub.client.new_agent();
        hub.send(Command::AddAgent { agent: id, spec: Box::new(spec) });
        Self { hub, id }
    }

    /// Says something to the agent; its reply comes as a stream. Never waits.
    ///
    /// Asks of one agent are answered one after the other. What is said and replied becomes part of the conversation.
    #[must_use = "dropping the reply cancels it"]
    pub fn ask(&self, text: impl Into<String>) -> Reply {
        self.ask_with(Prompt::Chat(text.into()))
    }

    /// Like [`ask`](Self::ask), with raw text or tokens if wanted: those are continued as they are, without template and
    /// conversation.
    #[must_use = "dropping the reply cancels it"]
    pub fn ask_with(&self, prompt: Prompt) -> Reply {
        Reply::start(Arc::clone(&self.hub), self.id, prompt)
    }

    /// Changes everything but the conversation; takes effect with the next ask.
    pub fn change(&self, spec: AgentSpec) {
        self.hub.send(Command::ChangeAgent { agent: self.id, spec: Box::new(spec) });
    }

    /// Replaces the conversation. A reply in progress is cancelled.
    pub fn set_conversation(&self, turns: Vec<Turn>) {
        self.hub.send(Command::SetConversation { agent: self.id, turns });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.hub.send(Command::RemoveAgent { agent: self.id });
    }
}
