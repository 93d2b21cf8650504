//! A bounded ring between two threads. Neither end ever waits for the other one, even if that one
//! is interrupted in the middle of an operation: the thread of voices has a low priority.
//!
//! Rules:
//! 1. Each end counts after its operation: values that one end sees can be taken, and the free
//!    capacity that the other one sees can be used.
//! 2. An end has one owner. The locks make the ends `Sync` and are never taken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};

/// A ring for this number of values.
pub(crate) fn ring<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = RingBuffer::new(capacity);
    let (stored, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let level = Arc::new(Level { capacity, stored, taken });
    let sender = Sender { ring: Mutex::new(producer), level: Arc::clone(&level) };
    (sender, Receiver { ring: Mutex::new(consumer), level })
}

/// How full a ring is, for any thread.
#[derive(Debug)]
pub(crate) struct Level {
    capacity: usize,
    /// Values so far, wrapping. Each is written by one end.
    stored: AtomicUsize,
    taken: AtomicUsize,
}

impl Level {
    /// Values in the ring.
    pub(crate) fn len(&self) -> usize {
        // In this order: each value was stored before it was taken.
        let taken = self.taken.load(Ordering::Acquire);
        self.stored.load(Ordering::Acquire).wrapping_sub(taken)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values that still have room.
    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len())
    }
}

/// Adds to a count of this thread.
fn add(count: &AtomicUsize, values: usize) {
    let sum = count.load(Ordering::Relaxed).wrapping_add(values);
    count.store(sum, Ordering::Release);
}

/// The end that stores.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    ring: Mutex<Producer<T>>,
    level: Arc<Level>,
}

impl<T> Sender<T> {
    pub(crate) fn level(&self) -> &Arc<Level> {
        &self.level
    }

    /// Stores a value, or returns it if the ring is full.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        ring.push(value).map_err(|rtrb::PushError::Full(value)| value)?;
        add(&self.level.stored, 1);
        Ok(())
    }

    /// Stores values as far as there is room. Returns their number.
    pub(crate) fn extend(&mut self, values: impl ExactSizeIterator<Item = T>) -> usize {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        let count = values.len().min(ring.slots());
        let Ok(chunk) = ring.write_chunk_uninit(count) else { return 0 };
        let stored = chunk.fill_from_iter(values);
        add(&self.level.stored, stored);
        stored
    }
}

/// The end that takes.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    ring: Mutex<Consumer<T>>,
    level: Arc<Level>,
}

impl<T> Receiver<T> {
    pub(crate) fn level(&self) -> &Arc<Level> {
        &self.level
    }

    /// Takes the first value.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        let value = ring.pop().ok()?;
        add(&self.level.taken, 1);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_exact_at_each_end() {
        let (mut sender, mut receiver) = ring(3);
        assert_eq!((sender.push(1), sender.extend([2, 3, 4].into_iter())), (Ok(()), 2));
        assert_eq!((sender.push(5), sender.level().room()), (Err(5), 0));
        assert_eq!((receiver.pop(), receiver.level().len()), (Some(1), 2));
        assert_eq!((sender.level().room(), sender.extend([6, 7].into_iter())), (1, 1));
        let rest: Vec<i32> = std::iter::from_fn(|| receiver.pop()).collect();
        assert_eq!(rest, [2, 3, 6]);
        assert!(receiver.level().is_empty() && sender.level().room() == 3);
    }

    #[test]
    fn what_one_thread_sees_it_has() {
        let (mut sender, mut receiver) = ring(64);
        let stores = std::thread::spawn(move || {
            let mut next = 0_u32;
            while next < 10_000 {
                let room = sender.level().room();
                let values = next..next + room as u32;
                assert_eq!(sender.extend(values.collect::<Vec<_>>().into_iter()), room);
                next += room as u32;
                std::thread::yield_now();
            }
            next
        });
        let mut next = 0;
        while !stores.is_finished() || !receiver.level().is_empty() {
            for _ in 0..receiver.level().len() {
                assert_eq!(receiver.pop(), Some(next));
                next += 1;
            }
            std::thread::yield_now();
        }
        assert_eq!(stores.join().unwrap(), next);
    }
}
