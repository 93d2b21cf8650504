//! Events.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult};

use super::capture::Mark;
use super::context::current;
use super::table::{Table, handle};
use super::{Outcome, answer, give};

/// A marker in a stream.
pub(super) struct Event {
    /// Space in which it was created.
    pub(super) space: usize,
    has_time: bool,
    record: Mutex<Record>,
}

/// State of an event.
#[derive(Clone)]
pub(super) enum Record {
    Never,
    /// Recorded, and complete since this time.
    Done(Instant),
    /// Recorded in a capture.
    Captured(Mark),
}

pub(super) static EVENTS: Table<Event> = Table::new();

impl Event {
    pub(super) fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, record: Record) {
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = record;
    }

    /// Time of its record, if it was recorded.
    fn time(&self) -> Outcome<Instant> {
        match self.record() {
            Record::Done(time) if self.has_time => Ok(time),
            Record::Captured(_) => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
            Record::Done(_) | Record::Never => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
    }
}

/// The event with a handle.
pub(super) fn event(raw: CUevent) -> Outcome<Arc<Event>> {
    current()?;
    EVENTS.get(raw.addr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(place: *mut CUevent, flags: c_uint) -> CUresult {
    let find = || {
        let context = current()?;
        let has_time = flags & CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint == 0;
        let space = context.space.number;
        let event = Event { space, has_time, record: Mutex::new(Record::Never) };
        Ok(handle(EVENTS.insert(space, event)))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(raw: CUevent) -> CUresult {
    answer(current().and_then(|_| EVENTS.remove(raw.addr()).map(drop)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(raw: CUevent) -> CUresult {
    answer(event(raw).and_then(|event| match event.record() {
        Record::Never | Record::Done(_) => Ok(()),
        Record::Captured(_) => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(raw: CUevent) -> CUresult {
    // Recorded work is always complete.
    // SAFETY: it has no conditions.
    unsafe { cuEventQuery(raw) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    millis: *mut f32,
    begin: CUevent,
    end: CUevent,
) -> CUresult {
    let find = || {
        let (begin, end) = (event(begin)?.time()?, event(end)?.time()?);
        let seconds = match end.checked_duration_since(begin) {
            Some(later) => later.as_secs_f32(),
            None => -(begin - end).as_secs_f32(),
        };
        Ok(seconds * 1e3)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(millis, find) }
}
