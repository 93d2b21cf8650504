//! Properties of a GPU, entry points of the driver, and texts of its errors.

use std::ffi::{CStr, c_char, c_void};

use cudarc::driver::sys::{self, CUdevice, CUresult};
use walla_device::GpuFacts;

/// A GPU that the driver lists.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(super) device: CUdevice,
    /// Product name.
    pub(crate) description: String,
    /// Total memory in bytes.
    pub(crate) memory_total_bytes: u64,
    /// Whether kernels can read and write pinned host memory at the host's addresses, as every step
    /// does.
    pub(crate) maps_host_memory: bool,
    /// Capabilities.
    pub(crate) facts: GpuFacts,
}

/// The first of some entry points that the driver library lacks. The library must be present.
pub(super) fn lacks(names: &[&CStr]) -> Option<String> {
    // SAFETY: the library is present, so this cannot panic.
    let library = unsafe { sys::culib() };
    let is_missing = |name: &&&CStr| {
        // SAFETY: the symbol is only looked up, not called.
        unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) }.is_err()
    };
    names.iter().find(is_missing).map(|name| name.to_string_lossy().into_owned())
}

/// The driver's name and description of an error.
pub(super) fn describe(error: CUresult) -> String {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: `name` lives through the call; the driver returns a static string or an error.
    let named = unsafe { sys::cuGetErrorName(error, &raw mut name) };
    let mut words: *const c_char = std::ptr::null();
    // SAFETY: as above.
    let worded = unsafe { sys::cuGetErrorString(error, &raw mut words) };
    if named != CUresult::CUDA_SUCCESS || worded != CUresult::CUDA_SUCCESS {
        return format!("CUDA error {}", error as u32);
    }
    // SAFETY: success means that the pointer is a static, terminated string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    // SAFETY: as above.
    let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
    format!("{name}: {words}")
}
