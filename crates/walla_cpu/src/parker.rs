use crate::sync::{AtomicBool, Mutex, Ordering, Thread, fence, thread};

/// Parks one thread until another wakes it.
///
/// The sleeper announces itself, checks its condition again, and only then parks. A waker publishes
/// its change and then checks for a sleeper. A sequentially consistent fence separates the two
/// steps on either side, so at least one side sees the other and no wake-up is lost. A token left
/// over from an earlier wake-up only causes one more check.
#[derive(Debug)]
pub(crate) struct Parker {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false), thread: Mutex::new(None) }
    }

    /// Sleeps until `ready` returns true; checks it again after every wake-up.
    pub(crate) fn sleep_until(&self, mut ready: impl FnMut() -> bool) {
        if ready() {
            return;
        }
        if let Ok(mut thread) = self.thread.lock() {
            *thread = Some(thread::current());
        }
        loop {
            // A swap, not a store: see `claims` of the pool.
            self.asleep.swap(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if ready() {
                break;
            }
            thread::park();
        }
        self.asleep.swap(false, Ordering::Relaxed);
    }

    /// Wakes the sleeper, if any. The caller has published the change that the sleeper waits for.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // The sleeper locks this only before it announces itself, so this lock is free.
            let thread = self.thread.lock().ok().and_then(|thread| thread.clone());
            if let Some(thread) = thread {
                thread.unpark();
            }
        }
    }
}
