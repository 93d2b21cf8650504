//! The conversation of an agent: readable, saveable, restorable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bevy_ecs::lifecycle::HookContext;
use bevy_ecs::prelude::*;
use bevy_ecs::world::DeferredWorld;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_runtime::{History, MAX_EXCHANGES_KNOWN, ReplyId};

pub use walla_runtime::{Speaker, Turn};

/// Identifies one state that the game gave to a conversation. It distinguishes the game's edits
/// from the plugin's own additions.
///
/// Every edit, copy or new conversation takes the next number of the process: two conversations
/// with the same number have the same history of edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EditId(u64);

impl EditId {
    /// No conversation.
    pub(crate) const NONE: Self = Self(u64::MAX);

    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Kind of the latest edit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Another conversation.
    #[default]
    New,
    /// It removed or changed turns.
    Undo,
    /// It removed the last reply for a repetition, which puts it back if it fails.
    Repetition,
}

/// The turns of an agent and its partners, oldest first.
///
/// The plugin adds both turns of an exchange when the reply ends; the reply in progress is in
/// [`Speech`](crate::Speech). A cancelled or failed reply keeps its text, after
/// [`Cancel::heard`](crate::ask::Cancel::heard) only the heard part.
///
/// Not added: a question whose reply never began, a reply that was cancelled or failed before its
/// first text, a reply that consists only of reasoning, and an exchange of a
/// [raw ask](crate::ask::Prompt::Raw).
///
/// [`push`](Self::push) adds a turn at any time and cancels nothing. [`clear`](Self::clear),
/// [`forget_last_exchange`](Self::forget_last_exchange), `insert` and assignment replace the
/// conversation: the agent continues with the new one, and earlier asks end as cancelled. This
/// includes a conversation that was taken from an agent and is inserted again, and two
/// conversations that were swapped.
///
/// Removing the component forgets nothing: the engine keeps its own copy, to which it adds further
/// exchanges, and an agent can be asked as before. While the component is absent, no change of the
/// conversation is sent to the engine. Inserting a conversation replaces that of the engine.
///
/// With the feature `serialize` it implements serde's traits; a save with more than
/// [`MAX_TURNS`](Self::MAX_TURNS) turns or [`MAX_TEXT_BYTES`](Self::MAX_TEXT_BYTES) bytes of text
/// is an error.
///
/// # Examples
/// ```
/// # use bevy_walla::conversation::{Speaker, Turn};
/// # use bevy_walla::prelude::*;
/// let talk = Conversation::new([
///     Turn::new(Speaker::User, "Who are you?"),
///     Turn::new(Speaker::Agent, "Greta, the smith."),
/// ]);
/// assert_eq!(talk.last_reply(), Some("Greta, the smith."));
/// ```
#[derive(Component, Debug)]
#[component(on_insert = inserted, summary_tick)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
pub struct Conversation {
    turns: Vec<Turn>,
    edit: EditId,
    last_edit: Edit,
    /// The first one of the replies that were removed last, because they were not heard.
    unheard_from: Option<ReplyId>,
    /// Number of turns pushed since the edit.
    pushed: u32,
    /// The latest exchanges, oldest first.
    exchanges: VecDeque<Exchange>,
}

/// Why a conversation cannot be saved or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// Drop the oldest turns.
    #[error("a conversation has more than {max_turns} turns")]
    TooManyTurns {
        /// [`Conversation::MAX_TURNS`].
        max_turns: usize,
    },
    /// Drop the oldest turns, or shorten them.
    #[error("the turns of a conversation have more than {max_bytes} bytes of text")]
    TextTooLong {
        /// [`Conversation::MAX_TEXT_BYTES`].
        max_bytes: usize,
    },
}

/// The turns of a reply that has ended: the question, if the ask had one, the reply, and the
/// actions of the reply.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    reply_id: ReplyId,
    /// Index of the first turn.
    begin: usize,
    /// Index of the reply.
    answer: usize,
    /// Who asked; `None`: the player.
    speaker: Option<Entity>,
}

/// An exchange that has ended.
#[derive(Debug)]
pub(crate) struct Heard<'a> {
    pub question: Option<&'a Turn>,
    /// Who asked; `None`: the player.
    pub speaker: Option<Entity>,
    pub reply: &'a str,
}

/// The texts of an exchange.
#[derive(Debug)]
pub(crate) struct NewExchange {
    /// `None` if the agent continued its conversation.
    pub question: Option<Turn>,
    /// Who asked; `None`: the player.
    pub speaker: Option<Entity>,
    pub reply: String,
    pub actions: Vec<Turn>,
}

