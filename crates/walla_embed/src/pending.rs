//! The result of one request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use crossbeam_queue::ArrayQueue;

use crate::error::EmbedError;
use crate::text::Embedding;

type Outcome = Result<Vec<Embedding>, EmbedError>;

/// Where the thread stores a result.
#[derive(Debug)]
struct Cell {
    /// One result.
    outcome: ArrayQueue<Outcome>,
    waker: AtomicWaker,
    /// The host dropped its side.
    is_dropped: AtomicBool,
}

/// The two sides of a result.
pub(crate) fn cell() -> (Answer, Pending) {
    let outcome = ArrayQueue::new(1);
    let is_dropped = AtomicBool::new(false);
    let cell = Arc::new(Cell { outcome, waker: AtomicWaker::new(), is_dropped });
    (Answer { cell: Arc::clone(&cell) }, Pending { cell, is_taken: false })
}

/// The thread's side. A drop without a result stores [`EmbedError::Stopped`].
#[derive(Debug)]
pub(crate) struct Answer {
    cell: Arc<Cell>,
}

impl Answer {
    /// Stores the result, unless there is one.
    pub(crate) fn send(&self, outcome: Outcome) {
        if self.cell.outcome.push(outcome).is_ok() {
            self.cell.waker.wake();
        }
    }

    /// Whether the host no longer wants the result.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.cell.is_dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Only the first result is stored; a second one would wake nothing new.
        if Arc::strong_count(&self.cell) > 1 {
            self.send(Err(EmbedError::Stopped));
        }
    }
}

/// Vectors that are being computed, in the order of the request's texts.
///
/// It is a future; [`try_recv`](Self::try_recv) never waits, [`wait`](Self::wait) blocks. Dropping
/// it cancels the request: texts that were not computed yet are left out.
#[must_use = "dropping it cancels the request"]
#[derive(Debug)]
pub struct Pending {
    cell: Arc<Cell>,
    is_taken: bool,
}

impl Pending {
    /// The result, once; `None` before the request has ended and after the result was taken. Never
    /// waits.
    pub fn try_recv(&mut self) -> Option<Result<Vec<Embedding>, EmbedError>> {
        if self.is_taken {
            return None;
        }
        let outcome = self.cell.outcome.pop();
        self.is_taken = outcome.is_some();
        outcome
    }

    /// Blocks the calling thread until the request has ended: for tools and tests, not for a frame.
    ///
    /// # Errors
    /// See [`EmbedError`].
    pub fn wait(self) -> Result<Vec<Embedding>, EmbedError> {
        pollster::block_on(self)
    }
}

impl Future for Pending {
    type Output = Result<Vec<Embedding>, EmbedError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_taken {
            return Poll::Ready(Err(EmbedError::Stopped));
        }
        if let Some(outcome) = self.try_recv() {
            return Poll::Ready(outcome);
        }
        self.cell.waker.register(context.waker());
        // The result may have come before the waker was there.
        self.try_recv().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.cell.is_dropped.store(true, Ordering::Relaxed);
    }
}
