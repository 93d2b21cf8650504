//! Captures: work that is recorded instead of executed.
//!
//! A capture begins on one stream; others join it by waiting for events that were recorded in it.
//! All their work is one list, in the order in which it was enqueued, which is consistent with all
//! events. Dependencies are tracked only to return the driver's error for an end before all joined
//! streams have been waited for.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

use super::Outcome;
use super::event::Record;
use super::work::Operation;

/// Number of operations of each stream.
type Counts = BTreeMap<usize, usize>;

/// State that all streams of a capture share.
#[derive(Default)]
struct Capture {
    work: Vec<Operation>,
    counts: Counts,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Recording,
    /// A call was made that is not allowed during a capture: the capture ends in an error.
    Invalid,
    Ended,
}

/// A stream's membership in a capture.
pub(super) struct Seat {
    mark: Mark,
    is_origin: bool,
}

/// A point in a capture: the operations of each stream before it.
#[derive(Clone)]
pub(super) struct Mark {
    capture: Arc<Mutex<Capture>>,
    before: Counts,
}

impl Seat {
    /// Begins a capture.
    pub(super) fn begin() -> Self {
        Self { mark: Mark { capture: Arc::default(), before: Counts::new() }, is_origin: true }
    }

    /// Joins a capture at a point of it.
    ///
    /// # Errors
    /// The capture is over.
    pub(super) fn join(mark: Mark) -> Outcome<Self> {
        let seat = Self { mark, is_origin: false };
        if seat.is_over() { Err(CUresult::CUDA_ERROR_CAPTURED_EVENT) } else { Ok(seat) }
    }

    /// Whether the capture began on this stream.
    pub(super) fn is_origin(&self) -> bool {
        self.is_origin
    }

    pub(super) fn is_over(&self) -> bool {
        self.capture().state == State::Ended
    }

    /// Adds work of the stream that has this seat.
    pub(super) fn add(&mut self, stream: usize, work: &[Operation]) -> Outcome {
        let mut capture = self.mark.lock();
        if capture.state == State::Invalid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        capture.work.extend_from_slice(work);
        let count = capture.counts.entry(stream).or_default();
        *count += work.len();
        let count = *count;
        drop(capture);
        self.mark.before.insert(stream, count);
        Ok(())
    }

    /// The current point, for an event.
    pub(super) fn record(&self) -> Record {
        Record::Captured(self.mark.clone())
    }

    /// Orders later work behind a point.
    ///
    /// # Errors
    /// The point belongs to another capture.
    pub(super) fn wait_for(&mut self, mark: &Mark) -> Outcome {
        if !Arc::ptr_eq(&self.mark.capture, &mark.capture) {
            return Err(self.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE));
        }
        for (stream, count) in &mark.before {
            let before = self.mark.before.entry(*stream).or_default();
            *before = (*before).max(*count);
        }
        Ok(())
    }

    /// Invalidates the capture; returns `why`.
    pub(super) fn invalidate(&self, why: CUresult) -> CUresult {
        self.capture().state = State::Invalid;
        why
    }

    /// Ends the capture, on its origin. Returns all its work, in order.
    ///
    /// # Errors
    /// The capture is invalid, or the origin has not waited for all work of other streams.
    pub(super) fn end(self) -> Outcome<Vec<Operation>> {
        let mut capture = self.capture();
        let state = mem::replace(&mut capture.state, State::Ended);
        if state == State::Invalid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if self.mark.before != capture.counts {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        Ok(mem::take(&mut capture.work))
    }

    fn capture(&self) -> MutexGuard<'_, Capture> {
        self.mark.lock()
    }
}

impl Mark {
    fn lock(&self) -> MutexGuard<'_, Capture> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
