//! An agent behind a router: its conversation, its asks, and the engines that know it.

use std::time::Duration;

use walla_runtime::AgentId;
use walla_runtime::{
    AgentSpec, Ask, AskOptions, AskQueue, CallResult, Command, ConversationEdit, Exchange,
    FinishReason, History, Prompt, ReplyId, ResultError, Turn, Usage,
};

use crate::child::{Child, Key, find};

/// A version that no agent has: the copy in an engine is outdated.
const OUTDATED: u64 = 0;

pub(crate) struct Agent {
    /// Without turns.
    pub spec: Box<AgentSpec>,
    spec_version: u64,
    pub history: History,
    /// Counts the changes of `history`.
    version: u64,
    pub asks: AskQueue,
    pub reply: Option<Reply>,
    /// Engines that know the agent.
    places: Vec<Place>,
    pub is_removed: bool,
    /// The engine of its latest reply.
    pub latest: Option<Key>,
    /// The agent that it began as a copy of, until an engine knows it.
    pub fork_of: Option<AgentId>,
}

/// The copy of an agent in an engine.
struct Place {
    key: Key,
    spec_version: u64,
    version: u64,
}

/// A reply in progress.
pub(crate) struct Reply {
    pub reply_id: ReplyId,
    /// The engine that it is on.
    pub on: Key,
    /// Content of the ask, as long as the reply can move to a substitute.
    pub ask: Option<(Prompt, AskOptions)>,
    pub question: Option<Turn>,
    /// Whether it becomes part of the conversation.
    pub is_chat: bool,
    /// Prompt tokens of a begin that is not published before the first output, because the reply
    /// may still move.
    pub begun: Option<u32>,
    /// `Started` was published.
    pub is_started: bool,
    pub has_output: bool,
    pub speech: String,
    pub actions: Vec<Turn>,
    pub heard_bytes: u32,
    pub is_cancelled: bool,
    /// The conversation was replaced after the ask.
    pub is_outdated: bool,
    /// Arrival of the ask at the router.
    pub arrived: Duration,
    /// When its present engine was asked.
    pub asked: Duration,
    /// When it moves to the substitute without output.
    pub deadline: Option<Duration>,
    /// Time to the first token at the router, if a substitute continues the text.
    pub first_token_micros: Option<u64>,
}

impl Agent {
    pub fn new(mut spec: Box<AgentSpec>) -> Self {
        let mut history = History::default();
        history.replace(std::mem::take(&mut spec.turns), History::MAX_TURNS);
        Self {
            spec,
            spec_version: 1,
            history,
            version: 1,
            asks: AskQueue::default(),
            reply: None,
            places: Vec::new(),
            is_removed: false,
            latest: None,
            fork_of: None,
        }
    }

    /// A copy with its conversation, without its asks.
    pub fn copy(&self) -> Self {
        Self { history: self.history.copy(), ..Self::new(self.spec.clone()) }
    }

    /// Makes an engine know the agent as it is.
    pub fn sync(&mut self, id: AgentId, child: &mut Child) {
        let agent = id;
        let turns = || self.history.turns().to_vec();
        let Some(place) = self.places.iter_mut().find(|place| place.key == child.key) else {
            let spec = Box::new(AgentSpec { turns: turns(), ..(*self.spec).clone() });
            child.send(match self.fork_of.take() {
                Some(source) => Command::ForkAgent { agent, source, spec: Some(spec) },
                None => Command::AddAgent { agent, spec },
            });
            let (key, spec_version, version) = (child.key, self.spec_version, self.version);
            self.places.push(Place { key, spec_version, version });
            return;
        };
        if place.spec_version != self.spec_version {
            child.send(Command::ChangeAgent { agent, spec: self.spec.clone() });
            place.spec_version = self.spec_version;
        }
        if place.version != self.version {
            child.send(Command::SetConversation { agent, turns: turns() });
            place.version = self.version;
        }
    }

    /// Whether an engine knows the agent.
    pub fn is_known_to(&self, key: Key) -> bool {
        self.places.iter().any(|place| place.key == key)
    }

    /// Changes the specification, except for the conversation. Engines learn it by
    /// [`sync_spec`](Self::sync_spec), or when they are asked.
    pub fn change(&mut self, mut spec: Box<AgentSpec>) {
        spec.turns = Vec::new();
        self.spec = spec;
        self.spec_version += 1;
    }

    /// Sends the specification to an engine that knows the agent.
    pub fn sync_spec(&mut self, id: AgentId, child: &mut Child) {
        if let Some(place) = self.places.iter_mut().find(|place| place.key == child.key)
            && place.spec_version != self.spec_version
        {
            child.send(Command::ChangeAgent { agent: id, spec: self.spec.clone() });
            place.spec_version = self.spec_version;
        }
    }

    /// Adds the results of calls, also to the conversations of engines.
    pub fn answer(
        &mut self,
        id: AgentId,
        results: Vec<CallResult>,
        children: &mut [Child],
    ) -> Result<(), ResultError> {
        let turns = self.history.answered(results)?;
        self.append(id, turns, children);
        Ok(())
    }

