use crate::sync::{AtomicBool, Mutex, Ordering, Thread, fence, thread};

/// Where one thread sleeps until another has something for it.
///
/// The sleeper announces itself, looks once more, and only then parks; a waker makes its news
/// visible, then looks for sleepers. With a sequentially consistent fence between the two steps of
/// either side, at least one of them sees the other: no wake-up is lost. A token left over from an
/// earlier wake-up only makes the sleeper look once more.
#[derive(Debug)]
pub(crate) struct Bed {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false), thread: Mutex::new(None) }
    }

    /// Sleeps until `ready` answers true; it is asked again at every wake-up.
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

    /// Wakes the sleeper, if there is one. What it waits for was made visible before.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // The sleeper locks this only before it announces itself, so nobody waits here.
            let thread = self.thread.lock().ok().and_then(|thread| thread.clone());
            if let Some(thread) = thread {
                thread.unpark();
            }
        }
    }
}