impl Conversation {
    /// A conversation with these turns, oldest first.
    #[must_use]
    pub fn new(turns: impl IntoIterator<Item = Turn>) -> Self {
        let (turns, exchanges) = (turns.into_iter().collect(), VecDeque::new());
        Self {
            turns,
            edit: EditId::next(),
            last_edit: Edit::New,
            unheard_from: None,
            pushed: 0,
            exchanges,
        }
    }

    /// The turns, oldest first.
    #[must_use]
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The agent's latest turn.
    #[must_use]
    pub fn last_reply(&self) -> Option<&str> {
        let of_agent = |turn: &&Turn| turn.speaker == Speaker::Agent;
        self.turns.iter().rev().find(of_agent).map(|turn| turn.text.as_str())
    }

    /// The turns of a speaker with this [name](Turn::name), oldest first.
    pub fn said_by(&self, name: &str) -> impl DoubleEndedIterator<Item = &Turn> {
        self.turns.iter().filter(move |turn| turn.name.as_deref() == Some(name))
    }

    /// The names of the speakers in the conversation, in the order of their latest turns, the last
    /// one first.
    #[must_use]
    pub fn speakers(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for name in self.turns.iter().rev().filter_map(|turn| turn.name.as_deref()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Appends what another character or player has said to someone else, as
    /// [`push`](Self::push): the agent knows it from its next reply on, and does not answer it. An
    /// agent that [memorizes](crate::memories::Memorizes) observations remembers it.
    pub fn overhear(&mut self, name: impl Into<Arc<str>>, text: impl Into<String>) {
        self.push_turn(Turn::named(name, text));
    }

    /// The text of a reply that has ended. In an observer of
    /// [`ReplyFinished`](crate::ReplyFinished), [`Speech`](crate::Speech) may already show the next
    /// reply.
    ///
    /// `None` if the reply is [not in the conversation](Self), among them replies to [raw
    /// asks](crate::ask::Prompt::Raw): collect their [`ReplyDelta`](crate::ReplyDelta)s. Also
    /// `None` for a reply before the latest replacement of the conversation, and before the latest
    /// 16 replies.
    #[must_use]
    pub fn reply(&self, reply_id: ReplyId) -> Option<&str> {
        self.exchange(reply_id).map(|heard| heard.reply)
    }

    /// Question and reply of an exchange that has ended, as [`reply`](Self::reply).
    pub(crate) fn exchange(&self, reply_id: ReplyId) -> Option<Heard<'_>> {
        let mut latest = self.exchanges.iter().rev();
        let exchange = latest.find(|known| known.reply_id == reply_id)?;
        let reply = self.turns.get(exchange.answer)?;
        let question = self.turns.get(exchange.begin).filter(|_| exchange.begin < exchange.answer);
        Some(Heard { question, speaker: exchange.speaker, reply: &reply.text })
    }

    /// The speaker of the latest question among the exchanges stored here; `None`: the player.
    pub(crate) fn last_speaker(&self) -> Option<Entity> {
        self.exchanges.back().and_then(|exchange| exchange.speaker)
    }

    /// Appends a turn that did not pass through the engine: an observation, a memory, a line of the
    /// plot. It is part of the prompt from the agent's next reply on.
    ///
    /// Open asks are not cancelled. Exchanges of asks from earlier frames are inserted before the
    /// turn when their replies end; exchanges of asks from the same frame follow it.
    pub fn push(&mut self, speaker: Speaker, text: impl Into<String>) {
        self.push_turn(Turn::new(speaker, text));
    }

    /// As [`push`](Self::push), a turn that may belong to a call: with [`Turn::result`] the agent
    /// knows the result of a call from its next reply on, and is not asked to speak about it.
    pub fn push_turn(&mut self, turn: Turn) {
        self.turns.push(turn);
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Removes all turns.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.edited(Edit::New);
    }

    /// Removes the last exchange: the last question and the turns after it. Returns the question,
    /// so that it can be asked again.
    pub fn forget_last_exchange(&mut self) -> Option<String> {
        let question = self.turns.iter().rposition(|turn| turn.speaker == Speaker::User)?;
        let text = self.turns.drain(question..).next().map(|turn| turn.text);
        self.edited(Edit::Undo);
        text
    }

    /// Removes turns from the end. Returns them, oldest first.
    ///
    /// As all edits it cancels open asks. A reply in progress is not among the turns: it ends as
    /// cancelled and leaves none. The turns that stay are still evaluated in the engine, so the
    /// next reply evaluates only its question.
    pub fn rewind(&mut self, turns: usize) -> Vec<Turn> {
        let removed = self.turns.split_off(self.turns.len().saturating_sub(turns));
        if !removed.is_empty() {
            self.edited(Edit::Undo);
        }
        removed
    }

    /// Replaces the text of a turn, and keeps its speaker. Returns the old text; `None` if there is
    /// no turn with this index. It cancels open asks; the next reply evaluates the conversation
    /// from this turn on.
    pub fn set_text(&mut self, index: usize, text: impl Into<String>) -> Option<String> {
        let old = std::mem::replace(&mut self.turns.get_mut(index)?.text, text.into());
        self.edited(Edit::Undo);
        Some(old)
    }

    /// Removes the last reply and all later turns. Returns its question, if it had one, and the
    /// removed turns, among them the question. `None`: the conversation has no reply.
    pub(crate) fn take_last_reply(&mut self) -> Option<(Option<Turn>, Vec<Turn>)> {
        let mut history = History::new(std::mem::take(&mut self.turns));
        let prompt = history.take_reply();
        let removed = history.taken().to_vec();
        self.turns = Arc::unwrap_or_clone(history.into_turns());
        let question = prompt?.into_question();
        self.edited(Edit::Repetition);
        Some((question, removed))
    }

    /// Marks the conversation as replaced with the same turns, because a reply in progress is
    /// repeated.
    pub(crate) fn repeated(&mut self) {
        self.edited(Edit::Repetition);
    }

    /// Puts removed turns back, before the last `turns_after` turns, which were pushed later.
    pub(crate) fn restore(&mut self, turns: Vec<Turn>, turns_after: usize) {
        let at = self.turns.len().saturating_sub(turns_after);
        self.turns.splice(at..at, turns);
    }

    /// Marks the conversation as replaced.
    fn edited(&mut self, edit: Edit) {
        self.edit = EditId::next();
        self.last_edit = edit;
        // A new state counts its own turns.
        self.pushed = 0;
        self.exchanges.clear();
    }

    pub(crate) fn edit(&self) -> EditId {
        self.edit
    }

    pub(crate) fn last_edit(&self) -> Edit {
        self.last_edit
    }

    /// Whether a reply has ended since the edit.
    pub(crate) fn has_exchanges(&self) -> bool {
        !self.exchanges.is_empty()
    }

    /// Number of turns pushed since the edit. Wraps around.
    pub(crate) fn pushed(&self) -> u32 {
        self.pushed
    }

    /// Reserves memory for this number of exchanges, and drops the oldest turns above `max_turns`.
    /// [`Self::add_exchange`] then allocates nothing.
    /// Returns whether turns were dropped.
    pub(crate) fn reserve_exchanges(&mut self, exchanges: usize, max_turns: usize) -> bool {
        let surplus = (self.turns.len() + 2 * exchanges).saturating_sub(max_turns);
        let dropped = self.drop_oldest(surplus.min(self.turns.len()));
        self.exchanges.retain_mut(|exchange| {
            let is_kept = exchange.begin >= dropped;
            exchange.begin = exchange.begin.saturating_sub(dropped);
            exchange.answer = exchange.answer.saturating_sub(dropped);
            is_kept
        });
        if let Some(last) = self.turns.last_mut() {
            last.text.shrink_to_fit(); // its capacity was reserved for the longest reply
        }
        self.turns.reserve(2 * exchanges);
        self.exchanges.reserve(MAX_EXCHANGES_KNOWN.saturating_sub(self.exchanges.len()));
        dropped > 0
    }

    /// Drops the oldest turns, and also the turns that [belong](Speaker::continues) to them.
    /// Returns their number.
    fn drop_oldest(&mut self, turns: usize) -> usize {
        let mut dropped = turns;
        while let Some(last) = dropped.checked_sub(1).and_then(|last| self.turns.get(last))
            && self.turns.get(dropped).is_some_and(|next| next.speaker.continues(last.speaker))
        {
            dropped += 1;
        }
        self.turns.drain(..dropped);
        dropped
    }

    /// Adds the exchange of a reply that has ended. It is inserted before the last `turns_after`
    /// turns, which were pushed later.
    pub(crate) fn add_exchange(
        &mut self,
        reply_id: ReplyId,
        exchange: NewExchange,
        turns_after: usize,
    ) {
        let begin = self.turns.len().saturating_sub(turns_after);
        let mut at = begin;
        if let Some(question) = exchange.question {
            self.turns.insert(at, question);
            at += 1;
        }
        self.turns.insert(at, Turn::new(Speaker::Agent, exchange.reply));
        if self.exchanges.len() >= MAX_EXCHANGES_KNOWN {
            self.exchanges.pop_front();
        }
        let speaker = exchange.speaker;
        self.exchanges.push_back(Exchange { reply_id, begin, answer: at, speaker });
        self.turns.splice(at + 1..at + 1, exchange.actions);
    }

    /// The latest reply that passed through the engine, among the exchanges stored here.
    pub(crate) fn latest_reply(&self) -> Option<ReplyId> {
        self.exchanges.iter().map(|exchange| exchange.reply_id).max()
    }

    /// The reply and all later ones among the exchanges stored here, oldest first. `None`: only the
    /// latest.
    pub(crate) fn replies_from(&self, reply_id: Option<ReplyId>) -> Vec<ReplyId> {
        let mut known = self.exchanges.iter().map(|exchange| exchange.reply_id);
        match reply_id {
            Some(first) => known.skip_while(|reply_id| *reply_id != first).collect(),
            None => known.next_back().into_iter().collect(),
        }
    }

    /// Shortens a reply to the beginning that was heard, as the engine does: see
    /// [`Command::CancelHeard`](crate::engine::Command::CancelHeard).
    /// Returns whether nothing of it is left.
    pub(crate) fn shorten_reply(&mut self, reply_id: ReplyId, heard_bytes: u32) -> bool {
        let Some(at) = self.exchanges.iter().position(|known| known.reply_id == reply_id) else {
            return false;
        };
        let Exchange { begin, answer, .. } = self.exchanges[at];
        let next = self.turns.get(answer + 1);
        let has_acted = next.is_some_and(|turn| turn.speaker == Speaker::Action);
        let Some(turn) = self.turns.get_mut(answer) else { return false };
        cut_text(&mut turn.text, heard_bytes);
        if !turn.text.is_empty() || has_acted {
            return false;
        }
        self.turns.drain(begin..=answer);
        self.exchanges.remove(at);
        for later in self.exchanges.iter_mut().skip(at) {
            later.begin -= answer + 1 - begin;
            later.answer -= answer + 1 - begin;
        }
        true
    }

    /// This reply and later ones were removed, because they were not heard.
    pub(crate) fn set_unheard_from(&mut self, reply_id: ReplyId) {
        self.unheard_from = Some(reply_id);
    }

    /// The first one of the replies that were removed last, because they were not heard.
    pub(crate) fn unheard_from(&self) -> Option<ReplyId> {
        self.unheard_from
    }
}

/// Exchanges of the agent may have ended while the conversation was elsewhere.
fn inserted(mut world: DeferredWorld, context: HookContext) {
    if let Some(mut talk) = world.get_mut::<Conversation>(context.entity) {
        talk.edited(Edit::New);
    }
}

/// Truncates a text at a byte index, or at the start of the character that contains this byte.
pub(crate) fn cut_text(text: &mut String, bytes: u32) {
    text.truncate(text.floor_char_boundary(bytes as usize));
}

impl Default for Conversation {
    fn default() -> Self {
        Self::new([])
    }
}

impl Clone for Conversation {
    /// A copy counts as an edit wherever it is inserted. A saved conversation is restored this way.
    fn clone(&self) -> Self {
        Self::new(self.turns.iter().cloned())
    }
}

impl PartialEq for Conversation {
    fn eq(&self, other: &Self) -> bool {
        self.turns == other.turns
    }
}

impl Eq for Conversation {}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(question: &str, reply: &str) -> NewExchange {
        let (question, reply) = (Some(Turn::new(Speaker::User, question)), reply.into());
        NewExchange { question, speaker: None, reply, actions: Vec::new() }
    }

