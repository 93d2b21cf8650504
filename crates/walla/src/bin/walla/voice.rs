//! Verbs of speech.

pub mod args;
pub mod speak;
pub mod talk;
pub mod transcribe;
mod wav;

use std::time::Duration;

/// Processor time of the program so far; elsewhere than on Unix the time since the first call.
#[cfg(unix)]
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(not(unix))]
fn processor_time() -> Duration {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(std::time::Instant::now).elapsed()
}

/// Processor time since an earlier one, for each second of sound.
fn per_second(since: Duration, sound: Duration) -> f64 {
    let time = processor_time().saturating_sub(since);
    time.as_secs_f64() / sound.as_secs_f64().max(1e-3)
}
