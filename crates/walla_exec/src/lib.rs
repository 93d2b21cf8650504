//! Runs plans on a device: forward programs, the KV cache, prepared buckets and the ring of
//! outputs.
//!
//! [`Executor::load`] copies a model's weights to a device, builds one
//! [`Program`](walla_device::Program) per bucket of rows from its
//! [`ModelSpec`](walla_model::ModelSpec), and has the device prepare them. A step then fills one
//! pinned block, enqueues one copy and one launch, and returns its results either through mapped
//! host memory or through one copy back that an event completes. A step allocates nothing, captures
//! nothing and never waits.

#![forbid(unsafe_code)]

mod buckets;
mod error;
mod evaluate;
mod executor;
mod fill;
mod hidden;
mod load;
mod lockstep;
mod masks;
mod options;
mod program;
mod ring;
mod sequences;
mod transfer;

pub use buckets::PreparedBucket;
pub use error::ExecError;
pub use evaluate::Evaluator;
pub use executor::Executor;
pub use fill::{Draw, DrawOf};
pub use hidden::LastHidden;
pub use load::{FileSource, op_kinds};
pub use lockstep::{Lockstep, StepNanos};
pub use options::{ExecOptions, Target, cache_needs};
pub use ring::Completed;
pub use sequences::{Sequences, StepError};
pub use transfer::TRANSFER_BUFFERS;
