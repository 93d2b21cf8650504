//! The device interface: the operations that the decoder requires of a device.
//!
//! A [`Device`] runs programs asynchronously. A [`Program`] is a forward pass as data: a list of
//! fused [`Op`]s over activation [`Slot`]s, built once for each shape bucket. All inputs that
//! change per step (tokens, positions, page tables, sampler parameters) are stored in one packed
//! block, the [step block](step), at a fixed address. A program that was prepared once (captured as
//! a graph, if the device has graphs) is replayed without change.
//!
//! ```text
//! load:  load_matrix / load_vector / load_rope ▶ create_cache ▶ create_buffer / create_host ▶ prepare(programs)
//! step:  write_host ▶ upload ▶ launch ▶ record ┐            (compute stream)
//!                                   wait ◀────┘ download ▶ record   (copy stream)
//!    or  write_host ▶ upload ▶ launch_with_flag
//! later: poll ▶ read_host
//! files: read_cache ▶ record, later poll ▶ read_host; write_host ▶ write_cache ▶ record
//! ```
//!
//! # Rules
//! 1. One thread owns a device. After programs are prepared, only [`Device::resize_cache`],
//!    [`Device::synchronize`], [`Device::synchronize_event`] and dropping the device may block.
//! 2. Nothing is freed before the device is dropped: no handle can dangle, and the device owns
//!    memory in flight.
//! 3. A host buffer with a copy in flight cannot be read or written: [`DeviceError::HostInFlight`].
//!    Completion is observed through streams and events: if an upload on stream A is followed by a
//!    record of event e there, and stream B waits for e and then records f, a completed f frees the
//!    upload's buffer. If a device [writes results into host memory](Device::create_mapped), a step
//!    is `upload ▶ launch_with_flag`, without copy and record.
//! 4. Work on one stream runs in order. Only events order different streams.
//! 5. After [`DeviceError::Lost`] every further call returns `Lost` and makes no driver call.
//! 6. The result of a row depends only on its sequence: not on rows of other sequences, the number
//!    of rows, or the bucket.

#![forbid(unsafe_code)]

mod cache;
mod counters;
mod device;
mod error;
mod handles;
mod image;
mod info;
mod lost;
pub mod op;
mod philox;
mod registry;
mod sharing;
mod speed;
pub mod step;
mod weights;

pub use cache::{CacheDesc, CacheLayer, KvType};
pub use counters::{DeviceCounters, GraphFallbacks};
pub use device::{
    CompletionFlag, Device, LaunchMode, MatrixDesc, MatrixUse, MemoryUse, Prepared, RopeDesc,
    StreamPriority,
};
pub use error::DeviceError;
pub use handles::{
    BufferId, CacheId, EventId, GraphId, HostId, MatrixId, RopeId, StreamId, VectorId,
};
pub use image::{CacheImage, CachePart, CopyDirection, ImageNumber, ImagePart, ImageState};
pub use info::{DeviceInfo, DeviceKind, GpuFacts};
pub use lost::abandon;
pub use op::{
    DeltaShape, HeadShape, KeyValue, Linear, Norm, Op, OpKind, Phase, Program, Slot, SlotDesc,
};
pub use philox::{philox4x32, unit_interval};
pub use registry::{Backend, OpenOptions, Registry, RegistryError};
pub use sharing::{GpuContext, GpuHandle, Support};
pub use speed::StepTimes;
pub use walla_types::CacheCommand;
pub use weights::WeightSource;
