//! The only source of time for the core and the threads around it.

use std::thread;
use std::time::{Duration, Instant};

/// Microseconds that never decrease: real time, or, in unit tests, virtual time.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Time since this instant, at which the clock was made.
    Real(Instant),
    /// Advanced by a test.
    #[cfg(test)]
    Virtual(walla_doubles::VirtualClock),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(Instant::now())
    }

    pub(crate) fn now_micros(&self) -> u64 {
        match self {
            // 2^64 microseconds are 584 thousand years.
            Self::Real(start) => start.elapsed().as_micros() as u64,
            #[cfg(test)]
            Self::Virtual(clock) => clock.now_micros(),
        }
    }

    /// Waits while a device works. Only for loading.
    pub(crate) fn pause(&self, pause: Duration) {
        match self {
            Self::Real(_) => thread::sleep(pause),
            #[cfg(test)]
            Self::Virtual(clock) => clock.advance(pause.as_micros() as u64),
        }
    }
}

/// Measures how long an item has been awaited.
///
/// The time between two calls of `look` counts up to a maximum, because a process that was
/// suspended, or stopped by a debugger, did not wait.
#[derive(Debug)]
pub(crate) struct WaitMeter {
    max_look_micros: u64,
    awaited: Option<u64>,
    looked_micros: u64,
    waited_micros: u64,
}

impl WaitMeter {
    pub(crate) fn new(max_look: Duration) -> Self {
        let max_look_micros = max_look.as_micros() as u64;
        Self { max_look_micros, awaited: None, looked_micros: 0, waited_micros: 0 }
    }

    /// Reports the number of the awaited item, if there is one. Returns the microseconds waited for
    /// it so far.
    pub(crate) fn look(&mut self, awaited: Option<u64>, now_micros: u64) -> u64 {
        if awaited.is_none() || awaited != self.awaited {
            self.waited_micros = 0;
        } else {
            let since_micros = now_micros.saturating_sub(self.looked_micros);
            self.waited_micros += since_micros.min(self.max_look_micros);
        }
        (self.awaited, self.looked_micros) = (awaited, now_micros);
        self.waited_micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_sum_intervals_between_polls_and_ignore_clock_jumps() {
        let mut meter = WaitMeter::new(Duration::from_millis(250));
        assert_eq!(meter.look(Some(1), 1_000), 0);
        assert_eq!(meter.look(Some(1), 51_000), 50_000);
        // An hour of suspension counts as one interval between looks.
        assert_eq!(meter.look(Some(1), 3_600_000_000), 50_000 + 250_000);
        assert_eq!(meter.look(Some(2), 3_600_100_000), 0, "another step");
        assert_eq!(meter.look(None, 3_600_200_000), 0);
        assert_eq!(meter.look(None, 3_600_300_000), 0, "nothing is awaited");
    }
}
