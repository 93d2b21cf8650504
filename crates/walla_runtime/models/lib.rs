//! Every interleaving of small uses of `walla_runtime`'s snapshot, with at most three preemptions.
//!
//! ```text
//! cargo test -p walla_runtime_models
//! LOOM_MAX_PREEMPTIONS=5 cargo test -p walla_runtime_models --release
//! ```
//!
//! The source is the runtime's, compiled here with loom's atomics in place of `core`'s. A
//! separate package needs no compiler flags that would reach other crates, and builds loom alone.
#![cfg(test)]

#[path = "../src/mailbox/snapshot.rs"]
mod snapshot;

mod snapshots;

/// Replaces `walla_runtime::mailbox::sync`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Runs `model` in every interleaving.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}