    fn talk(exchanges: usize) -> Conversation {
        let mut talk = Conversation::default();
        for i in 0..exchanges {
            talk.add_exchange(ReplyId(i as u64), exchange(&format!("q{i}"), &format!("a{i}")), 0);
        }
        talk
    }

    #[test]
    fn only_edits_and_copies_are_new_states() {
        let mut talk = talk(1);
        let before = talk.edit();
        talk.reserve_exchanges(1, 512);
        talk.add_exchange(ReplyId(9), exchange("q", "a"), 0);
        talk.push(Speaker::User, "x");
        assert_eq!(talk.edit(), before, "neither the plugin's own turns nor new ones are an edit");
        assert_ne!(talk.clone().edit(), before);
        talk.clear();
        assert_ne!(talk.edit(), before);
    }

    #[test]
    fn the_oldest_exchanges_are_dropped_first() {
        let mut talk = talk(4);
        talk.reserve_exchanges(1, 6);
        assert_eq!(talk.turns().first().map(|t| t.text.as_str()), Some("q2"));
        talk.add_exchange(ReplyId(4), exchange("q4", "a4"), 0);
        assert_eq!(talk.turns().len(), 6);
        talk.reserve_exchanges(1, 0);
        assert!(talk.turns().is_empty());
    }

    fn texts(talk: &Conversation) -> Vec<&str> {
        talk.turns().iter().map(|turn| turn.text.as_str()).collect()
    }

