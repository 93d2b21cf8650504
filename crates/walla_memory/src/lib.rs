//! Memories of agents and shared lore of a game, with deterministic retrieval.
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod entry;
mod error;
mod index;
mod limits;
mod lore;
mod saved;
mod search;
mod select;
mod stem;
mod store;
mod vectors;
mod words;

pub use entry::{Entry, EntryId, Tags};
pub use error::{EntryError, LoadError, LoreError, SearchError, VectorError};
pub use limits::{HALF_LIFE, StoreLimits};
pub use saved::SavedStore;
pub use search::{BM25_B, BM25_K1, Hit, QUERY_WORDS_MAX, Query, RRF_K, Weights, search};
pub use select::select;
pub use store::{Added, Store};
pub use vectors::DIMENSIONS_MAX;
