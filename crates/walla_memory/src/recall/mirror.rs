//! A memory as the thread keeps it: with an index of words and vectors.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::memory::Change;
use crate::{EXCHANGE_TAG, Entry, EntryId, OBSERVATION_TAG, Store};

/// Entries from conversations whose order is known.
const MAX_RECENT: usize = 64;

/// A memory with its index.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    pub store: Store,
    /// The latest entries from a conversation, the oldest first.
    recent: VecDeque<EntryId>,
    /// Entries without a vector that are not being embedded.
    pub unembedded: BTreeSet<EntryId>,
}

impl Mirror {
    /// Applies a change. `embeds`: there is an embedding model. A replaced memory is then prepared
    /// for it ([`Vectors::prepare`](super::vectors::Vectors::prepare)).
    pub fn apply(&mut self, change: Change, embeds: bool) {
        match change {
            Change::Replace(store) => {
                self.store = Arc::unwrap_or_clone(store);
                self.store.build_index();
                self.recent.clear();
                let ids = self.store.iter().filter(|(_, entry)| is_of_conversation(entry));
                let ids: Vec<EntryId> = ids.map(|(id, _)| id).collect();
                ids.into_iter().for_each(|id| self.note_recent(id));
            }
            Change::Add(entry) => {
                let is_recent = is_of_conversation(&entry);
                // The host's copy has accepted it.
                // Both copies evict alike, because eviction depends on the entries alone.
                let Ok(added) = self.store.add(entry) else { return };
                for (id, _) in added.evicted {
                    self.unembedded.remove(&id);
                }
                if is_recent {
                    self.note_recent(added.id);
                }
                if embeds {
                    self.unembedded.insert(added.id);
                }
            }
            Change::Remove(id) => {
                self.store.remove(id);
                self.unembedded.remove(&id);
            }
            Change::Expire(now) => {
                for (id, _) in self.store.expire(now) {
                    self.unembedded.remove(&id);
                }
            }
            Change::Time(id, time) => {
                self.store.set_time(id, time);
            }
            Change::Clear => {
                self.store.clear();
                self.recent.clear();
                self.unembedded.clear();
            }
        }
    }

    /// Marks the entries without a vector for the embedding model, if there is one.
    pub fn embed_missing(&mut self, embeds: bool) {
        self.unembedded.clear();
        if embeds {
            self.unembedded.extend(self.store.without_vector().map(|(id, _)| id));
        }
    }

    fn note_recent(&mut self, id: EntryId) {
        if self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
    }

    /// Whether an entry is among the latest from the conversation.
    pub fn is_recent(&self, id: EntryId, latest: usize) -> bool {
        self.recent.iter().rev().take(latest).any(|recent| *recent == id)
    }
}

fn is_of_conversation(entry: &Entry) -> bool {
    entry.tags.iter().any(|tag| &**tag == EXCHANGE_TAG || &**tag == OBSERVATION_TAG)
}