    #[test]
    fn replies_are_shortened_in_place() {
        let mut talk = talk(3);
        talk.push(Speaker::User, "x");
        talk.add_exchange(ReplyId(3), exchange("q3", "größer"), 1);
        assert_eq!(texts(&talk)[4..], ["q2", "a2", "q3", "größer", "x"]);
        assert_eq!(talk.replies_from(Some(ReplyId(2))), [2, 3].map(ReplyId));
        assert_eq!(talk.replies_from(None), [ReplyId(3)]);
        talk.shorten_reply(ReplyId(1), 0);
        // Byte 3 is in the middle of a character.
        talk.shorten_reply(ReplyId(3), 3);
        assert_eq!(texts(&talk), ["q0", "a0", "q2", "a2", "q3", "gr", "x"]);
        let replies = [0, 1, 2, 3].map(|reply_id| talk.reply(ReplyId(reply_id)));
        assert_eq!(replies, [Some("a0"), None, Some("a2"), Some("gr")]);
        talk.reserve_exchanges(1, 6);
        talk.shorten_reply(ReplyId(0), 0);
        talk.shorten_reply(ReplyId(3), 1);
        assert_eq!(texts(&talk), ["q3", "g", "x"]);
        let replies = [0, 2, 3].map(|reply_id| talk.reply(ReplyId(reply_id)));
        assert_eq!(replies, [None, None, Some("g")]);
        talk.clear();
        assert_eq!(talk.replies_from(Some(ReplyId(3))), []);
    }

