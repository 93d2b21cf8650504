//! The primitives of hand-made concurrency. Package `walla_cpu_models` puts loom's in their place.

pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, Thread},
};

/// Asks `ready` a bounded number of times, with pauses between: some microseconds.
pub(crate) fn spin_until(pauses: u32, mut ready: impl FnMut() -> bool) -> bool {
    for _ in 0..pauses {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    ready()
}
