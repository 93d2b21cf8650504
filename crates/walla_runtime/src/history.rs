//! The conversation of an agent, as an engine keeps it.

use std::collections::VecDeque;
use std::sync::Arc;

use walla_grammar::ActionError;

use crate::api::{
    ActionPolicy, AgentSpec, AskOptions, CallId, CallResult, ConversationEdit, MAX_EXCHANGES_KNOWN,
    Prompt, ReplyError, ReplyId, ResultError, Speaker, Turn,
};

/// The conversation of an agent: turns, and replies that can be shortened to their heard part.
///
/// It is for implementations of [`EngineClient`](crate::EngineClient). An exchange is the question,
/// if the ask had one, the reply, and the actions of the reply.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Shared with the text thread while it encodes them; not shared when they change.
    turns: Arc<Vec<Turn>>,
    /// The latest exchanges in `turns`, oldest first.
    known: VecDeque<Known>,
    exchanges_removed: u32,
    dropped_size: u64,
    /// Number of consecutive replies to results of actions, without another new turn.
    rounds: u32,
    /// The turns that a repetition has removed, until its reply is kept.
    taken: Vec<Turn>,
}

/// Place of an exchange among the turns.
#[derive(Clone, Copy, Debug)]
struct Known {
    reply_id: ReplyId,
    /// Index of its first turn.
    begin: usize,
    /// Index of the agent's turn.
    answer: usize,
}

/// A reply that has ended, and its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The reply.
    pub reply_id: ReplyId,
    /// The question; `None` if the agent continued its conversation.
    pub question: Option<Turn>,
    /// Text of the reply.
    pub speech: String,
    /// Its calls ([`Call::turn`](crate::Call::turn)).
    pub actions: Vec<Turn>,
}

impl History {
    /// Maximum number of turns that remote engines and routers keep.
    pub const MAX_TURNS: usize = 4_096;

    /// A conversation with these turns.
    #[must_use]
    pub fn new(turns: Vec<Turn>) -> Self {
        Self { turns: Arc::new(turns), ..Self::default() }
    }

    /// The turns, oldest first.
    #[must_use]
    pub fn turns(&self) -> &Arc<Vec<Turn>> {
        &self.turns
    }

    /// The turns alone.
    #[must_use]
    pub fn into_turns(self) -> Arc<Vec<Turn>> {
        self.turns
    }

    /// Number of exchanges that were removed from the middle because nothing of them was heard.
    pub(crate) fn exchanges_removed(&self) -> u32 {
        self.exchanges_removed
    }

    /// Sum of the [sizes](Turn::size) of all turns that were dropped.
    pub(crate) fn dropped_size(&self) -> u64 {
        self.dropped_size
    }

    /// Replaces the turns, and keeps the latest `max_turns`.
    pub fn replace(&mut self, mut turns: Vec<Turn>, max_turns: usize) {
        turns.drain(..turns.len().saturating_sub(max_turns));
        self.turns = Arc::new(turns);
        self.known.clear();
        self.dropped_size = 0;
        self.taken.clear();
    }

    /// Adds turns to the end, and keeps the latest `max_turns`.
    pub fn extend(&mut self, added: Vec<Turn>, max_turns: usize) {
        Arc::make_mut(&mut self.turns).extend(added);
        let surplus = self.turns.len().saturating_sub(max_turns);
        self.drop_oldest(surplus);
    }

    /// The prompt of an ask, after the changes of the conversation that it requests: a repetition
    /// becomes the ask that led to the last reply, and results become turns.
    ///
    /// # Errors
    /// [`ReplyError::NoReply`], [`ReplyError::Result`]. Then nothing changes.
    pub fn apply(&mut self, prompt: Prompt, max_turns: usize) -> Result<Prompt, ReplyError> {
        match prompt {
            Prompt::Again => self.take_reply().ok_or(ReplyError::NoReply),
            Prompt::Results(results) => {
                let turns = self.answered(results).map_err(ReplyError::Result)?;
                self.extend(turns, max_turns);
                Ok(Prompt::Continue)
            }
            prompt => Ok(prompt),
        }
    }

