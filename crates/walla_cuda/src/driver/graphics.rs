//! CUDA in Graphics: contexts that share a renderer's queue. Kernels run within the renderer's time
//! slices, without a switch between two contexts of the GPU.

use std::any::Any;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext, CUctx_flags, CUdevice, CUresult};
use walla_device::{GpuContext, GpuHandle, Support};

use super::context_source::{ContextOrigin, Found, seen};
use super::gpu::{Gpu, describe, lacks};

/// Creates such contexts: CUDA 12.5.
const CREATE: &CStr = c"cuCtxCreate_v4";

/// `CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED` and `CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED`; the
/// latter is newer than the bindings.
const DIRECT3D12_SUPPORTED: c_uint = 135;
const VULKAN_SUPPORTED: c_uint = 138;

/// `CIG_DATA_TYPE_D3D12_COMMAND_QUEUE` and `CIG_DATA_TYPE_NV_BLOB`.
const DIRECT3D12_QUEUE: c_uint = 1;
const BLOB: c_uint = 2;

/// A queue that the program renders with; the device runs in its time slices.
#[derive(Clone, Debug)]
pub struct GraphicsQueue {
    kind: c_uint,
    data: *mut c_void,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the driver takes the pointer on the thread that opens the device; the caller of the
// constructor promised that it is valid there.
unsafe impl Send for GraphicsQueue {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for GraphicsQueue {}

impl GraphicsQueue {
    /// A Direct3D 12 command queue.
    ///
    /// # Safety
    /// `queue` is an `ID3D12CommandQueue` of the GPU that the device is opened on, and stays one
    /// until `owner` is dropped.
    #[must_use]
    pub unsafe fn direct3d12(queue: *mut c_void, owner: impl Any + Send + Sync) -> Self {
        Self { kind: DIRECT3D12_QUEUE, data: queue, owner: Arc::new(owner) }
    }

    /// Data of a Vulkan queue from `VK_NV_external_compute_queue`
    /// (`vkGetExternalComputeQueueDataNV`).
    ///
    /// # Safety
    /// `data` is such data of a queue on the GPU that the device is opened on; both stay valid
    /// until `owner` is dropped.
    #[must_use]
    pub unsafe fn vulkan(data: *mut c_void, owner: impl Any + Send + Sync) -> Self {
        Self { kind: BLOB, data, owner: Arc::new(owner) }
    }
}

impl From<GraphicsQueue> for GpuContext {
    fn from(queue: GraphicsQueue) -> Self {
        Self::Existing(GpuHandle::new(queue))
    }
}

/// Support of a driver and GPU for shared queues.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    can_create: bool,
    direct3d12: bool,
    vulkan: bool,
}

impl Abilities {
    fn of(device: CUdevice) -> Self {
        Self {
            can_create: lacks(&[CREATE]).is_none(),
            direct3d12: attribute(device, DIRECT3D12_SUPPORTED),
            vulkan: attribute(device, VULKAN_SUPPORTED),
        }
    }

    fn support(self) -> Support {
        if !self.can_create {
            let name = CREATE.to_string_lossy();
            return Support::Absent(format!("the driver has no {name}: CUDA 12.5 needed"));
        }
        match (self.direct3d12, self.vulkan) {
            (true, true) => Support::Available("Direct3D 12 and Vulkan queues".to_owned()),
            (true, false) => Support::Available("Direct3D 12 queues".to_owned()),
            (false, true) => Support::Available("Vulkan queues".to_owned()),
            (false, false) => Support::Absent(
                "this GPU and system share no queues of Direct3D 12 or Vulkan".to_owned(),
            ),
        }
    }

