//! Loom models: all interleavings of small uses of `walla_runtime`'s mailboxes, with at most three
//! preemptions.
//!
//! ```text
//! cargo test -p walla_runtime_models
//! LOOM_MAX_PREEMPTIONS=5 cargo test -p walla_runtime_models --release
//! ```
//!
//! The runtime's source files are compiled here with loom's atomics instead of `core`'s. In a
//! separate package they need no compiler flags that would affect other crates, and only loom is
//! built.
#![cfg(test)]

#[path = "../src/mailbox/queue.rs"]
mod queue;
#[path = "../src/mailbox/snapshot.rs"]
mod snapshot;
#[path = "../src/mailbox/waker.rs"]
mod waker;

mod mailbox;
mod snapshots;

/// Replaces `walla_runtime::mailbox::sync`.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) struct OwnLine<T>(pub(crate) T);
}

/// Runs `model` in every interleaving.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}
