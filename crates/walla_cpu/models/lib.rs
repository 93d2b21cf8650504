//! Checks every interleaving of small uses of `walla_cpu`'s threads, with at most two preemptions.
//!
//! ```text
//! cargo test -p walla_cpu_models
//! LOOM_MAX_PREEMPTIONS=4 cargo test -p walla_cpu_models --release
//! ```
//!
//! The sources are the device's source files, compiled here with loom's primitives in place of
//! `std`'s. In a separate package they need no compiler flags that would affect other crates, and
//! only loom is built.
//!
//! Not on Windows with the GNU toolchain: a model ends by unwinding the stacks of loom's
//! coroutines, which aborts there. The orderings do not depend on the system.
#![cfg(all(test, not(all(windows, target_env = "gnu"))))]
#![allow(dead_code, reason = "the models use a part of each file")]

#[path = "../src/executor.rs"]
mod executor;
#[path = "../src/parker.rs"]
mod parker;
#[path = "../src/pool.rs"]
mod pool;
#[path = "../src/retry.rs"]
mod retry;
#[path = "../src/ring.rs"]
mod ring;
#[path = "../src/tile.rs"]
mod tile;
#[path = "../src/transfer.rs"]
mod transfer;

mod commands;
mod queues;
mod tiles;
mod transfers;

/// Replaces `walla_cpu::sync`.
mod sync {
    pub(crate) use std::sync::{PoisonError, TryLockError};

    pub(crate) use loom::{
        sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        sync::{Arc, Condvar, Mutex, MutexGuard},
        thread,
    };

    /// The model's threads have no priorities.
    pub(crate) fn spawn(
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name(name.into()).spawn(work)
    }

    /// Model of `crossbeam_utils::sync::Parker`, which loom does not know.
    pub(crate) struct Parker {
        unparker: Unparker,
    }

    /// Model of `crossbeam_utils::sync::Unparker`: sets the token, which one park consumes.
    #[derive(Clone)]
    pub(crate) struct Unparker {
        token: Arc<(Mutex<bool>, Condvar)>,
    }

    impl Parker {
        pub(crate) fn new() -> Self {
            let token = Arc::new((Mutex::new(false), Condvar::new()));
            Self { unparker: Unparker { token } }
        }

        pub(crate) fn unparker(&self) -> &Unparker {
            &self.unparker
        }

        pub(crate) fn park(&self) {
            let (token, condition) = &*self.unparker.token;
            let mut token = token.lock().unwrap();
            while !*token {
                token = condition.wait(token).unwrap();
            }
            *token = false;
        }
    }

    impl Unparker {
        pub(crate) fn unpark(&self) {
            let (token, condition) = &*self.token;
            *token.lock().unwrap() = true;
            condition.notify_one();
        }
    }

    /// The model's threads have no cache lines.
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

    /// A model checker has no time.
    pub(crate) struct Instant;

    impl Instant {
        pub(crate) fn now() -> Self {
            Self
        }

        pub(crate) fn elapsed(&self) -> std::time::Duration {
            std::time::Duration::ZERO
        }
    }

    /// The model's threads have no processors.
    pub(crate) fn processor() -> Option<usize> {
        None
    }

    pub(crate) fn leave_processor(_processor: usize) {}

    /// A model checker has no time and tries every order of events, so one check is enough.
    pub(crate) fn spin_until(_time: std::time::Duration, mut ready: impl FnMut() -> bool) -> bool {
        ready()
    }
}

/// Stub for the choice of threads: all take part in every job.
mod work {
    #[derive(Clone, Copy)]
    pub(crate) struct ThreadCosts;

    impl ThreadCosts {
        pub(crate) const JOIN_NANOS: u32 = 0;

        pub(crate) const fn new(_join_nanos: u32) -> Self {
            Self
        }

        pub(crate) fn of_job(self, _work: u64, max: usize) -> usize {
            max.max(1)
        }

        pub(crate) fn tiles(self, _work: u64, threads: usize) -> usize {
            threads
        }

        /// Some jobs wake sleeping helpers.
        pub(crate) const fn rouse(self) -> u64 {
            1
        }
    }
}

/// Stub for the device's commands.
mod command {
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Command {
        Count,
        Refuse,
        Panic,
    }
}

/// Stub for the state that commands use.
mod machine {
    use std::panic::resume_unwind;

    use crate::command::Command;
    use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

    /// Counts the commands that it ran.
    pub(crate) struct Machine(pub(crate) Arc<AtomicUsize>);

    impl Machine {
        pub(crate) fn execute(
            &mut self,
            command: &Command,
            _cancel: &AtomicBool,
        ) -> Result<(), String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match command {
                Command::Count => Ok(()),
                Command::Refuse => Err("refused".to_owned()),
                Command::Panic => resume_unwind(Box::new("a defect")),
            }
        }

        pub(crate) fn rest(&self) {}
    }
}

/// Runs `model` in every interleaving.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.check(model);
}
