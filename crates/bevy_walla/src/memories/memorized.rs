//! The latest entries that were turns, and their removal when the turns are undone.

use std::collections::VecDeque;

use bevy_ecs::prelude::*;
use walla_memory::{EXCHANGE_TAG, MemoryKey, OBSERVATION_TAG};
use walla_memory::{Entry, EntryId};
use walla_runtime::{ReplyId, Speaker, Turn};

use super::AgentMemory;
use super::texts::{MemoryTexts, MemoryTurn};
use crate::conversation::{Conversation, Edit, EditId};
use crate::cues::AgentCues;

/// Maximum number of entries whose turns are known.
const MAX_KNOWN: usize = 32;

/// An agent that memorizes: with its name.
#[derive(Clone, Copy)]
pub(crate) struct Talker<'a> {
    pub agent: (Entity, Option<&'a str>),
    pub cues: Option<&'a AgentCues>,
}

/// The turns of a conversation that were seen, and the latest entries made of them.
#[derive(Component, Debug)]
pub(crate) struct Memorized {
    edit: EditId,
    pushed: u32,
    /// The memory of the entries.
    memory: Option<MemoryKey>,
    /// Oldest first.
    entries: VecDeque<Made>,
    /// Of the conversation when it was seen last.
    unheard_from: Option<ReplyId>,
    /// An edit whose effect on the entries is not known yet.
    pending: Edit,
}

/// An entry that was made of turns.
#[derive(Debug)]
struct Made {
    entry: EntryId,
    /// They follow each other.
    turns: Vec<Turn>,
    /// The reply among them, if it is known.
    reply: Option<ReplyId>,
}

/// Changes of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Turns that were pushed.
    pub pushed: usize,
    /// A reply that was heard in part. Its entry was removed.
    pub shortened: Option<ReplyId>,
}

impl Default for Memorized {
    fn default() -> Self {
        Self {
            edit: EditId::NONE,
            pushed: 0,
            memory: None,
            entries: VecDeque::new(),
            unheard_from: None,
            pending: Edit::New,
        }
    }
}

impl Memorized {
    /// An entry was made of these turns, which follow each other.
    pub fn add(
        &mut self,
        memory: &AgentMemory,
        entry: EntryId,
        turns: Vec<Turn>,
        reply: Option<ReplyId>,
    ) {
        self.check(memory);
        self.entries.push_back(Made { entry, turns, reply });
        let surplus = self.entries.len().saturating_sub(MAX_KNOWN);
        self.entries.drain(..surplus);
    }

    /// The conversation has changed. Removes the entries of turns that were undone from the memory.
    pub fn update(
        &mut self,
        memory: &mut Mut<AgentMemory>,
        conversation: &Conversation,
        agent: Talker<'_>,
        texts: &MemoryTexts,
    ) -> Changes {
        self.check(memory);
        let is_new = self.edit == EditId::NONE;
        let is_edited = self.edit != conversation.edit();
        let before = if is_edited { 0 } else { self.pushed };
        (self.edit, self.pushed) = (conversation.edit(), conversation.pushed());
        if is_edited {
            self.pending = conversation.last_edit();
            if is_new || self.pending == Edit::New {
                self.recognize(memory, conversation.turns(), agent, texts);
            }
        }
        let shortened = self.unheard(memory, conversation);
        // The turns of a repetition are put back if it fails.
        if self.pending != Edit::Repetition || conversation.has_exchanges() {
            let is_undo = std::mem::take(&mut self.pending) != Edit::New;
            self.retain_present(conversation.turns(), |entry| {
                if is_undo {
                    memory.remove(entry);
                }
            });
        }
        Changes { pushed: self.pushed.wrapping_sub(before) as usize, shortened }
    }

    /// Removes the entries of replies that were not heard. Returns one that was heard in part.
    fn unheard(
        &mut self,
        memory: &mut Mut<AgentMemory>,
        conversation: &Conversation,
    ) -> Option<ReplyId> {
        let from = conversation.unheard_from();
        let unheard_from = from.filter(|_| self.unheard_from != from);
        self.unheard_from = from;
        let mut shortened = None;
        self.entries.retain(|made| {
            let Some(reply) = made.reply else { return true };
            let is_whole = match conversation.exchange(reply) {
                Some(now) => {
                    let is_whole = made.turns.last().is_some_and(|turn| turn.text == now.reply);
                    shortened = if is_whole { shortened } else { Some(reply) };
                    is_whole
                }
                // Exchanges from long ago are not known either.
                None => unheard_from.is_none_or(|from| reply < from),
            };
            if !is_whole {
                memory.remove(made.entry);
            }
            is_whole
        });
        shortened
    }

