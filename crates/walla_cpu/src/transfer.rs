//! State of copies that the owner and the executor share: host memory and completed events.
//!
//! The owner counts a copy before it enqueues it, and touches the bytes only if no copy is counted;
//! the executor ends the count after it has released the lock. So neither side ever waits for the
//! lock, and an owner that sees a copy's event completed can also read the bytes.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, PoisonError, TryLockError};

/// Host memory that copies use.
pub(crate) struct Host<T> {
    bytes: Mutex<T>,
    /// Copies that were enqueued and are not done.
    in_flight: AtomicU32,
}

impl<T> Host<T> {
    pub(crate) fn new(bytes: T) -> Self {
        Self { bytes: Mutex::new(bytes), in_flight: AtomicU32::new(0) }
    }

    /// Counts copies that the owner is about to enqueue.
    pub(crate) fn begin(&self, copies: u32) {
        self.in_flight.fetch_add(copies, Ordering::Relaxed);
    }

    /// Runs one counted copy, on the executor.
    pub(crate) fn copy(&self, copy: impl FnOnce(&mut T)) {
        copy(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner));
        self.in_flight.fetch_sub(1, Ordering::Release);
    }

    /// Runs `visit` on the owner's thread, or returns `false` if a copy is in flight.
    pub(crate) fn visit(&self, visit: impl FnOnce(&mut T)) -> bool {
        if self.in_flight.load(Ordering::Acquire) != 0 {
            return false;
        }
        let mut guard = match self.bytes.try_lock() {
            Ok(guard) => guard,
            // An earlier visitor panicked. Any bytes are valid, so the buffer can still be used.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The executor holds a lock that must be free. A refusal is better than blocking.
            Err(TryLockError::WouldBlock) => return false,
        };
        visit(&mut guard);
        true
    }
}

/// Serial number of an event's latest record that completed. One sequence serves all events, so a
/// completed number is never that of another record.
#[derive(Default)]
pub(crate) struct Completed(AtomicU64);

impl Completed {
    pub(crate) fn complete(&self, serial: u64) {
        self.0.store(serial, Ordering::Release);
    }

    /// Whether this record, or a later one, completed; 0 is the state without a record.
    pub(crate) fn has(&self, serial: u64) -> bool {
        self.0.load(Ordering::Acquire) >= serial
    }
}
