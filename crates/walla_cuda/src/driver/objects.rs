use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUgraphExec, CUmodule, CUresult, CUstream};

use super::Context;

/// An object of a context. A context that the device owns frees all of them at once when it is
/// destroyed. Any other context outlives the device, which frees each object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Object {
    Memory(CUdeviceptr),
    Pinned(*mut std::ffi::c_void),
    Stream(CUstream),
    Event(CUevent),
    Module(CUmodule),
    Graph(CUgraphExec),
}

impl Context {
    /// Registers an object. Every handle that this crate creates is registered once.
    pub(super) fn keep(&self, object: Object) {
        self.objects.borrow_mut().push(object);
    }

    /// Frees all objects, latest first. None of them may be in use.
    pub(super) fn free_objects(&mut self) {
        for object in self.objects.get_mut().drain(..).rev() {
            // Errors have no consequence: the device is being dropped.
            let _ = object.free();
        }
    }
}

impl Object {
    fn free(self) -> CUresult {
        match self {
            // SAFETY: created by the same driver, registered once, and no longer in use; the same
            // holds for all of these.
            Self::Memory(address) => unsafe { sys::cuMemFree_v2(address) },
            // SAFETY: as above.
            Self::Pinned(start) => unsafe { sys::cuMemFreeHost(start) },
            // SAFETY: as above.
            Self::Stream(raw) => unsafe { sys::cuStreamDestroy_v2(raw) },
            // SAFETY: as above.
            Self::Event(raw) => unsafe { sys::cuEventDestroy_v2(raw) },
            // SAFETY: as above.
            Self::Module(raw) => unsafe { sys::cuModuleUnload(raw) },
            // SAFETY: as above.
            Self::Graph(raw) => unsafe { sys::cuGraphExecDestroy(raw) },
        }
    }
}