    /// The turns of the results of calls, as [`Prompt::Results`] specifies.
    ///
    /// # Errors
    /// Why a result is not taken.
    pub fn answered(&self, results: Vec<CallResult>) -> Result<Vec<Turn>, ResultError> {
        for (at, result) in results.iter().enumerate() {
            check_result(&self.turns, result.id)?;
            if results.iter().take(at).any(|earlier| earlier.id == result.id) {
                return Err(ResultError::Repeated(result.id));
            }
        }
        let is_missing = |call: &CallId| {
            results.iter().any(|result| result.id.reply_id == call.reply_id)
                && !results.iter().any(|result| result.id == *call)
                && check_result(&self.turns, *call).is_ok()
        };
        match self.turns.iter().filter_map(|turn| turn.call).find(is_missing) {
            Some(call) => Err(ResultError::Missing(call)),
            None => Ok(results.into_iter().map(|its| Turn::result(its.id, its.text)).collect()),
        }
    }

    /// Drops the oldest turns.
    pub fn drop_oldest(&mut self, turns: usize) {
        let turns = turns.min(self.turns.len());
        if turns == 0 {
            return;
        }
        self.dropped_size += self.turns[..turns].iter().map(Turn::size).sum::<u64>();
        Arc::make_mut(&mut self.turns).drain(..turns);
        self.known.retain_mut(|exchange| {
            let is_kept = exchange.begin >= turns;
            exchange.begin = exchange.begin.saturating_sub(turns);
            exchange.answer = exchange.answer.saturating_sub(turns);
            is_kept
        });
    }

    /// Adds a reply that has ended, with its question, if it is an answer. The conversation keeps
    /// the first `heard_bytes` bytes of its speech. `is_answer`: it is one without speech and
    /// actions too, because it ended normally and did not reason.
    ///
    /// A reply that failed or was cancelled before its first word is not an answer: it would be an
    /// example of an empty one, and its question be duplicated when it is asked again.
    pub fn end_reply(&mut self, mut exchange: Exchange, heard_bytes: u32, is_answer: bool) {
        cut_text(&mut exchange.speech, heard_bytes);
        if is_answer || !exchange.speech.is_empty() || !exchange.actions.is_empty() {
            self.taken.clear();
            self.push_exchange(exchange);
        }
    }

    /// Adds an exchange to the end.
    fn push_exchange(&mut self, exchange: Exchange) {
        let Exchange { reply_id, question, speech, actions } = exchange;
        if self.known.len() >= MAX_EXCHANGES_KNOWN {
            self.known.pop_front();
        }
        let turns = Arc::make_mut(&mut self.turns);
        let begin = turns.len();
        turns.extend(question);
        self.known.push_back(Known { reply_id, begin, answer: turns.len() });
        turns.push(Turn::new(Speaker::Agent, speech));
        turns.extend(actions);
    }

    /// Shortens a reply that has ended to its heard part. A reply that was not heard at all is
    /// removed with its question, unless it acted. Returns whether the exchange is among the
    /// latest; otherwise nothing changes.
    pub fn shorten_reply(&mut self, reply_id: ReplyId, heard_bytes: u32) -> bool {
        let Some(at) = self.known.iter().position(|known| known.reply_id == reply_id) else {
            return false;
        };
        let Known { begin, answer, .. } = self.known[at];
        let turns = Arc::make_mut(&mut self.turns);
        let has_acted = turns.get(answer + 1).is_some_and(|turn| turn.speaker == Speaker::Action);
        let Some(turn) = turns.get_mut(answer) else { return true };
        cut_text(&mut turn.text, heard_bytes);
        if !turn.text.is_empty() || has_acted {
            return true;
        }
        turns.drain(begin..=answer);
        self.exchanges_removed += 1;
        self.known.remove(at);
        for later in self.known.iter_mut().skip(at) {
            later.begin -= answer + 1 - begin;
            later.answer -= answer + 1 - begin;
        }
        true
    }

    /// Changes turns. `copied`: the conversation that a copy is of; without it a copy changes
    /// nothing.
    pub fn edit(&mut self, edit: ConversationEdit, copied: Option<Self>) {
        match edit {
            ConversationEdit::Rewind { turns } => self.rewind(turns as usize),
            ConversationEdit::Text { turns_after, text } => {
                self.set_text(turns_after as usize, text);
            }
            ConversationEdit::CopyOf { .. } => {
                if let Some(copied) = copied {
                    *self = copied;
                }
            }
        }
    }

    /// Removes turns from the end.
    pub fn rewind(&mut self, turns: usize) {
        self.cut(self.turns.len().saturating_sub(turns));
    }

