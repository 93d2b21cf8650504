//! Entries of a host, with the changes that the thread does not know yet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use crate::{
    Added, Entry, EntryError, EntryId, LoadError, LoreError, SavedStore, Store, StoreLimits,
};

/// Names a [`Memory`] in searches. A copy of a memory has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryKey(u64);

impl MemoryKey {
    fn next() -> Self {
        static LATEST: AtomicU64 = AtomicU64::new(0);
        Self(LATEST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A change of a memory. The same changes in the same order give the same entries and ids.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The first one, and after a replacement.
    Replace(Arc<Store>),
    Add(Entry),
    Remove(EntryId),
    Expire(Duration),
    Time(EntryId, Duration),
    Clear,
}

impl Change {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Replace(store) => store.bytes() as usize,
            Self::Add(entry) => entry.bytes() as usize,
            _ => 0,
        }
    }
}

/// Entries of an agent, or lore that agents share.
///
/// Reading and writing are plain operations on the host's own data. [`Recall::update`] sends the
/// changes to the thread, which keeps the index: an entry is found by asks after the next update.
/// Dropping a memory removes its index.
///
/// # Examples
/// ```
/// use walla_memory::{Entry, Memory, StoreLimits};
///
/// let mut memory = Memory::new(StoreLimits { max_entries: 2, ..StoreLimits::default() });
/// for (text, importance) in [("The player paid.", 0.9), ("It rained.", 0.1)] {
///     memory.add(Entry::new(text).importance(importance))?;
/// }
/// let added = memory.add(Entry::new("Odo left."))?;
/// assert_eq!(&*added.evicted[0].1.text, "It rained.", "the least important one");
/// # Ok::<(), walla_memory::EntryError>(())
/// ```
///
/// [`Recall::update`]: crate::Recall::update
#[derive(Debug)]
pub struct Memory {
    /// Shared with the thread until that has its own, and with copies until a change: a frame that
    /// sends or copies many entries takes no longer.
    store: Arc<Store>,
    key: MemoryKey,
    /// In order.
    changes: Vec<Change>,
    /// Entries that get the game time at the next update.
    undated: Vec<EntryId>,
    /// Where the memory is known. Another service gets the whole memory.
    known: Option<Weak<Shared>>,
}

