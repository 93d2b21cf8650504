//! Each device's primary context, shared by all its users.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUresult};

use super::context::{Context, Kind, Space};
use super::device::device;
use super::table::handle;
use super::{Outcome, answer, give};

/// The context, and the number of its users.
struct Primary {
    context: Arc<Context>,
    holds: usize,
}

static PRIMARY: Mutex<BTreeMap<CUdevice, Primary>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<CUdevice, Primary>> {
    PRIMARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Retains the primary context, and creates it for the first user.
pub(super) fn retain(ordinal: CUdevice) -> Outcome<Arc<Context>> {
    let facts = device(ordinal)?;
    let mut held = lock();
    let primary = held.entry(ordinal).or_insert_with(|| Primary {
        context: Context::create(Kind::Primary, Space::new(ordinal), facts.multiprocessors),
        holds: 0,
    });
    primary.holds += 1;
    Ok(Arc::clone(&primary.context))
}

/// Releases the primary context: the last release frees all objects in it.
pub(super) fn release(ordinal: CUdevice) -> Outcome {
    device(ordinal)?;
    let mut held = lock();
    let primary = held.get_mut(&ordinal).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    primary.holds -= 1;
    if primary.holds == 0 {
        primary.context.unlist();
        primary.context.space.destroy();
        held.remove(&ordinal);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    place: *mut CUcontext,
    ordinal: CUdevice,
) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || retain(ordinal).map(|context| handle(context.number))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: CUdevice) -> CUresult {
    answer(release(ordinal))
}