    /// Replaces the text of the turn that `turns_after` turns follow. Returns whether there is one.
    pub fn set_text(&mut self, turns_after: usize, text: String) -> bool {
        let Some(at) = self.turns.len().checked_sub(turns_after.saturating_add(1)) else {
            return false;
        };
        let turn = Arc::make_mut(&mut self.turns).get_mut(at);
        turn.map(|turn| turn.text = text).is_some()
    }

    /// Removes the agent's last turn and all later ones, and the question before it. Returns the
    /// prompt that asks the same again; `None` if the agent has no turn.
    ///
    /// [`restore_reply`](Self::restore_reply) puts them back until the new reply is kept.
    pub fn take_reply(&mut self) -> Option<Prompt> {
        let answer = self.turns.iter().rposition(|turn| turn.speaker == Speaker::Agent)?;
        let question = answer
            .checked_sub(1)
            .and_then(|before| self.turns.get(before))
            .filter(|turn| turn.speaker == Speaker::User)
            .cloned();
        let length = answer - usize::from(question.is_some());
        let taken = self.turns[length..].to_vec();
        self.cut(length);
        self.taken = taken;
        Some(Prompt::of_question(question))
    }

    /// The turns that [`take_reply`](Self::take_reply) has removed, among them the question.
    #[must_use]
    pub fn taken(&self) -> &[Turn] {
        &self.taken
    }

    /// Puts back the turns of a repetition that has ended without an answer, so that no reply is
    /// lost. Returns whether there are any. Called at the end of each reply.
    pub fn restore_reply(&mut self) -> bool {
        let taken = std::mem::take(&mut self.taken);
        let is_restored = !taken.is_empty();
        if is_restored {
            Arc::make_mut(&mut self.turns).extend(taken);
        }
        is_restored
    }

    /// A copy for another agent, without the effects of a repetition that has not ended.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.restore_reply();
        copy
    }

    /// Keeps the first `length` turns.
    fn cut(&mut self, length: usize) {
        self.taken.clear();
        if length < self.turns.len() {
            Arc::make_mut(&mut self.turns).truncate(length);
            self.known.retain(|exchange| exchange.answer < length);
            self.rounds = 0;
        }
    }

    /// When a reply to this conversation may call actions. `None`: its calls are not separated from
    /// its speech. `is_question`: the ask has a question.
    ///
    /// # Errors
    /// The reply must call an action, and cannot.
    pub fn call_policy(
        &self,
        spec: &AgentSpec,
        options: &AskOptions,
        is_question: bool,
    ) -> Result<Option<ActionPolicy>, ActionError> {
        let actions = spec.actions.as_ref();
        if options.constraint.is_some() || spec.constraint.is_some() {
            // The settings of an ask replace the settings of its agent.
            let of_agent = actions.map(|actions| actions.policy);
            let of_agent = of_agent.filter(|_| options.constraint.is_none());
            let is_required = options.actions.or(of_agent) == Some(ActionPolicy::Required);
            return if is_required { Err(ActionError::Constrained) } else { Ok(None) };
        }
        let policy = match (options.actions, actions.map(|actions| actions.policy)) {
            (Some(policy), _) => Some(policy),
            // Otherwise an agent that must call would call again after each result.
            (None, Some(ActionPolicy::Required)) if !is_question && self.ends_with_result() => {
                Some(ActionPolicy::Auto)
            }
            (None, policy) => policy,
        };
        match actions.filter(|actions| !actions.set.is_empty()) {
            None if policy == Some(ActionPolicy::Required) => Err(ActionError::NoAction),
            None => {
                // A model repeats earlier calls, even if it has no actions any more.
                let has_called = || self.turns.iter().any(|turn| turn.speaker == Speaker::Action);
                Ok(Some(ActionPolicy::Off).filter(|_| actions.is_some() || has_called()))
            }
            Some(possible)
                if possible.max_calls == 0
                    || self.next_round(is_question) > possible.max_rounds =>
            {
                Ok(Some(ActionPolicy::Off))
            }
            Some(_) => Ok(policy),
        }
    }

    /// Counts a reply for the next [policy](Self::call_policy).
    pub fn begin_reply(&mut self, is_question: bool) {
        self.rounds = self.next_round(is_question);
    }

    /// Number of consecutive replies to results, with the next one.
    fn next_round(&self, is_question: bool) -> u32 {
        if !is_question && self.ends_with_result() { self.rounds + 1 } else { 0 }
    }

    /// Whether the next reply follows the result of a call, and no new turn of another kind.
    fn ends_with_result(&self) -> bool {
        let last = self.turns.iter().rev().map(|turn| turn.speaker);
        let is_new = |speaker: &Speaker| !matches!(speaker, Speaker::Agent | Speaker::Action);
        let mut new = last.take_while(is_new).peekable();
        new.peek().is_some() && new.all(|speaker| speaker == Speaker::ActionResult)
    }
}

