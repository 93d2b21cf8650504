//! Pure planning: batches, micro-batches, the output map, the KV ledger and the frame plan.

pub mod kv;

pub use kv::{
    Cell, Fence, InvalidLedger, KvCommand, KvCommands, KvLedger, LedgerError, LedgerOptions, PageId,
};