    /// Why a queue of a kind cannot be shared, if it cannot.
    fn refuse(self, kind: c_uint) -> Option<String> {
        match (self.support(), kind) {
            (Support::Absent(why), _) => Some(why),
            (_, DIRECT3D12_QUEUE) if !self.direct3d12 => {
                Some("this GPU and system share no queues of Direct3D 12".to_owned())
            }
            (_, BLOB) if !self.vulkan => {
                Some("this GPU and system share no queues of Vulkan".to_owned())
            }
            _ => None,
        }
    }
}

/// Whether a GPU can share a renderer's queue.
pub(super) fn support(device: CUdevice) -> Support {
    Abilities::of(device).support()
}

/// Layout as in the driver; the bindings know fewer kinds.
#[repr(C)]
struct QueueParams {
    kind: c_uint,
    data: *mut c_void,
}

#[repr(C)]
struct CreateParams {
    affinities: *mut c_void,
    affinities_count: c_int,
    queue: *mut QueueParams,
}

const _: () = assert!(size_of::<QueueParams>() == size_of::<sys::CUctxCigParam>());
const _: () = assert!(size_of::<CreateParams>() == size_of::<sys::CUctxCreateParams>());

type Create = unsafe extern "C" fn(*mut CUcontext, *mut CreateParams, c_uint, CUdevice) -> CUresult;
type Attribute = unsafe extern "C" fn(*mut c_int, c_uint, CUdevice) -> CUresult;

/// Creates a context that shares a queue. Such contexts have no virtual memory management, so the
/// cache uses plain memory.
pub(super) fn create(gpu: &Gpu, queue: &GraphicsQueue) -> Result<Found, String> {
    if let Some(why) = Abilities::of(gpu.device).refuse(queue.kind) {
        return Err(why);
    }
    // SAFETY: the library was found when it was probed.
    let library = unsafe { sys::culib() };
    // SAFETY: the type matches the entry point, except that enums are plain integers here.
    let create = unsafe { library.get::<Create>(CREATE.to_bytes_with_nul()) };
    let create = create.map_err(|error| error.to_string())?;
    let mut params = QueueParams { kind: queue.kind, data: queue.data };
    let mut params = CreateParams {
        affinities: std::ptr::null_mut(),
        affinities_count: 0,
        queue: &raw mut params,
    };
    let mut raw: CUcontext = std::ptr::null_mut();
    let flags = CUctx_flags::CU_CTX_SCHED_YIELD as u32;
    // SAFETY: everything lives through the call; the maker of the queue promised that it is one.
    let result = unsafe { create(&raw mut raw, &raw mut params, flags, gpu.device) };
    if result != CUresult::CUDA_SUCCESS {
        return Err(format!("cuCtxCreate_v4: {}", describe(result)));
    }
    let mut gpu = seen(gpu, "in graphics, sharing the renderer's queue".to_owned());
    gpu.facts.vmm_granularity_bytes = None;
    Ok(Found { raw, origin: ContextOrigin::Graphics(Arc::clone(&queue.owner)), gpu })
}

/// Whether a GPU has an attribute that the bindings may not know. False if the driver does not know
/// it either.
fn attribute(device: CUdevice, number: c_uint) -> bool {
    // SAFETY: the library was found when it was probed.
    let library = unsafe { sys::culib() };
    // SAFETY: the type matches the entry point, except that an enum is a plain integer here.
    let get = unsafe { library.get::<Attribute>(b"cuDeviceGetAttribute\0") };
    let Ok(get) = get else { return false };
    let mut value: c_int = 0;
    // SAFETY: the value lives through the call; the device came from cuDeviceGet.
    let result = unsafe { get(&raw mut value, number, device) };
    result == CUresult::CUDA_SUCCESS && value != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Abilities = Abilities { can_create: true, direct3d12: true, vulkan: true };

    #[test]
    fn an_unsupported_platform_has_a_reason() {
        let none = Abilities { direct3d12: false, vulkan: false, ..ALL };
        assert!(matches!(none.support(), Support::Absent(why) if why.contains("Vulkan")));
        assert!(none.refuse(BLOB).is_some() && none.refuse(DIRECT3D12_QUEUE).is_some());
        let old = Abilities { can_create: false, ..ALL };
        assert!(matches!(old.support(), Support::Absent(why) if why.contains("CUDA 12.5")));
        assert!(old.refuse(BLOB).is_some_and(|why| why.contains("cuCtxCreate_v4")));
    }

    #[test]
    fn a_queue_of_the_other_kind_is_refused() {
        let windows = Abilities { vulkan: false, ..ALL };
        assert!(matches!(windows.support(), Support::Available(_)));
        assert_eq!(windows.refuse(DIRECT3D12_QUEUE), None);
        assert!(windows.refuse(BLOB).is_some_and(|why| why.contains("Vulkan")));
        assert_eq!(ALL.refuse(BLOB), None);
    }
}
