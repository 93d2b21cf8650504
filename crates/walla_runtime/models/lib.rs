//! Every interleaving of small uses of `walla_runtime`'s mailbox, snapshot, flags and settings,
//! and of marks of other crates, with at most three preemptions.
//!
//! ```text
//! cargo test -p walla_runtime_models
//! LOOM_MAX_PREEMPTIONS=5 cargo test -p walla_runtime_models --release
//! ```
//!
//! The sources are the runtime's, compiled here with loom's atomics in place of `core`'s. A
//! separate package needs no compiler flags that would reach other crates, and builds loom alone.
//!
//! Not on Windows with the GNU toolchain: a model ends by unwinding the stacks of loom's
//! coroutines, which aborts there. The orderings do not depend on the system.
#![cfg(all(test, not(all(windows, target_env = "gnu"))))]
#![allow(dead_code, reason = "the models use a part of each file")]

#[path = "../src/shell/controls.rs"]
mod controls;
#[path = "../src/shell/flags.rs"]
mod flags;
#[path = "../../walla_types/src/mark.rs"]
mod mark;
#[path = "../src/mailbox/queue.rs"]
mod queue;
#[path = "../src/mailbox/snapshot.rs"]
mod snapshot;

mod clients;
mod mailboxes;
mod marks;
mod settings;
mod snapshots;

/// Replaces `walla_runtime::mailbox::sync`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

    pub(crate) use crate::mark::Mark;

    /// The model's threads have no cache lines.
    #[derive(Debug)]
    pub(crate) struct CachePadded<T>(T);

    impl<T> CachePadded<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(value)
        }
    }

    impl<T> std::ops::Deref for CachePadded<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    const EMPTY: usize = 0;
    const BUSY: usize = 1;
    const FULL: usize = 2;

    /// Model of `crossbeam_queue::ArrayQueue` with one place, which loom does not know. Orderings
    /// are weaker than there, so the mailbox must not rely on more than "a push is before its pop".
    #[derive(Debug)]
    pub(crate) struct ArrayQueue<T> {
        state: AtomicUsize,
        /// Only locked by the thread that set `BUSY`.
        item: std::sync::Mutex<Option<T>>,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            assert_eq!(capacity, 1);
            Self { state: AtomicUsize::new(EMPTY), item: std::sync::Mutex::new(None) }
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            if !self.claim(EMPTY) {
                return Err(item);
            }
            *self.item.try_lock().unwrap() = Some(item);
            self.state.store(FULL, Ordering::Release);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            if !self.claim(FULL) {
                return None;
            }
            let item = self.item.try_lock().unwrap().take();
            self.state.store(EMPTY, Ordering::Release);
            item
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.state.load(Ordering::Relaxed) == EMPTY
        }

        fn claim(&self, state: usize) -> bool {
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            self.state.compare_exchange(state, BUSY, success, failure).is_ok()
        }
    }
}

/// Stub for the settings that reach the core.
mod engine_core {
    use std::time::Duration;

    use crate::options::FrameBudget;

    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum Control {
        Budget(FrameBudget),
        Reserved(Duration),
        KvTokens(u32),
    }
}

/// Stub for the settings of hosts.
mod options {
    use std::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum FrameBudget {
        Auto,
        Unlimited,
        Time(Duration),
    }
}

/// Runs `model` in every interleaving.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}
