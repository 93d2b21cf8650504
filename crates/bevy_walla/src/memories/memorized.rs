//! The latest entries that were turns, and their removal when the turns are undone.

use std::collections::VecDeque;

use bevy_ecs::prelude::*;
use walla_memory::{EXCHANGE_TAG, MemoryKey, OBSERVATION_TAG};
use walla_memory::{Entry, EntryId};
use walla_runtime::{Speaker, Turn};

use super::AgentMemory;
use super::texts::{MemoryTexts, MemoryTurn};
use crate::conversation::{Conversation, Edit, EditId};

/// Maximum number of entries whose turns are known.
const MAX_KNOWN: usize = 32;

/// The turns of a conversation that were seen, and the latest entries made of them.
#[derive(Component, Debug)]
pub(crate) struct Memorized {
    edit: EditId,
    pushed: u32,
    /// The memory of the entries.
    memory: Option<MemoryKey>,
    /// Oldest first.
    entries: VecDeque<(EntryId, Vec<Turn>)>,
    /// An edit whose effect on the entries is not known yet.
    pending: Edit,
}

impl Default for Memorized {
    fn default() -> Self {
        Self {
            edit: EditId::NONE,
            pushed: 0,
            memory: None,
            entries: VecDeque::new(),
            pending: Edit::New,
        }
    }
}

impl Memorized {
    /// An entry was made of these turns, which follow each other.
    pub fn add(&mut self, memory: &AgentMemory, entry: EntryId, turns: Vec<Turn>) {
        self.check(memory);
        self.entries.push_back((entry, turns));
        let surplus = self.entries.len().saturating_sub(MAX_KNOWN);
        self.entries.drain(..surplus);
    }

    /// The conversation has changed. Removes the entries of turns that were undone from the memory.
    /// Returns the number of turns that were pushed since the last call.
    pub fn update(
        &mut self,
        memory: &mut Mut<AgentMemory>,
        conversation: &Conversation,
        agent: (Entity, Option<&str>),
        texts: &MemoryTexts,
    ) -> usize {
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
        // The turns of a repetition are put back if it fails.
        if self.pending != Edit::Repetition || conversation.has_exchanges() {
            let is_undo = std::mem::take(&mut self.pending) != Edit::New;
            self.retain_present(conversation.turns(), |entry| {
                if is_undo {
                    memory.remove(entry);
                }
            });
        }
        self.pushed.wrapping_sub(before) as usize
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
        agent: (Entity, Option<&str>),
        texts: &MemoryTexts,
    ) {
        let is_own = |entry: &Entry| {
            entry.tags.iter().any(|tag| [EXCHANGE_TAG, OBSERVATION_TAG].contains(&&**tag))
        };
        let mut known: Vec<_> = memory.iter().filter(|(_, entry)| is_own(entry)).collect();
        known.drain(..known.len().saturating_sub(MAX_KNOWN));
        self.entries.clear();
        for (last, turn) in turns.iter().enumerate().rev().take(2 * MAX_KNOWN) {
            let before = last.checked_sub(1).and_then(|before| turns.get(before));
            let question = before.filter(|before| before.speaker == Speaker::User);
            let (text, count) = match turn.speaker {
                Speaker::Agent => {
                    let count = 1 + usize::from(question.is_some());
                    let of = MemoryTurn::of(agent, question.map(Turn::text), turn.text.trim());
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
                let has_both = |question: &str| {
                    entry.text.contains(question) && entry.text.contains(turn.text.trim())
                };
                Some(&*entry.text) == text.as_deref() || question.is_some_and(has_both)
            };
            if let Some(at) = known.iter().rposition(is_it) {
                let (entry, _) = known.remove(at);
                self.entries.push_front((entry, turns[last + 1 - count..=last].to_vec()));
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
        self.entries.retain(|(entry, turns)| {
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
