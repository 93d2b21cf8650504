//! Vulkan behind safe types: the only module of walla that calls it.
//!
//! # Rules
//! 1. A [`Context`] owns everything created in it. Handles are plain numbers without `Drop`;
//!    dropping the context waits for the queue, then destroys them all.
//! 2. One thread owns a context, so its queue and its pools need no lock.
//! 3. All submissions go to one queue, in the order of their tickets: values of one timeline
//!    semaphore. Each recorded command buffer begins with a barrier that orders it behind all
//!    earlier ones, so a ticket that is reached covers all before it.
//! 4. A call of a driver happens under [`exit::call`], so that none is in progress when the process
//!    ends.
//! 5. Shaders reach memory through addresses. The host checks sizes before it records them.

mod context;
mod devices;
mod exit;
mod gpu;
mod memory;
mod pipeline_cache;
mod record;

pub(crate) use context::Context;
pub(crate) use exit::call;
pub(crate) use gpu::{Gpu, Library, OPTIONAL};
pub(crate) use memory::{Memory, Place};
pub(crate) use record::{Clock, Commands, Dispatch, Pipeline};
