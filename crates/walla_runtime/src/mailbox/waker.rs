use core::fmt;
use core::task::Waker;

use super::sync::{AtomicU32, Ordering, UnsafeCell};

const IDLE: u32 = 0;
/// Somebody puts a waker in.
const REGISTERING: u32 = 1;
/// Somebody takes the waker out.
const WAKING: u32 = 2;

/// A place for the waker of one task, which other threads wake without a lock.
///
/// | state | who owns the waker | leaves the state |
/// |---|---|---|
/// | `IDLE` | nobody | – |
/// | `REGISTERING` | the thread that moved `IDLE` to it | that thread, to `IDLE` |
/// | `WAKING` | the thread that moved `IDLE` to it | that thread, to `IDLE` |
/// | `REGISTERING + WAKING` | still the registering thread, which now owes the wake-up | that thread, to `IDLE` |
///
/// 1. A wake-up takes the waker out: it wakes once, and the task registers again.
/// 2. Who finds the place taken never waits: a wake-up leaves its mark to the registering thread; a
///    second registration wakes its own task at once, so that it looks and comes back. No wake-up
///    is lost, some are needless.
pub(crate) struct WakerCell {
    state: AtomicU32,
    waker: UnsafeCell<Option<Waker>>,
}

#[expect(unsafe_code, reason = "the waker is shared between threads by the table above")]
// SAFETY: `Waker` is `Send` and `Sync`, and the state gives it to one thread at a time.
unsafe impl Send for WakerCell {}

#[expect(unsafe_code, reason = "the waker is shared between threads by the table above")]
// SAFETY: as above.
unsafe impl Sync for WakerCell {}

impl WakerCell {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(IDLE), waker: UnsafeCell::new(None) }
    }

    /// The task to wake next: it takes the place of the one before. Look at whatever is waited for
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
            // A wake-up came in between and left its mark.
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
        // AcqRel also where the mark is left to another thread: what this one published is seen by
        // the task that one wakes.
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
            // SAFETY: the state gave the waker to this thread alone.
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
