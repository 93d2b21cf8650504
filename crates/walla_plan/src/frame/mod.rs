//! The plan of a step: which agents get how many rows of it, which are deferred, and why.
//!
//! [`plan`] is a pure function of the requests, the ledger and the limits. It changes neither: the
//! caller appends to the ledger, fills a batch and launches it. A frame is planned step by step.
//!
//! # Order
//! Capacity is granted in this order. Within each stage agents are ordered by priority, then by
//! lateness, then by waiting time, then by sequence id.
//! 1. **Aged** agents, which have waited [`Limits::max_wait_frames`] frames: longest wait first,
//!    one row each (a prompt gets a chunk of up to [`AGED_CHUNK_TOKENS`]), in at most an eighth of
//!    the rows. The first one gets its row even beyond the budget, so a budget that is too small
//!    cannot starve an agent.
//! 2. **Due** decoding agents, one row each. They have priority over all prompts.
//! 3. Prompts, in chunks.
//! 4. **Spare**: decoding agents that are ahead of their voice, and agents in the background.
//!
//! Work that does not fit (rows, sequences, chunk, pages, predicted time) is not started and is
//! listed with the reason.
//!
//! # Waiting is bounded
//! Among `n` agents, a request that pages and context allow gets a row after at most
//! `max_wait_frames + n` frames without debt: the agent with the longest wait is served first, and
//! every such frame serves at least one aged agent, even beyond the budget. With debts the bound is
//! that of the [governor](crate::governor), rule 4.

mod agents;
mod cost;
mod grant;
mod order;
mod planner;
mod result;

pub use agents::{AGED_CHUNK_TOKENS, CHUNK_WAIT_FRAMES, Detail, Limits, NextWork, PlanRequest};
pub(crate) use cost::bucket_index;
pub use cost::{BUCKETS, CostModel, LinearCost, StepWork, bucket_for};
pub use planner::plan;
pub use result::{Deferral, Deferred, Plan, Prefill, TooManyRequests};
