//! Captures: work that is written down instead of done.
//!
//! A capture begins on one stream; others join it by waiting for events that were recorded in it.
//! All their work is one list, in the order in which it was enqueued, which no event can
//! contradict. Who has waited for what is counted only to refuse what the driver refuses: an end
//! before the streams that joined have been waited for.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

use super::Outcome;
use super::event::Record;
use super::work::Operation;

/// How many operations of each stream.
type Counts = BTreeMap<usize, usize>;

/// What all streams of a capture share.
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
    /// Something was done that a capture cannot have: it ends in an error.
    Invalid,
    Ended,
}

/// A stream's place in a capture.
pub(super) struct Seat {
    mark: Mark,
    is_origin: bool,
}

/// A point of a capture: everything that comes before it.
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

    /// Joins one at a point of it.
    ///
    /// # Errors
    /// That it is over.
    pub(super) fn join(mark: Mark) -> Outcome<Self> {
        let seat = Self { mark, is_origin: false };
        if seat.is_over() { Err(CUresult::CUDA_ERROR_CAPTURED_EVENT) } else { Ok(seat) }
    }

    /// Whether the capture began here.
    pub(super) fn is_origin(&self) -> bool {
        self.is_origin
    }

    pub(super) fn is_over(&self) -> bool {
        self.capture().state == State::Ended
    }

    /// Adds work of a stream, which has this seat.
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

    /// This point, for an event.
    pub(super) fn record(&self) -> Record {
        Record::Captured(self.mark.clone())
    }

    /// Puts what comes later behind a point.
    ///
    /// # Errors
    /// That it is one of another capture.
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

    /// Lets the capture end in an error; answers `why`.
    pub(super) fn invalidate(&self, why: CUresult) -> CUresult {
        self.capture().state = State::Invalid;
        why
    }

    /// Ends the capture, whose origin this is: all its work, in order.
    ///
    /// # Errors
    /// That it is invalid, or that work of another stream comes before nothing here.
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
