//! Search by words and vectors over several stores.

mod fusion;
mod words;

use std::sync::Arc;
use std::time::Duration;

use crate::vectors::normalized;
use crate::{Entry, EntryId, HALF_LIFE, SearchError, Store};

pub use words::{BM25_B, BM25_K1, MAX_QUERY_WORDS};

/// `k` of reciprocal rank fusion: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion
/// outperforms Condorcet and individual Rank Learning Methods", SIGIR 2009.
pub const RRF_K: u32 = 60;

/// Each of the two rankings has at least this many places, or four for each hit.
const PLACES_MIN: usize = 100;

/// A search.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// Text whose words are searched: at most [`MAX_QUERY_WORDS`] distinct words count. Empty: no
    /// search by words.
    pub text: &'a str,
    /// Vector of the text by the model of the stores' vectors. It need not have length 1. `None`:
    /// no search by vectors.
    pub vector: Option<&'a [f32]>,
    /// Tags of the reader. Entries with `visible_to` need one of them.
    pub reader: &'a [Arc<str>],
    /// Only entries with one of these tags. Empty: all.
    pub tags: &'a [Arc<str>],
    /// Game time, for ages.
    pub now: Duration,
    /// Number of hits. Default: 5.
    pub most: usize,
    /// Weights of the parts of a score.
    pub weights: Weights,
}

impl<'a> Query<'a> {
    /// Hits of a search without a stated number.
    pub const MOST: usize = 5;

    /// A search by words for a reader without tags, at game time zero.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            vector: None,
            reader: &[],
            tags: &[],
            now: Duration::ZERO,
            most: Self::MOST,
            weights: Weights::default(),
        }
    }
}

/// Weights of the parts of a score. Each default is the result of a measurement with the questions
/// of `tests/data`, in `tests/memory/recall.rs`.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Ranking by words. Default: 1.
    pub words: f32,
    /// Ranking by vectors. Default: 1.
    pub vectors: f32,
    /// Importance, 0 to 1. Default: 0.01, which is less than the distance of the first two ranks
    /// (0.016), so that it decides between entries that match equally. A larger weight puts
    /// important entries before better answers.
    pub importance: f32,
    /// Recency, `2^(-age / half_life)`. Default: 0.01, as for the importance.
    pub recency: f32,
    /// Half-life of recency. Default: [`HALF_LIFE`].
    pub half_life: Duration,
    /// Least cosine similarity with which a vector matches. The right value depends on the model:
    /// many give unrelated texts 0 to 0.3, some 0.7. Default: 0. For all-MiniLM-L6-v2, 0.2 is a
    /// good one: unrelated texts have a median of 0.1, answers of paraphrased questions 0.34.
    pub cosine_min: f32,
    /// Most distance to the best cosine similarity of the search with which a vector matches, so
    /// that a question with a clear answer finds little else. Default: 2, which is no limit.
    pub cosine_margin: f32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            words: 1.0,
            vectors: 1.0,
            importance: 0.01,
            recency: 0.01,
            half_life: HALF_LIFE,
            cosine_min: 0.0,
            cosine_margin: 2.0,
        }
    }
}

impl Weights {
    fn check(&self) -> Result<(), SearchError> {
        let weights = [
            ("words", self.words, 0.0),
            ("vectors", self.vectors, 0.0),
            ("importance", self.importance, 0.0),
            ("recency", self.recency, 0.0),
            ("cosine_min", self.cosine_min, f32::MIN),
            ("cosine_margin", self.cosine_margin, 0.0),
        ];
        let is_wrong = |&(_, given, least): &(_, f32, f32)| !given.is_finite() || given < least;
        match weights.into_iter().find(is_wrong) {
            Some((name, given, _)) => Err(SearchError::Weight { name, given }),
            None => Ok(()),
        }
    }
}

/// A found entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit<'s> {
    /// Index of the store in the search.
    pub store: usize,
    /// Id in that store.
    pub id: EntryId,
    /// The entry.
    pub entry: &'s Entry,
    /// Weighted sum of both rankings. Only comparable within a search.
    pub score: f64,
    /// BM25 score, if the entry is in the ranking by words.
    pub bm25: Option<f64>,
    /// Share of the query's words that the entry has, weighted by rarity, 0 to 1.
    pub coverage: Option<f64>,
    /// Cosine similarity, if the entry is in the ranking by vectors.
    pub cosine: Option<f32>,
}

