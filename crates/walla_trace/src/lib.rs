//! Timing of a frame: each stage is marked once, and every active listener receives it.
//!
//! | listener | how |
//! |---|---|
//! | any `tracing` subscriber | spans and events at level `TRACE`, targets as below |
//! | trace file for <https://ui.perfetto.dev> | [`TraceFile`], or `WALLA_TRACE=file.json` |
//! | NVIDIA profilers | feature `nvtx`: a range per stage on the thread that runs it |
//!
//! `chrome://tracing` reads the trace file too. NVTX ranges go to the tool that started the
//! program.
//!
//! Without a listener a mark is two relaxed loads: it takes no time stamp and allocates nothing.
//!
//! # Stages
//! | target | name | track in the file | duration |
//! |---|---|---|---|
//! | `walla::frame` | `frame` | host frame | whole host frame, if the host reports it |
//! | `walla::frame` | `publish` | host frame | text becomes components, messages and events |
//! | `walla::frame` | `collect` | host frame | changes and asks are collected |
//! | `walla::frame` | `submit` | host frame | commands and the frame's step grant are sent |
//! | `walla::plan` | `plan` | device thread | the next step and its batch are planned |
//! | `walla::step` | `fill` | device thread | the step's block is written |
//! | `walla::step` | `upload` | device thread | its copy to the device is enqueued |
//! | `walla::step` | `launch` | device thread | its program is enqueued |
//! | `walla::step` | `copy back` | device thread | the copy of its results is enqueued |
//! | `walla::step` | `read` | device thread | its results become tokens, text and events |
//! | `walla::text` | `encode` | text thread | a prompt becomes tokens |
//! | `walla::device` | `step` | device | the device runs the program, by the device's clock |
//! | `walla::device` | `results` | device copies | from the program's end until results are seen |
//! | `walla::reply` | `first token` | replies | from an ask's arrival at the engine to its first token; contains the next four |
//! | `walla::reply` | `waiting` | replies | nothing is done for the ask: before the encoding, and between it and the first step |
//! | `walla::reply` | `encoding` | replies | the prompt is rendered and becomes tokens |
//! | `walla::reply` | `prefill` | replies | from the launch of the first step with prompt tokens to the launch of the last |
//! | `walla::reply` | `decode` | replies | from that launch to the first token |
//!
//! `copy back` is absent where programs write their results to host memory.
//!
//! The `walla::device` and `walla::reply` stages are known only after they end. `tracing` receives
//! them as events with the fields `begin_nanos` and `end_nanos`, on the clock of [`now_nanos`].
//! Stages of replies overlap, so the file has them as async events with the argument `agent`, one
//! row per reply. Together they are the parts of `Usage::first_token`.

mod clock;
mod file;
mod json;
mod listeners;
#[cfg(feature = "nvtx")]
mod nvtx;
mod queue;
mod reply;
mod stage;
mod track;

pub use clock::{DeviceClock, now_nanos};
pub use file::{SharedTrace, TraceError, TraceFile, TraceSummary};
pub use reply::{FirstToken, first_token};
pub use stage::{Entered, Stage, StepTimes, device_step, enter, host_span, is_listening};
pub use track::Track;

/// Writes a warning to standard error if no `tracing` subscriber exists that could receive it. For
/// settings of the environment that have no effect.
pub fn warn_if_unlogged(warning: std::fmt::Arguments<'_>) {
    use std::io::Write as _;

    if !tracing::dispatcher::has_been_set() {
        // A failed write changes nothing.
        let _written = writeln!(std::io::stderr(), "walla: {warning}");
    }
}

/// Enables an NVTX range per stage, if a profiler started the program or the old NVTX library is
/// installed. Needs the feature `nvtx`; does nothing without it.
pub fn listen_nvtx() {
    #[cfg(feature = "nvtx")]
    nvtx::listen();
}
