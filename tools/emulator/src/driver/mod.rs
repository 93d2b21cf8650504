//! The driver API as walla calls it.
//!
//! # Rules
//! 1. A handle is a number that no other object has had, looked up in a [`Table`](table::Table): a
//!    handle that was destroyed, or never created, returns an error and does not crash. Addresses
//!    of memory are looked up in the same way.
//! 2. Everything created in a context is listed with its [`Space`](context::Space) and is freed
//!    with it. Reserved addresses and the memory mapped there belong to no context, as with the
//!    real driver.
//! 3. Work runs in the thread that enqueues it, under the lock of its stream, so a stream is an
//!    ordered queue for all threads. No other lock is held while it runs.
//! 4. A kernel's fault is printed and stored in the space of its stream. The call that enqueued the
//!    kernel succeeds, and every later call in that space returns the fault, as on a GPU, where
//!    work runs later.
//! 5. A device accesses its own memory and the host's, but no other device's: walla does not need
//!    peer access.
//! 6. Enumerations among arguments are plain numbers here, since a caller may pass unknown values;
//!    enumerations within structs are trusted.

mod capture;
mod context;
mod device;
mod errors;
mod event;
mod facts;
mod graph;
mod green;
mod launch;
mod memory;
mod module;
mod pages;
mod primary;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod virtual_memory;
mod work;

use std::ptr::NonNull;

use cudarc::driver::sys::{CUdevice, CUresult};

use crate::memory::Memory;

/// Maximum number of devices.
const MAX_DEVICES: usize = 4;

/// Memory that kernels of each device may access: device memory, and pinned memory of the host.
static MEMORIES: [Memory; MAX_DEVICES] = [const { Memory::new() }; MAX_DEVICES];

/// Memory that kernels of an existing device may access.
fn memory_of(device: CUdevice) -> &'static Memory {
    &MEMORIES[device as usize]
}

/// Result of a call: the error is the driver's number.
type Outcome<T = ()> = Result<T, CUresult>;

/// Converts a result to the number that the call returns.
fn answer(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Writes the result of `find` to `place`. Fails without calling `find` if `place` is null.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn give<T>(place: *mut T, find: impl FnOnce() -> Outcome<T>) -> CUresult {
    let Some(place) = NonNull::new(place) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    match find() {
        Ok(found) => {
            // SAFETY: not null, so valid by this function's contract.
            unsafe { place.write(found) };
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error,
    }
}
