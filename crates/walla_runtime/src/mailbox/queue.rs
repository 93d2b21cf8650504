use core::fmt;

use super::sync::{ArrayQueue, AtomicBool, AtomicUsize, CachePadded, Ordering, fence};

/// A refused send, with its payload.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The queue is full: try again later, for example in the next frame.
    #[error("the mailbox is full")]
    Full(T),
    /// The receiver is gone: no later send can succeed.
    #[error("the mailbox is closed")]
    Closed(T),
}

impl<T> TrySendError<T> {
    /// The payload.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(payload) | Self::Closed(payload) => payload,
        }
    }

    /// Whether a later try can succeed.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_full() { "Full(..)" } else { "Closed(..)" })
    }
}

/// The closed mark in `sends`.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A bounded queue for several senders and receivers, without locks. It is for implementations of
/// `EngineClient`. Its rules are in the documentation of its module.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: ArrayQueue<T>,
    sends: CachePadded<AtomicUsize>,
    retry_wanted: CachePadded<AtomicBool>,
}

impl<T> Mailbox<T> {
    /// A mailbox for `capacity` items, at least one.
    pub fn new(capacity: usize) -> Self {
        Self {
            queue: ArrayQueue::new(capacity.max(1)),
            sends: CachePadded::new(AtomicUsize::new(0)),
            retry_wanted: CachePadded::new(AtomicBool::new(false)),
        }
    }

    /// Sends an item.
    ///
    /// # Errors
    /// Returns the item if the queue is full or the mailbox is closed.
    pub(crate) fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        let before = self.sends.fetch_add(1, Ordering::AcqRel);
        let sent = if before & CLOSED == 0 {
            self.queue.push(item).map_err(TrySendError::Full)
        } else {
            Err(TrySendError::Closed(item))
        };
        self.sends.fetch_sub(1, Ordering::Release);
        sent
    }

    /// Sends an item. After a refusal, the next receiver that removes an item
    /// gets `true` from [`take_retry_wanted`](Self::take_retry_wanted).
    ///
    /// # Errors
    /// The item, if the queue is full or the mailbox is closed.
    pub fn try_send_or_want_retry(&self, item: T) -> Result<(), TrySendError<T>> {
        match self.try_send(item) {
            Err(TrySendError::Full(item)) => {
                self.retry_wanted.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst); // Rule 3.
                self.try_send(item)
            }
            sent_or_closed => sent_or_closed,
        }
    }

    /// Receives the oldest item, if the queue has one.
    pub fn try_recv(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Receives up to `most` items in order and appends them; returns their number.
    pub(crate) fn recv_many(&self, most: usize, items: &mut Vec<T>) -> usize {
        let before = items.len();
        items.extend(core::iter::from_fn(|| self.queue.pop()).take(most));
        items.len() - before
    }

    /// Whether a refused sender waits for the free place that a receiver just made: `true` once,
    /// for one receiver.
    pub fn take_retry_wanted(&self) -> bool {
        fence(Ordering::SeqCst); // Rule 3.
        // The plain load first keeps the cache line shared between receivers in the common case.
        self.retry_wanted.load(Ordering::Relaxed)
            && self.retry_wanted.swap(false, Ordering::Relaxed)
    }

    /// Refuses all later sends. Earlier items can still be received.
    pub(crate) fn close(&self) {
        self.sends.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether the mailbox is closed and all items were received.
    pub(crate) fn is_drained(&self) -> bool {
        self.sends.load(Ordering::Acquire) == CLOSED && self.queue.is_empty()
    }
}
