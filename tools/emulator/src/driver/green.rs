//! Green contexts: contexts on a part of the multiprocessors. Kernels run in the same way; only
//! queries of the number of multiprocessors differ.

use std::ffi::c_uint;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevice, CUgreenCtx,
    CUgreenCtxCreate_flags, CUresult, CUstream,
};

use super::context::{self, Context, Kind};
use super::device::device;
use super::facts::{Facts, facts};
use super::stream::Stream;
use super::table::{NOBODY, Table, handle};
use super::{Outcome, answer, give, primary};

/// A description of multiprocessors for a green context.
struct Part {
    multiprocessors: u32,
}

/// A green context, which retains the primary context.
struct Green {
    context: Arc<Context>,
    device: CUdevice,
}

static PARTS: Table<Part> = Table::new();
static GREENS: Table<Green> = Table::new();

const MULTIPROCESSORS: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

/// The driver's description of some multiprocessors.
fn resource(multiprocessors: u32) -> CUdevResource {
    // SAFETY: plain data for which zeros are valid (type 0 is "invalid").
    let mut resource: CUdevResource = unsafe { std::mem::zeroed() };
    resource.type_ = MULTIPROCESSORS;
    resource.__bindgen_anon_1.sm.smCount = multiprocessors;
    resource
}

/// Number of multiprocessors in a description.
fn count(resource: &CUdevResource) -> Outcome<u32> {
    if resource.type_ != MULTIPROCESSORS {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE);
    }
    // SAFETY: the type selects the union's field.
    Ok(unsafe { resource.__bindgen_anon_1.sm.smCount })
}

/// Size of the smallest part with at least `wanted` multiprocessors.
fn part(facts: &Facts, wanted: u32) -> u32 {
    wanted.max(facts.part_min).next_multiple_of(facts.part_step)
}

fn only_multiprocessors(kind: c_uint) -> Outcome {
    let is_known = kind == MULTIPROCESSORS as c_uint;
    if is_known { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDevResource(
    ordinal: CUdevice,
    place: *mut CUdevResource,
    kind: c_uint,
) -> CUresult {
    let find = || {
        only_multiprocessors(kind)?;
        device(ordinal).map(|facts| resource(facts.multiprocessors))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevResource(
    raw: CUcontext,
    place: *mut CUdevResource,
    kind: c_uint,
) -> CUresult {
    let find = || {
        only_multiprocessors(kind)?;
        context::context(raw).map(|context| resource(context.multiprocessors))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevSmResourceSplitByCount(
    parts: *mut CUdevResource,
    groups: *mut c_uint,
    whole: *const CUdevResource,
    rest: *mut CUdevResource,
    _flags: c_uint,
    wanted: c_uint,
) -> CUresult {
    let split = || {
        if groups.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: guaranteed by the caller: null, or the resource to split.
        let whole = unsafe { whole.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let (whole, part) = (count(whole)?, part(facts()?, wanted));
        // SAFETY: guaranteed by the caller.
        let asked = unsafe { groups.read() };
        let found = if parts.is_null() { whole / part } else { asked.min(whole / part) };
        if found == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { groups.write(found) };
        let filled = if parts.is_null() { 0 } else { found };
        for i in 0..filled as usize {
            // SAFETY: guaranteed by the caller: `parts` has `asked` elements.
            let place = unsafe { parts.add(i) };
            // SAFETY: as above.
            unsafe { place.write(resource(part)) };
        }
        if !rest.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { rest.write(resource(whole - filled * part)) };
        }
        Ok(())
    };
    answer(split())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevResourceGenerateDesc(
    place: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    number: c_uint,
) -> CUresult {
    let find = || {
        facts()?;
        // SAFETY: guaranteed by the caller: null, or `number` elements; one is read.
        let resource = unsafe { resources.as_ref() }.filter(|_| number == 1);
        let resource = resource.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let part = Part { multiprocessors: count(resource)? };
        Ok(handle(PARTS.insert(NOBODY, part)))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxCreate(
    place: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    ordinal: CUdevice,
    flags: c_uint,
) -> CUresult {
    let find = || {
        if flags != CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as c_uint {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let part = PARTS.get(description.addr())?;
        let space = Arc::clone(&primary::retain(ordinal)?.space);
        let context = Context::create(Kind::Green, space, part.multiprocessors);
        Ok(handle(GREENS.insert(NOBODY, Green { context, device: ordinal })))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxDestroy(raw: CUgreenCtx) -> CUresult {
    answer(GREENS.remove(raw.addr()).and_then(|green| {
        green.context.unlist();
        primary::release(green.device)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxFromGreenCtx(place: *mut CUcontext, raw: CUgreenCtx) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || GREENS.get(raw.addr()).map(|green| handle(green.context.number))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxStreamCreate(
    place: *mut CUstream,
    raw: CUgreenCtx,
    _flags: c_uint,
    _priority: std::ffi::c_int,
) -> CUresult {
    let find = || {
        let green = GREENS.get(raw.addr())?;
        green.context.space.check()?;
        Ok(Stream::create(&green.context.space))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}
