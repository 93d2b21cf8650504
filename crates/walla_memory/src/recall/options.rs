//! Settings of the service and of agents.

use std::time::Duration;

use walla_runtime::Notes;

use crate::{MemoryKey, Query, Tags, Weights};

/// Tag of entries that are exchanges of a conversation.
pub const EXCHANGE_TAG: &str = "exchange";

/// Tag of entries that are observations of a conversation.
pub const OBSERVATION_TAG: &str = "observation";

/// Settings of a [`Recall`](crate::Recall).
#[derive(Clone, Debug, PartialEq)]
pub struct RecallOptions {
    /// Time that an ask waits for its search. Then it is sent without notes, and the loss is
    /// [counted](crate::RecallStats::late). A search of 100,000 entries takes 2 to 16 ms, the
    /// vector of a question 5 to 20 ms. A search waits for vectors in the first three quarters, and
    /// uses words alone then, so that the ask still has their entries. Default: 1 s.
    pub max_time: Duration,
    /// Entries of one memory whose vectors an ask waits for. More than these are embedded in the
    /// background, and are found by their words until then. Default: 16.
    pub max_fresh: usize,
    /// Computing time of the embedding model in each [frame](walla_runtime::EngineClient::frame).
    /// While it has work, the budget of each engine on a CPU is lower by as much, but at most by
    /// half, so give it at most half of the budget. `None`: no limit, for hosts without frames.
    /// Default: 1 ms.
    pub embed_budget: Option<Duration>,
    /// Time between frames that the embedding model grants itself while it has work, for hosts
    /// without frames. Default: none.
    pub frame_time: Option<Duration>,
    /// Maximum bytes of changes that wait for the thread. Default: 128 MiB.
    pub max_queued_bytes: usize,
}

impl RecallOptions {
    /// Time that a search waits for vectors. The rest of [`max_time`](Self::max_time) is for the
    /// search by words, and for the way back to the ask.
    pub(crate) fn max_vector_time(&self) -> Duration {
        self.max_time.saturating_sub(self.max_time / 4)
    }
}

impl Default for RecallOptions {
    fn default() -> Self {
        Self {
            max_time: Duration::from_secs(1),
            max_fresh: 16,
            embed_budget: Some(Duration::from_millis(1)),
            frame_time: None,
            max_queued_bytes: 128 << 20,
        }
    }
}

/// What an agent knows at its asks.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentRecall {
    /// Its memory and the lore that it may read.
    pub memories: Vec<MemoryKey>,
    /// Its tags: entries with `visible_to` need one of them.
    pub reader: Tags,
    /// Only entries with one of these tags. Default: all.
    pub tags: Tags,
    /// Maximum number of entries in a prompt. Default: 5.
    pub max_entries: usize,
    /// Maximum tokens of these entries in a prompt ([`Notes::max_tokens`]). Default: 128, so that
    /// they rarely displace old turns.
    pub max_tokens: u32,
    /// First line of the notes ([`Notes::heading`]). Default: `You know:`.
    pub heading: std::sync::Arc<str>,
    /// Number of its latest entries with [`EXCHANGE_TAG`] or [`OBSERVATION_TAG`] that are not
    /// searched: they are still in the conversation. Default: 6.
    pub recent_skipped: usize,
    /// Weights of a search. Default: those of [`Weights`], with a least cosine of
    /// [`COSINE_MIN`](Self::COSINE_MIN) and a margin of [`COSINE_MARGIN`](Self::COSINE_MARGIN).
    pub weights: Weights,
}

impl AgentRecall {
    /// Least cosine similarity of an entry that is found by its vector, so that small talk finds
    /// little: for all-MiniLM-L6-v2. With its vectors of 200 entries and 539 questions
    /// (`walla_memory/tests/data`) it costs 0.3 points of recall at 5 (82.4 instead of 82.7 %), and
    /// 25 sentences of small talk find 1.7 instead of 5 entries; 0.25 gives 80.5 % and 0.6.
    pub const COSINE_MIN: f32 = 0.2;

    /// Most distance to the best cosine similarity. With the same vectors and questions it costs
    /// nothing (82.4 %), and direct questions find 1.6 instead of 5.0 entries, all questions 3.5
    /// instead of 4.9; 0.1 gives 80.1 %. Similar facts in a prompt distract small models.
    pub const COSINE_MARGIN: f32 = 0.2;

    /// An agent that knows these memories, with default settings.
    #[must_use]
    pub fn new(memories: impl IntoIterator<Item = MemoryKey>) -> Self {
        Self { memories: memories.into_iter().collect(), ..Self::default() }
    }
}

impl Default for AgentRecall {
    fn default() -> Self {
        Self {
            memories: Vec::new(),
            reader: Tags::default(),
            tags: Tags::default(),
            max_entries: Query::MOST,
            max_tokens: 128,
            heading: Notes::new([""; 0]).heading,
            recent_skipped: 6,
            weights: Weights {
                cosine_min: Self::COSINE_MIN,
                cosine_margin: Self::COSINE_MARGIN,
                ..Weights::default()
            },
        }
    }
}
