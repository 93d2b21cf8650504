use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;

use super::sync::{AtomicBool, AtomicU64, Ordering, OwnLine, UnsafeCell, fence};

/// Error of a send. It returns the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// No free slot: keep the payload and try again, for example in the next frame.
    Full(T),
    /// The mailbox is closed: give up.
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

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_full() { "the mailbox is full" } else { "the mailbox is closed" })
    }
}

impl<T> core::error::Error for TrySendError<T> {}

/// Bit of `tail` that marks a closed mailbox.
const CLOSED: u64 = 1 << 63;

/// A bounded queue for many senders and many receivers. See the [module](super) for its rules.
pub(crate) struct Mailbox<T> {
    tail: OwnLine<AtomicU64>,
    head: OwnLine<AtomicU64>,
    room_wanted: OwnLine<AtomicBool>,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    turn: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

#[expect(unsafe_code, reason = "slots are shared between threads by rules 1 to 3")]
// SAFETY: a value is written by one thread and read by one other (rules 1 and 2), so it must be
// `Send`. It is never accessed by two threads at the same time.
unsafe impl<T: Send> Send for Mailbox<T> {}

#[expect(unsafe_code, reason = "slots are shared between threads by rules 1 to 3")]
// SAFETY: as above; all other fields are atomic.
unsafe impl<T: Send> Sync for Mailbox<T> {}

impl<T> Mailbox<T> {
    /// Creates a mailbox for `capacity` items, rounded up to a power of two of at least 2 (with a
    /// single slot, `turn` could not distinguish "holds item `p`" from "free for item `p + 1`").
    /// This is its only allocation.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2).next_power_of_two();
        let slot = |position| Slot {
            turn: AtomicU64::new(position),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Self {
            tail: OwnLine(AtomicU64::new(0)),
            head: OwnLine(AtomicU64::new(0)),
            room_wanted: OwnLine(AtomicBool::new(false)),
            slots: (0..capacity as u64).map(slot).collect(),
        }
    }

    fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    fn slot(&self, position: u64) -> &Slot<T> {
        // In bounds, because the capacity is a power of two.
        &self.slots[(position & (self.capacity() - 1)) as usize]
    }

    /// Sends an item.
    ///
    /// # Errors
    /// Returns the item if no slot is free or the mailbox is closed.
    pub(crate) fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        let mut tail = self.tail.0.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(TrySendError::Closed(item));
            }
            let slot = self.slot(tail);
            let turn = slot.turn.load(Ordering::Acquire);
            if turn == tail {
                match self.move_on(&self.tail.0, tail, 1) {
                    Ok(()) => {
                        self.write(slot, tail, item);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
                continue;
            }
            // The slot still holds an item of the previous lap, or `tail` is outdated.
            let now = self.tail.0.load(Ordering::Relaxed);
            if turn < tail && now == tail {
                return Err(TrySendError::Full(item));
            }
            tail = now;
        }
    }

    /// Like [`try_send`](Self::try_send). If no slot is free, the next receiver that frees one is
    /// notified by [`take_room_wanted`](Self::take_room_wanted).
    pub(crate) fn try_send_or_want_room(&self, item: T) -> Result<(), TrySendError<T>> {
        match self.try_send(item) {
            Err(TrySendError::Full(item)) => {
                self.room_wanted.0.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst); // Rule 6.
                self.try_send(item)
            }
            sent_or_closed => sent_or_closed,
        }
    }

    /// Receives the oldest item. Returns `None` if the mailbox is empty.
    pub(crate) fn try_recv(&self) -> Option<T> {
        self.claim(1).map(|position| self.read(self.slot(position), position)).next()
    }

    /// Receives up to `most` of the oldest items, in order, appends them to `items` and returns
    /// their number. They are claimed together: with one [`try_recv`](Self::try_recv) per item,
    /// each atomic move of `head` would wait for the cache lines of the previous item, which come
    /// from the sender's core.
    pub(crate) fn recv_many(&self, most: usize, items: &mut Vec<T>) -> usize {
        let claimed = self.claim(most);
        let count = claimed.end - claimed.start;
        items.extend(claimed.map(|position| self.read(self.slot(position), position)));
        count as usize
    }

    /// Claims the positions of up to `most` of the oldest items for this thread, which must read
    /// each of them.
    fn claim(&self, most: usize) -> Range<u64> {
        let holds_item =
            |position: &u64| self.slot(*position).turn.load(Ordering::Acquire) == position + 1;
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let count = (head..).take(most).take_while(holds_item).count() as u64;
            // If `count` is 0, the next slot is empty or being written, or `head` is outdated.
            let moved = match count {
                0 => Err(self.head.0.load(Ordering::Relaxed)),
                _ => self.move_on(&self.head.0, head, count),
            };
            match moved {
                Ok(()) => return head..head + count,
                Err(now) if count == 0 && now == head => return head..head,
                Err(now) => head = now,
            }
        }
    }

    /// Whether a refused sender waits for the slot that a [`try_recv`](Self::try_recv) just freed.
    /// Returns `true` once, to one receiver.
    pub(crate) fn take_room_wanted(&self) -> bool {
        fence(Ordering::SeqCst); // Rule 6.
        // The relaxed load first keeps the cache line shared between receivers in the common case.
        self.room_wanted.0.load(Ordering::Relaxed)
            && self.room_wanted.0.swap(false, Ordering::Relaxed)
    }

    /// Refuses all later sends. Items sent before can still be received.
    pub(crate) fn close(&self) {
        self.tail.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether the mailbox is closed and all items sent before have been received.
    pub(crate) fn is_drained(&self) -> bool {
        let tail = self.tail.0.load(Ordering::Acquire);
        tail & CLOSED != 0 && self.head.0.load(Ordering::Acquire) == tail & !CLOSED
    }

    /// Claims `count` positions from `from` by moving one end of the queue. Returns the current
    /// position of that end on failure.
    fn move_on(&self, end: &AtomicU64, from: u64, count: u64) -> Result<(), u64> {
        // Relaxed: `turn` orders the item itself (rule 3).
        let to = from + count;
        end.compare_exchange_weak(from, to, Ordering::Relaxed, Ordering::Relaxed).map(drop)
    }

    #[expect(unsafe_code, reason = "writes into a slot that this thread owns")]
    fn write(&self, slot: &Slot<T>, position: u64, item: T) {
        slot.value.with_mut(|value| {
            // SAFETY: by rule 1 only this thread owns the slot; its last item was moved out before
            // `turn` marked it as free.
            unsafe { value.write(MaybeUninit::new(item)) }
        });
        slot.turn.store(position + 1, Ordering::Release);
    }

    #[expect(unsafe_code, reason = "moves an item out of a slot that this thread owns")]
    fn read(&self, slot: &Slot<T>, position: u64) -> T {
        let value = slot.value.with_mut(|value| {
            // SAFETY: by rule 2 only this thread owns the slot; `MaybeUninit` may be copied out in
            // any state.
            unsafe { value.read() }
        });
        slot.turn.store(position + self.capacity(), Ordering::Release);
        // SAFETY: `turn` showed that the slot holds the item of this position, and only this thread
        // claimed the position.
        unsafe { value.assume_init() }
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        while self.try_recv().is_some() {}
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
