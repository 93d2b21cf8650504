use std::time::Instant;

use walla_device::faulty::VirtualClock;

/// Microseconds that never go back: the real ones, or a test's.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Since the clock was made.
    Real(Instant),
    /// What the test says.
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
}
