//! The conversation of an agent: exchanges, turns that a host adds, and replies that are shortened
//! to their heard part.
//!
//! Order: an exchange is at the position of its question. Turns that are appended while asks are
//! open follow the exchanges of these asks. An exchange is the question, if the ask had one, the
//! reply, and the actions of the reply.

use std::sync::Arc;

use super::{AgentState, Asked, Reply, ReplyPhase};
use crate::api::{EXCHANGES_KNOWN_MAX, ReplyId, Speaker, Turn};

/// The turns of a reply that has ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Exchange {
    reply_id: ReplyId,
    /// Index of its first turn.
    begin: usize,
    /// Index of the agent's turn.
    answer: usize,
}

impl AgentState {
    /// Replaces the conversation. The caller has cancelled all asks. More than `turns_max` turns
    /// cannot fit in the context, so the oldest are dropped.
    pub fn replace_turns(&mut self, mut turns: Vec<Turn>, turns_max: usize) {
        turns.drain(..turns.len().saturating_sub(turns_max));
        self.turns = Arc::new(turns);
        self.turns_after_asks.clear();
        self.exchanges.clear();
        self.dropped_size = 0;
        self.background.outdate();
    }

    /// Appends turns behind the exchanges of all open asks. More than `turns_max` turns cannot fit
    /// in the context, so the oldest are dropped.
    pub fn append_turns(&mut self, turns: Vec<Turn>, turns_max: usize) {
        self.turns_after_asks.extend(turns);
        let surplus = self.turns_after_asks.len().saturating_sub(turns_max);
        self.turns_after_asks.drain(..surplus);
        self.flush_turns_after_asks(turns_max);
    }

    /// Moves appended turns into the conversation once no ask precedes them.
    pub fn flush_turns_after_asks(&mut self, turns_max: usize) {
        if self.reply.is_none() && self.asks.is_empty() {
            let turns = std::mem::take(&mut self.turns_after_asks);
            self.extend_turns(turns, turns_max);
        }
    }

    /// Adds turns to the end of the conversation.
    pub fn extend_turns(&mut self, added: Vec<Turn>, turns_max: usize) {
        if added.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.turns).extend(added);
        self.background.outdate();
        let surplus = self.turns.len().saturating_sub(turns_max);
        self.drop_oldest(surplus);
    }

    /// Drops the oldest turns, which fit in no prompt any more.
    pub fn drop_oldest(&mut self, turns: usize) {
        if turns == 0 {
            return;
        }
        self.dropped_size += self.turns[..turns].iter().map(Turn::size).sum::<u64>();
        Arc::make_mut(&mut self.turns).drain(..turns);
        self.exchanges.retain_mut(|exchange| {
            let is_kept = exchange.begin >= turns;
            exchange.begin = exchange.begin.saturating_sub(turns);
            exchange.answer = exchange.answer.saturating_sub(turns);
            is_kept
        });
    }

    /// Adds question, answer and actions to the conversation. `is_finished`: the reply ended
    /// normally, possibly without text.
    ///
    /// A question that was never evaluated, or whose reply failed or was cancelled before its first
    /// word, is not added: it would be an example of an empty answer, and be duplicated when it is
    /// asked again. Reasoning without speech is not an answer; an action is one.
    pub fn keep_turn(&mut self, mut reply: Reply, is_finished: bool) {
        cut_text(&mut reply.speech, reply.heard_bytes);
        let has_reasoned = reply.usage.reasoning_tokens > 0;
        let has_spoken = !reply.speech.is_empty() || !reply.actions.is_empty();
        let is_answered = (is_finished && !has_reasoned) || has_spoken;
        let Some(asked) = reply.asked.filter(|_| is_answered) else { return };
        if reply.phase != ReplyPhase::Running {
            return;
        }
        if self.exchanges.len() >= EXCHANGES_KNOWN_MAX {
            self.exchanges.pop_front();
        }
        let turns = Arc::make_mut(&mut self.turns);
        let begin = turns.len();
        if let Asked::Question(question) = asked {
            turns.push(Turn { speaker: Speaker::User, text: question });
        }
        self.exchanges.push_back(Exchange { reply_id: reply.reply_id, begin, answer: turns.len() });
        turns.push(Turn { speaker: Speaker::Agent, text: reply.speech });
        let actions = reply.actions.into_iter();
        turns.extend(actions.map(|text| Turn { speaker: Speaker::Action, text }));
    }

    /// Shortens a reply that has ended to its heard part. No effect if the exchange is not among
    /// the latest. A reply that was not heard at all is removed with its question, unless it acted.
    ///
    /// The cache needs no change, because the next prompt is compared with it token by token.
    pub fn shorten_reply(&mut self, reply_id: ReplyId, heard_bytes: u32) {
        let Some(at) = self.exchanges.iter().position(|known| known.reply_id == reply_id) else {
            return;
        };
        let Exchange { begin, answer, .. } = self.exchanges[at];
        self.background.outdate();
        let turns = Arc::make_mut(&mut self.turns);
        let has_acted = turns.get(answer + 1).is_some_and(|turn| turn.speaker == Speaker::Action);
        let Some(turn) = turns.get_mut(answer) else { return };
        cut_text(&mut turn.text, heard_bytes);
        if !turn.text.is_empty() || has_acted {
            return;
        }
        turns.drain(begin..=answer);
        self.exchanges_removed += 1;
        self.exchanges.remove(at);
        for later in self.exchanges.iter_mut().skip(at) {
            later.begin -= answer + 1 - begin;
            later.answer -= answer + 1 - begin;
        }
    }
}

