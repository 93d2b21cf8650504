//! Addresses that kernels and copies may access.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

/// The ranges of host addresses that are currently device memory.
///
/// The caller of [`add`](Self::add) keeps the memory of a range valid until it has removed the
/// range.
#[derive(Debug)]
pub struct Memory {
    ranges: RwLock<Ranges>,
}

#[derive(Debug)]
struct Ranges {
    /// Ends by starts. Ranges do not overlap.
    ends: BTreeMap<u64, u64>,
    /// The same with adjacent ranges merged; built at the first use after a change.
    merged: Option<Arc<[Range<u64>]>>,
}

impl Memory {
    /// An empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: RwLock::new(Ranges { ends: BTreeMap::new(), merged: None }) }
    }

    /// Makes a range accessible to kernels. It must not overlap another one.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn add(&self, range: Range<u64>) {
        assert!(!range.is_empty(), "no memory at {range:x?}");
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.ends.insert(range.start, range.end);
        ranges.merged = None;
    }

    /// Removes the range that was added with this start; does nothing if it is absent.
    pub fn remove(&self, start: u64) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.ends.remove(&start);
        ranges.merged = None;
    }

    /// All ranges in address order, with adjacent ranges merged.
    pub fn snapshot(&self) -> Arc<[Range<u64>]> {
        if let Some(merged) = &self.ranges.read().unwrap_or_else(PoisonError::into_inner).merged {
            return Arc::clone(merged);
        }
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let merged = merge(&ranges.ends);
        ranges.merged = Some(Arc::clone(&merged));
        merged
    }

    /// Whether all of a range is accessible.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        around(&self.snapshot(), range).is_some()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// The range that contains another one, of ranges in address order.
pub(crate) fn around<'a>(ranges: &'a [Range<u64>], range: &Range<u64>) -> Option<&'a Range<u64>> {
    let next = ranges.partition_point(|known| known.start <= range.start);
    ranges[..next].last().filter(|known| range.end <= known.end)
}

fn merge(ends: &BTreeMap<u64, u64>) -> Arc<[Range<u64>]> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for (&start, &end) in ends {
        match merged.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => merged.push(start..end),
        }
    }
    merged.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged_in_snapshots_and_removed_separately() {
        let memory = Memory::new();
        assert!(memory.snapshot().is_empty());
        memory.add(300..400);
        memory.add(100..200);
        memory.add(200..300);
        assert_eq!((memory.snapshot().len(), &memory.snapshot()[0]), (1, &(100..400)));
        memory.remove(200);
        assert_eq!(*memory.snapshot(), [100..200, 300..400]);
        memory.remove(201);
        assert_eq!(memory.snapshot().len(), 2, "nothing starts there");
    }

    #[test]
    fn a_range_is_contained_whole() {
        let memory = Memory::new();
        memory.add(100..200);
        memory.add(200..300);
        for (range, is_inside) in [
            (100..300, true),
            (150..250, true),
            (99..101, false),
            (299..301, false),
            (300..301, false),
            (0..1, false),
        ] {
            assert_eq!(memory.contains(&range), is_inside, "{range:?}");
        }
    }
}