/// Whether a conversation can take the result of this call.
///
/// # Errors
/// [`ResultError::Unknown`] or [`ResultError::Repeated`].
pub fn check_result(turns: &[Turn], id: CallId) -> Result<(), ResultError> {
    let mut is_known = false;
    for turn in turns.iter().filter(|turn| turn.call == Some(id)) {
        match turn.speaker {
            Speaker::ActionResult => return Err(ResultError::Repeated(id)),
            _ => is_known = true,
        }
    }
    if is_known { Ok(()) } else { Err(ResultError::Unknown(id)) }
}

/// Cuts a text at a byte, or before the character that contains this byte.
fn cut_text(text: &mut String, bytes: u32) {
    text.truncate(text.floor_char_boundary(bytes as usize));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TURNS: usize = 100;

    fn exchange(reply_id: u64, speech: &str) -> Exchange {
        let question = Some(Turn::new(Speaker::User, format!("q{reply_id}")));
        let (speech, actions) = (speech.to_owned(), Vec::new());
        Exchange { reply_id: ReplyId(reply_id), question, speech, actions }
    }

    fn pushed(text: &str) -> Vec<Turn> {
        vec![Turn::new(Speaker::User, text)]
    }

    fn texts(history: &History) -> Vec<&str> {
        history.turns.iter().map(|turn| turn.text.as_str()).collect()
    }

    #[test]
    fn heard_text_is_cut_between_characters() {
        let mut history = History::default();
        for (reply_id, speech) in [(1, "one"), (2, "zwölf"), (3, "three")] {
            history.push_exchange(exchange(reply_id, speech));
        }
        history.extend(pushed("x"), MAX_TURNS);
        history.push_exchange(exchange(4, "four"));
        // Byte 3 is in the middle of a character.
        assert!(history.shorten_reply(ReplyId(2), 3));
        assert!(history.shorten_reply(ReplyId(3), 0));
        assert!(!history.shorten_reply(ReplyId(3), 1));
        assert!(history.shorten_reply(ReplyId(4), 100));
        assert_eq!(texts(&history), ["q1", "one", "q2", "zw", "x", "q4", "four"]);
        assert!(history.shorten_reply(ReplyId(4), 2));
        assert_eq!(texts(&history), ["q1", "one", "q2", "zw", "x", "q4", "fo"]);
        assert_eq!(history.exchanges_removed, 1);
    }

    #[test]
    fn a_reply_that_acted_is_kept_without_text() {
        let mut history = History::default();
        let actions = vec![Turn::new(Speaker::Action, r#"{"name": "wave", "arguments": {}}"#)];
        history.push_exchange(Exchange { actions, ..exchange(1, "Look!") });
        assert!(history.shorten_reply(ReplyId(1), 0));
        assert_eq!(texts(&history)[..2], ["q1", ""]);
        assert_eq!(history.turns().len(), 3);
    }

    #[test]
    fn exchanges_are_found_after_older_turns_are_dropped() {
        let mut history = History::default();
        for reply_id in 1..=3 {
            history.push_exchange(exchange(reply_id, "words"));
        }
        history.drop_oldest(3);
        assert!(!history.shorten_reply(ReplyId(1), 1));
        assert!(history.shorten_reply(ReplyId(3), 1));
        assert_eq!(texts(&history), ["words", "q3", "w"]);
        history.drop_oldest(usize::MAX);
        assert_eq!(texts(&history), [""; 0]);
    }

    #[test]
    fn turns_are_removed_from_the_end_and_edited() {
        let mut history = History::default();
        for reply_id in 1..=3 {
            history.push_exchange(exchange(reply_id, "words"));
        }
        assert!(history.set_text(1, "why?".into()) && !history.set_text(6, "x".into()));
        assert!(!history.set_text(usize::MAX, "x".into()));
        assert_eq!(texts(&history)[3..], ["words", "why?", "words"]);
        history.rewind(1);
        assert!(!history.shorten_reply(ReplyId(3), 1), "its reply is gone");
        assert!(history.shorten_reply(ReplyId(2), 1));
        assert_eq!(texts(&history), ["q1", "words", "q2", "w", "why?"]);
        history.rewind(usize::MAX);
        assert_eq!(texts(&history), [""; 0]);
        history.rewind(1);
    }

    #[test]
    fn a_reply_is_taken_with_its_question_and_all_behind_it() {
        let mut history = History::default();
        assert_eq!(history.take_reply(), None);
        history.push_exchange(exchange(1, "one"));
        let actions = vec![Turn::new(Speaker::Action, r#"{"name": "wave", "arguments": {}}"#)];
        history.push_exchange(Exchange { actions, ..exchange(2, "two") });
        let result = Turn::new(Speaker::ActionResult, "done");
        history.extend(vec![result], MAX_TURNS);
        history.push_exchange(Exchange { question: None, ..exchange(3, "three") });
        history.extend(pushed("later"), MAX_TURNS);
        assert_eq!(history.take_reply(), Some(Prompt::Continue));
        assert_eq!(texts(&history).last(), Some(&"done"));
        assert_eq!(history.take_reply(), Some(Prompt::Chat("q2".into())));
        assert_eq!(texts(&history), ["q1", "one"]);
        assert_eq!(history.take_reply(), Some(Prompt::Chat("q1".into())));
        let named = vec![Turn::named("Alice", "q"), Turn::new(Speaker::Agent, "a")];
        assert_eq!(History::new(named).take_reply(), Some(Prompt::named("Alice", "q")));
        assert_eq!(history.take_reply(), None);
    }

    /// All calls of a reply are answered together, and each only once.
    #[test]
    fn results_belong_to_calls_by_id() {
        let id = |reply_id, index| CallId { reply_id: ReplyId(reply_id), index };
        let call = |id| Turn { call: Some(id), ..Turn::new(Speaker::Action, "{}") };
        let mut history = History::default();
        // Call 1 of the reply was refused.
        let actions = vec![call(id(1, 0)), call(id(1, 2))];
        history.push_exchange(Exchange { actions, ..exchange(1, "one") });
        history.push_exchange(Exchange { actions: vec![call(id(2, 0))], ..exchange(2, "two") });
        let before = history.turns.len();
        let answer = |history: &mut History, ids: &[CallId]| {
            let result = |id: &CallId| CallResult { id: *id, text: format!("{}", id.index) };
            let prompt = Prompt::Results(ids.iter().map(result).collect());
            history.apply(prompt, MAX_TURNS)
        };
        for (ids, error) in [
            (&[id(1, 1)][..], ResultError::Unknown(id(1, 1))),
            (&[id(3, 0)], ResultError::Unknown(id(3, 0))),
            (&[id(1, 0)], ResultError::Missing(id(1, 2))),
            (&[id(1, 2), id(2, 0)], ResultError::Missing(id(1, 0))),
            (&[id(2, 0), id(2, 0)], ResultError::Repeated(id(2, 0))),
        ] {
            assert_eq!(answer(&mut history, ids), Err(ReplyError::Result(error)));
            assert_eq!(history.turns.len(), before);
        }
        let refused = |error| Err(ReplyError::Result(error));
        assert_eq!(answer(&mut history, &[id(1, 2), id(1, 0)]), Ok(Prompt::Continue));
        let repeated = ResultError::Repeated(id(1, 2));
        assert_eq!(answer(&mut history, &[id(1, 2)]), refused(repeated));
        assert_eq!(answer(&mut history, &[id(2, 0)]), Ok(Prompt::Continue));
        let calls: Vec<_> = history.turns[before..].iter().map(|turn| turn.call).collect();
        assert_eq!(calls, [id(1, 2), id(1, 0), id(2, 0)].map(Some));
        history.rewind(before + 3);
        assert_eq!(answer(&mut history, &[id(2, 0)]), refused(ResultError::Unknown(id(2, 0))));
    }

    #[test]
    fn conversations_and_known_exchanges_are_bounded() {
        let mut history = History::default();
        for reply_id in 0..300 {
            history.push_exchange(exchange(reply_id, "words"));
            history.extend(pushed("x"), MAX_TURNS);
        }
        assert_eq!((history.turns.len(), history.known.len()), (MAX_TURNS, MAX_EXCHANGES_KNOWN));
        assert!(history.shorten_reply(ReplyId(299), 1));
        assert_eq!(texts(&history)[MAX_TURNS - 3..], ["q299", "w", "x"]);
        history.replace(vec![pushed("y")[0].clone(); 300], MAX_TURNS);
        assert_eq!((history.turns.len(), history.known.len()), (MAX_TURNS, 0));
    }
}
