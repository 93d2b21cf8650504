//! Reciprocal rank fusion of the two rankings.

use std::collections::BTreeMap;

use super::{Hit, Place, Query, RRF_K};
use crate::limits::recency;
use crate::{EntryId, Store};

/// Rank and value of an entry in each ranking.
#[derive(Clone, Copy, Default)]
struct Parts {
    slot: u32,
    words: Option<(usize, f64)>,
    vectors: Option<(usize, f32)>,
}

pub(super) fn fuse<'s>(
    stores: &[&'s Store],
    query: &Query<'_>,
    by_words: &[Place<f64>],
    by_vectors: &[Place<f32>],
) -> Vec<Hit<'s>> {
    let mut parts: BTreeMap<(usize, EntryId), Parts> = BTreeMap::new();
    for (rank, place) in ranks(by_words) {
        let of = parts.entry((place.store, place.id)).or_default();
        (of.slot, of.words) = (place.slot, Some((rank, place.value)));
    }
    for (rank, place) in ranks(by_vectors) {
        let of = parts.entry((place.store, place.id)).or_default();
        (of.slot, of.vectors) = (place.slot, Some((rank, place.value)));
    }
    let hits = parts.into_iter().filter_map(|((store, id), parts)| {
        let (_, entry) = stores.get(store)?.entry(parts.slot)?;
        let weights = &query.weights;
        let recency = recency(entry.time, query.now, weights.half_life);
        let score = f64::from(weights.words) * of_rank(parts.words.map(|(rank, _)| rank))
            + f64::from(weights.vectors) * of_rank(parts.vectors.map(|(rank, _)| rank))
            + f64::from(weights.importance) * f64::from(entry.importance)
            + f64::from(weights.recency) * recency;
        let bm25 = parts.words.map(|(_, value)| value);
        let cosine = parts.vectors.map(|(_, value)| value);
        Some(Hit { store, id, entry, score, bm25, cosine })
    });
    let mut hits: Vec<Hit<'s>> = hits.collect();
    // Stable: the map is in the order of stores and ids.
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    hits.truncate(query.most);
    hits
}

/// The places with their ranks from 1. Equal values share the rank of the first of them, so that
/// importance and recency decide between them.
fn ranks<T: PartialEq>(places: &[Place<T>]) -> impl Iterator<Item = (usize, &Place<T>)> {
    let equal = places.chunk_by(|a, b| a.value == b.value);
    let first = |next: &mut usize, equal: &[Place<T>]| {
        *next += equal.len();
        Some(*next - equal.len())
    };
    let firsts = equal.clone().scan(1, move |next, equal| first(next, equal));
    firsts.zip(equal).flat_map(|(rank, equal)| equal.iter().map(move |place| (rank, place)))
}

/// `61 / (60 + rank)`: 1 for the first place. Cormack et al. have 1 in the numerator; the factor
/// changes no order and gives the other weights a readable unit.
fn of_rank(rank: Option<usize>) -> f64 {
    let k = f64::from(RRF_K);
    rank.map_or(0.0, |rank| (k + 1.0) / (k + rank as f64))
}
