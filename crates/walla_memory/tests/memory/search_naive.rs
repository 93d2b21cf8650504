//! Searches against a scorer that follows the documented formulas literally.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use walla_memory::{BM25_B, BM25_K1, Entry, EntryId, Query, Store, StoreLimits, Tags, search};

/// Words that are equal to their stems and no stop words.
const WORDS: [&str; 6] = ["ka", "ko", "ku", "zi", "zo", "9"];

fn text(max_words: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS[..]), 1..max_words)
        .prop_map(|words| words.join(" "))
}

fn names() -> impl Strategy<Value = Tags> {
    prop::collection::vec(prop::sample::select(&["a", "b", "c"][..]), 0..3)
        .prop_map(|names| names.into_iter().collect())
}

fn entry() -> impl Strategy<Value = (Entry, Option<[i8; 4]>)> {
    let vector = prop::option::of(any::<[i8; 4]>());
    (text(8), 0_u64..5, 0_u8..5, names(), names(), vector).prop_map(
        |(text, days, importance, tags, visible_to, vector)| {
            let time = Duration::from_hours(24 * days);
            let importance = f32::from(importance) / 4.0;
            let text = Arc::from(text);
            (Entry { text, time, importance, tags, visible_to }, vector)
        },
    )
}

type Found = (usize, EntryId, f64);

/// Bit by bit the similarity of four dimensions.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    (a[0] * b[0] + a[2] * b[2]) + (a[1] * b[1] + a[3] * b[3]) + 0.0
}

/// The best `places` of a ranking, sorted by value, then store and id.
fn ranked(mut values: Vec<Found>, places: usize) -> Vec<Found> {
    values.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    values.truncate(places);
    values
}

/// Scores that differ by less may have another order in another order of sums.
const NEAR: f64 = 1e-12;

