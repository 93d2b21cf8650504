//! A limit of time for one call of a matcher.
//!
//! The library bounds the items of a mask, but not the comparisons for one item: in an ambiguous
//! grammar they grow with the square of the text. It can be cancelled. A thread cancels matchers
//! whose call takes too long. It is started with the first matcher, and ends with the last one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// Time between two looks at all matchers.
const INTERVAL: Duration = Duration::from_millis(50);

/// The clock of [`Timed::start`].
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

static WATCH: Mutex<Watch> = Mutex::new(Watch { all: Vec::new(), has_thread: false });

struct Watch {
    all: Vec<Weak<Timed>>,
    has_thread: bool,
}

/// The calls of one matcher.
#[derive(Debug)]
pub(crate) struct Timed {
    handle: CancellationHandle,
    max_time: Duration,
    /// Milliseconds from [`EPOCH`] to the start of the call in progress, plus one; 0 for none.
    start: AtomicU64,
}

/// A call in progress.
pub(crate) struct Call(Arc<Timed>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Relaxed);
    }
}

fn now_millis() -> u64 {
    u64::try_from(EPOCH.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Timed {
    pub(crate) fn new(handle: CancellationHandle, max_time: Duration) -> Arc<Self> {
        let timed = Arc::new(Self { handle, max_time, start: AtomicU64::new(0) });
        let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
        watch.all.push(Arc::downgrade(&timed));
        // Under the lock that an ending thread holds, so this matcher is never left without one.
        if !watch.has_thread {
            let thread = std::thread::Builder::new().name("walla-mask-time".to_owned());
            // Without a thread only the other limits hold.
            watch.has_thread = thread.spawn(run).is_ok();
        }
        timed
    }

    /// Starts a call, which ends when the result is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> Call {
        self.start.store(now_millis() + 1, Ordering::Relaxed);
        Call(Arc::clone(self))
    }

    fn check(&self) {
        let start = self.start.load(Ordering::Relaxed);
        let took = Duration::from_millis((now_millis() + 1).saturating_sub(start));
        if start > 0 && took > self.max_time {
            self.handle.cancel();
        }
    }
}

fn run() {
    loop {
        std::thread::sleep(INTERVAL);
        let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
        watch.all.retain(|timed| timed.strong_count() > 0);
        if watch.all.is_empty() {
            watch.has_thread = false;
            watch.all = Vec::new();
            return;
        }
        watch.all.iter().filter_map(Weak::upgrade).for_each(|timed| timed.check());
    }
}