/// Finds the entries that match best, at most [`Query::most`], the best first; equal scores are
/// ordered by store and id. Equal stores and queries give equal results on every machine.
///
/// 1. Entries that are [expired](crate::StoreLimits::is_expired), not visible to the reader or
///    without a wanted tag are left out.
/// 2. The ranking by words has the entries with a word of the query, by BM25 (Robertson and
///    Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009) with `k1`
///    [`BM25_K1`] and `b` [`BM25_B`]. Numbers of entries and lengths are counted over all searched
///    stores, with the entries that are left out, so scores of a small and a large store are
///    comparable.
/// 3. The ranking by vectors has the entries with a cosine similarity of at least
///    [`Weights::cosine_min`], at most [`Weights::cosine_margin`] below the best one.
/// 4. Both are combined by rank ([`RRF_K`]). Ranks count from 1, and equal values share one:
///
///    ```text
///    score = (words * coverage^2 * 61 / (60 + rank by words)
///                + vectors * 61 / (60 + rank by vectors))
///            * (1 + importance * importance of the entry + recency * 2^(-age / half_life))
///    ```
///
///    `coverage` is the share of the query's words that the entry has, each with the logarithm of
///    its rarity as in BM25. Without this factor, which Cormack et al. do not have, an entry with
///    one common word of the query comes before the best vector.
/// 5. Each ranking ends after 100 places, or `4 * most`.
///
/// An entry in neither ranking is no hit.
///
/// # Words
/// Words are divided by the rules of Unicode and at apostrophes, in lower case, without accents.
/// English words are reduced to stems (Porter 1980, and a table of irregular forms), and English
/// function words of a query ("who", "the") are left out. Chinese, Japanese, Korean, Thai, Lao,
/// Khmer and Burmese text is searched by pairs of characters.
///
/// # Errors
/// [`SearchError`]: a weight is not finite or negative, or the vector does not fit a store.
pub fn search<'s>(stores: &[&'s Store], query: &Query<'_>) -> Result<Vec<Hit<'s>>, SearchError> {
    query.weights.check()?;
    let unit = unit_vector(stores, query)?;
    let places = query.most.saturating_mul(4).max(PLACES_MIN);
    let by_words = words::ranking(stores, query, places);
    let by_vectors = match &unit {
        Some(unit) => vector_ranking(stores, query, unit, places),
        None => Vec::new(),
    };
    Ok(fusion::fuse(stores, query, &by_words, &by_vectors))
}

/// An entry of a store with its value in a ranking.
#[derive(Clone, Copy, Debug)]
struct Place<T> {
    store: usize,
    slot: u32,
    id: EntryId,
    value: T,
}

/// The query vector with length 1, if there is one and a store has vectors.
fn unit_vector(stores: &[&Store], query: &Query<'_>) -> Result<Option<Vec<f32>>, SearchError> {
    let Some(vector) = query.vector else { return Ok(None) };
    for (store, of) in stores.iter().enumerate() {
        let wrong = |error| SearchError::Vector { store, error };
        of.vectors.check_length(vector.len()).map_err(wrong)?;
    }
    normalized(vector).map(Some).map_err(|error| SearchError::Vector { store: 0, error })
}

/// Whether the query may return an entry.
fn is_permitted(store: &Store, query: &Query<'_>, entry: &Entry) -> bool {
    entry.is_visible_to(query.reader)
        && (query.tags.is_empty() || entry.tags.intersects(query.tags))
        && !store.limits().is_expired(entry, query.now)
}

fn vector_ranking(
    stores: &[&Store],
    query: &Query<'_>,
    unit: &[f32],
    places: usize,
) -> Vec<Place<f32>> {
    let mut ranking = Vec::new();
    for (at, store) in stores.iter().enumerate() {
        let may = |slot| store.entry(slot).is_some_and(|(_, of)| is_permitted(store, query, of));
        let id_of = |slot| store.entry(slot).map(|(id, _)| id);
        let best = store.vectors.search(unit, places, query.weights.cosine_min, may, id_of);
        ranking.extend(best.into_iter().filter_map(|similar| {
            let (slot, value) = (similar.slot, similar.cosine);
            Some(Place { store: at, slot, id: id_of(slot)?, value })
        }));
    }
    let rank = |a: &Place<f32>, b: &Place<f32>| {
        b.value.total_cmp(&a.value).then((a.store, a.id).cmp(&(b.store, b.id)))
    };
    ranking.sort_unstable_by(rank);
    ranking.truncate(places);
    let least = ranking.first().map_or(0.0, |best| best.value - query.weights.cosine_margin);
    ranking.retain(|place| place.value >= least);
    ranking
}
