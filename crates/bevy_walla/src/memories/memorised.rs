//! The latest entries that were turns, and their removal when the turns are undone.

use std::collections::VecDeque;

use bevy_ecs::prelude::*;
use walla_memory::EntryId;
use walla_recall::MemoryKey;
use walla_runtime::Turn;

use super::Memory;
use crate::conversation::{Conversation, Edit, EditId};

/// Maximum number of entries that can be undone.
const UNDONE_MAX: usize = 16;

/// The turns of a conversation that were seen, and the latest entries made of them.
#[derive(Component, Debug)]
pub(crate) struct Memorised {
    edit: EditId,
    pushed: u32,
    /// The memory of the entries.
    memory: Option<MemoryKey>,
    /// Oldest first.
    entries: VecDeque<(EntryId, Vec<Turn>)>,
    /// An edit whose effect on the entries is not known yet.
    pending: Edit,
}

impl Default for Memorised {
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

impl Memorised {
    /// An entry was made of these turns, which follow each other.
    pub fn add(&mut self, memory: &Memory, entry: EntryId, turns: Vec<Turn>) {
        self.check(memory);
        self.entries.push_back((entry, turns));
        let surplus = self.entries.len().saturating_sub(UNDONE_MAX);
        self.entries.drain(..surplus);
    }

    /// The conversation has changed. Removes the entries of turns that were undone from the memory.
    /// Returns the number of turns that were pushed since the last call.
    pub fn update(&mut self, memory: &mut Mut<Memory>, conversation: &Conversation) -> usize {
        self.check(memory);
        let is_edited = self.edit != conversation.edit();
        let before = if is_edited { 0 } else { self.pushed };
        (self.edit, self.pushed) = (conversation.edit(), conversation.pushed());
        if is_edited {
            self.pending = conversation.last_edit();
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

    /// Forgets entries of another memory.
    fn check(&mut self, memory: &Memory) {
        if self.memory != Some(memory.key()) {
            self.memory = Some(memory.key());
            self.entries.clear();
        }
    }

    /// Forgets the entries whose turns are not in the conversation any more. Of equal entries, the
    /// latest are absent first.
    fn retain_present(&mut self, all: &[Turn], mut absent: impl FnMut(EntryId)) {
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
