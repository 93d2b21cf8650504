//! Pure planning: batches, micro-batches, the output map, the KV ledger and the frame plan.

pub mod batch;
pub mod frame;
pub mod kv;
pub mod output;
pub mod ubatch;

pub use batch::{Batch, BatchError, BatchLimits, CheckedBatch, Output, TokenInput};
pub use frame::{
    AGED_CHUNK_TOKENS, AgentState, BUCKETS, CostModel, Decode, Deferral, Deferred, Detail, Limits,
    LinearCost, Plan, PlanRequest, Prefill, STEPS_MAX, StepWork, TooManyRequests, VICTIMS_MAX,
    bucket_for, plan,
};
pub use kv::{
    Cell, Fence, InvalidLedger, KvCommand, KvCommands, KvLedger, LedgerError, LedgerOptions, PageId,
};
pub use output::{OutputError, OutputMap, RowTag};
pub use ubatch::{Row, Run, Split, Splitter, UBatch};
