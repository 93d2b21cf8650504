//! Selection of hits for a prompt.

use std::cell::Cell;

use proptest::prelude::*;
use walla_memory::{Entry, EntryId, Hit, Query, Store, search, select};

fn store(texts: &[&str]) -> Store {
    let mut store = Store::default();
    for text in texts {
        let _ = store.add(Entry::new(*text)).unwrap();
    }
    store
}

fn hits(store: &Store) -> Vec<Hit<'_>> {
    let hit = |(id, entry)| {
        let (bm25, coverage, cosine) = (None, None, None);
        Hit { store: 0, id, entry, score: 0.0, bm25, coverage, cosine }
    };
    store.iter().map(hit).collect()
}

fn chosen(store: &Store, max_tokens: u32) -> Vec<u64> {
    let count = |text: &str| text.len() as u32;
    select(&hits(store), max_tokens, count).iter().map(|hit| hit.id.get()).collect()
}

#[test]
fn what_does_not_fit_is_skipped() {
    let store = store(&["aaaa", "bbbbbbbb", "cc", "dddd", "e"]);
    assert_eq!(chosen(&store, 9), [0, 2, 4]);
    assert_eq!(chosen(&store, 19), [0, 1, 2, 3, 4]);
    assert!(chosen(&store, 0).is_empty());
}

#[test]
fn equal_texts_are_there_once() {
    let store = store(&["mill", "mill", "smith", "mill"]);
    let calls = Cell::new(0);
    let selected = select(&hits(&store), 100, |_| {
        calls.set(calls.get() + 1);
        1
    });
    assert_eq!(selected.iter().map(|hit| hit.id).collect::<Vec<_>>(), [0, 2].map(EntryId::new));
    assert_eq!(calls.get(), 2);
}

#[test]
fn counts_do_not_overflow() {
    let store = store(&["a", "b"]);
    assert_eq!(select(&hits(&store), u32::MAX, |_| u32::MAX).len(), 1);
    assert_eq!(select(&hits(&store), u32::MAX - 1, |_| u32::MAX).len(), 0);
}

#[test]
fn hits_of_two_stores_keep_their_order() {
    let (memory, lore) = (store(&["The mill is shut."]), store(&["The mill is shut.", "A mill."]));
    let found = search(&[&memory, &lore], &Query::new("mill")).unwrap();
    let selected = select(&found, 100, |_| 1);
    assert_eq!((found.len(), selected.len()), (3, 2));
    assert!(selected.is_sorted_by(|a, b| a.score >= b.score));
}

proptest! {
    #[test]
    fn a_greedy_choice(counts in prop::collection::vec(0_u32..9, 0..20), max_tokens in 0_u32..40) {
        let texts: Vec<String> = counts.iter().enumerate().map(|(at, n)| format!("{at}:{n}")).collect();
        let store = store(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let count = |text: &str| text.split_once(':').unwrap().1.parse().unwrap();
        let selected = select(&hits(&store), max_tokens, count);
        let (mut rest, mut expected) = (max_tokens, Vec::new());
        for (at, of) in (0..).zip(counts) {
            if of <= rest {
                rest -= of;
                expected.push(EntryId::new(at));
            }
        }
        prop_assert_eq!(selected.iter().map(|hit| hit.id).collect::<Vec<_>>(), expected);
    }
}
