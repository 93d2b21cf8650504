//! Ranges for NVIDIA's profilers, on the thread that does the work.
//!
//! A profiler that starts a program names its library in `NVTX_INJECTION64_PATH`, and that is where
//! ranges go ([`injection`]): nothing else has to be installed. Where nobody is named, the old
//! `nvToolsExt` library is tried. Both are looked for when the first engine starts; where there is
//! neither, nothing happens, and the log says so once.
//!
//! Ranges balance by construction: an [`Entered`](crate::Entered) that has pushed one pops it, on
//! its own thread.

#![expect(unsafe_code, reason = "profilers are C libraries; this module is their only caller")]

mod injection;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libloading::Library;

use crate::stage::{LISTENERS, NVTX};

/// Begins a range on the calling thread.
type Push = unsafe extern "system" fn(*const c_char) -> c_int;

/// Ends the innermost range of the calling thread.
type Pop = unsafe extern "system" fn() -> c_int;

/// Names of the old library, by system.
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

/// Begins to push ranges, if somebody takes them.
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
        // SAFETY: loading runs the library's initialisers; it is NVIDIA's own, found on the
        // system's path by its name.
        unsafe { Library::new(*name) }.ok()
    };
    let library = LIBRARIES.iter().find_map(load)?;
    // SAFETY: the type is the entry point's.
    let push = *unsafe { library.get::<Push>(b"nvtxRangePushA\0") }.ok()?;
    // SAFETY: as above.
    let pop = *unsafe { library.get::<Pop>(b"nvtxRangePop\0") }.ok()?;
    // Threads may be inside it until the process ends.
    std::mem::forget(library);
    Some(Ranges { push, pop })
}

pub(crate) fn push(name: &'static CStr) {
    if let Some(Some(Ranges { push, .. })) = RANGES.get() {
        // SAFETY: the name is terminated and lives for ever; the library is never unloaded.
        let _depth = unsafe { push(name.as_ptr()) };
    }
}

pub(crate) fn pop() {
    if let Some(Some(Ranges { pop, .. })) = RANGES.get() {
        // SAFETY: the library is never unloaded.
        let _depth = unsafe { pop() };
    }
}