impl Memory {
    /// No entries.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self::of(Store::without_index(limits).into())
    }

    /// The entries of a [lore text](crate::Store::from_lore_text).
    ///
    /// # Errors
    /// [`LoreError`], which names the line.
    pub fn from_lore_text(text: &str) -> Result<Self, LoreError> {
        Store::unindexed_lore_text(text, StoreLimits::lore()).map(|store| Self::of(store.into()))
    }

    /// The entries of a [lore file in JSON](crate::Store::from_lore_json).
    ///
    /// # Errors
    /// [`LoreError`], which names the line of a syntax error, or the index of an entry from 1.
    pub fn from_lore_json(json: &str) -> Result<Self, LoreError> {
        Store::unindexed_lore_json(json, StoreLimits::lore()).map(|store| Self::of(store.into()))
    }

    /// The entries of a saved game. Vectors in it are used if they are of the embedding model in
    /// use.
    ///
    /// # Errors
    /// [`LoadError`]: the data is invalid, or an entry alone exceeds the limits.
    pub fn load(saved: &SavedStore, limits: StoreLimits) -> Result<Self, LoadError> {
        Store::load_without_index(saved, limits).map(|store| Self::of(store.into()))
    }

    /// The entries for a saved game, without vectors: they are computed again after loading, on the
    /// thread. [`Recall::saved`](crate::Recall::saved) has them.
    #[must_use]
    pub fn save(&self) -> SavedStore {
        self.store.save(false)
    }

    fn of(store: Arc<Store>) -> Self {
        let (changes, undated) = (Vec::new(), Vec::new());
        Self { store, key: MemoryKey::next(), changes, undated, known: None }
    }

    /// The name in searches.
    #[must_use]
    pub fn key(&self) -> MemoryKey {
        self.key
    }

    /// Adds an entry. A full memory [evicts](StoreLimits::retention) by importance and age.
    ///
    /// An entry of time zero, as [`Entry::new`] makes it, happens now: it gets the [game
    /// time](crate::Recall::set_now) of the next update, and until then, or if no game time is set,
    /// the time of the latest entry. Use [`add_at`](Self::add_at) for time zero.
    ///
    /// # Errors
    /// [`EntryError`]: the entry is invalid, or exceeds the limits alone. The memory is unchanged.
    pub fn add(&mut self, entry: Entry) -> Result<Added, EntryError> {
        // Zero is the time of an entry that states none: see the docs of `add`.
        if !entry.time.is_zero() {
            return self.insert(entry);
        }
        let now = self.known.as_ref().and_then(Weak::upgrade).and_then(|shared| shared.now());
        let added = self.insert(entry.at(now.unwrap_or_else(|| self.store.latest_time())))?;
        // Without updates, evicted ones would gather.
        if self.undated.len() > self.store.len().saturating_mul(2) {
            self.undated.retain(|id| self.store.get(*id).is_some());
        }
        self.undated.push(added.id);
        Ok(added)
    }

    /// Adds an entry that happened at this game time, which may be zero.
    ///
    /// # Errors
    /// [`EntryError`], as of [`add`](Self::add).
    pub fn add_at(&mut self, entry: Entry, time: Duration) -> Result<Added, EntryError> {
        self.insert(entry.at(time))
    }

    fn insert(&mut self, entry: Entry) -> Result<Added, EntryError> {
        let added = Arc::make_mut(&mut self.store).add(entry.clone())?;
        self.changed(Change::Add(entry));
        Ok(added)
    }

    /// Removes an entry.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry> {
        self.store.get(id)?;
        let removed = Arc::make_mut(&mut self.store).remove(id)?;
        self.changed(Change::Remove(id));
        Some(removed)
    }

    /// Removes the entries that are older than [`StoreLimits::max_age`] at the game time `now`.
    pub fn expire(&mut self, now: Duration) -> Vec<(EntryId, Entry)> {
        let expired = Arc::make_mut(&mut self.store).expire(now);
        if !expired.is_empty() {
            self.changed(Change::Expire(now));
        }
        expired
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        Arc::make_mut(&mut self.store).clear();
        self.changed(Change::Clear);
    }

    /// The entry with this id.
    #[must_use]
    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.store.get(id)
    }

    /// All entries in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.store.iter()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }

    /// Bytes of texts and names.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &StoreLimits {
        self.store.limits()
    }

    /// Whether all changes were sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.known.is_some() && self.changes.is_empty()
    }

    /// A memory that no service knows records nothing: it is sent as a whole.
    fn changed(&mut self, change: Change) {
        if self.known.is_some() {
            self.changes.push(change);
        }
        // A whole memory is sent in place of more changes than it has entries.
        if self.changes.len() > self.store.len().saturating_mul(2).saturating_add(64) {
            self.known = None;
            self.changes.clear();
        }
    }

    fn is_known_to(&self, shared: &Arc<Shared>) -> bool {
        self.known.as_ref().is_some_and(|known| known.as_ptr() == Arc::as_ptr(shared))
    }

    /// Gives the entries that happen now their time.
    fn date(&mut self, now: Option<Duration>) {
        for id in std::mem::take(&mut self.undated) {
            if let Some(now) = now
                && self.store.get(id).is_some_and(|entry| entry.time != now)
                && Arc::make_mut(&mut self.store).set_time(id, now)
            {
                self.changed(Change::Time(id, now));
            }
        }
    }

    /// Whether a service knows all changes.
    pub(crate) fn is_sent_to(&self, shared: &Arc<Shared>) -> bool {
        self.changes.is_empty() && self.is_known_to(shared)
    }

    /// The changes for a service, in order.
    pub(crate) fn changes_for(&mut self, shared: &Arc<Shared>) -> &mut Vec<Change> {
        self.date(shared.now());
        if !self.is_known_to(shared) {
            // Another service has an index of it, which nothing would remove later.
            self.forget(None);
            self.changes.push(Change::Replace(Arc::clone(&self.store)));
            if self.store.vectors_len() > 0 {
                // The thread has them.
                Arc::make_mut(&mut self.store).clear_vectors();
            }
            self.known = Some(Arc::downgrade(shared));
        }
        &mut self.changes
    }

    /// Ends the index of the thread, which drops `entries`.
    fn forget(&mut self, entries: Option<Arc<Store>>) {
        self.changes.clear();
        if let Some(shared) = self.known.take().and_then(|known| known.upgrade()) {
            shared.close(self.key, entries);
        }
    }
}

impl Default for Memory {
    /// No entries, with the default limits of an agent's memory.
    fn default() -> Self {
        Self::new(StoreLimits::default())
    }
}

impl Clone for Memory {
    /// The same entries as another memory, with another key.
    fn clone(&self) -> Self {
        let mut copy = Self::of(Arc::clone(&self.store));
        copy.undated.clone_from(&self.undated);
        copy
    }
}

impl PartialEq for Memory {
    /// Whether both have the same entries with the same ids.
    fn eq(&self, other: &Self) -> bool {
        self.store.iter().eq(other.store.iter())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The thread drops them: freeing a large lore takes longer than a frame may.
        let entries = std::mem::take(&mut self.store);
        self.forget(Some(entries));
    }
}
