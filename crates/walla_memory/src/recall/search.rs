//! Searches and their results.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use walla_embed::answer::{Gone, Wanted};

use crate::{Entry, EntryId, MemoryKey, Query, Tags, Weights};

/// A search of a host. An ask of an [agent with memories](crate::RecallClient::set_agent) searches
/// by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// Text whose words and meaning are searched: at most 4 KiB of it count.
    pub text: Arc<str>,
    /// The memories to search, in the order that decides between equal entries.
    pub memories: Vec<MemoryKey>,
    /// Tags of the reader. Entries with `visible_to` need one of them.
    pub reader: Tags,
    /// Only entries with one of these tags. Empty: all.
    pub tags: Tags,
    /// Game time, for ages.
    pub now: Duration,
    /// Maximum number of entries. Default: 5.
    pub max_entries: usize,
    /// Latest entries from the conversation that are left out
    /// ([`AgentRecall::recent_skipped`](crate::AgentRecall::recent_skipped)). Default: 0.
    pub recent_skipped: usize,
    /// Weights of the parts of a score.
    pub weights: Weights,
}

/// Bytes of a search's text that count.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// The part of a text that is searched.
pub(crate) fn searched(text: &str) -> Arc<str> {
    // A pasted page would cost an embedding model its whole budget.
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].into()
}

impl Search {
    /// A search in these memories, for a reader without tags, at game time zero.
    #[must_use]
    pub fn new(text: &str, memories: impl IntoIterator<Item = MemoryKey>) -> Self {
        Self {
            text: searched(text),
            memories: memories.into_iter().collect(),
            reader: Tags::default(),
            tags: Tags::default(),
            now: Duration::ZERO,
            max_entries: Query::MOST,
            recent_skipped: 0,
            weights: Weights::default(),
        }
    }
}

/// A found entry.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundEntry {
    /// Its memory.
    pub memory: MemoryKey,
    /// Its id there.
    pub id: EntryId,
    /// The entry.
    pub entry: Entry,
    /// Weighted sum of both rankings. Only comparable within a search.
    pub score: f64,
    /// Cosine similarity with the text, if a vector was compared and matched.
    pub cosine: Option<f32>,
}

/// Result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The best first, without two of equal text.
    pub entries: Vec<FoundEntry>,
    /// Whether vectors were compared: an embedding model is in use, and its vector of the text came
    /// in time.
    pub has_vectors: bool,
}

impl Found {
    /// The texts, the best first.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|found| &*found.entry.text)
    }
}

/// A search that runs. It is a future; [`try_recv`](Self::try_recv) never waits,
/// [`wait`](Self::wait) blocks. Without entries in time, or if the service has ended, the result is
/// empty.
#[must_use = "dropping it cancels the search"]
#[derive(Debug)]
pub struct PendingSearch {
    pub(crate) wanted: Wanted<Found>,
}

impl PendingSearch {
    /// The result, once. `None`: not yet.
    pub fn try_recv(&mut self) -> Option<Found> {
        self.wanted.try_take().map(Result::unwrap_or_default)
    }

    /// Blocks the calling thread until the search has ended: for tools and tests, not for a frame.
    #[must_use]
    pub fn wait(self) -> Found {
        pollster::block_on(self)
    }
}

impl Future for PendingSearch {
    type Output = Found;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Found> {
        self.wanted.poll(context).map(|found| found.unwrap_or_else(|Gone| Found::default()))
    }
}
