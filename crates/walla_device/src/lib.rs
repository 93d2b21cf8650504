//! The device contract: what a decoder asks of a machine that runs it.
//!
//! A [`Device`] runs programs asynchronously. A [`Program`] is a forward pass as data: a list of
//! fused [`Op`]s over activation [`Slot`]s, built once for each shape bucket. Everything about one
//! step that changes (tokens, positions, page tables, sampler parameters) lies in one packed block,
//! the [step block](step), at a fixed address, so a program that was prepared once (captured as a
//! graph, where the device has graphs) is replayed without change.
//!
//! ```text
//! load:  load_matrix / load_vector / load_rope ▶ create_cache ▶ create_buffer / create_host ▶ prepare(programs)
//! step:  write_host ▶ upload ▶ launch ▶ record ┐            (compute stream)
//!                                   wait ◀────┘ download ▶ record   (copy stream)
//!    or  write_host ▶ upload ▶ launch_watched
//! later: poll ▶ read_host
//! ```
//!
//! # Rules
//! 1. A device is owned by one thread. Once programs are prepared, only [`Device::resize_cache`],
//!    [`Device::synchronise`] and dropping the device may block.
//! 2. Nothing is freed before the device is dropped: no handle can dangle, and memory in flight
//!    belongs to the device.
//! 3. A host buffer with a copy in flight cannot be read or written: [`DeviceError::HostInFlight`].
//!    Completion is known through streams and events: if an upload on stream A is followed by a
//!    record of event e there, stream B waits for e and then records f, a completed f makes the
//!    upload's buffer free. Where a device [writes results into the host's
//!    memory](Device::create_mapped), a step is `upload ▶ launch_watched`: no copy, no record.
//! 4. Work on one stream runs in order; streams are ordered among themselves by events alone.
//! 5. After [`DeviceError::Lost`] every further call answers `Lost` and touches no driver.
//! 6. A row of a step depends on nothing else in the step: not on other rows, their number, or the
//!    bucket.
//!
//! [`Faulty`] wraps any device and breaks it on purpose, by seed. [`HashDevice`](hash::HashDevice)
//! computes hashes instead of a model, in virtual time: tests run millions of steps on it.

#![forbid(unsafe_code)]

mod aligned;
mod cache;
mod counters;
mod device;
mod error;
pub mod faulty;
pub mod hash;
mod info;
mod lost;
mod op;
mod philox;
mod registry;
mod sharing;
pub mod step;
mod weights;

pub use cache::{CacheCommand, CacheDesc, CacheLayer, KvType};
pub use counters::{DeviceCounters, GraphFallbacks};
pub use device::{
    BufferId, CacheId, Device, EventId, GraphId, HostId, LaunchMode, MatrixDesc, MatrixId,
    MatrixUse, MemoryUse, Prepared, RopeDesc, RopeId, StreamId, StreamPriority, VectorId, Watch,
};
pub use error::DeviceError;
pub use faulty::{FaultPlan, Faulty, FaultyBackend, VirtualClock};
pub use info::{DeviceInfo, DeviceKind, GpuFacts};
pub use lost::abandon;
pub use op::{HeadShape, Linear, Norm, Op, Phase, Program, Slot, SlotDesc};
pub use philox::{philox4x32, unit_interval};
pub use registry::{Backend, OpenOptions, Registry, RegistryError};
pub use sharing::{GpuContext, GpuHandle, Support};
pub use weights::WeightSource;
