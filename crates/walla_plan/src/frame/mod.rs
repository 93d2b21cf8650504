//! The frame plan: which agents get how many rows of the coming frame, and which have to wait, and
//! why.
//!
//! [`plan`] is a pure function of the agents' wishes, the ledger and the limits. It changes
//! nothing: the caller appends to the ledger, fills batches and launches them.
//!
//! # Order
//! The limits are given away in this order; within a step of it by priority, then by lateness, then
//! by waiting time, then by sequence id.
//! 1. **Aged** agents, that have waited [`Limits::wait_frames_max`] frames: longest wait first, one
//!    row each (a prompt gets a chunk of up to [`AGED_CHUNK_TOKENS`]), in at most an eighth of the
//!    rows. The first gets its row even beyond the budget, so nobody waits for ever for a budget
//!    that is too small.
//! 2. **Due** speakers, one row each: no prompt can take it from them.
//! 3. More steps for speakers that are late by more than one token.
//! 4. Prompts, in chunks.
//! 5. **Spare**: speakers that are ahead of their voice, and agents in the background.
//! 6. More steps for speakers without a voice rate.
//!
//! Whatever does not fit (rows, sequences, chunk, pages, predicted time) is not started, and is
//! listed with the reason.
//!
//! # Waiting is bounded
//! Among `n` agents, one that wants something that pages and context allow gets a row after at most
//! `wait_frames_max + n` frames: whoever has waited longest is asked first, and every frame serves
//! at least one aged agent, even against the budget.

mod agents;
mod cost;
mod grant;
mod order;
mod planner;
mod result;

pub use agents::{AGED_CHUNK_TOKENS, AgentState, Detail, Limits, PlanRequest};
pub(crate) use cost::bucket_index;
pub use cost::{BUCKETS, CostModel, LinearCost, STEPS_MAX, StepWork, bucket_for};
pub use planner::plan;
pub use result::{Decode, Deferral, Deferred, Plan, Prefill, TooManyRequests};
