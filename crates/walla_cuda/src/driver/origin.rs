//! Contexts that were found or created, and their origin.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUgreenCtx};

use super::gpu::Gpu;

/// Origin of a context, which determines how it is released.
pub(super) enum ContextOrigin {
    /// Created by the device: destroyed with everything in it.
    Own,
    /// A green context created by the device, which shares its addresses with the GPU's primary
    /// context.
    Green(CUgreenCtx),
    /// Owned by the program.
    Program(Arc<dyn Any + Send + Sync>),
    /// Created by the device for the program's queue; keeps the queue alive.
    Graphics(Arc<dyn Any + Send + Sync>),
}

impl fmt::Debug for ContextOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "Own",
            Self::Green(_) => "Green",
            Self::Program(_) => "Program",
            Self::Graphics(_) => "Graphics",
        })
    }
}

/// A context found or created.
pub(super) struct Found {
    pub(super) raw: CUcontext,
    pub(super) origin: ContextOrigin,
    /// The GPU as seen from the context: number of multiprocessors, virtual memory support.
    pub(super) gpu: Gpu,
}

/// The GPU with the facts of a context.
pub(super) fn seen(gpu: &Gpu, context: String) -> Gpu {
    let mut gpu = gpu.clone();
    gpu.facts.context = context;
    gpu.facts.multiprocessors_used = gpu.facts.multiprocessors;
    gpu
}
