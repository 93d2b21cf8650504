//! A bounded queue from one producer to one consumer that allocates once.
//!
//! `tail` counts what was pushed (the producer alone writes it), `head` what was taken (the
//! consumer alone). Slot `n % capacity` belongs to the consumer while `head <= n < tail`, else to
//! the producer, so the lock of a slot is always free: it is there to let the compiler check what
//! this paragraph says. Both counters are released after the slot was used and acquired before.

use crate::sync::{AtomicUsize, Mutex, Ordering};

pub(crate) struct Ring<T> {
    slots: Box<[Mutex<Option<T>>]>,
    head: AtomicUsize,
    tail: AtomicUsize,
}

impl<T> Ring<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = (0..capacity).map(|_| Mutex::new(None)).collect();
        Self { slots, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    /// Entries that fit when it is empty.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Entries that fit now (more may fit later). For the producer.
    pub(crate) fn free(&self) -> usize {
        let used =
            self.tail.load(Ordering::Relaxed).wrapping_sub(self.head.load(Ordering::Acquire));
        self.slots.len() - used
    }

    /// Appends an entry, or gives it back if the queue is full. For the producer.
    pub(crate) fn push(&self, entry: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(entry);
        }
        let tail = self.tail.load(Ordering::Relaxed);
        match self.slots[tail % self.slots.len()].try_lock() {
            Ok(mut slot) => *slot = Some(entry),
            Err(_) => return Err(entry),
        }
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Whether an entry waits. For the consumer.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Acquire)
    }

    /// Takes the oldest entry. For the consumer.
    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let head = self.head.load(Ordering::Relaxed);
        let entry = self.slots[head % self.slots.len()].try_lock().ok()?.take();
        self.head.store(head.wrapping_add(1), Ordering::Release);
        entry
    }
}
