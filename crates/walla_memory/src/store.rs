//! A bounded set of entries with its index and vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::index::Index;
use crate::total::Total;
use crate::vectors::{Vectors, normalized};
use crate::{Entry, EntryError, EntryId, StoreLimits, VectorError};

/// Ids stay below this number, so that each is exact as a number in JSON.
pub(crate) const ID_END: u64 = 1 << 53;

/// Longest name of a model.
const MAX_MODEL_NAME_BYTES: usize = 256;

/// Result of [`Store::add`].
#[derive(Clone, Debug, PartialEq)]
pub struct Added {
    /// Id of the new entry.
    pub id: EntryId,
    /// Entries that were removed to make room, in the order of their eviction.
    pub evicted: Vec<(EntryId, Entry)>,
}

/// Entries with an index of their words and, optionally, vectors.
///
/// Memory is bounded by [`StoreLimits`]: texts and names by `max_bytes`, the index in proportion to
/// them, vectors by `max_entries` and the dimensions. All operations are deterministic.
#[derive(Clone, Debug, Default)]
pub struct Store {
    limits: StoreLimits,
    /// The slots of removed entries are used again.
    slots: Vec<Option<(EntryId, Entry)>>,
    free: Vec<u32>,
    by_id: BTreeMap<EntryId, u32>,
    /// The first one is evicted first.
    by_retention: BTreeSet<(Total, EntryId)>,
    by_time: BTreeSet<(Duration, EntryId)>,
    bytes: u64,
    next_id: u64,
    /// The entries are not in the index.
    has_no_index: bool,
    pub(crate) index: Index,
    pub(crate) vectors: Vectors,
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// An empty store without an index of words, for a copy of entries that is not searched: it
    /// takes less time and memory. Searches find its entries by vectors only, until
    /// [`build_index`](Self::build_index).
    #[must_use]
    pub fn without_index(limits: StoreLimits) -> Self {
        Self { has_no_index: true, ..Self::new(limits) }
    }

    /// Builds the index of words, if there is none. It takes about 10 µs for each entry.
    pub fn build_index(&mut self) {
        if !std::mem::take(&mut self.has_no_index) {
            return;
        }
        for (slot, entry) in (0..).zip(&self.slots) {
            if let Some((_, entry)) = entry {
                self.index.add(slot, &entry.text);
            }
        }
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &StoreLimits {
        &self.limits
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Bytes of texts and names, without index and vectors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entry with this id.
    #[must_use]
    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.by_id.get(&id).and_then(|&slot| self.entry(slot)).map(|(_, entry)| entry)
    }

    /// All entries in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.by_id.values().filter_map(|&slot| self.entry(slot))
    }

    /// Adds an entry. A full store evicts first, by [`StoreLimits::retention`]; the new entry is
    /// not evicted in the same call, even if its value is the lowest. Expired entries are not
    /// preferred: call [`expire`](Self::expire) for them.
    ///
    /// # Errors
    /// [`EntryError`]: the entry is invalid, or the limits allow no entry of its length. The store
    /// is unchanged.
    pub fn add(&mut self, entry: Entry) -> Result<Added, EntryError> {
        entry.check(&self.limits)?;
        let bytes = entry.bytes();
        if self.limits.max_entries == 0 || bytes > self.limits.max_bytes {
            return Err(EntryError::NoRoom { bytes });
        }
        if self.next_id >= ID_END {
            return Err(EntryError::NoMoreIds);
        }
        let evicted = self.make_room(1, bytes);
        let id = EntryId::new(self.next_id);
        self.next_id += 1;
        self.insert(id, entry);
        Ok(Added { id, evicted })
    }

