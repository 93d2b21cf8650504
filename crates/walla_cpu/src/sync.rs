//! Synchronisation primitives. Package `walla_cpu_models` replaces this module by loom's.

use std::time::Duration;

pub(crate) use std::time::Instant;

pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
};

pub(crate) use crossbeam_utils::CachePadded;
pub(crate) use crossbeam_utils::sync::{Parker, Unparker};

pub(crate) use crate::priority::spawn;
pub(crate) use crate::system::{leave_processor, processor};

/// Polls `ready` for about `time`, with spin hints between.
pub(crate) fn spin_until(time: Duration, mut ready: impl FnMut() -> bool) -> bool {
    /// Polls per reading of the clock, which takes as long as some of them.
    const POLLS: u32 = 16;
    let mut begin = None;
    loop {
        for _ in 0..POLLS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        // A wait for less than the first polls reads no clock.
        if begin.get_or_insert_with(Instant::now).elapsed() >= time {
            return ready();
        }
    }
}
