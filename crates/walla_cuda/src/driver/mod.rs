//! The driver API behind safe types: the only place of walla that calls CUDA.
//!
//! # Rules
//! 1. [`Library`] proves that the driver library is there and has every entry point that walla
//!    calls: cudarc loads symbols on first use and panics on a missing one, so nothing here is
//!    reachable without that proof.
//! 2. A [`Context`] owns everything made in it (memory, streams, events, modules, graphs). Handles
//!    are plain numbers without `Drop`: destroying the context frees them all at once (it gives
//!    arenas back itself), or, where the context is the program's or shares addresses with it, each
//!    of them is freed when the device is dropped. No handle outlives the device that holds both.
//! 3. Every call of a device in use goes through [`Context::check`], which turns a sticky error
//!    into the latch that no later call passes. What asks for facts, finds or makes a context, and
//!    frees what is left answers for itself.
//! 4. Every call that needs it makes the context current first: the device may have moved to
//!    another thread, and the host program may use CUDA itself.

mod arena;
mod context;
#[cfg(feature = "cupti")]
pub(crate) mod cupti;
mod graph;
mod graphics;
mod green;
mod library;
mod memory;
mod module;
mod objects;
mod place;
mod stream;

pub(crate) use arena::{ArenaId, Blocks, Resized};
pub(crate) use context::Context;
pub(crate) use graph::GraphExec;
pub use graphics::GraphicsQueue;
pub(crate) use library::{Gpu, Library};
pub(crate) use memory::{DeviceMemory, PinnedMemory};
pub(crate) use module::{Function, Launch, Module};
pub use place::SharedContext;
pub(crate) use stream::{Event, Stream};
