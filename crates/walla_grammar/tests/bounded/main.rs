//! Bounds of time and memory: of compilations of hostile sources, and of the cache.
//! One program, because the allocator counts all threads.

#[path = "../common/mod.rs"]
mod common;

mod hostile;
mod sizes;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes allocated now, and the most since [`Memory::new`].
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[expect(unsafe_code, reason = "counts what the system's allocator is asked for")]
// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory from a moment on. Tests that measure it run sequentially.
struct Memory {
    start: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Memory {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = Self { start: 0, _alone: alone };
        memory.restart();
        memory
    }

    fn restart(&mut self) {
        self.start = LIVE.load(Ordering::Relaxed);
        PEAK.store(self.start, Ordering::Relaxed);
    }

    /// Bytes that are kept.
    fn kept(&self) -> usize {
        LIVE.load(Ordering::Relaxed).saturating_sub(self.start)
    }

    /// The most bytes at a time.
    fn peak(&self) -> usize {
        PEAK.load(Ordering::Relaxed).saturating_sub(self.start)
    }
}
