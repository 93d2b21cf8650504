use std::sync::Arc;

use walla_runtime::{AgentId, AgentSpec, Command, Prompt, Turn};

use crate::hub::Hub;
use crate::reply::Reply;

/// Somebody who speaks. Dropping it cancels what it says and frees its memory; nothing here waits.
///
/// If the engine has [no room](crate::EngineBuilder::agents_max) for one more agent, its asks fail with
/// [`ReplyError::TooManyAgents`](crate::ReplyError::TooManyAgents), until one is asked when there is room.
///
/// The conversation lives in the engine, which tells nobody. To save it, keep each question and the
/// text of its reply, once that has begun ([`ReplyEvent::Started`](crate::ReplyEvent::Started)),
/// however it ended: these are the turns that the agent remembers. An exchange without text is
/// remembered only if the model ended the reply and did not reason.
#[derive(Debug)]
pub struct Agent {
    hub: Arc<Hub>,
    id: AgentId,
}

impl Agent {
    pub(crate) fn new(hub: Arc<Hub>, spec: AgentSpec) -> Self {
        let id = hub.new_agent();
        hub.tell(Command::AddAgent { agent: id, spec: Box::new(spec) });
        Self { hub, id }
    }

    /// Says something to the agent; its reply comes as a stream.
    ///
    /// Asks of one agent are answered one after the other; with eight waiting, the next one fails with
    /// [`ReplyError::Busy`](crate::ReplyError::Busy). What is said and replied becomes part of the conversation.
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

    /// Changes everything but the conversation (`history` is ignored); takes effect with the next ask.
    pub fn change(&self, spec: AgentSpec) {
        self.hub.tell(Command::ChangeAgent { agent: self.id, spec: Box::new(spec) });
    }

    /// Replaces the conversation. A reply in progress is cancelled, and so are the asks that wait behind it.
    pub fn set_conversation(&self, turns: Vec<Turn>) {
        self.hub.tell(Command::SetConversation { agent: self.id, turns });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.hub.tell(Command::RemoveAgent { agent: self.id });
    }
}
