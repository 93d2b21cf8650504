//! Memories and lore for the agents of an engine, found at each ask on a thread of its own.
//!
//! | type | owner | purpose |
//! |---|---|---|
//! | [`Memory`] | host | entries of one agent, or lore that agents share, with the changes since the last update |
//! | [`Recall`] | host, shared | handle of the thread, which keeps an index and vectors of each memory |
//! | [`RecallClient`] | host | an engine's client that puts found entries into asks as [`Notes`](walla_runtime::Notes) |
//! | [`AgentRecall`] | client | the memories that an agent knows, and how much of them |
//!
//! # Rules
//! 1. The host never waits: writing an entry is a change in memory, and [`Recall::update`] sends
//!    changes through a queue. No lock is held during a search.
//! 2. A search sees all changes that were sent before the ask, and none that was sent after it.
//!    Its result depends on nothing else, unless the [time limit](RecallOptions::max_time) is
//!    exceeded or vectors of [much lore](RecallOptions::max_fresh) are still being computed.
//! 3. An ask for which a search runs is held back, with all later commands of its agent. Other
//!    agents do not wait. A cancel, a removal or an edit of the conversation ends the wait.
//! 4. Nothing is lost: without a result in time, the ask is sent without notes.
//!
//! # Examples
//! ```
//! use walla_recall::{AgentRecall, Memory, Recall, RecallOptions, Search};
//!
//! let recall = Recall::new(RecallOptions::default());
//! let mut lore = Memory::from_lore_text("The mill wheel broke in spring.\n\nIt rains.")?;
//! recall.update(&mut lore)?;
//! let found = recall.search(Search::new("When did the mill break?", [lore.key()])).wait();
//! assert_eq!(found.texts().collect::<Vec<_>>(), ["The mill wheel broke in spring."]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod client;
mod error;
mod held;
mod memory;
mod mirror;
mod options;
mod recall;
mod search;
mod vectors;
mod worker;

pub use client::RecallClient;
pub use error::UpdateError;
pub use memory::{Memory, MemoryKey};
pub use options::{AgentRecall, EXCHANGE_TAG, OBSERVATION_TAG, RecallOptions};
pub use recall::{Recall, RecallStats};
pub use search::{Found, FoundEntry, PendingSearch, Search};
pub use walla_memory::{
    Added, Entry, EntryError, EntryId, LoadError, LoreError, SavedStore, StoreLimits, Tags,
};