    /// Removes an entry with its vector.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let slot = self.by_id.remove(&id)?;
        let (_, entry) = self.slots.get_mut(slot as usize)?.take()?;
        self.by_retention.remove(&(Total(self.limits.log_retention(&entry)), id));
        self.by_time.remove(&(entry.time, id));
        self.bytes -= entry.bytes();
        if !self.has_no_index {
            self.index.remove(slot);
        }
        self.vectors.remove(slot);
        self.free.push(slot);
        Some(entry)
    }

    /// Changes the game time of an entry. Returns whether it exists.
    pub fn set_time(&mut self, id: EntryId, time: Duration) -> bool {
        let entry =
            self.by_id.get(&id).and_then(|&slot| self.slots.get_mut(slot as usize)?.as_mut());
        let Some((_, entry)) = entry else { return false };
        self.by_retention.remove(&(Total(self.limits.log_retention(entry)), id));
        self.by_time.remove(&(entry.time, id));
        entry.time = time;
        self.by_retention.insert((Total(self.limits.log_retention(entry)), id));
        self.by_time.insert((time, id));
        true
    }

    /// The latest game time of an entry; zero without entries.
    #[must_use]
    pub fn latest_time(&self) -> Duration {
        self.by_time.last().map_or(Duration::ZERO, |(time, _)| *time)
    }

    /// Removes the entries that are older than [`StoreLimits::max_age`], the oldest first.
    pub fn expire(&mut self, now: Duration) -> Vec<(EntryId, Entry)> {
        let mut expired = Vec::new();
        while let Some(&(_, id)) = self.by_time.first()
            && self.get(id).is_some_and(|entry| self.limits.is_expired(entry, now))
            && let Some(entry) = self.remove(id)
        {
            expired.push((id, entry));
        }
        expired
    }

    /// Removes all entries and vectors. Ids are not used again; the name of the vectors' model
    /// stays.
    pub fn clear(&mut self) {
        let model = self.vectors.model().cloned();
        let limits = std::mem::take(&mut self.limits);
        let (next_id, has_no_index) = (self.next_id, self.has_no_index);
        *self = Self { next_id, has_no_index, ..Self::new(limits) };
        self.vectors.reset(model);
    }

    /// Sets the vector of an entry, or replaces it. It is stored with length 1. The first vector
    /// fixes the dimensions of the store.
    ///
    /// # Errors
    /// [`VectorError`]: no such entry, another number of dimensions, a component that is not
    /// finite, or a vector of zeros.
    pub fn set_vector(&mut self, id: EntryId, vector: &[f32]) -> Result<(), VectorError> {
        let slot = *self.by_id.get(&id).ok_or(VectorError::NoEntry { id })?;
        self.vectors.check_length(vector.len())?;
        self.vectors.set(slot, &normalized(vector)?);
        Ok(())
    }

    /// The vector of an entry, with length 1.
    #[must_use]
    pub fn vector(&self, id: EntryId) -> Option<&[f32]> {
        self.by_id.get(&id).and_then(|&slot| self.vectors.get(slot))
    }

    /// Entries without a vector, in the order of their ids.
    pub fn without_vector(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        let without = self.by_id.values().filter(|&&slot| self.vectors.get(slot).is_none());
        without.filter_map(|&slot| self.entry(slot))
    }

    /// Number of entries with a vector.
    #[must_use]
    pub fn vectors_len(&self) -> usize {
        self.vectors.len()
    }

    /// Bytes of vectors and their compact copies: `5 * dimensions + 8` for each.
    #[must_use]
    pub fn vector_bytes(&self) -> u64 {
        self.vectors.bytes()
    }

    /// Dimensions of the vectors; `None` before the first one.
    #[must_use]
    pub fn dimensions(&self) -> Option<usize> {
        self.vectors.dimensions()
    }

    /// Name or hash of the model that made the vectors.
    #[must_use]
    pub fn vector_model(&self) -> Option<&str> {
        self.vectors.model().map(|name| &**name)
    }

    /// States the model of the following vectors. Another name than the current one removes all
    /// vectors, also vectors that were set before any name. Returns whether vectors were removed.
    ///
    /// # Errors
    /// [`VectorError::ModelName`]: the name is longer than 256 bytes.
    pub fn set_vector_model(&mut self, name: &str) -> Result<bool, VectorError> {
        if name.len() > MAX_MODEL_NAME_BYTES {
            return Err(VectorError::ModelName { bytes: name.len() });
        }
        if self.vector_model() == Some(name) {
            return Ok(false);
        }
        let had_vectors = self.vectors.len() > 0;
        self.vectors.reset(Some(name.into()));
        Ok(had_vectors)
    }

    /// Removes all vectors, their dimensions and the name of their model.
    pub fn clear_vectors(&mut self) {
        self.vectors.reset(None);
    }

    /// The entry of a slot.
    pub(crate) fn entry(&self, slot: u32) -> Option<(EntryId, &Entry)> {
        self.slots.get(slot as usize)?.as_ref().map(|(id, entry)| (*id, entry))
    }

    /// Slots are below this number.
    pub(crate) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// For loading: later entries have ids from `next_id` on.
    pub(crate) fn set_next_id(&mut self, next_id: u64) {
        self.next_id = next_id;
    }

    /// Inserts an entry that was checked. The id is not used.
    pub(crate) fn insert(&mut self, id: EntryId, entry: Entry) {
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        if !self.has_no_index {
            self.index.add(slot, &entry.text);
        }
        self.bytes += entry.bytes();
        self.by_id.insert(id, slot);
        self.by_retention.insert((Total(self.limits.log_retention(&entry)), id));
        self.by_time.insert((entry.time, id));
        match self.slots.get_mut(slot as usize) {
            Some(free) => *free = Some((id, entry)),
            None => self.slots.push(Some((id, entry))),
        }
    }

    /// For loading: a vector of length 1, which is stored bit by bit.
    pub(crate) fn set_unit(&mut self, id: EntryId, unit: &[f32]) -> Result<(), VectorError> {
        let slot = *self.by_id.get(&id).ok_or(VectorError::NoEntry { id })?;
        self.vectors.check_length(unit.len())?;
        self.vectors.set(slot, unit);
        Ok(())
    }

    /// Evicts until `entries` entries with `bytes` bytes fit.
    pub(crate) fn make_room(&mut self, entries: usize, bytes: u64) -> Vec<(EntryId, Entry)> {
        let mut evicted = Vec::new();
        let (max_entries, max_bytes) = (self.limits.max_entries as usize, self.limits.max_bytes);
        while (self.len() + entries > max_entries || self.bytes + bytes > max_bytes)
            && let Some(&(_, id)) = self.by_retention.first()
            && let Some(entry) = self.remove(id)
        {
            evicted.push((id, entry));
        }
        evicted
    }
}
