//! The end of the process. Exit handlers of a driver free its memory and end its threads. A call of
//! another thread at that time would use freed memory. So a handler that runs before the driver's
//! handlers waits for the calls in progress, and later calls never return.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads with a call in progress.
static CALLING: AtomicUsize = AtomicUsize::new(0);
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Calls in progress on this thread: they nest.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Time that the end of the process waits: a call may hang.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A call in progress of a driver, or a use of its mapped memory.
pub(crate) struct Call(());

/// Begins a call. At the end of the process it does not return.
pub(crate) fn call() -> Call {
    let depth = DEPTH.replace(DEPTH.get() + 1);
    if depth == 0 {
        CALLING.fetch_add(1, Ordering::SeqCst);
        if HAS_ENDED.load(Ordering::SeqCst) {
            CALLING.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
    }
    Call(())
}

impl Drop for Call {
    fn drop(&mut self) {
        let depth = DEPTH.get();
        DEPTH.set(depth - 1);
        if depth == 1 {
            CALLING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Registers the handler. Handlers run in the reverse order of their registration, so this must
/// follow the creation of a device, in which a driver registers its own.
pub(super) fn watch() {
    unsafe extern "C" {
        fn atexit(handler: extern "C" fn()) -> c_int;
    }
    // SAFETY: a function of the C library; the handler lives as long as the process. If there is no
    // memory for it, the process ends without it.
    let _registered = unsafe { atexit(end) };
}

extern "C" fn end() {
    if HAS_ENDED.swap(true, Ordering::SeqCst) {
        return;
    }
    let own = usize::from(DEPTH.get() > 0);
    let begin = Instant::now();
    while CALLING.load(Ordering::SeqCst) > own && begin.elapsed() < MAX_WAIT {
        thread::sleep(Duration::from_micros(100));
    }
}
