use walla_types::SeqId;

use super::order::Order;
use super::{STEPS_MAX, StepWork, bucket_for};

/// An agent that decodes in this frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    /// The agent's sequence.
    pub seq: SeqId,
    /// Tokens granted: one in each of the first `steps` steps.
    pub steps: u32,
}

/// An agent whose prompt is prefilled, in part or completely, in this frame's first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefill {
    /// The agent's sequence.
    pub seq: SeqId,
    /// Prompt tokens granted in this frame.
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
    /// The rows of the pass are used up.
    Rows,
    /// The sequences of the pass are used up.
    Sequences,
    /// The prompt tokens of the frame are used up.
    PrefillTokens,
    /// The work would exceed the frame's device time.
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
#[error("{requests} requests, but the plan has room for {sequences_max} sequences")]
pub struct TooManyRequests {
    /// Requests given.
    pub requests: usize,
    /// Capacity of the plan.
    pub sequences_max: u32,
}

/// Work of one frame, filled by [`plan`](super::plan). Reusable; does not allocate after
/// construction.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) sequences_max: u32,
    pub(super) decode: Vec<Decode>,
    pub(super) prefill: Vec<Prefill>,
    pub(super) deferred: Vec<Deferred>,
    pub(super) steps: Vec<StepWork>,
    pub(super) predicted_micros: f32,
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
    pub(super) aged: Order,
    pub(super) due: Order,
    pub(super) prefill: Order,
    pub(super) spare: Order,
    /// Decoding requests, in the order of their grants.
    pub(super) decoding: Vec<u32>,
    /// Prefill requests, in the order of their grants.
    pub(super) reading: Vec<u32>,
    /// Predicted time of each step.
    pub(super) micros: Vec<f32>,
}

/// Work granted to a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    pub(super) steps: u32,
    pub(super) prefill: u32,
    pub(super) pages: u32,
    pub(super) deferral: Option<Deferral>,
}

impl Grant {
    pub(super) fn is_empty(&self) -> bool {
        self.steps == 0 && self.prefill == 0
    }
}

impl Plan {
    /// An empty plan for up to `sequences_max` agents.
    #[must_use]
    pub fn new(sequences_max: u32) -> Self {
        let agents = sequences_max as usize;
        let order = || Order::with_capacity(agents);
        Self {
            sequences_max,
            decode: Vec::with_capacity(agents),
            prefill: Vec::with_capacity(agents),
            deferred: Vec::with_capacity(agents),
            steps: Vec::with_capacity(STEPS_MAX as usize),
            predicted_micros: 0.0,
            scratch: Scratch {
                grants: Vec::with_capacity(agents),
                request_of: vec![(0, 0); agents],
                number: 0,
                aged: order(),
                due: order(),
                prefill: order(),
                spare: order(),
                decoding: Vec::with_capacity(agents),
                reading: Vec::with_capacity(agents),
                micros: Vec::with_capacity(STEPS_MAX as usize),
            },
        }
    }

    /// Agents that decode, ordered by descending number of steps: step `k` (from 0) evaluates the
    /// first `steps()[k].decode_rows`.
    #[must_use]
    pub fn decode(&self) -> &[Decode] {
        &self.decode
    }

    /// Agents that prefill, in the first step.
    #[must_use]
    pub fn prefill(&self) -> &[Prefill] {
        &self.prefill
    }

    /// Agents that requested work and get nothing, in request order.
    #[must_use]
    pub fn deferred(&self) -> &[Deferred] {
        &self.deferred
    }

    /// The steps to launch. None is empty; only the first has prompt tokens.
    #[must_use]
    pub fn steps(&self) -> &[StepWork] {
        &self.steps
    }

    /// Whether the frame has no work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The bucket of a step. `None` if the step does not exist or has more rows than the largest
    /// bucket.
    #[must_use]
    pub fn bucket(&self, step: usize) -> Option<u32> {
        self.steps.get(step).and_then(|work| bucket_for(work.rows()))
    }

    /// Predicted device time of all steps; 0 without a cost model.
    #[must_use]
    pub fn predicted_micros(&self) -> f32 {
        self.predicted_micros
    }
}
