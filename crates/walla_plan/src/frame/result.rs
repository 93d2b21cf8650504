use walla_types::SeqId;

use super::order::Order;
use super::{STEPS_MAX, StepWork, bucket_for};

/// An agent that speaks in this frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    /// Its sequence.
    pub seq: SeqId,
    /// Tokens that it gets: one in each of the first `steps` steps.
    pub steps: u32,
}

/// An agent that reads a part of its prompt in this frame's first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefill {
    /// Its sequence.
    pub seq: SeqId,
    /// Tokens that it reads.
    pub tokens: u32,
    /// Tokens of the whole rest of its prompt, for which pages were counted:
    /// [`reserve`](crate::KvLedger::reserve) them before the first chunk, and the prompt can be
    /// finished whoever comes.
    pub prompt_tokens: u32,
}

impl Prefill {
    /// Whether the prompt ends with this chunk, so that its last token is an output.
    #[must_use]
    pub const fn finishes(&self) -> bool {
        self.tokens == self.prompt_tokens
    }
}

/// Why an agent gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deferral {
    /// Others took the rows of the pass.
    Rows,
    /// Others took the sequences of the pass.
    Sequences,
    /// Others took the prompt tokens of the frame.
    PrefillTokens,
    /// It would not finish within the frame's device time.
    Budget,
    /// Pages are missing: they come with fences, or somebody has to give up a cache. Who that is,
    /// the host decides.
    Pages {
        /// Pages that it needs.
        wanted_pages: u32,
    },
    /// It does not fit in its context: shift, or end the reply.
    ContextFull,
    /// The ledger knows no such sequence.
    UnknownSequence,
    /// The sequence has asked before in the same list.
    Duplicate,
}

/// An agent that gets nothing, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Its sequence.
    pub seq: SeqId,
    /// Why.
    pub reason: Deferral,
}

/// More requests than the plan was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requests} requests, but the plan has room for {sequences_max} sequences")]
pub struct TooManyRequests {
    /// Requests given.
    pub requests: usize,
    /// Sequences that the plan was made for.
    pub sequences_max: u32,
}

/// What a frame does: filled by [`plan`](super::plan), reusable, without allocation after
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

/// Working memory of the planner.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    /// What each request has got so far.
    pub(super) grants: Vec<Grant>,
    /// For each sequence the plan that saw it last, and the index of its request there.
    pub(super) request_of: Vec<(u64, u32)>,
    /// Number of this plan.
    pub(super) number: u64,
    pub(super) aged: Order,
    pub(super) due: Order,
    pub(super) prefill: Order,
    pub(super) spare: Order,
    /// Requests that decode, in the order in which they were granted.
    pub(super) decoding: Vec<u32>,
    /// Requests that read prompts, likewise.
    pub(super) reading: Vec<u32>,
    /// Predicted time of each step.
    pub(super) micros: Vec<f32>,
}

/// What a request has got so far.
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

    /// Agents that speak, those with the most steps first: step `k` (from 0) evaluates the first
    /// `steps()[k].decode_rows`.
    #[must_use]
    pub fn decode(&self) -> &[Decode] {
        &self.decode
    }

    /// Agents that read prompts, in the first step.
    #[must_use]
    pub fn prefill(&self) -> &[Prefill] {
        &self.prefill
    }

    /// Agents that want something and get nothing, in request order.
    #[must_use]
    pub fn deferred(&self) -> &[Deferred] {
        &self.deferred
    }

    /// The steps to launch, none of them empty; only the first has prompt tokens.
    #[must_use]
    pub fn steps(&self) -> &[StepWork] {
        &self.steps
    }

    /// Whether the frame does nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The bucket of a step; `None` if there is no such step, or it has more rows than any bucket.
    #[must_use]
    pub fn bucket(&self, step: usize) -> Option<u32> {
        self.steps.get(step).and_then(|work| bucket_for(work.rows()))
    }

    /// Device time of all steps as the cost model sees it; 0 without one.
    #[must_use]
    pub fn predicted_micros(&self) -> f32 {
        self.predicted_micros
    }
}
