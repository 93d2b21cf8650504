//! The driver API as walla calls it.
//!
//! # Rules
//! 1. A handle is a number that no other object has had, looked up in a [`Table`](table::Table):
//!    one that was destroyed, or never made, is an error and no crash. Addresses of memory are
//!    looked up alike.
//! 2. Everything made in a context is listed with its [`Space`](context::Space) and goes with it.
//!    Reserved addresses and the memory mapped there belong to nobody, as with the real driver.
//! 3. Work runs in the thread that enqueues it, under the lock of its stream, so a stream is an
//!    ordered queue for all threads. No other lock is held while it runs.
//! 4. A fault of a kernel is printed and kept in the space of its stream; the call that enqueued
//!    the kernel succeeds, every later one in that space answers the fault. On a GPU, where work is
//!    done later, it is not otherwise.
//! 5. A device touches its own memory and the host's, and nothing of another device's: nobody asks
//!    for more here.
//! 6. Enumerations among arguments are numbers here, since a caller may know more of them; those
//!    within structs are taken at their word.

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

/// Devices, at most.
const DEVICES_MAX: usize = 4;

/// What kernels of each device may touch: its own memory, and pinned memory of the host.
static MEMORIES: [Memory; DEVICES_MAX] = [const { Memory::new() }; DEVICES_MAX];

/// What kernels of a device, which there is, may touch.
fn memory_of(device: CUdevice) -> &'static Memory {
    &MEMORIES[device as usize]
}

/// What a call comes to: the error is the driver's number.
type Outcome<T = ()> = Result<T, CUresult>;

/// The number that a call answers.
fn answer(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Writes what a call finds to where its caller wants it. Looks for nothing where that is nowhere.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn give<T>(place: *mut T, find: impl FnOnce() -> Outcome<T>) -> CUresult {
    let Some(place) = NonNull::new(place) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    match find() {
        Ok(found) => {
            // SAFETY: not null, so valid by the caller's promise.
            unsafe { place.write(found) };
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error,
    }
}
