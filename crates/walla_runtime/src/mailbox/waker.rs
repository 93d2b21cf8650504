use core::fmt;
use core::task::Waker;

use super::sync::{AtomicU32, Ordering, UnsafeCell};

const IDLE: u32 = 0;
/// A thread stores a waker.
const REGISTERING: u32 = 1;
/// A thread takes the waker.
const WAKING: u32 = 2;

/// Holds the waker of one task, which other threads wake without a lock.
///
/// | state | owner of the waker | next state |
/// |---|---|---|
/// | `IDLE` | none | – |
/// | `REGISTERING` | the thread that moved `IDLE` to it | `IDLE`, by that thread |
/// | `WAKING` | the thread that moved `IDLE` to it | `IDLE`, by that thread |
/// | `REGISTERING + WAKING` | the registering thread, which must wake | `IDLE`, by that thread |
///
/// 1. A wake-up takes the waker out: it wakes once, and the task registers again.
/// 2. A thread that finds the cell occupied never waits. A wake-up leaves its mark to the
///    registering thread; a second registration wakes its task at once, so that the task checks and
///    registers again. No wake-up is lost, some are spurious.
pub(crate) struct WakerCell {
    state: AtomicU32,
    waker: UnsafeCell<Option<Waker>>,
}

#[expect(unsafe_code, reason = "the waker is shared between threads by the table above")]
// SAFETY: `Waker` is `Send` and `Sync`, and the state grants it to one thread at a time.
unsafe impl Send for WakerCell {}

#[expect(unsafe_code, reason = "the waker is shared between threads by the table above")]
// SAFETY: as above.
unsafe impl Sync for WakerCell {}

impl WakerCell {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(IDLE), waker: UnsafeCell::new(None) }
    }

    /// Registers the task to wake next; it replaces the previous one. Check the awaited condition
    /// *after* this call.
    pub(crate) fn register(&self, waker: &Waker) {
        // Cloned and dropped outside of the state: both run code of the executor, which may panic
        // or call back.
        let waker = waker.clone();
        if self.exchange(IDLE, REGISTERING).is_err() {
            waker.wake();
            return;
        }
        let before = self.replace(Some(waker));
        if self.exchange(REGISTERING, IDLE).is_err() {
            // A concurrent wake-up has left its mark.
            let waker = self.replace(None);
            self.state.swap(IDLE, Ordering::AcqRel);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        drop(before);
    }

    /// Wakes the registered task, if there is one.
    pub(crate) fn wake(&self) {
        // AcqRel also where the mark is left to another thread: the task that this thread wakes
        // sees all data published before this call.
        if self.state.fetch_or(WAKING, Ordering::AcqRel) != IDLE {
            return;
        }
        let waker = self.replace(None);
        self.state.fetch_and(!WAKING, Ordering::AcqRel);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn exchange(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Called by the thread that owns the waker.
    #[expect(unsafe_code, reason = "replaces a waker that this thread owns")]
    fn replace(&self, new: Option<Waker>) -> Option<Waker> {
        self.waker.with_mut(|waker| {
            // SAFETY: the state grants the waker to this thread only.
            let waker = unsafe { &mut *waker };
            core::mem::replace(waker, new)
        })
    }
}

impl fmt::Debug for WakerCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakerCell").finish_non_exhaustive()
    }
}
