use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult};
use walla_device::GpuFacts;

use super::arena::properties;
use super::gpu::{Gpu, describe, lacks};
use super::{graphics, green};

/// Entry points that walla requires: all of CUDA 12.0. (The crate's kernels need a later driver:
/// see `crate::images`.)
const REQUIRED: &[&CStr] = &[
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDeviceTotalMem_v2",
    c"cuCtxCreate_v2",
    c"cuCtxDestroy_v2",
    c"cuCtxGetDevice",
    c"cuCtxGetLimit",
    c"cuCtxGetStreamPriorityRange",
    c"cuCtxSetCurrent",
    c"cuCtxSynchronize",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventElapsedTime",
    c"cuEventQuery",
    c"cuEventRecord",
    c"cuFuncSetAttribute",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuGraphDestroy",
    c"cuGraphExecDestroy",
    c"cuGraphInstantiateWithFlags",
    c"cuGraphLaunch",
    c"cuGraphUpload",
    c"cuLaunchKernelEx",
    c"cuMemAlloc_v2",
    c"cuMemFreeHost",
    c"cuMemFree_v2",
    c"cuMemGetInfo_v2",
    c"cuMemHostAlloc",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemsetD8Async",
    c"cuModuleGetFunction",
    c"cuModuleLoadDataEx",
    c"cuModuleUnload",
    c"cuStreamBeginCapture_v2",
    c"cuStreamCreateWithPriority",
    c"cuStreamDestroy_v2",
    c"cuStreamEndCapture",
    c"cuStreamQuery",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
];

/// Entry points of virtual memory management: used if all of them exist.
const VIRTUAL_MEMORY: &[&CStr] = &[
    c"cuMemAddressFree",
    c"cuMemAddressReserve",
    c"cuMemCreate",
    c"cuMemGetAllocationGranularity",
    c"cuMemMap",
    c"cuMemRelease",
    c"cuMemSetAccess",
    c"cuMemUnmap",
];

/// Proof that the driver library is loaded, complete and initialised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    driver_version: u32,
}

impl Library {
    /// Loads the driver library, once for the process.
    ///
    /// # Errors
    /// One line with the problem and its remedy.
    pub(crate) fn load() -> Result<Self, String> {
        static PROBE: OnceLock<Result<Library, String>> = OnceLock::new();
        PROBE.get_or_init(probe).clone()
    }

    /// The GPUs, in the driver's order.
    ///
    /// # Errors
    /// One line with the problem and its remedy.
    pub(crate) fn gpus(self) -> Result<Vec<Gpu>, String> {
        let count = said(result::device::get_count(), "cuDeviceGetCount")?;
        (0..count).map(|ordinal| self.gpu(ordinal)).collect()
    }

    fn gpu(self, ordinal: c_int) -> Result<Gpu, String> {
        let device = said(result::device::get(ordinal), "cuDeviceGet")?;
        // SAFETY: `device` came from cuDeviceGet.
        let total = said(unsafe { result::device::total_mem(device) }, "cuDeviceTotalMem")?;
        let get = |attribute| {
            // SAFETY: as above.
            unsafe { result::device::get_attribute(device, attribute) }.unwrap_or_default()
        };
        let major = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) as u32;
        let minor = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) as u32;
        let has_vmm = get(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
        let facts = GpuFacts {
            compute_capability: (major, minor),
            multiprocessors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) as u32,
            warp_threads: get(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE) as u32,
            shared_bytes_per_block: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)
                as u64,
            shared_bytes_per_block_optin: get(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            ) as u64,
            vmm_granularity_bytes: has_vmm.then(|| vmm_granularity(device)).flatten(),
            l2_bytes: get(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE) as u64,
            driver_version: self.driver_version,
            // Supported in graphs since CUDA 12.3.
            programmatic_launch: major >= 9 && self.driver_version >= 12_030,
            runs_display: get(Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT) != 0,
            green_contexts: green::support(device),
            graphics_contexts: graphics::support(device),
            ..GpuFacts::default()
        };
        Ok(Gpu {
            device,
            description: said(result::device::get_name(device), "cuDeviceGetName")?,
            memory_total_bytes: total as u64,
            // Kernels use the host's address.
            maps_host_memory: get(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) != 0
                && get(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) != 0,
            facts,
        })
    }
}

fn probe() -> Result<Library, String> {
    // SAFETY: loading the driver library runs its initialisers; it is the vendor's, found on the
    // system's search path.
    if !unsafe { sys::is_culib_present() } {
        let reason = "the NVIDIA driver was not found: there is no libcuda on this machine";
        return Err(reason.to_owned());
    }
    if let Some(name) = lacks(REQUIRED) {
        return Err(format!("the NVIDIA driver is too old: it has no {name} (CUDA 12.3 needed)"));
    }
    // SAFETY: the symbol was just found.
    said(unsafe { sys::cuInit(0) }.result(), "cuInit")?;
    let mut version: c_int = 0;
    // SAFETY: `version` lives through the call.
    said(unsafe { sys::cuDriverGetVersion(&raw mut version) }.result(), "cuDriverGetVersion")?;
    Ok(Library { driver_version: version.unsigned_abs() })
}

fn vmm_granularity(device: CUdevice) -> Option<u64> {
    if lacks(VIRTUAL_MEMORY).is_some() {
        return None;
    }
    let wanted = properties(device);
    let mut bytes: usize = 0;
    let recommended = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: both live through the call.
    let result = unsafe {
        sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const wanted, recommended)
    };
    (result == CUresult::CUDA_SUCCESS).then_some(bytes as u64)
}

fn said<T>(result: Result<T, DriverError>, call: &str) -> Result<T, String> {
    result.map_err(|DriverError(error)| match error {
        CUresult::CUDA_ERROR_NO_DEVICE => "the NVIDIA driver finds no GPU".to_owned(),
        error => format!("{call} failed: {}", describe(error)),
    })
}
