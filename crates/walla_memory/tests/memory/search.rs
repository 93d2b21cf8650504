//! Searches: visibility, filters, ages, order, and texts of any kind.

use std::time::Duration;

use proptest::prelude::*;
use walla_memory::{
    Entry, EntryId, Hit, Query, SearchError, Store, StoreLimits, Tags, VectorError, Weights, search,
};

fn store(entries: impl IntoIterator<Item = Entry>) -> Store {
    let mut store = Store::default();
    for entry in entries {
        assert!(store.add(entry).unwrap().evicted.is_empty());
    }
    store
}

fn found(hits: &[Hit<'_>]) -> Vec<(usize, u64)> {
    hits.iter().map(|hit| (hit.store, hit.id.get())).collect()
}

fn ids(stores: &[&Store], query: &Query<'_>) -> Vec<(usize, u64)> {
    found(&search(stores, query).unwrap())
}

#[test]
fn secrets_are_for_their_readers() {
    let store = store([
        Entry::new("The gate opens at dawn."),
        Entry::new("The gate has a secret key.").visible_to(["guards", "thieves"]),
    ]);
    let of = |names: &[&str]| {
        let reader: Tags = names.iter().copied().collect();
        ids(&[&store], &Query { reader: &reader, ..Query::new("gate") }).len()
    };
    assert_eq!([of(&[]), of(&["millers"]), of(&["guards"]), of(&["x", "thieves"])], [1, 1, 2, 2]);
}

#[test]
fn secrets_stay_secret_for_vectors() {
    let mut store = store([Entry::new("key").visible_to(["guards"]), Entry::new("dawn")]);
    store.set_vector(EntryId::new(0), &[1.0, 0.0]).unwrap();
    store.set_vector(EntryId::new(1), &[0.6, 0.8]).unwrap();
    let query = Query { vector: Some(&[1.0, 0.0]), ..Query::new("") };
    assert_eq!(ids(&[&store], &query), [(0, 1)]);
}

#[test]
fn tags_filter_any_of() {
    let store = store([
        Entry::new("mill one").tags(["river"]),
        Entry::new("mill two").tags(["mill", "law"]),
        Entry::new("mill three"),
    ]);
    let tags: Tags = ["law", "river"].into_iter().collect();
    let query = Query { tags: &tags, ..Query::new("mill") };
    assert_eq!(ids(&[&store], &query), [(0, 0), (0, 1)]);
}

#[test]
fn expired_entries_are_never_found() {
    let max_age = Some(Duration::from_secs(10));
    let mut store = Store::new(StoreLimits { max_age, ..Default::default() });
    let id = store.add(Entry::new("mill")).unwrap().id;
    store.set_vector(id, &[1.0]).unwrap();
    let at = |seconds| {
        let now = Duration::from_secs(seconds);
        ids(&[&store], &Query { now, vector: Some(&[1.0]), ..Query::new("mill") })
    };
    assert_eq!((at(10).len(), at(11).len()), (1, 0));
}

#[test]
fn no_match_no_hit() {
    let store = store([Entry::new("The mill is old."), Entry::new("A river.")]);
    for text in ["", "smith", "Who is the?", "!!!", "   "] {
        assert!(ids(&[&store], &Query::new(text)).is_empty(), "{text}");
    }
    assert!(ids(&[], &Query::new("mill")).is_empty());
    assert!(ids(&[&Store::default()], &Query::new("mill")).is_empty());
    assert!(ids(&[&store], &Query { most: 0, ..Query::new("mill") }).is_empty());
}

#[test]
fn equal_scores_are_ordered_by_store_and_id() {
    let first = store([Entry::new("mill"), Entry::new("mill")]);
    let second = store([Entry::new("mill"), Entry::new("mill")]);
    // Ranks differ for equal scores, so the order is the one of stores and ids too.
    let stores = [&first, &second];
    assert_eq!(ids(&stores, &Query::new("mill")), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn newer_and_more_important_entries_come_first_among_equals() {
    let old = || Entry::new("The mill wheel turns.");
    let new = || Entry::new("The mill wheel stops.").at(Duration::from_hours(300));
    let store = store([old(), new(), old().importance(1.0)]);
    let now = Duration::from_hours(310);
    assert_eq!(
        ids(&[&store], &Query { now, ..Query::new("mill wheel") }),
        [(0, 1), (0, 2), (0, 0)]
    );
}

#[test]
fn forms_languages_and_accents() {
    let store = store([
        Entry::new("The smith forged two knives."),
        Entry::new("Der Müller mahlt Getreide."),
        Entry::new("村の鍛冶屋は蹄鉄を作る。"),
        Entry::new("Мельник продаёт муку."),
        Entry::new("대장간은 강가에 있다."),
    ]);
    for (text, id) in [
        ("forging a knife", 0),
        ("muller", 1),
        ("MÜLLER", 1),
        ("鍛冶屋はどこですか", 2),
        ("蹄", 2),
        ("мельник", 3),
        ("продает", 3),
        ("대장간", 4),
    ] {
        let hits = ids(&[&store], &Query::new(text));
        assert_eq!(hits.first(), Some(&(0, id)), "{text}: {hits:?}");
    }
}

#[test]
fn vectors_and_words_agree_on_the_best() {
    let mut store = store(["mill", "smith", "mill and smith"].map(Entry::new));
    for (id, vector) in [(0, [1.0, 0.0]), (1, [0.0, 1.0]), (2, [0.9, 0.4])] {
        store.set_vector(EntryId::new(id), &vector).unwrap();
    }
    let query = Query { vector: Some(&[1.0, 0.1]), ..Query::new("smith") };
    let hits = search(&[&store], &query).unwrap();
    let third = hits.iter().find(|hit| hit.id.get() == 2).unwrap();
    assert!(third.bm25.is_some() && third.cosine.is_some_and(|cosine| cosine > 0.9));
    assert_eq!(hits.iter().find(|hit| hit.id.get() == 0).unwrap().bm25, None);
    let weights = Weights { cosine_min: 0.95, ..Weights::default() };
    let hits = ids(&[&store], &Query { weights, text: "", ..query });
    assert_eq!(hits, [(0, 0)], "the others are below the least similarity");
    // Cosines of 0.995, 0.954 and 0.100.
    for (margin, expected) in [(0.0, 1), (0.03, 1), (0.05, 2), (0.8, 2), (0.9, 3), (2.0, 3)] {
        let weights = Weights { cosine_margin: margin, ..Weights::default() };
        let hits = ids(&[&store], &Query { weights, text: "", ..query });
        assert_eq!(hits.len(), expected, "{margin}: {hits:?}");
    }
}

#[test]
fn bad_queries_are_errors() {
    let mut with_vectors = store([Entry::new("mill")]);
    with_vectors.set_vector(EntryId::new(0), &[1.0, 2.0]).unwrap();
    let (without, empty): (Store, [f32; 0]) = (store([Entry::new("mill")]), []);
    let stores = [&without, &with_vectors];
    let error = |vector: &[f32]| {
        search(&stores, &Query { vector: Some(vector), ..Query::new("mill") }).unwrap_err()
    };
    let length = VectorError::Length { given: 3, expected: 2 };
    assert_eq!(error(&[1.0, 2.0, 3.0]), SearchError::Vector { store: 1, error: length });
    assert!(matches!(
        error(&empty),
        SearchError::Vector { error: VectorError::Dimensions { .. }, .. }
    ));
    let not_finite = VectorError::NotFinite { index: 1 };
    assert_eq!(error(&[1.0, f32::NAN]), SearchError::Vector { store: 0, error: not_finite });
    assert_eq!(error(&[0.0, 0.0]), SearchError::Vector { store: 0, error: VectorError::Zero });
    for weights in [
        Weights { words: f32::NAN, ..Weights::default() },
        Weights { vectors: -1.0, ..Weights::default() },
        Weights { recency: f32::INFINITY, ..Weights::default() },
        Weights { importance: -0.1, ..Weights::default() },
        Weights { cosine_min: f32::NAN, ..Weights::default() },
        Weights { cosine_margin: -0.1, ..Weights::default() },
    ] {
        let query = Query { weights, ..Query::new("mill") };
        assert!(matches!(search(&stores, &query), Err(SearchError::Weight { .. })));
    }
}

#[test]
fn long_queries_are_cut() {
    let store = store([Entry::new("first"), Entry::new("last")]);
    let noise: Vec<String> = (0..400).map(|number| format!("w{number}")).collect();
    let text = format!("first {} last", noise.join(" "));
    assert_eq!(ids(&[&store], &Query::new(&text)), [(0, 0)]);
}

proptest! {
    /// The text of an entry finds this entry, if a word of it is no stop word.
    #[test]
    fn any_text_finds_itself(text in "\\PC{1,60}", noise in any::<String>()) {
        let mut store = store([Entry::new("another text, another mill")]);
        if let Ok(added) = store.add(Entry::new(text.as_str())) {
            let hits = search(&[&store], &Query::new(&text)).unwrap();
            let has_letter = text.split(|c: char| !c.is_alphabetic()).any(|word| {
                word.len() > 4 && word.is_ascii() && !word.eq_ignore_ascii_case("about")
                && !["their", "there", "these", "where", "which", "whose", "would"]
                    .contains(&word.to_ascii_lowercase().as_str())
            });
            if has_letter {
                prop_assert!(hits.iter().any(|hit| hit.id == added.id), "{:?}", text);
            }
        }
        prop_assert!(search(&[&store], &Query::new(&noise)).is_ok());
    }
}
