//! The conversation of an agent.
//!
//! Order: an exchange is at the position of its question. Turns that are appended while asks are
//! open follow the exchanges of these asks.

use super::{AgentState, Asked, Reply};
use crate::api::{Prompt, ReplyError, ReplyId, Turn};
use crate::history::Exchange;

impl AgentState {
    /// Replaces the conversation. The caller has cancelled all asks. More than `max_turns` turns
    /// cannot fit in the context, so the oldest are dropped.
    pub fn replace_turns(&mut self, turns: Vec<Turn>, max_turns: usize) {
        self.history.replace(turns, max_turns);
        self.asks.take_turns_after();
        self.background.outdate();
    }

    /// Appends turns behind the exchanges of all open asks. More than `max_turns` turns cannot fit
    /// in the context, so the oldest are dropped.
    pub fn append_turns(&mut self, turns: Vec<Turn>, max_turns: usize) {
        self.asks.append_turns(turns, max_turns);
        self.flush_turns_after_asks(max_turns);
    }

    /// Moves appended turns into the conversation once no ask precedes them.
    pub fn flush_turns_after_asks(&mut self, max_turns: usize) {
        if self.reply.is_none() && self.asks.is_empty() {
            let turns = self.asks.take_turns_after();
            self.extend_turns(turns, max_turns);
        }
    }

    /// The prompt of an ask, after the changes of the conversation that it requests.
    pub fn apply(&mut self, prompt: Prompt, max_turns: usize) -> Result<Prompt, ReplyError> {
        if matches!(prompt, Prompt::Again | Prompt::Results(_)) {
            self.background.outdate();
        }
        self.history.apply(prompt, max_turns)
    }

    /// Adds turns to the end of the conversation.
    pub fn extend_turns(&mut self, added: Vec<Turn>, max_turns: usize) {
        if added.is_empty() {
            return;
        }
        self.history.extend(added, max_turns);
        self.background.outdate();
    }

    /// Adds question, answer and actions to the conversation. `is_finished`: the reply ended
    /// normally, possibly without text. A question that was never evaluated is not added.
    pub fn keep_turn(&mut self, reply: Reply, is_finished: bool) {
        let question = match reply.asked {
            Some(Asked::Question(question)) => Some(question),
            Some(Asked::Conversation) => None,
            None => return,
        };
        if !reply.is_running {
            return;
        }
        let has_reasoned = reply.usage.reasoning_tokens > 0;
        let Reply { reply_id, speech, actions, heard_bytes, .. } = reply;
        let exchange = Exchange { reply_id, question, speech, actions };
        self.history.end_reply(exchange, heard_bytes, is_finished && !has_reasoned);
    }

    /// Shortens a reply that has ended to its heard part.
    ///
    /// The cache needs no change, because the next prompt is compared with it token by token.
    pub fn shorten_reply(&mut self, reply_id: ReplyId, heard_bytes: u32) {
        if self.history.shorten_reply(reply_id, heard_bytes) {
            self.background.outdate();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AgentId, AgentSpec, AskOptions, Prompt, Speaker};
    use crate::ask_queue::Ask;
    use crate::engine_core::ClientKey;

    const MAX_TURNS: usize = 100;

    fn pushed(text: &str) -> Vec<Turn> {
        vec![Turn::new(Speaker::User, text)]
    }

    #[test]
    fn turns_behind_open_asks_are_bounded() {
        let mut agent = AgentState::new(ClientKey(0), AgentId(1), AgentSpec::new(""));
        let ask = Ask::new(ReplyId(1), Prompt::Raw(String::new()), AskOptions::default(), 0);
        agent.reply = Some(Reply::new(&ask, 0, 0));
        for _ in 0..300 {
            agent.append_turns(pushed("y"), MAX_TURNS);
        }
        assert_eq!((agent.asks.turns_after().len(), agent.history.turns().len()), (MAX_TURNS, 0));
        agent.reply = None;
        agent.flush_turns_after_asks(MAX_TURNS);
        assert_eq!((agent.asks.turns_after().len(), agent.history.turns().len()), (0, MAX_TURNS));
    }
}
