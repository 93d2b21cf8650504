//! Devices and their attributes.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUresult};

use super::facts::{Facts, SHARED_BYTES, facts, initialize};
use super::{Outcome, answer, give};

/// CUDA 13.0.
const DRIVER_VERSION: c_int = 13_000;

/// Facts of a device, if it exists.
pub(super) fn device(device: CUdevice) -> Outcome<&'static Facts> {
    let facts = facts()?;
    let is_there = (0..facts.devices.cast_signed()).contains(&device);
    if is_there { Ok(facts) } else { Err(CUresult::CUDA_ERROR_INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    if flags != 0 {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    match initialize() {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(reason) => {
            eprintln!("emulator: {reason}");
            CUresult::CUDA_ERROR_INVALID_VALUE
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(version, || Ok(DRIVER_VERSION)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(count, || facts().map(|facts| facts.devices.cast_signed())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(place: *mut CUdevice, ordinal: c_int) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || device(ordinal).map(|_| ordinal)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    length: c_int,
    ordinal: CUdevice,
) -> CUresult {
    answer(device(ordinal).and_then(|facts| {
        let (major, minor) = facts.capability;
        let length = usize::try_from(length).unwrap_or(0);
        let words = format!("emulated GPU, capability {major}.{minor}");
        // SAFETY: guaranteed by the caller: null, or valid for `length` bytes.
        unsafe { write_words(name, length, &words) }
    }))
}

/// Writes a prefix of `words` that fits, and a terminating zero.
///
/// # Safety
/// `place` is null or valid for a write of `room` bytes.
pub(super) unsafe fn write_words(place: *mut c_char, room: usize, words: &str) -> Outcome {
    if place.is_null() || room == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let length = words.len().min(room - 1);
    // SAFETY: the length is less than `room`; the source is our own string.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(words.as_ptr(), length) };
    // SAFETY: within `room` bytes.
    let end = unsafe { place.add(length) };
    // SAFETY: as above.
    unsafe { end.write(0) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, ordinal: CUdevice) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(bytes, || device(ordinal).map(|facts| facts.memory_bytes as usize)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    ordinal: CUdevice,
) -> CUresult {
    let find = || {
        let facts = device(ordinal)?;
        let known = attributes(facts);
        let known = known.iter().find(|(known, _)| *known as c_uint == attribute);
        known.map(|(_, value)| value.cast_signed()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(value, find) }
}

/// All supported attributes.
fn attributes(facts: &Facts) -> [(Attribute, u32); 22] {
    [
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, facts.capability.0),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, facts.capability.1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, facts.multiprocessors),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            facts.threads_per_multiprocessor,
        ),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_BYTES),
        (
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            facts.shared_bytes_optin,
        ),
        (
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            facts.shared_bytes_per_multiprocessor,
        ),
        (Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, reserved_bytes(facts)),
        (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, facts.l2_bytes),
        (Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
        (Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, u32::from(facts.capability >= (9, 0))),
        // This library has no entry points for these.
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0),
    ]
}

/// Shared memory per block that the system reserves: from Ampere on.
fn reserved_bytes(facts: &Facts) -> u32 {
    if facts.capability >= (8, 0) { 1024 } else { 0 }
}
