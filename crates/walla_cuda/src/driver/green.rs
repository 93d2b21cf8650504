//! Green contexts: contexts on a part of a GPU's multiprocessors.

use std::ffi::CStr;

use cudarc::driver::sys::{
    self, CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevice, CUgreenCtx,
    CUgreenCtxCreate_flags, CUresult,
};
use walla_device::Support;

use super::context_source::{ContextOrigin, Found, seen};
use super::gpu::{Gpu, describe, lacks};

/// Entry points of green contexts: CUDA 12.5.
const ENTRY_POINTS: &[&CStr] = &[
    c"cuCtxFromGreenCtx",
    c"cuCtxGetDevResource",
    c"cuDevResourceGenerateDesc",
    c"cuDevSmResourceSplitByCount",
    c"cuDeviceGetDevResource",
    c"cuGreenCtxCreate",
    c"cuGreenCtxDestroy",
    c"cuGreenCtxStreamCreate",
];

const MULTIPROCESSORS: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

/// Whether a device can be restricted to some of its multiprocessors.
pub(super) fn support(device: CUdevice) -> Support {
    match all(device).and_then(|all| Ok((split(&all, 1)?, all))) {
        Ok((part, all)) => {
            Support::Available(format!("from {} of {} multiprocessors", count(&part), count(&all)))
        }
        Err(why) => Support::Absent(why),
    }
}

/// Creates a context on about `percent` per cent of the multiprocessors.
pub(super) fn create(gpu: &Gpu, percent: u32) -> Result<Found, String> {
    let all = all(gpu.device)?;
    let total = count(&all);
    let wanted = wanted(total, percent).ok_or("that is all of it")?;
    let mut part = split(&all, wanted)?;
    let used = count(&part);
    if used >= total {
        return Err(format!("its {total} multiprocessors cannot be parted like that"));
    }
    let mut description: CUdevResourceDesc = std::ptr::null_mut();
    // SAFETY: both live through the call, and one resource is given.
    let result = unsafe { sys::cuDevResourceGenerateDesc(&raw mut description, &raw mut part, 1) };
    said(result, "cuDevResourceGenerateDesc")?;
    let mut green: CUgreenCtx = std::ptr::null_mut();
    let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
    // SAFETY: the handle lives through the call; the description was just made for this device.
    let result = unsafe { sys::cuGreenCtxCreate(&raw mut green, description, gpu.device, flags) };
    said(result, "cuGreenCtxCreate")?;
    let mut raw: CUcontext = std::ptr::null_mut();
    // SAFETY: the handle lives through the call; the green context was just made.
    let result = unsafe { sys::cuCtxFromGreenCtx(&raw mut raw, green) };
    if let Err(why) = said(result, "cuCtxFromGreenCtx") {
        destroy(green);
        return Err(why);
    }
    let mut gpu = seen(gpu, format!("green, {used} of {total} multiprocessors"));
    gpu.facts.multiprocessors_used = used;
    Ok(Found { raw, origin: ContextOrigin::Green(green), gpu })
}

/// Releases the multiprocessors. Nothing runs in the context any more.
pub(super) fn destroy(green: CUgreenCtx) {
    // SAFETY: the caller made it and uses it no more.
    let _ = unsafe { sys::cuGreenCtxDestroy(green) };
}

/// Multiprocessors of a context that the program created, if the driver reports them.
pub(super) fn multiprocessors_of(context: CUcontext) -> Option<u32> {
    if lacks(ENTRY_POINTS).is_some() {
        return None;
    }
    let mut resource = no_resource();
    // SAFETY: the resource lives through the call; the context is alive.
    let result = unsafe { sys::cuCtxGetDevResource(context, &raw mut resource, MULTIPROCESSORS) };
    let count = count(&resource);
    (result == CUresult::CUDA_SUCCESS && count > 0).then_some(count)
}

/// Number of multiprocessors in a share; `None` if it is zero or all of them.
fn wanted(total: u32, percent: u32) -> Option<u32> {
    let wanted = (u64::from(total) * u64::from(percent)).div_ceil(100);
    (percent > 0 && wanted < u64::from(total)).then_some(wanted as u32)
}

fn all(device: CUdevice) -> Result<CUdevResource, String> {
    if let Some(missing) = lacks(ENTRY_POINTS) {
        return Err(format!("the driver has no {missing}: CUDA 12.5 needed"));
    }
    let mut all = no_resource();
    // SAFETY: the resource lives through the call; the device came from cuDeviceGet; the entry
    // point was just found.
    let result = unsafe { sys::cuDeviceGetDevResource(device, &raw mut all, MULTIPROCESSORS) };
    said(result, "cuDeviceGetDevResource")?;
    Ok(all)
}

/// The smallest part with at least `wanted` multiprocessors.
fn split(all: &CUdevResource, wanted: u32) -> Result<CUdevResource, String> {
    let (mut part, mut rest, mut groups) = (no_resource(), no_resource(), 1);
    // SAFETY: all of them live through the call, and `part` can hold the one requested group.
    let result = unsafe {
        sys::cuDevSmResourceSplitByCount(
            &raw mut part,
            &raw mut groups,
            std::ptr::from_ref(all),
            &raw mut rest,
            0,
            wanted,
        )
    };
    said(result, "cuDevSmResourceSplitByCount")?;
    if groups == 0 || count(&part) == 0 {
        return Err("its multiprocessors cannot be parted like that".to_owned());
    }
    Ok(part)
}

fn no_resource() -> CUdevResource {
    // SAFETY: plain data for which zeros are valid (type 0 is "invalid").
    unsafe { std::mem::zeroed() }
}

fn count(resource: &CUdevResource) -> u32 {
    if resource.type_ != MULTIPROCESSORS {
        return 0;
    }
    // SAFETY: the type identifies the active field of the union.
    unsafe { resource.__bindgen_anon_1.sm.smCount }
}

fn said(result: CUresult, call: &str) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(format!("{call}: {}", describe(result)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_the_full_share_is_none() {
        assert_eq!(wanted(132, 25), Some(33));
        assert_eq!(wanted(132, 1), Some(2));
        assert_eq!(wanted(132, 99), Some(131));
        assert_eq!([0, 100, 250, u32::MAX].map(|percent| wanted(132, percent)), [None; 4]);
    }
}
