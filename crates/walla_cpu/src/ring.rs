//! A bounded single-producer, single-consumer queue that allocates once.
//!
//! `tail` counts pushed entries and is written only by the producer; `head` counts popped entries
//! and is written only by the consumer. Slot `n % capacity` belongs to the consumer while `head <=
//! n < tail`, else to the producer. So the lock of a slot is always free; it only lets the compiler
//! check this. Both counters are released after the slot was used and acquired before.

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

    /// Capacity.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Free entries now (more may become free). For the producer.
    pub(crate) fn free(&self) -> usize {
        let used =
            self.tail.load(Ordering::Relaxed).wrapping_sub(self.head.load(Ordering::Acquire));
        self.slots.len() - used
    }

    /// Appends an entry, or returns it if the queue is full. For the producer.
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

    /// Whether the queue is empty. For the consumer.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Acquire)
    }

    /// Removes the oldest entry. For the consumer.
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
