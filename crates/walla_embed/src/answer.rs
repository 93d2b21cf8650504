//! A result that one thread stores and another takes: the channel of this crate and of
//! `walla_memory`. `futures-channel` and tokio would add crates to a game's build.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;

#[derive(Debug)]
struct Cell<T> {
    /// One result; `None`: there will be none.
    result: ArrayQueue<Option<T>>,
    waker: AtomicWaker,
}

/// The side that stores. A drop without a result ends the wait.
#[derive(Debug)]
pub struct Answer<T> {
    cell: Arc<Cell<T>>,
    /// Woken too.
    host: Option<Arc<AtomicWaker>>,
}

/// The side that takes.
#[derive(Debug)]
pub struct Wanted<T> {
    cell: Arc<Cell<T>>,
    is_taken: bool,
}

/// Both sides. `host`: woken with the result.
pub fn answer<T>(host: Option<Arc<AtomicWaker>>) -> (Answer<T>, Wanted<T>) {
    let cell = Arc::new(Cell { result: ArrayQueue::new(1), waker: AtomicWaker::new() });
    (Answer { cell: Arc::clone(&cell), host }, Wanted { cell, is_taken: false })
}

impl<T> Answer<T> {
    /// Stores the result, unless there is one.
    pub fn send(&self, result: T) {
        self.store(Some(result));
    }

    /// Whether the other side was dropped.
    pub fn is_unwanted(&self) -> bool {
        Arc::strong_count(&self.cell) == 1
    }

    fn store(&self, result: Option<T>) {
        // A second one, of the drop, is not stored.
        if self.cell.result.push(result).is_ok() {
            // After the push: a task that is woken finds the result.
            self.cell.waker.wake();
            if let Some(host) = &self.host {
                host.wake();
            }
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.store(None);
    }
}

impl<T> Wanted<T> {
    /// Whether the result was taken.
    pub fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// The result, once. `Err`: there will be none. Never waits.
    pub fn try_take(&mut self) -> Option<Result<T, Gone>> {
        if self.is_taken {
            return Some(Err(Gone));
        }
        let result = self.cell.result.pop()?;
        self.is_taken = true;
        Some(result.ok_or(Gone))
    }

    /// Waits as [`try_take`](Self::try_take) does not.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<Result<T, Gone>> {
        if let Some(result) = self.try_take() {
            return Poll::Ready(result);
        }
        self.cell.waker.register(context.waker());
        // It may have come before the waker was there.
        self.try_take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The thread has ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker of the calling thread.
#[must_use]
pub fn thread_waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}
