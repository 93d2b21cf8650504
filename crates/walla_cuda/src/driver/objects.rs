use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUgraphExec, CUmodule, CUresult, CUstream};

use super::Context;

/// Something that a context holds. A context of the device's own frees all of them at once when it
/// is destroyed; another one outlives the device, which then frees each.
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
    /// Notes what was made: every handle that this crate makes goes through here once.
    pub(super) fn keep(&self, object: Object) {
        self.objects.borrow_mut().push(object);
    }

    /// Frees everything that was made, the latest first. Nothing of it is in use any more.
    pub(super) fn free_objects(&mut self) {
        for object in self.objects.get_mut().drain(..).rev() {
            // What the driver says is of no use: the device is being dropped.
            let _ = object.free();
        }
    }
}

impl Object {
    fn free(self) -> CUresult {
        match self {
            // SAFETY: made by the same driver, kept once, and nothing uses it any more; so in all
            // of these.
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
