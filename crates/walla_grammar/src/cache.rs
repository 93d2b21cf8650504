//! A bounded cache that evicts the least recently used entry.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries by key, bounded in number and in bytes.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    entries: HashMap<K, Entry<V>>,
    max_entries: usize,
    bytes: usize,
    max_bytes: usize,
    /// Number of uses so far.
    clock: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { entries: HashMap::new(), max_entries, bytes: 0, max_bytes, clock: 0 }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.value.clone())
    }

    /// Adds an entry and evicts others until the limits hold. An entry above the limits is not
    /// kept.
    pub(crate) fn insert(&mut self, key: K, value: V, bytes: usize) {
        // First: the old entry must neither count nor survive a new one that is too large.
        self.remove(&key);
        if bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        while self.entries.len() >= self.max_entries || self.bytes + bytes > self.max_bytes {
            // A search of some hundred entries costs little compared with the result that is kept.
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            self.remove(&oldest);
        }
        self.clock += 1;
        self.bytes += bytes;
        self.entries.insert(key, Entry { value, bytes, used: self.clock });
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let mut cache = Cache::new(2, 100);
        cache.insert("a", 1, 10);
        cache.insert("b", 2, 10);
        assert_eq!(cache.get(&"a"), Some(1));
        cache.insert("c", 3, 10);
        assert_eq!((cache.get(&"a"), cache.get(&"b"), cache.get(&"c")), (Some(1), None, Some(3)));
        assert_eq!((cache.len(), cache.bytes()), (2, 20));
    }

    #[test]
    fn bytes_are_bounded() {
        let mut cache = Cache::new(10, 100);
        for key in 0..5 {
            cache.insert(key, (), 40);
        }
        assert_eq!((cache.len(), cache.bytes()), (2, 80));
        cache.insert(4, (), 60);
        assert_eq!((cache.len(), cache.bytes()), (2, 100), "an entry is replaced");
        cache.insert(9, (), 101);
        assert_eq!((cache.get(&9), cache.len()), (None, 2), "a large entry is not kept");
    }
}
