//! An agent of a remote engine: its conversation, its asks and its reply in progress.

use tokio::task::AbortHandle;
use walla_runtime::{
    AgentSpec, Ask, AskQueue, Exchange, FirstTokenTimes, History, ReplyId, Turn, Usage,
};

/// A reply in progress.
#[derive(Debug)]
pub(crate) struct Reply {
    pub reply_id: ReplyId,
    pub question: Option<Turn>,
    pub speech: String,
    pub actions: Vec<Turn>,
    pub calls: u32,
    /// The exchange leaves no turn.
    pub is_aside: bool,
    pub has_reasoned: bool,
    /// Bytes of the speech that the conversation keeps.
    pub heard_bytes: u32,
    pub is_started: bool,
    pub prompt_tokens: u32,
    pub arrived_micros: u64,
    pub begun_micros: u64,
    pub first_micros: Option<u64>,
    /// Bytes of the texts of its ask.
    pub bytes: u64,
    /// Ends the request.
    pub request: AbortHandle,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub spec: AgentSpec,
    /// Applies from the next reply on.
    next_spec: Option<Box<AgentSpec>>,
    pub history: History,
    pub asks: AskQueue,
    pub reply: Option<Reply>,
    /// Its key among the agents that wait for a request.
    pub place: Option<(i64, ReplyId)>,
}

impl Agent {
    pub fn new(mut spec: AgentSpec) -> Self {
        let mut history = History::default();
        history.replace(std::mem::take(&mut spec.turns), History::MAX_TURNS);
        Self { spec, next_spec: None, history, asks: AskQueue::default(), reply: None, place: None }
    }

    /// A copy with its conversation, without its asks.
    pub fn fork(&self) -> Self {
        let spec = self.next_spec.as_deref().unwrap_or(&self.spec).clone();
        Self { history: self.history.copy(), ..Self::new(spec) }
    }

    /// Changes the specification, except for the conversation.
    pub fn change(&mut self, mut spec: Box<AgentSpec>) {
        spec.turns = Vec::new();
        if self.reply.is_some() {
            self.spec.priority = spec.priority;
            self.next_spec = Some(spec);
        } else {
            self.spec = *spec;
        }
    }

    pub fn append(&mut self, turns: Vec<Turn>) {
        self.asks.append_turns(turns, History::MAX_TURNS);
        self.settle();
    }

    /// Moves appended turns into the conversation once no ask precedes them.
    pub fn settle(&mut self) {
        if self.reply.is_none() && self.asks.is_empty() {
            let turns = self.asks.take_turns_after();
            if !turns.is_empty() {
                self.history.extend(turns, History::MAX_TURNS);
            }
        }
    }

    pub fn replace(&mut self, turns: Vec<Turn>) {
        self.history.replace(turns, History::MAX_TURNS);
        self.asks.take_turns_after();
    }

    /// The next ask, if the agent is free. The conversation gets the turns before it.
    pub fn next_ask(&mut self) -> Option<Ask> {
        if self.reply.is_some() {
            return None;
        }
        let mut ask = self.asks.pop_front()?;
        if let Some(spec) = self.next_spec.take() {
            self.spec = *spec;
        }
        self.history.extend(std::mem::take(&mut ask.turns_before), History::MAX_TURNS);
        Some(ask)
    }

    /// Ends the reply in progress and keeps its exchange. `is_finished`: it ended normally,
    /// possibly without text.
    pub fn end_reply(&mut self, is_finished: bool, now_micros: u64) -> Option<Usage> {
        let reply = self.reply.take()?;
        let usage = reply.usage(now_micros);
        if reply.is_started && !reply.is_aside {
            let Reply { reply_id, question, speech, actions, heard_bytes, has_reasoned, .. } =
                reply;
            let exchange = Exchange { reply_id, question, speech, actions };
            self.history.end_reply(exchange, heard_bytes, is_finished && !has_reasoned);
        }
        self.history.restore_reply();
        self.settle();
        Some(usage)
    }
}

impl Reply {
    /// Its times so far.
    fn usage(&self, now_micros: u64) -> Usage {
        let since = |micros: u64| micros.saturating_sub(self.arrived_micros);
        let mut usage = Usage {
            prompt_tokens: self.prompt_tokens,
            total_micros: since(now_micros),
            ..Usage::default()
        };
        if let Some(first) = self.first_micros {
            usage.first_token_micros = since(first).max(1);
            let waiting_micros = since(self.begun_micros).min(usage.first_token_micros);
            usage.first_token = FirstTokenTimes {
                waiting_micros,
                prefill_micros: usage.first_token_micros - waiting_micros,
                ..FirstTokenTimes::default()
            };
        }
        usage
    }
}
