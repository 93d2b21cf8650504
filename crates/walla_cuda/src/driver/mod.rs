//! The driver API behind safe types: the only module of walla that calls CUDA.
//!
//! # Rules
//! 1. [`Library`] proves that the driver library is loaded and has every entry point that walla
//!    calls. cudarc loads symbols on first use and panics on a missing one, so nothing here is
//!    reachable without that proof.
//! 2. A [`Context`] owns everything created in it (memory, streams, events, modules, graphs).
//!    Handles are plain numbers without `Drop`. Destroying the context frees them all at once,
//!    except arenas, which it releases itself. If the context belongs to the program or shares its
//!    addresses, each handle is freed when the device is dropped. No handle outlives the device
//!    that holds both.
//! 3. Every call of a device in use goes through [`Context::check`], which latches a sticky error:
//!    no later call passes. Code that queries facts, finds or creates a context, or frees leftovers
//!    handles its own errors.
//! 4. Every call that needs it makes the context current first: the device may have moved to
//!    another thread, and the host program may use CUDA itself.

mod arena;
mod context;
mod context_source;
#[cfg(feature = "cupti")]
pub(crate) mod cupti;
mod gpu;
mod graph;
mod graphics;
mod green;
mod library;
mod memory;
mod module;
mod objects;
mod stream;

pub(crate) use arena::{ArenaId, Blocks, Resized};
pub(crate) use context::Context;
pub use context_source::SharedContext;
pub(crate) use gpu::Gpu;
pub(crate) use graph::GraphExec;
pub use graphics::GraphicsQueue;
pub(crate) use library::Library;
pub(crate) use memory::{DeviceMemory, PinnedMemory};
pub(crate) use module::{Function, Launch, Module};
pub(crate) use stream::{Event, Stream};
