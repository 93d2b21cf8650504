use walla_types::SeqId;

use super::StepWork;
use super::order::Order;

/// An agent whose prompt is prefilled, in part or completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefill {
    /// The agent's sequence.
    pub seq: SeqId,
    /// Prompt tokens granted.
    pub tokens: u32,
    /// All remaining tokens of the prompt; the plan has counted their pages.
    /// [`reserve`](crate::KvLedger::reserve) the pages before the first chunk, so that the prompt
    /// can finish independently of other agents.
    pub prompt_tokens: u32,
}

impl Prefill {
    /// Whether the prompt ends with this chunk, so that its last token is an output.
    #[must_use]
    pub const fn finishes(&self) -> bool {
        self.tokens == self.prompt_tokens
    }
}

/// Reason why an agent gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deferral {
    /// The rows of the step are used up.
    Rows,
    /// The sequences of the step are used up.
    Sequences,
    /// The prompt tokens of the step are used up.
    PrefillTokens,
    /// The work would exceed the device time.
    Budget,
    /// Not enough free pages. Passed fences free some; otherwise a sequence must be preempted. The
    /// host chooses which.
    Pages {
        /// Pages that the agent needs.
        wanted_pages: u32,
    },
    /// The context limit is reached: shift, or end the reply.
    ContextFull,
    /// The sequence is unknown to the ledger.
    UnknownSequence,
    /// An earlier request of the list has the same sequence.
    Duplicate,
}

/// An agent that gets nothing, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// The agent's sequence.
    pub seq: SeqId,
    /// The reason.
    pub reason: Deferral,
}

/// More requests than the plan has capacity for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requests} requests, but the plan has room for {max_sequences} sequences")]
pub struct TooManyRequests {
    /// Requests given.
    pub requests: usize,
    /// Capacity of the plan.
    pub max_sequences: u32,
}

/// Work of one step, filled by [`plan`](super::plan). Reusable; does not allocate after
/// construction.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) max_sequences: u32,
    pub(super) decode: Vec<SeqId>,
    pub(super) prefill: Vec<Prefill>,
    pub(super) deferred: Vec<Deferred>,
    pub(super) step: StepWork,
    pub(super) scratch: Scratch,
}

/// Scratch memory of the planner.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    /// Grants of each request.
    pub(super) grants: Vec<Grant>,
    /// For each sequence, the last plan that contained it and the index of its request there.
    pub(super) request_of: Vec<(u64, u32)>,
    /// Number of this plan.
    pub(super) number: u64,
    /// [`AGED`], [`DUE`], [`PROMPTS`] and [`SPARE`].
    pub(super) orders: [Order; 4],
    /// Prefill requests, in the order of their grants.
    pub(super) reading: Vec<u32>,
}

/// Requests that have waited too long, longest first.
pub(super) const AGED: usize = 0;
/// Agents whose next token is due.
pub(super) const DUE: usize = 1;
/// Prompts.
pub(super) const PROMPTS: usize = 2;
/// Agents that speak ahead of time, and all work in the background.
pub(super) const SPARE: usize = 3;

/// Work granted to a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    /// The decode row, or prompt tokens.
    pub(super) rows: u32,
    pub(super) pages: u32,
    pub(super) deferral: Option<Deferral>,
}

impl Plan {
    /// An empty plan for up to `max_sequences` agents.
    #[must_use]
    pub fn new(max_sequences: u32) -> Self {
        let agents = max_sequences as usize;
        Self {
            max_sequences,
            decode: Vec::with_capacity(agents),
            prefill: Vec::with_capacity(agents),
            deferred: Vec::with_capacity(agents),
            step: StepWork::default(),
            scratch: Scratch {
                grants: Vec::with_capacity(agents),
                request_of: vec![(0, 0); agents],
                number: 0,
                orders: std::array::from_fn(|_| Order::with_capacity(agents)),
                reading: Vec::with_capacity(agents),
            },
        }
    }

    /// Sequences of the agents that decode: one token each.
    #[must_use]
    pub fn decode(&self) -> &[SeqId] {
        &self.decode
    }

    /// Agents that prefill.
    #[must_use]
    pub fn prefill(&self) -> &[Prefill] {
        &self.prefill
    }

    /// Agents that requested work and get nothing, in request order.
    #[must_use]
    pub fn deferred(&self) -> &[Deferred] {
        &self.deferred
    }

    /// The work of the step; empty if no agent gets a row.
    #[must_use]
    pub fn step(&self) -> StepWork {
        self.step
    }

    /// Whether the step has no work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.step.is_empty()
    }
}
