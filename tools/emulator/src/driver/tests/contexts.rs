use std::ffi::CStr;
use std::{ptr, thread};

use super::api::*;
use super::*;
use crate::driver::memory_of;

const MULTIPROCESSORS: u32 = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as u32;

#[test]
fn a_destroyed_context_frees_its_resources() {
    let mut device = Device::open();
    let before = free_bytes();
    let (memory, stream) = (allocate(1 << 20), stream());
    assert_eq!(free_bytes(), before - (1 << 20));
    assert!(memory_of(0).contains(&(memory..memory + (1 << 20))));
    let context = std::mem::replace(&mut device.context, ptr::null_mut());
    ok!(cuCtxDestroy_v2(context));
    assert!(!memory_of(0).contains(&(memory..memory + 1)));
    // No context is current, and a destroyed one cannot become current.
    refused!(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    refused!(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    refused!(cuCtxDestroy_v2(context), CUDA_ERROR_INVALID_CONTEXT);

    ok!(cuCtxCreate_v2(&raw mut device.context, 0, 0));
    refused!(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(free_bytes(), before);
}

#[test]
fn a_context_destroyed_by_another_thread_is_current_but_invalid() {
    let mut device = Device::open();
    let context = std::mem::replace(&mut device.context, ptr::null_mut()).addr();
    let destroy = move || ok!(cuCtxDestroy_v2(ptr::without_provenance_mut(context)));
    thread::spawn(destroy).join().unwrap();
    refused!(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ok!(cuCtxSetCurrent(ptr::null_mut()));
    refused!(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn the_primary_context_is_reference_counted() {
    let _device = Device::open();
    let before = free_bytes();
    let (mut first, mut second) = (ptr::null_mut(), ptr::null_mut());
    ok!(cuDevicePrimaryCtxRetain(&raw mut first, 0));
    ok!(cuDevicePrimaryCtxRetain(&raw mut second, 0));
    assert_eq!(first, second);
    ok!(cuCtxSetCurrent(first));
    allocate(4096);
    refused!(cuCtxDestroy_v2(first), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(free_bytes(), before - 4096);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    refused!(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuCtxSetCurrent(_device.context));
    assert_eq!(free_bytes(), before);
}

/// Creates a green context on a part of the multiprocessors; returns it and their number.
fn green(wanted: u32) -> (CUgreenCtx, u32) {
    // SAFETY: plain data for which zeros are valid.
    let (mut all, mut part): (CUdevResource, CUdevResource) = unsafe { std::mem::zeroed() };
    let (mut groups, mut description, mut green) = (1, ptr::null_mut(), ptr::null_mut());
    ok!(cuDeviceGetDevResource(0, &raw mut all, MULTIPROCESSORS));
    let rest = ptr::null_mut();
    ok!(cuDevSmResourceSplitByCount(
        &raw mut part,
        &raw mut groups,
        &raw const all,
        rest,
        0,
        wanted
    ));
    ok!(cuDevResourceGenerateDesc(&raw mut description, &raw mut part, 1));
    ok!(cuGreenCtxCreate(&raw mut green, description, 0, 1));
    // SAFETY: a resource of multiprocessors.
    (green, unsafe { part.__bindgen_anon_1.sm.smCount })
}

#[test]
fn a_green_context_belongs_to_the_primary_context() {
    let _device = Device::open();
    let before = free_bytes();
    let (green, count) = green(3);
    assert!((3..=8).contains(&count), "{count}");
    let (mut context, mut stream, mut primary) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    ok!(cuCtxFromGreenCtx(&raw mut context, green));
    ok!(cuCtxSetCurrent(context));
    ok!(cuGreenCtxStreamCreate(&raw mut stream, green, 1, 0));
    allocate(4096);
    // SAFETY: plain data for which zeros are valid.
    let mut resource: CUdevResource = unsafe { std::mem::zeroed() };
    ok!(cuCtxGetDevResource(context, &raw mut resource, MULTIPROCESSORS));
    // SAFETY: a resource of multiprocessors.
    assert_eq!(unsafe { resource.__bindgen_anon_1.sm.smCount }, count);

    ok!(cuDevicePrimaryCtxRetain(&raw mut primary, 0));
    ok!(cuCtxSetCurrent(primary));
    ok!(cuGreenCtxDestroy(green));
    refused!(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuStreamQuery(stream));
    assert_eq!(free_bytes(), before - 4096, "what was made there is the primary context's");
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    ok!(cuCtxSetCurrent(_device.context));
    assert_eq!(free_bytes(), before);
}

#[test]
fn the_device_reports_its_attributes() {
    let _device = Device::open();
    let (mut count, mut value, mut name) = (0, 0, [1; 14]);
    ok!(cuDeviceGetCount(&raw mut count));
    assert_eq!(count, 1);
    refused!(cuDeviceGet(&raw mut value, 1), CUDA_ERROR_INVALID_DEVICE);
    refused!(cuDeviceGetAttribute(ptr::null_mut(), 1, 0), CUDA_ERROR_INVALID_VALUE);
    // The name is truncated to the buffer.
    ok!(cuDeviceGetName(name.as_mut_ptr(), 13, 0));
    // SAFETY: the driver terminated it.
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"emulated GPU");
    assert_eq!(name[13], 1);
    let warp = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE as u32;
    ok!(cuDeviceGetAttribute(&raw mut value, warp, 0));
    assert_eq!(value, 32);
    // An attribute that is newer than the bindings: Vulkan's queues.
    refused!(cuDeviceGetAttribute(&raw mut value, 138, 0), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn errors_have_names() {
    let mut text = ptr::null();
    ok!(cuGetErrorName(700, &raw mut text));
    // SAFETY: a static string.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    ok!(cuGetErrorString(700, &raw mut text));
    // SAFETY: a static string.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"an illegal memory access was encountered");
    refused!(cuGetErrorName(12_345, &raw mut text), CUDA_ERROR_INVALID_VALUE);
}
