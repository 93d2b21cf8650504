//! Ranking by words: BM25 over all searched stores.

use std::cmp::Ordering;

use super::{Place, Query, is_permitted};
use crate::Store;
use crate::words::for_each_query_word;

/// `k1` of BM25: how fast repetitions of a word stop counting. The usual value: between 0.9 and 2,
/// recall of all questions of `tests/data` changes by at most 0.2 points.
pub const BM25_K1: f64 = 1.2;

/// `b` of BM25: how much a long entry is discounted, 0 to 1. The usual value: between 0 and 1,
/// recall changes by at most 1.3 points.
pub const BM25_B: f64 = 0.75;

/// Distinct words of a query that count. A longer text is cut there, which bounds the time of a
/// search.
pub const MAX_QUERY_WORDS: usize = 256;

/// How well an entry matches the words of a query.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    pub(super) bm25: f64,
    /// Share of the query's words that the entry has, each with its inverse frequency, 0 to 1.
    pub(super) coverage: f64,
}

/// The best `places` permitted entries by BM25, where the score is above zero.
pub(super) fn ranking(stores: &[&Store], query: &Query<'_>, places: usize) -> Vec<Place<Score>> {
    let words = distinct_words(query.text);
    let entries: usize = stores.iter().map(|store| store.len()).sum();
    if words.is_empty() || entries == 0 {
        return Vec::new();
    }
    let length: u64 = stores.iter().map(|store| store.index.words()).sum();
    let length_mean = (length as f64 / entries as f64).max(1.0);
    let weights = words.iter().map(|word| inverse_frequency(stores, word, entries));
    let weights: Vec<f64> = weights.collect();
    let total: f64 = weights.iter().sum();
    let mut ranking = Vec::new();
    for (at, store) in stores.iter().enumerate() {
        for (slot, score) in (0..).zip(scores(store, &words, &weights, length_mean)) {
            if score.bm25 > 0.0
                && let Some((id, entry)) = store.entry(slot)
                && is_permitted(store, query, entry)
            {
                let score = Score { coverage: score.coverage / total, ..score };
                ranking.push(Place { store: at, slot, id, value: score });
            }
        }
    }
    let by_rank = |a: &Place<Score>, b: &Place<Score>| -> Ordering {
        b.value.bm25.total_cmp(&a.value.bm25).then((a.store, a.id).cmp(&(b.store, b.id)))
    };
    if ranking.len() > places {
        ranking.select_nth_unstable_by(places, by_rank);
        ranking.truncate(places);
    }
    ranking.sort_unstable_by(by_rank);
    ranking
}

/// The first distinct words, in their order.
fn distinct_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for_each_query_word(text, |word| {
        if words.len() < MAX_QUERY_WORDS && !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    });
    words
}

/// `ln(1 + (N - n + 0.5) / (n + 0.5))` for `n` of `N` entries with the word: the weight of
/// Robertson and Spärck Jones plus 1 under the logarithm, which keeps it positive for words in more
/// than half of the entries. `libm` computes it equally on all platforms.
fn inverse_frequency(stores: &[&Store], word: &str, entries: usize) -> f64 {
    let with: usize = stores.iter().map(|store| store.index.postings(word).len()).sum();
    let (with, entries) = (with as f64, entries as f64);
    libm::log(1.0 + (entries - with + 0.5) / (with + 0.5))
}

/// Scores of all slots; zero for entries without a word of the query. Each score adds up the words
/// in the order of the query. Coverage is the sum of weights here.
fn scores(store: &Store, words: &[String], weights: &[f64], length_mean: f64) -> Vec<Score> {
    let mut scores = vec![Score::default(); store.slots_len()];
    for (word, weight) in words.iter().zip(weights) {
        for posting in store.index.postings(word) {
            let length = f64::from(store.index.words_of(posting.slot)) / length_mean;
            let count = f64::from(posting.count);
            let saturation = BM25_K1 * (1.0 - BM25_B + BM25_B * length);
            if let Some(score) = scores.get_mut(posting.slot as usize) {
                score.bm25 += weight * count * (BM25_K1 + 1.0) / (count + saturation);
                score.coverage += weight;
            }
        }
    }
    scores
}