/// Cuts a text at a byte, or before the character that contains this byte.
fn cut_text(text: &mut String, bytes: u32) {
    text.truncate(text.floor_char_boundary(bytes as usize));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AgentId, AgentSpec, AskOptions, Prompt};
    use crate::core::agents::Ask;
    use crate::engine_core::ClientKey;

    const TURNS_MAX: usize = 100;

    fn agent() -> AgentState {
        AgentState::new(ClientKey(0), AgentId(1), AgentSpec::new(""))
    }

    fn reply(reply_id: u64, speech: &str) -> Reply {
        Reply {
            asked: Some(Asked::Question(format!("q{reply_id}"))),
            phase: ReplyPhase::Running,
            speech: speech.into(),
            ..Reply::new(&asked(reply_id), 0, 0)
        }
    }

    fn asked(reply_id: u64) -> Ask {
        Ask::new(ReplyId(reply_id), Prompt::Raw(String::new()), AskOptions::default(), 0)
    }

    fn pushed(text: &str) -> Vec<Turn> {
        vec![Turn { speaker: Speaker::User, text: text.into() }]
    }

    fn texts(agent: &AgentState) -> Vec<&str> {
        agent.turns.iter().map(|turn| turn.text.as_str()).collect()
    }

    #[test]
    fn heard_text_is_cut_between_characters() {
        let mut agent = agent();
        for (reply_id, speech) in [(1, "one"), (2, "zwölf"), (3, "three")] {
            agent.keep_turn(reply(reply_id, speech), true);
        }
        agent.append_turns(pushed("x"), TURNS_MAX);
        agent.keep_turn(reply(4, "four"), true);
        // Byte 3 is in the middle of a character.
        agent.shorten_reply(ReplyId(2), 3);
        agent.shorten_reply(ReplyId(3), 0);
        agent.shorten_reply(ReplyId(3), 1);
        agent.shorten_reply(ReplyId(4), 100);
        assert_eq!(texts(&agent), ["q1", "one", "q2", "zw", "x", "q4", "four"]);
        agent.shorten_reply(ReplyId(4), 2);
        assert_eq!(texts(&agent), ["q1", "one", "q2", "zw", "x", "q4", "fo"]);
        assert_eq!(agent.exchanges_removed, 1);
    }

    #[test]
    fn exchanges_are_found_after_older_turns_are_dropped() {
        let mut agent = agent();
        for reply_id in 1..=3 {
            agent.keep_turn(reply(reply_id, "words"), true);
        }
        agent.drop_oldest(3);
        agent.shorten_reply(ReplyId(1), 1);
        agent.shorten_reply(ReplyId(3), 1);
        assert_eq!(texts(&agent), ["words", "q3", "w"]);
    }

    #[test]
    fn conversations_and_known_exchanges_are_bounded() {
        let mut agent = agent();
        for reply_id in 0..300 {
            agent.keep_turn(reply(reply_id, "words"), true);
            agent.append_turns(pushed("x"), TURNS_MAX);
        }
        assert_eq!((agent.turns.len(), agent.exchanges.len()), (TURNS_MAX, EXCHANGES_KNOWN_MAX));
        agent.shorten_reply(ReplyId(299), 1);
        assert_eq!(texts(&agent)[TURNS_MAX - 3..], ["q299", "w", "x"]);
        agent.reply = Some(reply(300, ""));
        for _ in 0..300 {
            agent.append_turns(pushed("y"), TURNS_MAX);
        }
        assert_eq!(agent.turns_after_asks.len(), TURNS_MAX);
    }
}
