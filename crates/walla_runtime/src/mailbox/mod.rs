//! Bounded channels between hosts and the device thread, and the snapshot that publishes counters.
//!
//! A [`Mailbox`] is a [`crossbeam_queue::ArrayQueue`] with two additions: it can be closed without
//! losing an item whose send succeeded, and a receiver can notify a sender that was refused.
//! No call blocks or allocates after construction.
//!
//! # Rules
//! 1. `sends` counts the sends in progress; its top bit is the closed mark. A send increments it
//!    first, so it either precedes the close, and its item is received, or sees the mark and
//!    returns the item as [`TrySendError::Closed`].
//! 2. A closed mailbox is *drained* if no send is in progress and the queue is empty. A thread that
//!    is preempted during a send keeps the mailbox undrained.
//! 3. A refused sender sets `retry_wanted`, fences and tries again; a receiver removes an item,
//!    fences and reads `retry_wanted`. One of the fences is first, so either the second try
//!    succeeds or the receiver sees the flag.
//! 4. A waiting thread reads the mailbox *after* it announced its wait: a thread parks only after a
//!    read that follows its last wake-up; a task reads after
//!    [`AtomicWaker::register`](atomic_waker::AtomicWaker::register). A sender wakes *after* the
//!    item is in the queue.

mod queue;
mod snapshot;
#[cfg(test)]
mod tests;

pub use queue::{Mailbox, TrySendError};
pub(crate) use snapshot::Snapshot;

/// The models replace this module by loom's types.
pub(crate) mod sync {
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

    pub(crate) use crossbeam_queue::ArrayQueue;
    pub(crate) use crossbeam_utils::CachePadded;
    pub(crate) use walla_types::Mark;
}
