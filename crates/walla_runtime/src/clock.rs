//! The only source of time for the core and for the threads around it.

use std::thread;
use std::time::{Duration, Instant};

use walla_device::faulty::VirtualClock;

/// Microseconds that never decrease: real time, or the time of a test.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Since the clock was made.
    Real(Instant),
    /// Advanced by a test.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    Virtual(VirtualClock),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(Instant::now())
    }

    pub(crate) fn now_micros(&self) -> u64 {
        match self {
            // 2^64 microseconds are 584 thousand years.
            Self::Real(start) => start.elapsed().as_micros() as u64,
            Self::Virtual(clock) => clock.now_micros(),
        }
    }

    /// Lets time pass while a device works. For loading, never in play.
    pub(crate) fn pause(&self, pause: Duration) {
        match self {
            Self::Real(_) => thread::sleep(pause),
            Self::Virtual(clock) => clock.advance(pause.as_micros() as u64),
        }
    }
}
