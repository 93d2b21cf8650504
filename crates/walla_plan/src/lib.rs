//! Pure planning: batches, micro-batches, the output map, the KV ledger and the plan of a step.
//!
//! The crate uses no clock, no device, no hash order and no random numbers: the same calls return
//! the same results. Nothing allocates after construction. The host plans with this crate; a device
//! executes the plan.
//!
//! | question | type | counterpart in llama.cpp |
//! |---|---|---|
//! | Which agents get rows in this step, and how many? | [`plan`] fills a [`Plan`] | – |
//! | How much device time may this frame use? | [`Governor`] produces [`Limits`] | – |
//! | Which tokens are evaluated? | [`Batch`], validated as [`CheckedBatch`] | `llama_batch`, `llama_batch_allocr::init` |
//! | Which tokens does one forward pass take? | [`Split`] fills a [`UBatch`] | `split_simple`, `split_equal` |
//! | Which output row belongs to which token? | [`OutputMap`] | `output_ids`, `out_ids`, `llama_get_logits_ith` |
//! | Where are keys and values stored? | [`KvLedger`]; a device executes its [`KvCommands`] | `llama_memory_seq_rm`, `_cp`, `_add` |
//!
//! # Examples
//! One step, from requests to a micro-batch: one agent decodes, another one prefills its prompt.
//! ```
//! use walla_plan::{
//!     NextWork, Batch, BatchLimits, KvCommands, KvLedger, LedgerOptions, Limits, Output, OutputMap, Plan,
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
//! // 1. Plan the step.
//! let prompt: Vec<TokenId> = (100..130).map(TokenId).collect();
//! let requests = [
//!     PlanRequest::new(greta, NextWork::Decoding),
//!     PlanRequest::new(finn, NextWork::Prefill { tokens: prompt.len() as u32 }),
//! ];
//! let mut planned = Plan::new(64);
//! plan(&requests, &ledger, &Limits::default(), &mut planned)?;
//! assert_eq!(planned.step().rows(), 31);
//!
//! // 2. Fill the batch. Greta's input is the token that was sampled last.
//! let limits = BatchLimits::new(32_000, 64, 512);
//! let mut batch = Batch::new(limits);
//! for seq in planned.decode() {
//!     batch.push(TokenInput::LastSampled, None, *seq, Output::Sample)?;
//! }
//! for prefill in planned.prefill() {
//!     ledger.reserve(prefill.seq, prefill.prompt_tokens, &mut commands)?;
//!     for (place, token) in prompt[..prefill.tokens as usize].iter().enumerate() {
//!         let is_last = prefill.finishes() && place + 1 == prompt.len();
//!         let output = if is_last { Output::Sample } else { Output::None };
//!         batch.push(TokenInput::Id(*token), None, prefill.seq, output)?;
//!     }
//! }
//!
//! // 3. Allocate the cells, then split into forward passes and assign output rows.
//! let checked = batch.check(&ledger)?;
//! ledger.reserve_batch(checked, &mut commands)?;
//! commands.clear(); // a device would run them here, before the forward pass
//! let (mut splitter, mut outputs) = (Splitter::new(limits), OutputMap::new(limits));
//! let mut ubatch = UBatch::with_capacity(128);
//! let mut split = checked.split(&mut splitter, &mut outputs);
//! while split.ragged(128, &mut ubatch) {
//!     assert_eq!(ubatch.len(), planned.step().rows()); // and `ubatch` here
//! }
//! ledger.append_reserved(checked);
//! ledger.retire(2);
//! assert_eq!((ledger.len(greta), ledger.len(finn)), (21, 30));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod batch;
mod cache_size;
pub mod defaults;
pub mod frame;
pub mod governor;
pub mod kv;
pub mod output;
pub mod ubatch;

pub use batch::{Batch, BatchError, BatchLimits, CheckedBatch, Output, TokenInput};
pub use cache_size::{CacheLimit, CacheNeeds, CacheSize};
pub use frame::{
    AGED_CHUNK_TOKENS, BUCKETS, CHUNK_WAIT_FRAMES, CostModel, Deferral, Deferred, Detail, Limits,
    LinearCost, NextWork, Plan, PlanRequest, Prefill, StepWork, TooManyRequests, bucket_for, plan,
};
pub use governor::{ChargedStep, Governor, GovernorOptions, StepCost};
pub use kv::{Fence, InvalidLedger, KvCommands, KvLedger, LedgerError, LedgerOptions, PageId};
pub use output::{OutputError, OutputMap};
pub use ubatch::{Row, Run, Split, Splitter, UBatch};
