//! Ranges for NVIDIA's profilers, on the thread that does the work.
//!
//! The library (`nvToolsExt`) is loaded when the first engine starts. Where there is none, nothing happens, and the log says so
//! once.

use std::sync::Once;
use std::sync::atomic::Ordering;

use cudarc::nvtx::{result, sys};

use crate::stage::{LISTENERS, NVTX};

/// Begins to push ranges, if the library is there.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if is_present() {
            LISTENERS.fetch_or(NVTX, Ordering::Relaxed);
        } else {
            tracing::info!("no NVTX library on this machine: profilers see no ranges of walla");
        }
    });
}

fn is_present() -> bool {
    #[expect(unsafe_code, reason = "loading a library runs its initialisers")]
    // SAFETY: the library is NVIDIA's own, found on the system's path by its name; its initialisers need nothing of us.
    unsafe {
        sys::is_culib_present()
    }
}

pub(crate) fn push(name: &'static str) {
    result::range_push(name);
}

pub(crate) fn pop() {
    result::range_pop();
}
