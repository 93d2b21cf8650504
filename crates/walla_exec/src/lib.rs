//! Runs plans on a device: forward programs, the KV cache, prepared buckets and the ring of
//! outputs.
//!
//! [`Executor::load`] copies a model's weights to a device, builds one
//! [`Program`](walla_device::Program) for each bucket of rows from its
//! [`ModelSpec`](walla_model::ModelSpec) and has the device prepare them. From then on a step is:
//! fill a pinned block, one copy, one launch, and either results that the program writes to the
//! host's memory itself or one copy back behind an event. Nothing is allocated, captured or waited
//! for.

#![forbid(unsafe_code)]

mod buckets;
mod error;
mod evaluate;
mod executor;
mod fill;
mod load;
mod lockstep;
mod masks;
mod options;
mod program;
mod ring;
mod sequences;

pub use buckets::PreparedBucket;
pub use error::ExecError;
pub use evaluate::Evaluator;
pub use executor::Executor;
pub use fill::SamplingOf;
pub use lockstep::{Lockstep, StepNanos};
pub use options::ExecOptions;
pub use ring::Completed;
pub use sequences::{Sequences, StepError};
