//! Reciprocal rank fusion of the two rankings.

use std::collections::BTreeMap;

use super::words::Score;
use super::{Hit, Place, Query, RRF_K, Weights};
use crate::limits::recency;
use crate::{Entry, EntryId, Store};

/// Rank and value of an entry in each ranking.
#[derive(Clone, Copy, Default)]
struct Parts {
    slot: u32,
    words: Option<(usize, Score)>,
    vectors: Option<(usize, f32)>,
}

pub(super) fn fuse<'s>(
    stores: &[&'s Store],
    query: &Query<'_>,
    by_words: &[Place<Score>],
    by_vectors: &[Place<f32>],
) -> Vec<Hit<'s>> {
    let mut parts: BTreeMap<(usize, EntryId), Parts> = BTreeMap::new();
    for (rank, place) in ranks(by_words, |score| score.bm25) {
        let of = parts.entry((place.store, place.id)).or_default();
        (of.slot, of.words) = (place.slot, Some((rank, place.value)));
    }
    for (rank, place) in ranks(by_vectors, f64::from) {
        let of = parts.entry((place.store, place.id)).or_default();
        (of.slot, of.vectors) = (place.slot, Some((rank, place.value)));
    }
    let hits = parts.into_iter().filter_map(|((store, id), parts)| {
        let (_, entry) = stores.get(store)?.entry(parts.slot)?;
        let score = parts.score(&query.weights) * boost(entry, query);
        let bm25 = parts.words.map(|(_, score)| score.bm25);
        let coverage = parts.words.map(|(_, score)| score.coverage);
        let cosine = parts.vectors.map(|(_, cosine)| cosine);
        Some(Hit { store, id, entry, score, bm25, coverage, cosine })
    });
    let mut hits: Vec<Hit<'s>> = hits.collect();
    // Stable: the map is in the order of stores and ids.
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    hits.truncate(query.most);
    hits
}

impl Parts {
    fn score(&self, weights: &Weights) -> f64 {
        let words = self.words.map_or(0.0, |(rank, score)| of_rank(rank) * score.coverage.powi(2));
        let vectors = self.vectors.map_or(0.0, |(rank, _)| of_rank(rank));
        f64::from(weights.words) * words + f64::from(weights.vectors) * vectors
    }
}

/// The factor of importance and recency.
fn boost(entry: &Entry, query: &Query<'_>) -> f64 {
    let Weights { importance, recency: of_recency, half_life, .. } = query.weights;
    1.0 + f64::from(importance) * f64::from(entry.importance)
        + f64::from(of_recency) * recency(entry.time, query.now, half_life)
}

/// The places with their ranks from 1. Equal values share the rank of the first of them, so that
/// importance and recency decide between them.
fn ranks<T: Copy>(
    places: &[Place<T>],
    value: impl Fn(T) -> f64,
) -> impl Iterator<Item = (usize, &Place<T>)> {
    let mut first: Option<(usize, f64)> = None;
    (1..).zip(places).map(move |(place, of)| {
        let value = value(of.value);
        let (rank, _) = *match &mut first {
            Some(known) if known.1 == value => known,
            other => other.insert((place, value)),
        };
        (rank, of)
    })
}

/// `61 / (60 + rank)`: 1 for the first place. Cormack et al. have 1 in the numerator; the factor
/// changes no order.
fn of_rank(rank: usize) -> f64 {
    let k = f64::from(RRF_K);
    (k + 1.0) / (k + rank as f64)
}
