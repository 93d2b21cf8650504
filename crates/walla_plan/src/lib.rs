//! Pure planning: batches, micro-batches, the output map, the KV ledger and the frame plan.
//!
//! Nothing here knows a clock, a device, a hash order or a random number: the same calls give the
//! same answers. Nothing allocates after construction. A host decides here, a device runs it.
//!
//! | question | answer | known from llama.cpp as |
//! |---|---|---|
//! | who gets how many rows of this frame? | [`plan`] fills a [`Plan`] | – |
//! | how much device time has this frame? | [`Governor`] makes [`Limits`] | – |
//! | which tokens are evaluated? | [`Batch`], checked into a [`CheckedBatch`] | `llama_batch`, `llama_batch_allocr::init` |
//! | what does one forward pass take? | [`Split`] fills a [`UBatch`] | `split_simple`, `split_equal` |
//! | which output row is whose? | [`OutputMap`] | `output_ids`, `out_ids`, `llama_get_logits_ith` |
//! | where do keys and values lie? | [`KvLedger`], whose [`KvCommands`] a device runs | `llama_memory_seq_rm`, `_cp`, `_keep`, `_add` |
//!
//! # Examples
//! One frame, from wishes to micro-batches: an agent speaks, another one reads its prompt.
//! ```
//! use walla_plan::{
//!     AgentState, Batch, BatchLimits, KvCommands, KvLedger, LedgerOptions, Limits, Output, OutputMap, Plan,
//!     PlanRequest, Splitter, TokenInput, UBatch, plan,
//! };
//! use walla_types::{SeqId, TokenId};
//!
//! let (greta, finn) = (SeqId(0), SeqId(1));
//! let mut ledger = KvLedger::new(LedgerOptions::default())?;
//! let mut commands = KvCommands::with_capacity(64);
//! ledger.append(greta, 20, &mut commands)?; // evaluated in an earlier frame
//! ledger.retire(1);
//!
//! // 1. Who gets what. Steps after the first are further tokens of those who speak.
//! let prompt: Vec<TokenId> = (100..130).map(TokenId).collect();
//! let wishes = [
//!     PlanRequest::new(greta, AgentState::Decoding),
//!     PlanRequest::new(finn, AgentState::Prefill { tokens: prompt.len() as u32 }),
//! ];
//! let mut frame = Plan::new(64);
//! plan(&wishes, &ledger, &Limits { steps_max: 2, ..Limits::default() }, &mut frame)?;
//! assert_eq!(frame.steps().len(), 2);
//!
//! let limits = BatchLimits::new(32_000, 64, 512);
//! let (mut batch, mut splitter) = (Batch::new(limits), Splitter::new(limits));
//! let (mut outputs, mut ubatch) = (OutputMap::new(limits), UBatch::with_capacity(128));
//! for (step, work) in frame.steps().iter().enumerate() {
//!     // 2. The tokens of this step. Greta's is the one that the device sampled last.
//!     batch.clear();
//!     for decode in &frame.decode()[..work.decode_rows as usize] {
//!         batch.push(TokenInput::LastSampled, None, decode.seq, Output::Sample)?;
//!     }
//!     for prefill in frame.prefill().iter().filter(|_| step == 0) {
//!         ledger.reserve(prefill.seq, prefill.prompt_tokens, &mut commands)?;
//!         for (place, token) in prompt[..prefill.tokens as usize].iter().enumerate() {
//!             let is_last = prefill.finishes() && place + 1 == prompt.len();
//!             let output = if is_last { Output::Sample } else { Output::None };
//!             batch.push(TokenInput::Id(*token), None, prefill.seq, output)?;
//!         }
//!     }
//!     // 3. Their cells, then the forward passes and where the outputs will be.
//!     let checked = batch.check(&ledger)?;
//!     ledger.append_batch(checked, &mut commands)?;
//!     commands.clear(); // a device would run them here, before the forward pass
//!     let mut split = checked.split(&mut splitter, &mut outputs);
//!     while split.ragged(128, &mut ubatch) {
//!         assert_eq!(ubatch.len(), work.rows()); // and `ubatch` here
//!     }
//!     ledger.retire(2 + step as u64);
//! }
//! assert_eq!((ledger.len(greta), ledger.len(finn)), (22, 30));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod batch;
pub mod frame;
pub mod governor;
pub mod kv;
pub mod output;
pub mod ubatch;

pub use batch::{Batch, BatchError, BatchLimits, CheckedBatch, Output, TokenInput};
pub use frame::{
    AGED_CHUNK_TOKENS, AgentState, BUCKETS, CostModel, Decode, Deferral, Deferred, Detail, Limits,
    LinearCost, Plan, PlanRequest, Prefill, STEPS_MAX, StepWork, TooManyRequests, bucket_for, plan,
};
pub use governor::{Governor, GovernorOptions, GovernorStats, StepCost, SubmittedStep};
pub use kv::{
    Cell, Fence, InvalidLedger, KvCommand, KvCommands, KvLedger, LedgerError, LedgerOptions, PageId,
};
pub use output::{OutputError, OutputMap};
pub use ubatch::{Row, Run, Split, Splitter, UBatch};
