//! Streams.

use std::ffi::{c_int, c_uint};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUgraph, CUresult, CUstream, CUstreamCaptureMode};

use super::capture::Seat;
use super::context::{Space, current};
use super::event::{Record, event};
use super::graph::{GRAPHS, Graph};
use super::table::{Table, handle, new_number};
use super::work::Operation;
use super::{Outcome, answer, give};

/// From the greatest to the least. Priorities have no effect here.
pub(super) const PRIORITIES: RangeInclusive<c_int> = -5..=0;

/// An ordered queue. It holds at most the work that is running.
pub(super) struct Stream {
    /// Its handle; 0: a context's default stream.
    number: usize,
    pub(super) space: Arc<Space>,
    /// Locked while its work runs. The value is its membership in a capture.
    queue: Mutex<Option<Seat>>,
}

pub(super) static STREAMS: Table<Stream> = Table::new();

impl Stream {
    /// The default stream of a context.
    pub(super) fn default_of(space: Arc<Space>) -> Self {
        Self { number: 0, space, queue: Mutex::default() }
    }

    /// Creates and lists a stream; returns its handle.
    pub(super) fn create(space: &Arc<Space>) -> CUstream {
        let number = new_number();
        let stream = Self { number, space: Arc::clone(space), queue: Mutex::default() };
        STREAMS.insert_at(number, space.number, Arc::new(stream));
        handle(number)
    }

    /// Runs work now, or adds it to the capture of the stream.
    pub(super) fn enqueue(&self, work: &[Operation]) -> Outcome {
        match &mut *self.queue() {
            Some(seat) => seat.add(self.number, work),
            None => {
                self.space.run(work);
                Ok(())
            }
        }
    }

    /// Whether another thread is running work on this stream.
    fn is_busy(&self) -> bool {
        matches!(self.queue.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Blocks until another thread's work on this stream is complete.
    pub(super) fn wait(&self) {
        drop(self.queue());
    }

    /// State of an event that is recorded now.
    fn record(&self) -> Record {
        self.queue().as_ref().map_or_else(|| Record::Done(Instant::now()), Seat::record)
    }

    /// Orders later work behind an event. Only captures need it: all other recorded work is
    /// complete.
    fn wait_for(&self, record: Record) -> Outcome {
        let mut queue = self.queue();
        match (&mut *queue, record) {
            (_, Record::Never) | (None, Record::Done(_)) => Ok(()),
            (Some(seat), Record::Done(_)) => {
                Err(seat.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION))
            }
            (Some(seat), Record::Captured(mark)) => seat.wait_for(&mark),
            (None, Record::Captured(_)) if self.number == 0 => {
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            (None, Record::Captured(mark)) => {
                *queue = Some(Seat::join(mark)?);
                Ok(())
            }
        }
    }

    fn begin_capture(&self) -> Outcome {
        if self.number == 0 {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut queue = self.queue();
        if queue.is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        *queue = Some(Seat::begin());
        Ok(())
    }

    fn end_capture(&self) -> Outcome<Vec<Operation>> {
        let mut queue = self.queue();
        let seat = queue.take_if(|seat| seat.is_origin());
        match (seat, &*queue) {
            (Some(seat), _) => seat.end(),
            (None, Some(joined)) => {
                Err(joined.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED))
            }
            (None, None) => Err(CUresult::CUDA_ERROR_ILLEGAL_STATE),
        }
    }

    /// Returns an error for queries of a capturing stream.
    fn refuse_capture(queue: &Option<Seat>) -> Outcome {
        let refuse = |seat: &Seat| seat.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        queue.as_ref().map_or(Ok(()), |seat| Err(refuse(seat)))
    }

    /// Locks the queue, after another thread's work has ended.
    fn queue(&self) -> MutexGuard<'_, Option<Seat>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // The capture's origin may have ended it for all streams.
        queue.take_if(|seat| seat.is_over());
        queue
    }
}

/// The stream with a handle. Null, and the two handles for default streams, return the current
/// context's default stream.
pub(super) fn stream(raw: CUstream) -> Outcome<Arc<Stream>> {
    let context = current()?;
    let stream = match raw.addr() {
        0..=2 => Arc::clone(&context.default_stream),
        number => STREAMS.get(number)?,
    };
    stream.space.check()?;
    Ok(stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut CUstream, _flags: c_uint) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || current().map(|context| Stream::create(&context.space))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    place: *mut CUstream,
    flags: c_uint,
    _priority: c_int,
) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { cuStreamCreate(place, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(raw: CUstream) -> CUresult {
    answer(current().and_then(|_| {
        let stream = STREAMS.remove(raw.addr())?;
        if let Some(seat) = &*stream.queue() {
            // The error is reported when the capture ends.
            let _ = seat.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(raw: CUstream) -> CUresult {
    answer(stream(raw).and_then(|stream| {
        if stream.is_busy() {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        Stream::refuse_capture(&stream.queue())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(raw: CUstream) -> CUresult {
    answer(stream(raw).and_then(|stream| {
        Stream::refuse_capture(&stream.queue())?;
        // Earlier work may have failed.
        stream.space.check()
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    raw: CUstream,
    raw_event: CUevent,
    _flags: c_uint,
) -> CUresult {
    let wait = || stream(raw)?.wait_for(event(raw_event)?.record());
    answer(wait())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(raw_event: CUevent, raw: CUstream) -> CUresult {
    let record = || {
        let (event, stream) = (event(raw_event)?, stream(raw)?);
        if event.space != stream.space.number {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        event.set(stream.record());
        Ok(())
    };
    answer(record())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(raw: CUstream, mode: c_uint) -> CUresult {
    // The other modes restrict calls of other threads, which this library does not check.
    if mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint {
        return CUresult::CUDA_ERROR_NOT_SUPPORTED;
    }
    answer(stream(raw).and_then(|stream| stream.begin_capture()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(raw: CUstream, place: *mut CUgraph) -> CUresult {
    let find = || {
        let stream = stream(raw)?;
        let graph = Graph::new(stream.end_capture()?);
        Ok(handle(GRAPHS.insert(stream.space.number, graph)))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}
