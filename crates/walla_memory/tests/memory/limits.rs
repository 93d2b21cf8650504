//! Limits, eviction and expiry.

use std::time::Duration;

use walla_memory::{Entry, EntryError, EntryId, HALF_LIFE, Store, StoreLimits};

fn ids(store: &Store) -> Vec<u64> {
    store.iter().map(|(id, _)| id.get()).collect()
}

fn evicted(store: &mut Store, entry: Entry) -> Vec<u64> {
    store.add(entry).unwrap().evicted.iter().map(|(id, _)| id.get()).collect()
}

#[test]
fn invalid_entries_are_refused() {
    let limits =
        StoreLimits { max_entry_bytes: 10, max_tags: 2, max_bytes: 8, ..Default::default() };
    let mut store = Store::new(limits);
    let cases = [
        (Entry::new(""), EntryError::Empty),
        (Entry::new(" \n\u{3000}"), EntryError::Empty),
        (Entry::new("12345678901"), EntryError::TooLong { bytes: 11, max_bytes: 10 }),
        (Entry::new("1234567").tags(["abcd"]), EntryError::TooLong { bytes: 11, max_bytes: 10 }),
        (Entry::new("x").importance(1.01), EntryError::Importance { given: 1.01 }),
        (Entry::new("x").importance(-0.5), EntryError::Importance { given: -0.5 }),
        (Entry::new("x").tags(["a", "b", "c"]), EntryError::TooManyTags { given: 3, most: 2 }),
        (
            Entry::new("x").visible_to(["a", "b", "c"]),
            EntryError::TooManyTags { given: 3, most: 2 },
        ),
        (Entry::new("x").tags([" "]), EntryError::EmptyTag),
        (Entry::new("123456789"), EntryError::NoRoom { bytes: 9 }),
    ];
    for (entry, error) in cases {
        assert_eq!(store.add(entry.clone()), Err(error), "{entry:?}");
    }
    for importance in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let refused = store.add(Entry::new("x").importance(importance));
        assert!(matches!(refused, Err(EntryError::Importance { .. })));
    }
    assert!(store.is_empty() && store.bytes() == 0);
    let same_tag_twice = Entry::new("x").tags(["a", "b", "a"]);
    assert_eq!(same_tag_twice.tags.len(), 2, "tags are a set");
    assert_eq!(store.add(same_tag_twice).unwrap().id, EntryId::new(0), "no id was wasted");
}

#[test]
fn no_entry_fits_limits_of_zero() {
    let limits = StoreLimits { max_entries: 0, ..Default::default() };
    assert_eq!(Store::new(limits).add(Entry::new("x")), Err(EntryError::NoRoom { bytes: 1 }));
}

#[test]
fn the_lowest_retention_is_evicted_first() {
    let mut store = Store::new(StoreLimits { max_entries: 4, ..Default::default() });
    let at = |half_lives: u32| HALF_LIFE * half_lives;
    // Retention at time 4: 1/16, 0.5/4, 0.1, 0.
    for entry in [
        Entry::new("old and important").importance(1.0).at(at(0)),
        Entry::new("newer").importance(0.5).at(at(2)),
        Entry::new("new and unimportant").importance(0.1).at(at(4)),
        Entry::new("worthless").importance(0.0).at(at(9)),
    ] {
        assert!(evicted(&mut store, entry).is_empty());
    }
    let best = || Entry::new("best").importance(1.0).at(at(100));
    let order: Vec<Vec<u64>> = (0..4).map(|_| evicted(&mut store, best())).collect();
    assert_eq!(order, [[3], [0], [2], [1]]);
}

#[test]
fn equal_retention_evicts_the_lower_id() {
    let mut store = Store::new(StoreLimits { max_entries: 3, ..Default::default() });
    let evictions: Vec<_> = (0..6).map(|_| evicted(&mut store, Entry::new("same"))).collect();
    assert_eq!(evictions, [vec![], vec![], vec![], vec![0], vec![1], vec![2]]);
    assert_eq!(ids(&store), [3, 4, 5]);
}

#[test]
fn a_new_entry_stays_whatever_its_value() {
    let mut store = Store::new(StoreLimits { max_entries: 1, ..Default::default() });
    assert!(evicted(&mut store, Entry::new("important").importance(1.0)).is_empty());
    assert_eq!(evicted(&mut store, Entry::new("trifle").importance(0.0)), [0]);
    assert_eq!(ids(&store), [1]);
}

#[test]
fn bytes_are_limited() {
    let limits = StoreLimits { max_bytes: 10, ..Default::default() };
    let mut store = Store::new(limits);
    for text in ["aaaa", "bbb", "cc"] {
        assert!(evicted(&mut store, Entry::new(text)).is_empty());
    }
    assert_eq!(store.bytes(), 9);
    assert_eq!(evicted(&mut store, Entry::new("dddd").tags(["ee"])), [0, 1]);
    assert_eq!((store.bytes(), store.len()), (8, 2));
    store.clear();
    assert_eq!((store.bytes(), store.len()), (0, 0));
    assert_eq!(store.add(Entry::new("x")).unwrap().id, EntryId::new(4), "ids are never used again");
}

#[test]
fn expiry_removes_the_oldest_first() {
    let max_age = Some(Duration::from_secs(10));
    let mut store = Store::new(StoreLimits { max_age, ..Default::default() });
    for second in [5, 3, 20, 9] {
        let _ = store.add(Entry::new("text").at(Duration::from_secs(second))).unwrap();
    }
    let expired = |store: &mut Store, now| -> Vec<u64> {
        store.expire(Duration::from_secs(now)).iter().map(|(id, _)| id.get()).collect()
    };
    assert!(expired(&mut store, 13).is_empty(), "an age of exactly ten seconds is allowed");
    assert_eq!(expired(&mut store, 19), [1, 0]);
    assert!(expired(&mut store, 0).is_empty(), "entries of the future have no age");
    assert_eq!(expired(&mut store, 1_000), [3, 2]);
    let mut without = Store::default();
    let _ = without.add(Entry::new("text")).unwrap();
    assert!(without.expire(Duration::MAX).is_empty());
}

#[test]
fn retention_halves_in_a_half_life() {
    let limits = StoreLimits::default();
    let entry = Entry::new("x").importance(0.5);
    assert_eq!(limits.retention(&entry, Duration::ZERO), 0.5);
    assert_eq!(limits.retention(&entry, HALF_LIFE * 3), 0.0625);
    // Park et al.: 0.995 an hour.
    let hour = limits.retention(&entry, Duration::from_hours(1)) / 0.5;
    assert!((hour - 0.995).abs() < 1e-4, "{hour}");
}
