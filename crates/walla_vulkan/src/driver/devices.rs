//! The logical devices of the process. One that is not used is kept for the next context.
//!
//! A device is never destroyed: with NVIDIA's driver 580.159, `vkDestroyDevice` did not return in
//! one of six processes that opened and closed 16 devices in as many threads, as the driver's own
//! thread of that device spun at its end. Every other object is destroyed with its context, so a
//! kept device has no memory of ours.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::khr::synchronization2::DeviceFn;
use ash::vk;
use walla_device::DeviceError;

use super::context::failed;
use super::exit;
use super::gpu::{Gpu, Library, MATRICES};

/// The properties of a device, fixed when it is created.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    physical: vk::PhysicalDevice,
    family: u32,
    extensions: Vec<&'static CStr>,
    has_dot_product: bool,
    has_matrices: bool,
    has_priority: bool,
}

impl Key {
    fn of(gpu: &Gpu) -> Self {
        let Gpu { physical, family, has_dot_product, has_matrices, has_priority, .. } = *gpu;
        let extensions = gpu.extensions.clone();
        Self { physical, family, extensions, has_dot_product, has_matrices, has_priority }
    }
}

/// Devices without a context.
static KEPT: Mutex<Vec<(Key, ash::Device)>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<(Key, ash::Device)>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device without objects, with the features that the crate uses of this GPU.
pub(super) fn take(library: &'static Library, gpu: &Gpu) -> Result<ash::Device, DeviceError> {
    let key = Key::of(gpu);
    let mut kept = kept();
    match kept.iter().position(|(its, _)| *its == key) {
        Some(index) => Ok(kept.swap_remove(index).1),
        None => create(library, gpu),
    }
}

/// Keeps a device whose objects are destroyed.
pub(super) fn keep(gpu: &Gpu, device: ash::Device) {
    kept().push((Key::of(gpu), device));
}

fn create(library: &'static Library, gpu: &Gpu) -> Result<ash::Device, DeviceError> {
    let mut priority = vk::DeviceQueueGlobalPriorityCreateInfoKHR::default()
        .global_priority(vk::QueueGlobalPriorityKHR::LOW);
    let priorities = [0.0];
    let mut queue = vk::DeviceQueueCreateInfo::default()
        .queue_family_index(gpu.family)
        .queue_priorities(&priorities);
    if gpu.has_priority {
        queue = queue.push_next(&mut priority);
    }
    let extensions = gpu.extensions.iter().copied();
    let extensions = extensions.chain(gpu.has_matrices.then_some(MATRICES));
    let names: Vec<_> = extensions.map(CStr::as_ptr).collect();
    let mut its_12 = vk::PhysicalDeviceVulkan12Features::default()
        .buffer_device_address(true)
        .timeline_semaphore(true)
        .scalar_block_layout(true)
        .shader_int8(gpu.has_matrices)
        .storage_buffer8_bit_access(gpu.has_matrices)
        .vulkan_memory_model(gpu.has_matrices)
        .vulkan_memory_model_device_scope(gpu.has_matrices);
    let mut its_matrices =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut its_dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default()
        .shader_integer_dot_product(true);
    let mut its_sync = vk::PhysicalDeviceSynchronization2Features::default().synchronization2(true);
    let features = vk::PhysicalDeviceFeatures::default().shader_int64(true);
    let queues = [queue];
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .enabled_features(&features)
        .push_next(&mut its_12)
        .push_next(&mut its_sync);
    if gpu.has_matrices {
        info = info.push_next(&mut its_matrices);
    }
    if gpu.has_dot_product {
        info = info.push_next(&mut its_dot);
    }
    // SAFETY: the GPU has all requested features, and the structs live until the call ends.
    let device = unsafe { library.instance.create_device(gpu.physical, &info, None) };
    let device = device.map_err(|error| failed("vkCreateDevice", error))?;
    exit::watch();
    Ok(device)
}

/// The calls of `synchronization2`.
pub(super) fn synchronization(
    library: &'static Library,
    gpu: &Gpu,
    device: &ash::Device,
) -> Result<DeviceFn, DeviceError> {
    let find = |name: &CStr| {
        // SAFETY: the device is the instance's, and the name ends with a zero.
        let call = unsafe { library.instance.get_device_proc_addr(device.handle(), name.as_ptr()) };
        call.map_or(ptr::null(), |call| call as *const c_void)
    };
    let find = |name: &CStr| by_either_name(name, &find);
    for name in [c"vkQueueSubmit2KHR", c"vkCmdPipelineBarrier2KHR", c"vkCmdWriteTimestamp2KHR"] {
        if find(name).is_null() {
            let what = name.to_string_lossy().into_owned();
            return Err(DeviceError::Unsupported { device: gpu.name.clone(), what });
        }
    }
    Ok(DeviceFn::load(find))
}

/// A call by the name of its extension, or by that of the version which has it: drivers need to
/// know only one of them.
fn by_either_name(name: &CStr, find: &dyn Fn(&CStr) -> *const c_void) -> *const c_void {
    let call = find(name);
    let core = name.to_bytes().strip_suffix(b"KHR").map(CString::new);
    match core {
        Some(Ok(core)) if call.is_null() => find(&core),
        _ => call,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_name_of_an_extension_or_of_a_version() {
        let some = ptr::from_ref(&KEPT).cast();
        let known = |known: &'static CStr| {
            move |name: &CStr| if name == known { some } else { ptr::null() }
        };
        for its in [c"vkQueueSubmit2KHR", c"vkQueueSubmit2"] {
            assert_eq!(by_either_name(c"vkQueueSubmit2KHR", &known(its)), some, "{its:?}");
        }
        let other = known(c"vkQueueSubmit");
        assert!(by_either_name(c"vkQueueSubmit2KHR", &other).is_null());
    }
}