    /// Number of the latest entries of the memory that are in the conversation.
    pub fn recent(&self) -> usize {
        self.entries.len()
    }

    /// Finds the entries of a conversation that was loaded or copied, by their texts. Who has asked
    /// is not known any more: the text of another speaker has at least question and reply.
    fn recognize(
        &mut self,
        memory: &AgentMemory,
        turns: &[Turn],
        agent: Talker<'_>,
        texts: &MemoryTexts,
    ) {
        let is_own = |entry: &Entry| {
            entry.tags.iter().any(|tag| [EXCHANGE_TAG, OBSERVATION_TAG].contains(&&**tag))
        };
        let mut known: Vec<_> = memory.iter().filter(|(_, entry)| is_own(entry)).collect();
        known.drain(..known.len().saturating_sub(MAX_KNOWN));
        self.entries.clear();
        let Talker { agent, cues } = agent;
        for (last, turn) in turns.iter().enumerate().rev().take(2 * MAX_KNOWN) {
            let before = last.checked_sub(1).and_then(|before| turns.get(before));
            let question = before.filter(|before| before.speaker == Speaker::User);
            let mut spoken = None;
            let (text, count) = match turn.speaker {
                Speaker::Agent => {
                    let count = 1 + usize::from(question.is_some());
                    spoken = cues.map(|AgentCues(cues)| cues.separate(&turn.text).0);
                    let text = spoken.as_deref().unwrap_or(&turn.text).trim();
                    let of = MemoryTurn::of(agent, question.map(Turn::text), text);
                    let speaker_name = question.and_then(|turn| turn.name.as_deref());
                    ((texts.exchange)(&MemoryTurn { speaker_name, ..of }), count)
                }
                Speaker::Observation | Speaker::User
                    if turn.name.is_some() || turn.speaker == Speaker::Observation =>
                {
                    let of = MemoryTurn::of(agent, None, &turn.text);
                    let speaker_name = turn.name.as_deref();
                    ((texts.observation)(&MemoryTurn { speaker_name, ..of }), 1)
                }
                _ => continue,
            };
            let question = question.filter(|_| count == 2).map(Turn::text);
            let is_it = |(_, entry): &(EntryId, &Entry)| {
                let spoken = spoken.as_deref().unwrap_or(&turn.text).trim();
                let has_both =
                    |question: &str| entry.text.contains(question) && entry.text.contains(spoken);
                Some(&*entry.text) == text.as_deref() || question.is_some_and(has_both)
            };
            if let Some(at) = known.iter().rposition(is_it) {
                let (entry, _) = known.remove(at);
                let turns = turns[last + 1 - count..=last].to_vec();
                self.entries.push_front(Made { entry, turns, reply: None });
            }
        }
    }

    /// Forgets entries of another memory.
    fn check(&mut self, memory: &AgentMemory) {
        if self.memory != Some(memory.key()) {
            self.memory = Some(memory.key());
            self.entries.clear();
        }
    }

    /// Forgets the entries whose turns are not in the conversation any more. Of equal entries, the
    /// latest are absent first.
    fn retain_present(&mut self, all: &[Turn], mut absent: impl FnMut(EntryId)) {
        // Equal exchanges are different turns: each turn belongs to one entry.
        let mut is_taken = vec![false; all.len()];
        self.entries.retain(|Made { entry, turns, .. }| {
            let is_here = |begin: &usize| {
                let place = *begin..*begin + turns.len();
                all[place.clone()] == turns[..] && !is_taken[place].contains(&true)
            };
            let mut begins = 0..(all.len() + 1).saturating_sub(turns.len());
            let found = begins.find(is_here);
            match found {
                Some(begin) => is_taken[begin..begin + turns.len()].fill(true),
                None => absent(*entry),
            }
            found.is_some()
        });
    }
}