/// All results in order. `None`: the scores by words of two entries with other words are nearly
/// equal, so their ranks depend on rounding.
fn naive(stores: &[&Store], query: &Query<'_>, unit: Option<&[f32]>) -> Option<Vec<Found>> {
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    let all: Vec<(usize, EntryId, &Entry)> = stores
        .iter()
        .enumerate()
        .flat_map(|(at, store)| store.iter().map(move |(id, entry)| (at, id, entry)))
        .collect();
    let length: usize = all.iter().map(|(.., entry)| words(&entry.text).len()).sum();
    let mean = length as f64 / all.len() as f64;
    let mut terms = Vec::new();
    for word in words(query.text) {
        if !terms.contains(&word) {
            terms.push(word);
        }
    }
    let permitted = all.iter().filter(|(store, _, entry)| {
        let has = |names: &Tags, of: &[Arc<str>]| names.iter().any(|name| of.contains(name));
        (entry.visible_to.is_empty() || has(&entry.visible_to, query.reader))
            && (query.tags.is_empty() || has(&entry.tags, query.tags))
            && stores[*store].limits().max_age.is_none_or(|most| entry.time + most >= query.now)
    });
    let (mut by_words, mut by_vectors) = (Vec::new(), Vec::new());
    let mut profiles: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut coverage = BTreeMap::new();
    for &(store, id, entry) in permitted.clone() {
        let of = words(&entry.text);
        let (mut score, mut covered, mut total) = (0.0, 0.0, 0.0);
        for term in &terms {
            let with = all.iter().filter(|(.., of)| words(&of.text).contains(term)).count() as f64;
            let idf = (1.0 + (all.len() as f64 - with + 0.5) / (with + 0.5)).ln();
            let count = of.iter().filter(|word| *word == term).count() as f64;
            let length = of.len() as f64 / mean;
            let saturation = BM25_K1 * (1.0 - BM25_B + BM25_B * length);
            total += idf;
            covered += if count > 0.0 { idf } else { 0.0 };
            score += idf * count * (BM25_K1 + 1.0) / (count + saturation);
        }
        if score > 0.0 {
            let count = |term| of.iter().filter(|word| *word == term).count();
            let profile = terms.iter().map(count).chain([of.len()]).collect();
            let is_near =
                |(other, its): &(f64, Vec<usize>)| (other - score).abs() < NEAR && *its != profile;
            if profiles.iter().any(is_near) {
                return None;
            }
            profiles.push((score, profile));
            by_words.push((store, id, score));
            coverage.insert((store, id), covered / total);
        }
        if let Some((unit, vector)) = unit.zip(stores[store].vector(id)) {
            let cosine = cosine(unit, vector);
            if cosine >= query.weights.cosine_min {
                by_vectors.push((store, id, f64::from(cosine)));
            }
        }
    }
    let best = by_vectors.iter().map(|of| of.2).fold(-1.0, f64::max) as f32;
    by_vectors.retain(|of| of.2 as f32 >= best - query.weights.cosine_margin);
    let places = (4 * query.most).max(100);
    let (by_words, by_vectors) = (ranked(by_words, places), ranked(by_vectors, places));
    let mut scores = Vec::new();
    for &(store, id, entry) in permitted {
        let rank = |of: &[Found]| {
            let own = of.iter().find(|place| (place.0, place.1) == (store, id))?.2;
            Some(of.iter().filter(|place| place.2 > own).count())
        };
        let ranks = [rank(&by_words), rank(&by_vectors)];
        if ranks == [None, None] {
            continue;
        }
        let of_rank = |rank: Option<usize>| rank.map_or(0.0, |rank| 61.0 / (61.0 + rank as f64));
        let age = query.now.saturating_sub(entry.time).as_secs_f64();
        let recency = (-age / query.weights.half_life.as_secs_f64()).exp2();
        let weights = &query.weights;
        let coverage = coverage.get(&(store, id)).copied().unwrap_or(0.0);
        let score = (f64::from(weights.words) * of_rank(ranks[0]) * coverage * coverage
            + f64::from(weights.vectors) * of_rank(ranks[1]))
            * (1.0
                + f64::from(weights.importance) * f64::from(entry.importance)
                + f64::from(weights.recency) * recency);
        scores.push((store, id, score));
    }
    scores.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    Some(scores)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_search_is_its_definition(
        entries in prop::collection::vec((0_usize..3, entry()), 1..40),
        question in text(6),
        vector in prop::option::of(any::<[i8; 4]>().prop_filter("not zero", |of| *of != [0; 4])),
        (reader, tags) in (names(), names()),
        most in 0_usize..50,
        hours in 0_u64..150,
    ) {
        let max_age = Some(Duration::from_hours(72));
        let mut stores = [
            Store::default(),
            Store::new(StoreLimits { max_age, ..Default::default() }),
            Store::default(),
        ];
        for (at, (entry, vector)) in entries {
            let id = stores[at].add(entry).unwrap().id;
            if let Some(vector) = vector {
                let _zero_is_refused = stores[at].set_vector(id, &vector.map(f32::from));
            }
        }
        let stores: Vec<&Store> = stores.iter().collect();
        let vector = vector.map(|of| of.map(f32::from));
        // The vector of an entry is the query vector with length 1, by the same function.
        let mut unit = Store::default();
        let id = unit.add(Entry::new("x")).unwrap().id;
        if let Some(vector) = &vector {
            unit.set_vector(id, vector).unwrap();
        }
        let query = Query {
            vector: vector.as_ref().map(<[f32; 4]>::as_slice),
            reader: &reader,
            tags: &tags,
            now: Duration::from_hours(hours),
            most,
            ..Query::new(&question)
        };
        let found = search(&stores, &query).unwrap();
        let expected = naive(&stores, &query, unit.vector(id));
        prop_assume!(expected.is_some());
        let expected = expected.unwrap_or_default();
        prop_assert_eq!(found.len(), expected.len().min(most));
        for (hit, best) in found.iter().zip(&expected) {
            let own = expected.iter().find(|of| (of.0, of.1) == (hit.store, hit.id));
            let own = own.expect("it is a result");
            prop_assert!((hit.score - own.2).abs() < NEAR);
            // Rounding decides between nearly equal scores; of equal ones the first entry is first.
            prop_assert!(own.2 == best.2 && (own.0, own.1) == (best.0, best.1)
                || own.2 != best.2 && (own.2 - best.2).abs() < NEAR, "{own:?}, not {best:?}");
        }
    }
}