    /// Adds turns to the end of the conversation, also of the engines that know it.
    pub fn append(&mut self, id: AgentId, turns: Vec<Turn>, children: &mut [Child]) {
        if turns.is_empty() {
            return;
        }
        let before = self.version;
        self.version += 1;
        // An outdated copy gets the whole conversation with its next ask anyway.
        for place in self.places.iter_mut().filter(|place| place.version == before) {
            if let Some(child) = find(children, place.key) {
                child.send(Command::AppendTurns { agent: id, turns: turns.clone() });
                place.version = self.version;
            }
        }
        self.history.extend(turns, History::MAX_TURNS);
    }

    /// Replaces the conversation. A reply in progress is not part of the new one.
    pub fn replace(&mut self, turns: Vec<Turn>) {
        self.history.replace(turns, History::MAX_TURNS);
        self.asks.take_turns_after();
        self.replaced();
    }

    /// Changes turns. The text so far of a reply in progress is one of them.
    pub fn edit(&mut self, edit: ConversationEdit, copied: Option<History>) {
        let begun = self.reply.as_ref();
        if let Some(reply) = begun.filter(|r| r.is_chat && r.is_started && !r.is_outdated) {
            let exchange = Exchange {
                reply_id: reply.reply_id,
                question: reply.question.clone(),
                speech: reply.speech.clone(),
                actions: reply.actions.clone(),
            };
            self.history.end_reply(exchange, reply.heard_bytes, false);
        }
        let turns = self.asks.take_turns_after();
        self.history.extend(turns, History::MAX_TURNS);
        self.history.edit(edit, copied);
        self.replaced();
    }

    /// Removes the last reply. Returns the prompt that asks the same again.
    pub fn take_reply(&mut self) -> Option<Prompt> {
        let prompt = self.history.take_reply()?;
        self.version += 1;
        Some(prompt)
    }

    fn replaced(&mut self) {
        self.version += 1;
        if let Some(reply) = &mut self.reply {
            reply.is_outdated = true;
            reply.is_cancelled = true;
        }
    }

    /// Shortens a reply that has ended.
    pub fn shorten(&mut self, reply_id: ReplyId, heard_bytes: u32) {
        if self.history.shorten_reply(reply_id, heard_bytes) {
            self.version += 1;
        }
    }

    /// Notes that the conversation of an engine may differ.
    pub fn outdate(&mut self, key: Key) {
        if let Some(place) = self.places.iter_mut().find(|place| place.key == key) {
            place.version = OUTDATED;
        }
    }

    /// Takes the reply in progress and adds it to the conversation. `reason`: `None` if it failed.
    pub fn end_reply(&mut self, reason: Option<(FinishReason, &Usage)>) -> Option<Reply> {
        let mut reply = self.reply.take()?;
        let (before, on) = (self.version, reply.on);
        let is_finished = reason.is_some_and(|(reason, usage)| {
            reason != FinishReason::Cancelled && usage.reasoning_tokens == 0
        });
        if reply.is_chat && reply.is_started && !reply.is_outdated {
            let exchange = Exchange {
                reply_id: reply.reply_id,
                question: reply.question.take(),
                speech: std::mem::take(&mut reply.speech),
                actions: std::mem::take(&mut reply.actions),
            };
            // Nothing of it was heard: it is no empty answer.
            let is_answer = is_finished && reply.heard_bytes == u32::MAX;
            self.history.end_reply(exchange, reply.heard_bytes, is_answer);
            self.version += 1;
        }
        if self.history.restore_reply() {
            self.version += 1;
        }
        // The engine has recorded the same exchange, unless it has only a part of the text, or the
        // reply was cancelled.
        let is_same = is_finished && reply.is_started && reply.first_token_micros.is_none();
        for place in self.places.iter_mut().filter(|place| place.key == on) {
            let is_known = is_same && place.version == before && !reply.is_cancelled;
            if is_known {
                place.version = self.version;
            // Of a replaced conversation the engine has the new version already.
            } else if !reply.is_outdated {
                place.version = OUTDATED;
            }
        }
        Some(reply)
    }

    /// The next ask, if none is in progress, and the turns before it.
    pub fn next_ask(&mut self) -> Option<(Ask, Vec<Turn>)> {
        let mut ask = self.asks.pop_front()?;
        let turns = std::mem::take(&mut ask.turns_before);
        Some((ask, turns))
    }

    /// Removes the agent from engines that are gone or, unless `keeps` is true, not used any more.
    pub fn leave(&mut self, id: AgentId, children: &mut [Child], keeps: impl Fn(&Child) -> bool) {
        self.places.retain(|place| {
            let child = find(children, place.key);
            let Some(child) = child else { return false };
            let is_kept = keeps(child);
            if !is_kept {
                child.send(Command::RemoveAgent { agent: id });
            }
            is_kept
        });
    }
}
