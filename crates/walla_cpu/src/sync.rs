//! Synchronisation primitives. Package `walla_cpu_models` replaces this module by loom's.

pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

pub(crate) use crossbeam_utils::sync::{Parker, Unparker};

/// Polls `ready` up to `pauses + 1` times, with a spin hint between: some microseconds.
pub(crate) fn spin_until(pauses: u32, mut ready: impl FnMut() -> bool) -> bool {
    for _ in 0..pauses {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    ready()
}
