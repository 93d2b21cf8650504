//! Memories of agents and shared lore of a game: deterministic searches, and a service that finds
//! entries at each ask of an engine.
//!
//! | type | lifetime | purpose |
//! |---|---|---|
//! | [`Entry`] | plain data | a text with game time, importance, topics and readers |
//! | [`Store`] | one per agent, one per body of lore | bounded set of entries; evicts by importance and age |
//! | [`Query`], [`search`] | one search | the best entries of several stores, by words and vectors |
//! | [`select`] | one prompt | the hits that fit a number of tokens |
//! | [`SavedStore`] | one saved game | content of a store, for any format of serde |
//!
//! These have no clock, no thread and no model: a program passes the game time and the vectors of
//! its embedding model. Without vectors, a search finds entries by their words. The types below use
//! them on a thread ([recall](#recall)).
//!
//! | type | owner | purpose |
//! |---|---|---|
//! | [`Memory`] | host | entries of one agent, or lore that agents share, with the changes since the last update |
//! | [`Recall`] | host, shared | handle of the thread, which keeps an index and vectors of each memory |
//! | [`RecallClient`] | host | an engine's client that puts found entries into asks as [`Notes`](walla_runtime::Notes) |
//! | [`AgentRecall`] | client | the memories that an agent knows, and how much of them |
//!
//! # Examples
//! ```
//! use std::time::Duration;
//! use walla_memory::{Entry, Query, Store, StoreLimits, Tags, search, select};
//!
//! let lore = Store::from_lore_text(
//!     "# Lines that begin with # are comments, blank lines divide entries.
//!
//!      Marta Dunn is the blacksmith.
//!      She shoes horses and mends ploughs.
//!
//!      [tags: secrets; visible_to: guards; importance: 0.9]
//!      The smith hides a sword under the anvil.",
//! )?;
//! let mut memory = Store::new(StoreLimits::default());
//! let now = Duration::from_secs(3_600);
//! let entry = Entry::new("The player promised the smith a load of coal.").at(now).importance(0.8);
//! assert!(memory.add(entry)?.evicted.is_empty());
//!
//! let reader: Tags = ["villagers"].into_iter().collect();
//! let query = Query { reader: &reader, now, ..Query::new("Does the smith need more coal?") };
//! let hits = search(&[&memory, &lore], &query)?;
//! assert_eq!(&*hits[0].entry.text, "The player promised the smith a load of coal.");
//! assert_eq!(hits.len(), 1, "blacksmith is another word, and the secret is for guards");
//!
//! let tokens = |text: &str| text.split(' ').count() as u32; // a program asks its tokenizer
//! assert_eq!(select(&hits, 20, tokens).len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Vectors
//! [`Store::without_vector`] lists the entries to embed, [`Store::set_vector`] stores a result,
//! [`Query::vector`] is the vector of the question. [`Store::set_vector_model`] removes vectors of
//! another model. The search is exact: it returns the entries that a scan of all f32 vectors
//! returns, in the same order, on every processor. Compact copies of the vectors make it fast: the
//! best of 100,000 entries of 384 dimensions in 2.8 ms (`benches/src/memory.rs`).
//!
//! # Quality
//! Recall at 1, 5 and 10, in percent, on the 200 entries and 539 questions of `tests/data`. Direct
//! questions have words of their answers; paraphrases have at most one of them, so vectors must
//! find those. Vectors: all-MiniLM-L6-v2, 384 dimensions, 91 MB.
//!
//! | search | all 539 | 220 direct | 319 paraphrases |
//! |---|---|---|---|
//! | words | 43.8, 46.9, 49.2 | 98.2, 100, 100 | 6.3, 10.3, 14.1 |
//! | vectors | 63.5, 83.3, 87.8 | 98.6, 100, 100 | 39.2, 71.8, 79.3 |
//! | both | 59.0, 83.1, 87.9 | 99.5, 100, 100 | 31.0, 71.5, 79.6 |
//! | vectors of `walla_minilm`, 10 MB | 62.2, 80.7, 86.5 | 98.6, 100, 100 | 37.0, 67.4, 77.1 |
//! | both | 58.6, 80.5, 86.8 | 99.5, 100, 100 | 30.4, 67.1, 77.7 |
//! | both, without `coverage` ([`search`]) | 48.8, 63.3, 76.8 | 98.6, 100, 100 | 14.4, 37.9, 60.8 |
//! | words, without [stems](search#words) | 41.4, 45.8, 47.5 | 95.9, 100, 100 | 3.8, 8.5, 11.3 |
//!
//! Of 100 questions that were written after the model of `walla_minilm` was made, it finds 85.0 at
//! 5, and 75.0 of 60 paraphrases, like the whole model; words 41.0 and 1.7.
//!
//! Words cannot find these paraphrases, so vectors alone are better for them at 1. For direct
//! questions, both together are better than each alone.
//!
//! # Recall
//! 1. The host never waits: writing an entry is a change in memory, and [`Recall::update`] sends
//!    changes through a queue. No lock is held during a search.
//! 2. A search sees all changes that were sent before the ask, and none that was sent after it.
//!    Its result depends on nothing else, unless the [time limit](RecallOptions::max_time) is
//!    exceeded or vectors of [much lore](RecallOptions::max_fresh) are still being computed.
//! 3. An ask whose search runs is held back, with all later commands of its agent. Other
//!    agents do not wait. A cancel, a removal or an edit of the conversation ends the wait.
//! 4. Nothing is lost: without a result in time, the ask is sent without notes.
//!
//! ```
//! use walla_memory::{AgentRecall, Memory, Recall, RecallOptions, Search};
//!
//! let recall = Recall::new(RecallOptions::default());
//! let mut lore = Memory::from_lore_text("The mill wheel broke in spring.\n\nIt rains.")?;
//! recall.update(&mut lore)?;
//! let found = recall.search(Search::new("When did the mill break?", [lore.key()])).wait();
//! assert_eq!(found.texts().collect::<Vec<_>>(), ["The mill wheel broke in spring."]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod entry;
mod error;
mod index;
mod limits;
mod lore;
mod recall;
mod saved;
mod search;
mod select;
mod stem;
mod store;
mod total;
mod vectors;
mod words;

pub use entry::{Entry, EntryId, Tags};
pub use error::{EntryError, LoadError, LoreError, SearchError, UpdateError, VectorError};
pub use limits::{HALF_LIFE, StoreLimits};
pub use recall::{
    AgentRecall, EXCHANGE_TAG, EmbeddingState, Found, FoundEntry, Memory, MemoryKey,
    OBSERVATION_TAG, PendingSearch, Recall, RecallClient, RecallOptions, RecallStats, Search,
};
pub use saved::SavedStore;
pub use search::{BM25_B, BM25_K1, Hit, MAX_QUERY_WORDS, Query, RRF_K, Weights, search};
pub use select::select;
pub use store::{Added, Store};
pub use vectors::MAX_DIMENSIONS;
