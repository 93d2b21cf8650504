//! NVTX ranges for NVIDIA's profilers, on the thread that runs the stage.
//!
//! A profiler that starts a program sets `NVTX_INJECTION64_PATH` to its library, and ranges are
//! sent to that library ([`injection`]): no installation is needed. Without this variable, the old
//! `nvToolsExt` library is tried. Both are searched when the first engine starts. If neither is
//! found, no ranges are pushed, and this is logged once.
//!
//! Ranges balance by construction: an [`Entered`](crate::Entered) that pushed a range pops it on
//! the same thread.

#![expect(unsafe_code, reason = "profilers are C libraries; this module is their only caller")]

mod injection;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libloading::Library;

use crate::listeners::{LISTENERS, NVTX};

/// Begins a range on the calling thread.
type Push = unsafe extern "system" fn(*const c_char) -> c_int;

/// Ends the innermost range of the calling thread.
type Pop = unsafe extern "system" fn() -> c_int;

/// Names of the old library, per operating system.
const LIBRARIES: &[&str] = if cfg!(windows) {
    &["nvToolsExt64_1.dll"]
} else {
    &["libnvToolsExt.so.1", "libnvToolsExt.so"]
};

#[derive(Clone, Copy)]
struct Ranges {
    push: Push,
    pop: Pop,
}

static RANGES: OnceLock<Option<Ranges>> = OnceLock::new();

/// Starts to push ranges if a receiver is found.
pub(crate) fn listen() {
    let ranges = RANGES.get_or_init(|| {
        let found = injection::find().or_else(of_library);
        if found.is_none() {
            tracing::info!("no profiler and no NVTX library: nobody sees ranges of walla");
        }
        found
    });
    if ranges.is_some() {
        LISTENERS.fetch_or(NVTX, Ordering::Relaxed);
    }
}

fn of_library() -> Option<Ranges> {
    let load = |name: &&str| {
        // SAFETY: loading runs the initialisers of NVIDIA's library, found by name on the system's
        // search path.
        unsafe { Library::new(*name) }.ok()
    };
    let library = LIBRARIES.iter().find_map(load)?;
    // SAFETY: `Push` is the type of this entry point.
    let push = *unsafe { library.get::<Push>(b"nvtxRangePushA\0") }.ok()?;
    // SAFETY: as above.
    let pop = *unsafe { library.get::<Pop>(b"nvtxRangePop\0") }.ok()?;
    // Threads may execute the library's code until the process ends.
    std::mem::forget(library);
    Some(Ranges { push, pop })
}

pub(crate) fn push(name: &'static CStr) {
    if let Some(Some(Ranges { push, .. })) = RANGES.get() {
        // SAFETY: the name is NUL-terminated and static; the library is never unloaded.
        let _depth = unsafe { push(name.as_ptr()) };
    }
}

pub(crate) fn pop() {
    if let Some(Some(Ranges { pop, .. })) = RANGES.get() {
        // SAFETY: the library is never unloaded.
        let _depth = unsafe { pop() };
    }
}
