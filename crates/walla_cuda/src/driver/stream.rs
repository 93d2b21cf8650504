use cudarc::driver::result;
use cudarc::driver::result::stream::StreamKind::NonBlocking;
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};
use walla_device::{DeviceError, StreamPriority};

use super::Context;
use super::context_source::ContextOrigin;
use super::objects::Object;

/// An ordered work queue of a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(pub(super) CUstream);

// SAFETY: a driver handle without thread affinity; see `Context`.
unsafe impl Send for Stream {}

/// An event of a context, without timing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event(CUevent);

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}

impl Context {
    pub(crate) fn create_stream(&self, priority: StreamPriority) -> Result<Stream, DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.objects);
        let range = result::stream::get_priority_range();
        let (least, greatest) = self.value("cuCtxGetStreamPriorityRange", range)?;
        let priority = match priority {
            StreamPriority::Low => least,
            StreamPriority::High => greatest,
        };
        // Not ordered with the legacy default stream, which other code in the process may use.
        let raw = match self.origin {
            ContextOrigin::Green(green) => {
                let mut raw: CUstream = std::ptr::null_mut();
                let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
                // SAFETY: `raw` lives through the call; the green context is alive, and its entry
                // points were found.
                let result =
                    unsafe { sys::cuGreenCtxStreamCreate(&raw mut raw, green, flags, priority) };
                self.check("cuGreenCtxStreamCreate", result)?;
                raw
            }
            _ => {
                let created = result::stream::create_with_priority(NonBlocking, priority);
                self.value("cuStreamCreateWithPriority", created)?
            }
        };
        self.keep(Object::Stream(raw));
        // Dropping the context polls it, see `Context::is_idle`.
        self.streams.borrow_mut().push(Stream(raw));
        Ok(Stream(raw))
    }

    pub(crate) fn create_event(&self) -> Result<Event, DeviceError> {
        self.create_event_with(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event with timing.
    #[cfg(feature = "cupti")]
    pub(crate) fn create_timing_event(&self) -> Result<Event, DeviceError> {
        self.create_event_with(CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create_event_with(&self, flags: CUevent_flags) -> Result<Event, DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.objects);
        let raw = self.value("cuEventCreate", result::event::create(flags))?;
        self.keep(Object::Event(raw));
        Ok(Event(raw))
    }

    /// Microseconds between two completed events with timing.
    #[cfg(feature = "cupti")]
    pub(crate) fn micros_between(&self, begin: Event, end: Event) -> Result<f64, DeviceError> {
        self.enter()?;
        // SAFETY: both were made in this context, which is alive.
        let elapsed = unsafe { result::event::elapsed(begin.0, end.0) };
        let millis = self.value("cuEventElapsedTime", elapsed)?;
        Ok(f64::from(millis) * 1e3)
    }

    pub(crate) fn record(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.event_records);
        // SAFETY: both were made in this context, which is alive.
        let result = unsafe { sys::cuEventRecord(event.0, stream.0) };
        self.check("cuEventRecord", result)
    }

    pub(crate) fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.event_waits);
        // SAFETY: both were made in this context, which is alive.
        let result = unsafe { sys::cuStreamWaitEvent(stream.0, event.0, 0) };
        self.check("cuStreamWaitEvent", result)
    }

    /// Whether the event's latest record has completed.
    pub(crate) fn event_is_complete(&self, event: Event) -> Result<bool, DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.event_queries);
        // SAFETY: the event was made in this context, which is alive.
        let result = unsafe { sys::cuEventQuery(event.0) };
        self.ready("cuEventQuery", result)
    }

    /// Whether all work on the stream has completed.
    pub(crate) fn stream_is_idle(&self, stream: Stream) -> Result<bool, DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.stream_queries);
        // SAFETY: the stream was made in this context, which is alive.
        let result = unsafe { sys::cuStreamQuery(stream.0) };
        self.ready("cuStreamQuery", result)
    }

    fn ready(&self, call: &'static str, result: CUresult) -> Result<bool, DeviceError> {
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.check(call, result).map(|()| true)
    }
}
