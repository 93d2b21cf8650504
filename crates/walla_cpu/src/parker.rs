//! Waits for a condition.
//!
//! A waker publishes its change and then unparks. If the thread is not parked yet, the wake-up is
//! kept and the next park returns at once, so none is lost. A wake-up left over from earlier only
//! causes one more check.
//!
//! Threads that the device starts park with `std` and are woken through their handles, which takes
//! no lock: a call of the device must not wait for a thread that was descheduled while it parks.
//! A thread of the program has no handle here, so it owns a parker.

use crate::sync::{Parker, thread};

/// Parks the calling thread, which the device has started, until `ready` returns true.
pub(crate) fn park_until(mut ready: impl FnMut() -> bool) {
    while !ready() {
        thread::park();
    }
}

/// Parks the calling thread, which owns `parker`, until `ready` returns true.
pub(crate) fn park_in_until(parker: &Parker, mut ready: impl FnMut() -> bool) {
    while !ready() {
        parker.park();
    }
}
