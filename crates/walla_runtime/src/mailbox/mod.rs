//! Bounded mailboxes between hosts and the device thread, and the wake-ups of both sides.
//!
//! No operation takes a lock, allocates after construction, or waits. A send to a full mailbox
//! returns the payload.
//!
//! # Field owners
//! A mailbox is a ring of slots (Dmitry Vyukov's bounded queue, with a closed mark) for any number
//! of senders and receivers. Positions count up from 0 in 63 bits and never wrap: at 10⁹ items per
//! second that takes 292 years.
//!
//! | field | written by | meaning |
//! |---|---|---|
//! | `tail` | senders, closer | position of the next item; the top bit is the closed mark |
//! | `head` | receivers | position of the next item to take |
//! | `slot.turn` | slot owner | `p`: free for item `p`; `p + 1`: holds item `p`; else other lap |
//! | `slot.value` | slot owner | the item |
//! | `room_wanted` | both | a sender was refused and must be notified when a slot is free |
//!
//! # Rules
//! 1. A sender owns the slot of position `p` from moving `tail` from `p` to `p + 1` until it stores
//!    `turn = p + 1`.
//! 2. A receiver owns the slot of position `p` from moving `head` from `p` or less to `p + 1` or
//!    more, after it has seen that all slots in between hold items, until it stores
//!    `turn = p + capacity`.
//! 3. No other thread reads or writes the slot's value. Storing `turn` releases it, loading `turn`
//!    acquires it.
//! 4. The closed mark is part of `tail`, so each send is ordered either before it (the item will be
//!    received) or after it (the payload is returned as [`TrySendError::Closed`]). No send succeeds
//!    and is lost.
//! 5. A closed mailbox is *drained* once `head` has reached `tail`. A slot that a sender owns keeps
//!    the mailbox undrained, so that the last receiver can wait for an item that is being written
//!    while the mailbox closes.
//! 6. A refused sender sets `room_wanted`, fences, and tries again; a receiver frees its slot,
//!    fences, and then reads `room_wanted`. The fences are totally ordered, so either the second
//!    try succeeds or the receiver sees the flag.
//! 7. A waiting thread or task checks the mailbox *after* it has registered its wait. A thread
//!    parks only after a check that follows its last wake-up (the park token of [`std::thread`]
//!    keeps an unpark in between); a task checks again after [`WakerCell::register`]. A sender
//!    wakes the receiver *after* the item is stored.
//!
//! # Model checking
//! The package `models` in this crate's folder runs these sources in all interleavings with at most
//! three preemptions: `cargo test -p walla_runtime_models`.

mod queue;
mod snapshot;
mod sync;
mod waker;

#[cfg(test)]
mod tests;

pub(crate) use queue::Mailbox;
pub use queue::TrySendError;
pub(crate) use snapshot::Snapshot;
pub(crate) use waker::WakerCell;
