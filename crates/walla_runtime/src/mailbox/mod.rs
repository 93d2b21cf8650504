//! Bounded mailboxes between hosts and the device thread, and the two ways in which their ends wake
//! each other.
//!
//! Nothing here takes a lock, allocates after construction, or waits: a send into a full mailbox
//! gives the payload back.
//!
//! # Who may touch what
//! A mailbox is a ring of slots (the bounded queue of Dmitry Vyukov, with a closed mark). Any
//! number of threads send, any number receive. Positions count up from 0 in 63 bits and never wrap:
//! at 10⁹ items a second that takes 292 years.
//!
//! | field | written by | meaning |
//! |---|---|---|
//! | `tail` | senders, closer | position of the next item, and the closed mark in the top bit |
//! | `head` | receivers | position of the next item to take |
//! | `slot.turn` | whoever owns the slot | `p`: free for item `p`; `p + 1`: holds item `p`; any other: of another lap |
//! | `slot.value` | whoever owns the slot | the item |
//! | `room_wanted` | both | a sender was refused and wants to be told when there is room |
//!
//! # Rules
//! 1. A sender owns the slot of position `p` from moving `tail` from `p` to `p + 1` until it stores
//!    `turn = p + 1`.
//! 2. A receiver owns it from moving `head` from `p` or less to `p + 1` or more, having seen that
//!    all it moves over hold items, until it stores `turn = p + capacity`.
//! 3. Nobody else reads or writes the slot's value. Storing `turn` releases it, loading `turn`
//!    acquires it.
//! 4. The closed mark lies in `tail`, so that each send comes either before it (the item will be
//!    received) or after it (the payload comes back as [`TrySendError::Closed`]): there is no send
//!    that succeeds and is lost.
//! 5. A closed mailbox is *drained* once `head` has reached `tail`. A slot that is owned by a
//!    sender keeps it undrained, so that the last receiver can wait for an item that is being
//!    written while the mailbox closes.
//! 6. A refused sender sets `room_wanted`, fences, and tries again; a receiver frees its slot,
//!    fences, and then looks at `room_wanted`. Of the two fences one comes first, so either the
//!    second try succeeds or the receiver sees the wish.
//! 7. Whoever waits looks at the mailbox *after* it has said that it waits: a thread parks only
//!    after a look that follows its last wake-up (the park token of [`std::thread`] remembers an
//!    unpark in between); a task looks again after [`WakerCell::register`]. Whoever sends wakes
//!    *after* the item is in.
//!
//! # Checking it
//! The package beside this one, `models`, runs these sources in every interleaving that has at most
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
