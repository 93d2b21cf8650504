//! The CPU device: streams, events and replayable programs over scored SIMD kernel variants.
//!
//! [`CpuDevice`] implements the [`Device`](walla_device::Device) contract on the host's own cores. It is the device of
//! machines without a GPU, the one that takes over when a GPU is lost, and, in its [`Variant::Scalar`], the oracle that
//! every other kernel of the project is tested against.
//!
//! ```text
//! CpuDevice (owner's thread)      command ring      executor thread          pool workers
//!   load, prepare: directly   ┌─────────────────┐
//!   upload, launch, record ──▶│ one FIFO        │──▶ Machine::execute ──▶ claim tiles of each op
//!   poll: one atomic load     └─────────────────┘       completes events
//! ```
//!
//! All streams share one FIFO: that order satisfies every stream and every event, since an event can only be waited for
//! after it was recorded.
//!
//! # Results do not depend on company
//! Each output number is computed by the same operations in the same order, whatever the number of rows in the step, the
//! number of threads or the tile that it falls in. So a sequence's logits are bit-identical alone and in any batch.

mod backend;
mod blocks;
mod cache;
mod check;
mod command;
mod device;
mod executor;
mod forward;
#[cfg(test)]
mod int_dot;
mod kernels;
mod machine;
mod math;
mod matrix;
mod memory;
mod options;
mod panels;
mod pool;
mod quantise;
mod ring;
mod sample;
mod scalar;
mod simd;
mod step_check;
mod sync;
mod tile;
mod workspace;

pub use backend::CpuBackend;
pub use device::CpuDevice;
pub use options::{CpuOptions, Variant};
