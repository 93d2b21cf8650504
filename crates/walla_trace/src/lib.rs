//! Where a frame's time goes: each stage of the journey is marked once, and whoever listens hears
//! it.
//!
//! | listener | how |
//! |---|---|
//! | any `tracing` subscriber | spans and events at level `TRACE`, by the targets below |
//! | a trace file for <https://ui.perfetto.dev> or `chrome://tracing` | [`TraceFile`], or `WALLA_TRACE=file.json` in the environment |
//! | NVIDIA's profilers | feature `nvtx`: ranges on the thread that does the work, for the tool that started the program |
//!
//! While nobody listens a mark is two relaxed loads: nothing is timed, nothing is allocated.
//!
//! # Stages
//! | target | name | track in the file | what |
//! |---|---|---|---|
//! | `walla::frame` | `frame` | host frame | the host's whole frame, where the host tells of it |
//! | `walla::frame` | `publish` | host frame | what was said becomes components, messages, events |
//! | `walla::frame` | `collect` | host frame | changes and asks are seen |
//! | `walla::frame` | `submit` | host frame | the engine is told, a frame's steps are granted |
//! | `walla::plan` | `plan` | device thread | who gets rows in the next step, and its batch |
//! | `walla::step` | `fill` | device thread | the step's block is written |
//! | `walla::step` | `upload` | device thread | its copy to the device is enqueued |
//! | `walla::step` | `launch` | device thread | its program is enqueued |
//! | `walla::step` | `copy back` | device thread | the copy of its results is enqueued; left out where programs write them to the host's memory |
//! | `walla::step` | `read` | device thread | its results become tokens, text and events |
//! | `walla::text` | `encode` | text thread | a prompt becomes tokens |
//! | `walla::device` | `step` | device | the device runs the program, by the device's own clock |
//! | `walla::device` | `results` | device copies | from the program's end until the host saw the copied results |
//!
//! The last two are known only afterwards, so `tracing` hears them as events with the fields
//! `begin_nanos` and `end_nanos`, on the clock of [`now_nanos`].

mod clock;
mod file;
mod json;
#[cfg(feature = "nvtx")]
mod nvtx;
mod queue;
mod stage;

pub use clock::{DeviceClock, now_nanos};
pub use file::{SharedTrace, TraceError, TraceFile, TraceSummary};
pub use stage::{Entered, Stage, StepTimes, Track, device_step, enter, host_span, is_listening};

/// Lets NVIDIA's profilers see every stage as a range, if one started the program or the old NVTX
/// library is there (feature `nvtx`; nothing otherwise).
pub fn listen_nvtx() {
    #[cfg(feature = "nvtx")]
    nvtx::listen();
}