    #[test]
    fn dropped_turns_never_leave_an_answer_first() {
        use Speaker::{Agent, Observation, User};
        let left = |speakers: &[Speaker], max_turns: usize| {
            let turn = |&speaker| Turn::new(speaker, String::new());
            let mut talk = Conversation::new(speakers.iter().map(turn));
            talk.reserve_exchanges(1, max_turns);
            talk.turns().iter().map(|turn| turn.speaker).collect::<Vec<_>>()
        };
        assert_eq!(left(&[Agent, User, Agent], 4), [User, Agent]);
        assert_eq!(left(&[Observation, User, Agent, Observation], 4), [Observation]);
        assert_eq!(left(&[Observation, Agent, User, Agent], 5), [User, Agent]);
        // Only the first of several replies in a row is an answer.
        assert_eq!(left(&[User, Agent, Agent, Agent], 4), [Agent, Agent]);
        assert_eq!(left(&[User, Agent, User], 0), []);
    }

    #[test]
    fn the_last_exchange_can_be_asked_again() {
        let mut talk = talk(2);
        assert_eq!(talk.forget_last_exchange().as_deref(), Some("q1"));
        assert_eq!(talk.last_reply(), Some("a0"));
        assert_eq!(talk.turns().len(), 2);
        talk.clear();
        assert_eq!(talk.forget_last_exchange(), None);
    }

    #[cfg(feature = "serialize")]
    #[test]
    fn a_saved_conversation_is_restored() {
        let saved = serde_json::to_string(&talk(1)).unwrap();
        assert_eq!(saved, r#"[{"speaker":"user","text":"q0"},{"speaker":"agent","text":"a0"}]"#);
        assert_eq!(serde_json::from_str::<Conversation>(&saved).unwrap(), talk(1));
    }

    /// Saves of a version without observations load, and observations are kept.
    #[cfg(feature = "serialize")]
    #[test]
    fn observations_are_saved() {
        let mut talk = talk(1);
        talk.push(Speaker::Observation, "Odo leaves.");
        let saved = serde_json::to_string(&talk).unwrap();
        let old = r#"[{"speaker":"user","text":"q0"},{"speaker":"agent","text":"a0"}"#;
        assert_eq!(saved, format!(r#"{old},{{"speaker":"observation","text":"Odo leaves."}}]"#));
        assert_eq!(serde_json::from_str::<Conversation>(&saved).unwrap(), talk);
        let loaded = serde_json::from_str::<Conversation>(&format!("{old}]")).unwrap();
        assert_eq!(loaded.turns(), &talk.turns()[..2]);
        assert!(serde_json::from_str::<Conversation>(r#"[{"speaker":"x","text":""}]"#).is_err());
    }
}
