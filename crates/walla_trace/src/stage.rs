//! Marks: begin and end of stages.

use std::ops::Range;
use std::sync::atomic::Ordering;

use tracing::span::EnteredSpan;

use crate::clock::{DeviceClock, now_nanos};
#[cfg(feature = "nvtx")]
use crate::listeners::NVTX;
use crate::listeners::{FILE, LISTENERS};
use crate::queue::{self, Record};
use crate::track::Track;

macro_rules! stages {
    ($($(#[$doc:meta])* $stage:ident: $target:literal, $name:literal, $track:ident;)*) => {
        /// A stage that is timed by the thread that runs it: see the [crate's table](crate#stages).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stage {
            $($(#[$doc])* $stage,)*
        }

        impl Stage {
            /// All stages.
            pub const ALL: &[Self] = &[$(Self::$stage),*];

            /// Target of the stage's span.
            #[must_use]
            pub const fn target(self) -> &'static str {
                match self { $(Self::$stage => $target,)* }
            }

            /// Name of the stage's span.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$stage => $name,)* }
            }

            /// The name, NUL-terminated.
            #[cfg(feature = "nvtx")]
            const fn c_name(self) -> &'static std::ffi::CStr {
                const fn terminated(bytes: &'static [u8]) -> &'static std::ffi::CStr {
                    match std::ffi::CStr::from_bytes_with_nul(bytes) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                }
                match self { $(Self::$stage => terminated(concat!($name, "\0").as_bytes()),)* }
            }

            /// Track of the stage in the file.
            #[must_use]
            pub const fn track(self) -> Track {
                match self { $(Self::$stage => Track::$track,)* }
            }

            /// Each stage has its own callsite, because a span's metadata is static.
            fn span(self) -> tracing::Span {
                match self { $(Self::$stage => tracing::trace_span!(target: $target, $name),)* }
            }
        }
    };
}

stages! {
    /// Text becomes components, messages and events.
    Publish: "walla::frame", "publish", Host;
    /// Changes and asks are collected.
    Collect: "walla::frame", "collect", Host;
    /// Commands and the frame's step grant are sent to the engine.
    Submit: "walla::frame", "submit", Host;
    /// The next step and its batch are planned.
    Plan: "walla::plan", "plan", DeviceThread;
    /// The step's block is written.
    Fill: "walla::step", "fill", DeviceThread;
    /// The block's copy to the device is enqueued.
    Upload: "walla::step", "upload", DeviceThread;
    /// The program is enqueued.
    Launch: "walla::step", "launch", DeviceThread;
    /// The copy of the results is enqueued.
    CopyBack: "walla::step", "copy back", DeviceThread;
    /// Results become tokens, text and events.
    Read: "walla::step", "read", DeviceThread;
    /// A prompt becomes tokens.
    Encode: "walla::text", "encode", Text;
}

/// A stage in progress. Dropping this ends it.
#[derive(Debug)]
#[must_use = "the stage ends when this is dropped"]
pub struct Entered {
    _span: Option<EnteredSpan>,
    timed: Option<Timed>,
}

#[derive(Debug)]
struct Timed {
    stage: Stage,
    begin_nanos: u64,
    listeners: u8,
}

/// Begins a stage on this thread.
///
/// # Examples
/// ```
/// use walla_trace::{Stage, enter};
/// let plan = enter(Stage::Plan);
/// let work = 6 * 7; // planning
/// drop(plan);
/// # assert_eq!(work, 42);
/// ```
#[inline]
pub fn enter(stage: Stage) -> Entered {
    let listeners = LISTENERS.load(Ordering::Relaxed);
    let is_traced = tracing::level_filters::LevelFilter::current() >= tracing::Level::TRACE;
    if listeners == 0 && !is_traced {
        return Entered { _span: None, timed: None };
    }
    begin(stage, listeners, is_traced)
}

#[cold]
fn begin(stage: Stage, listeners: u8, is_traced: bool) -> Entered {
    #[cfg(feature = "nvtx")]
    if listeners & NVTX != 0 {
        crate::nvtx::push(stage.c_name());
    }
    let timed = (listeners != 0).then(|| Timed { stage, begin_nanos: now_nanos(), listeners });
    Entered { _span: is_traced.then(|| stage.span().entered()), timed }
}

impl Entered {
    /// Ends the stage without a span in the file, for a stage that had no work.
    pub fn discard(mut self) {
        if let Some(timed) = &mut self.timed {
            timed.listeners &= !FILE;
        }
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(timed) = self.timed.take() {
            end(&timed);
        }
    }
}

#[cold]
fn end(timed: &Timed) {
    if timed.listeners & FILE != 0 {
        let nanos = timed.begin_nanos..now_nanos();
        queue::push(Record::new(timed.stage.name(), timed.stage.track(), nanos));
    }
    #[cfg(feature = "nvtx")]
    if timed.listeners & NVTX != 0 {
        crate::nvtx::pop();
    }
}

/// Whether a file, a profiler or a `tracing` subscriber at level `TRACE` listens. Check it before
/// work that only serves a mark.
#[inline]
#[must_use]
pub fn is_listening() -> bool {
    LISTENERS.load(Ordering::Relaxed) != 0
        || tracing::level_filters::LevelFilter::current() >= tracing::Level::TRACE
}

/// Reports a completed part of the host's frame: `frame` for the whole frame, or a name of the
/// host's choice for a part. Spans of one app must nest or follow each other.
pub fn host_span(name: &'static str, nanos: Range<u64>) {
    if LISTENERS.load(Ordering::Relaxed) & FILE != 0 {
        queue::push(Record::new(name, Track::Host, nanos.clone()));
    }
    tracing::trace!(target: "walla::frame", name, begin_nanos = nanos.start, end_nanos = nanos.end, "span");
}

/// Times of a step, known when its results have been read.
#[derive(Clone, Debug)]
pub struct StepTimes {
    /// Step number.
    pub step: u64,
    /// Rows of the step.
    pub rows: u32,
    /// Time at which the host enqueued the step, by [`now_nanos`].
    pub launched_nanos: u64,
    /// Begin and end on the device's clock.
    pub device_nanos: Range<u64>,
    /// Time at which the host saw the completion, by [`now_nanos`].
    pub seen_nanos: u64,
}

/// Reports a step that the device has run. Call it on the thread that owns the device, in step
/// order.
pub fn device_step(clock: &mut DeviceClock, times: StepTimes) {
    let StepTimes { step, rows, launched_nanos, device_nanos, seen_nanos } = times;
    let ran = clock.to_host(launched_nanos, device_nanos, seen_nanos);
    let results = clock.results(ran.end, seen_nanos);
    if LISTENERS.load(Ordering::Relaxed) & FILE != 0 {
        let push = |record| queue::push(Record { step: Some(step), rows, ..record });
        push(Record::new("step", Track::Device, ran.clone()));
        push(Record::new("results", Track::Copies, results.clone()));
    }
    tracing::trace!(target: "walla::device", step, rows, begin_nanos = ran.start, end_nanos = ran.end, "step");
    tracing::trace!(target: "walla::device", step, begin_nanos = results.start, end_nanos = results.end, "results");
}
