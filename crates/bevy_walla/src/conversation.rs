//! What was said: readable, saveable, restorable.

use std::sync::atomic::{AtomicU64, Ordering};

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_runtime::{Speaker, Turn};

/// Names one state that a host gave to a conversation, so that the plugin's own additions are told apart from edits.
///
/// Every edit, copy or new conversation takes the next number of the process: two conversations with the same number
/// have the same edits behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EditId(u64);

impl EditId {
    /// No conversation at all.
    pub(crate) const NONE: Self = Self(u64::MAX);

    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The turns of an agent and whoever talks to it, oldest first.
///
/// The plugin adds both turns of an exchange when the reply ends, so no question is without its reply; the reply
/// in progress is in [`Speech`](crate::Speech). What was said of a reply that was cancelled or failed stays; a question
/// that never came to a reply leaves no trace.
///
/// A game may edit it at any time: [`clear`](Self::clear), [`push`](Self::push), [`forget_last_exchange`](Self::forget_last_exchange),
/// or a saved one put back with `insert` or by assignment. The agent then goes on from there, and replies that
/// were asked for before end as cancelled. With the feature `serialize` it implements serde's traits; a save with more than
/// [`TURNS_MAX`](Self::TURNS_MAX) turns or [`TEXT_BYTES_MAX`](Self::TEXT_BYTES_MAX) bytes of text is an error.
///
/// # Examples
/// ```
/// # use bevy_walla::prelude::*;
/// let talk = Conversation::new([
///     Turn { speaker: Speaker::User, text: "Who are you?".into() },
///     Turn { speaker: Speaker::Agent, text: "Greta, the smith.".into() },
/// ]);
/// assert_eq!(talk.last_reply(), Some("Greta, the smith."));
/// ```
#[derive(Component, Debug)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
pub struct Conversation {
    turns: Vec<Turn>,
    edit: EditId,
}

impl Conversation {
    /// A conversation with these turns, oldest first.
    #[must_use]
    pub fn new(turns: impl IntoIterator<Item = Turn>) -> Self {
        Self { turns: turns.into_iter().collect(), edit: EditId::next() }
    }

    /// The turns, oldest first.
    #[must_use]
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// What the agent said last.
    #[must_use]
    pub fn last_reply(&self) -> Option<&str> {
        let of_agent = |turn: &&Turn| turn.speaker == Speaker::Agent;
        self.turns.iter().rev().find(of_agent).map(|turn| turn.text.as_str())
    }

    /// Appends a turn that never went through the engine: an observation, a memory, a line of the
    /// plot.
    pub fn push(&mut self, speaker: Speaker, text: impl Into<String>) {
        self.turns.push(Turn { speaker, text: text.into() });
        self.edit = EditId::next();
    }

    /// Forgets everything that was said.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.edit = EditId::next();
    }

    /// Forgets the last exchange: the agent's last turn and what it answered. Returns the question, ready to be asked again.
    pub fn forget_last_exchange(&mut self) -> Option<String> {
        let question = self.turns.iter().rposition(|turn| turn.speaker == Speaker::User)?;
        let text = self.turns.drain(question..).next().map(|turn| turn.text);
        self.edit = EditId::next();
        text
    }

    pub(crate) fn edit(&self) -> EditId {
        self.edit
    }

    /// Makes room for so many more exchanges, dropping the oldest ones above `turns_max`, so that [`Self::add_exchange`]
    /// allocates nothing.
    pub(crate) fn reserve_exchanges(&mut self, exchanges: usize, turns_max: usize) {
        let surplus = (self.turns.len() + 2 * exchanges).saturating_sub(turns_max);
        self.drop_oldest(surplus.min(self.turns.len()));
        if let Some(last) = self.turns.last_mut() {
            last.text.shrink_to_fit(); // it was reserved for the longest reply
        }
        self.turns.reserve(2 * exchanges);
    }

    /// Drops turns, and a reply whose question is among them.
    fn drop_oldest(&mut self, turns: usize) {
        let is_agents = |turn: Option<&Turn>| turn.is_some_and(|t| t.speaker == Speaker::Agent);
        let last = turns.checked_sub(1).and_then(|last| self.turns.get(last));
        let is_answer = last.is_some() && !is_agents(last) && is_agents(self.turns.get(turns));
        self.turns.drain(..turns + usize::from(is_answer));
    }

    pub(crate) fn add_exchange(&mut self, question: String, reply: String) {
        self.turns.push(Turn { speaker: Speaker::User, text: question });
        self.turns.push(Turn { speaker: Speaker::Agent, text: reply });
    }
}

impl Default for Conversation {
    fn default() -> Self {
        Self::new([])
    }
}

impl Clone for Conversation {
    /// A copy counts as an edit wherever it is put: that is how a saved conversation is restored.
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

    fn talk(exchanges: usize) -> Conversation {
        let mut talk = Conversation::default();
        for i in 0..exchanges {
            talk.add_exchange(format!("q{i}"), format!("a{i}"));
        }
        talk
    }

    #[test]
    fn only_edits_and_copies_are_new_states() {
        let mut talk = talk(1);
        let before = talk.edit();
        talk.reserve_exchanges(1, 512);
        talk.add_exchange("q".into(), "a".into());
        assert_eq!(talk.edit(), before, "the plugin's own turns are no edit");
        assert_ne!(talk.clone().edit(), before);
        talk.clear();
        assert_ne!(talk.edit(), before);
    }

    #[test]
    fn the_oldest_exchanges_make_room() {
        let mut talk = talk(4);
        talk.reserve_exchanges(1, 6);
        assert_eq!(talk.turns().first().map(|t| t.text.as_str()), Some("q2"));
        talk.add_exchange("q4".into(), "a4".into());
        assert_eq!(talk.turns().len(), 6);
        talk.reserve_exchanges(1, 0);
        assert!(talk.turns().is_empty());
    }

    #[test]
    fn turns_of_any_order_make_room_without_leaving_an_answer_first() {
        use Speaker::{Agent, Observation, User};
        let left = |speakers: &[Speaker], turns_max: usize| {
            let turn = |&speaker| Turn { speaker, text: String::new() };
            let mut talk = Conversation::new(speakers.iter().map(turn));
            talk.reserve_exchanges(1, turns_max);
            talk.turns().iter().map(|turn| turn.speaker).collect::<Vec<_>>()
        };
        assert_eq!(left(&[Agent, User, Agent], 4), [User, Agent]);
        assert_eq!(left(&[Observation, User, Agent, Observation], 4), [Observation]);
        assert_eq!(left(&[Observation, Agent, User, Agent], 5), [User, Agent]);
        // Several replies in a row: only the first one answers.
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
    fn a_saved_conversation_comes_back() {
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
