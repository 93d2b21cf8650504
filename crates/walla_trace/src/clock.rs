//! The clock that all tracks share.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since the first call in this process.
#[must_use]
pub fn now_nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // 2^64 nanoseconds are 584 years.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Bound on the drift between two clocks of one machine: 1 ns per `DRIFT_NANOS`, 100 ppm, twice the
/// tolerance of common quartz.
const DRIFT_NANOS: u64 = 10_000;

/// Converts device times to the host's clock without querying the device's clock.
///
/// A program begins after the host launched it and ends before the host saw its results. Each step
/// therefore bounds the offset `o` between the clocks: `launched - begin <= o <= seen - end`. The
/// tightest bounds of all steps are kept and widened by 100 ppm of the elapsed time. The estimate
/// is the lower bound, because a step launched on an idle device begins only microseconds after its
/// launch. The estimate changes from step to step, but the order of the device's steps is
/// preserved.
/// # Examples
/// ```
/// let mut clock = walla_trace::DeviceClock::default();
/// // The device's clock began 1,000,000 ns later than the host's; the launch took 4,000 ns to arrive.
/// let step = clock.to_host(1_500_000, 504_000..604_000, 1_650_000);
/// assert_eq!(step, 1_500_000..1_600_000);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceClock {
    bounds: Option<Bounds>,
    /// End of the latest step: on the device's clock and on the host's.
    ended: Option<(u64, u64)>,
    /// When the latest results were seen.
    seen_nanos: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: i64,
    high: i64,
    at_nanos: u64,
}

impl DeviceClock {
    /// Interval in which a step ran, on the host's clock. `launched_nanos` and `seen_nanos` are
    /// host times, `device` holds device times.
    #[must_use]
    pub fn to_host(
        &mut self,
        launched_nanos: u64,
        device: Range<u64>,
        seen_nanos: u64,
    ) -> Range<u64> {
        let low = difference(launched_nanos, device.start);
        let high = difference(seen_nanos, device.end);
        let own = Bounds { low, high, at_nanos: seen_nanos };
        let tightest = self.bounds.map_or(own, |bounds| bounds.loosened(seen_nanos).tightened(own));
        // Contradictory bounds mean that a clock was set. Only this step's bounds are valid then.
        let bounds = if tightest.low <= tightest.high { tightest } else { own };
        self.bounds = Some(bounds);
        let shift = |nanos: u64| nanos.checked_add_signed(bounds.low).unwrap_or(0);
        let before = self.ended.filter(|(ended, _)| *ended <= device.start);
        let begin = shift(device.start).max(before.map_or(0, |(_, host)| host));
        let end = shift(device.end).max(begin);
        self.ended = Some((device.end, end));
        begin..end
    }

    /// Interval from the end of a step until its results were seen. It begins no earlier than the
    /// previous step's results were seen: results found by one poll would otherwise overlap, and
    /// the spans of a track must follow each other.
    pub(crate) fn results(&mut self, ended_nanos: u64, seen_nanos: u64) -> Range<u64> {
        let begin = ended_nanos.max(self.seen_nanos);
        self.seen_nanos = seen_nanos.max(begin);
        begin..self.seen_nanos
    }
}

impl Bounds {
    fn loosened(self, now_nanos: u64) -> Self {
        let drift = now_nanos.saturating_sub(self.at_nanos) / DRIFT_NANOS;
        // A remainder too short for 1 ns of drift is carried to the next step.
        let at_nanos = self.at_nanos + drift * DRIFT_NANOS;
        let drift = i64::try_from(drift).unwrap_or(i64::MAX);
        let (low, high) = (self.low.saturating_sub(drift), self.high.saturating_add(drift));
        Self { low, high, at_nanos }
    }

    fn tightened(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high), ..self }
    }
}

/// `a - b`. Clocks that start at the Unix epoch read about 2^60.7 ns, so the difference fits.
fn difference(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of a device whose clock reads `offset` when the host's reads 0.
    fn device(offset: i64, host: Range<u64>) -> Range<u64> {
        let shift = |nanos: u64| nanos.wrapping_add_signed(offset);
        shift(host.start)..shift(host.end)
    }

    #[test]
    fn the_launch_with_the_least_delay_sets_the_offset() {
        let mut clock = DeviceClock::default();
        let offset = 1_700_000_000_000_000_000; // the epoch of Unix
        // Queued for 900 µs behind another step: the estimate is 900 µs too early.
        let first = clock.to_host(100_000, device(offset, 1_000_000..1_200_000), 1_300_000);
        assert_eq!(first, 100_000..300_000);
        // Launched on an idle device: from here on the estimate is 5 µs too early, also for a
        // queued step.
        let second = clock.to_host(2_000_000, device(offset, 2_005_000..2_100_000), 2_200_000);
        assert_eq!(second, 2_000_000..2_095_000);
        let third = clock.to_host(2_000_000, device(offset, 2_105_000..2_200_000), 2_300_000);
        // 100 µs have passed, in which the clocks may have drifted apart by 10 ns.
        assert_eq!(third, 2_099_990..2_194_990);
    }

    #[test]
    fn the_estimate_follows_a_drift() {
        let mut clock = DeviceClock::default();
        for step in 0..10_000_u64 {
            let begin = step * 16_000_000 + 10_000;
            let offset = -i64::try_from(begin / 1_000_000 * 40).unwrap(); // 40 ppm slow
            let seen = begin + 1_100_000;
            let host = clock.to_host(begin - 5_000, device(offset, begin..begin + 1_000_000), seen);
            assert!(
                host.start.abs_diff(begin) <= 10_000,
                "step {step}: {host:?}, began at {begin}"
            );
        }
    }

    /// Steps shorter than a millisecond with a fast or slow clock: drift between two steps is never
    /// lost.
    #[test]
    fn the_estimate_follows_a_drift_of_short_steps() {
        for ppm in [-40, 40] {
            let mut clock = DeviceClock::default();
            for step in 0..50_000_u64 {
                let begin = step * 450_000 + 10_000;
                let offset = i64::try_from(begin).unwrap() / 1_000_000 * ppm;
                let seen = begin + 430_000;
                let host =
                    clock.to_host(begin - 5_000, device(offset, begin..begin + 400_000), seen);
                assert!(
                    host.start.abs_diff(begin) <= 10_000,
                    "{ppm} ppm, step {step}: {host:?}, began at {begin}"
                );
            }
        }
    }

    #[test]
    fn results_seen_in_one_poll_do_not_overlap() {
        let mut clock = DeviceClock::default();
        assert_eq!(clock.results(100, 900), 100..900);
        assert_eq!(clock.results(500, 910), 900..910);
        assert_eq!(clock.results(700, 911), 910..911);
        assert_eq!(clock.results(2_000, 2_100), 2_000..2_100);
        assert_eq!(clock.results(2_150, 2_140), 2_150..2_150, "an estimate may be late");
    }

    #[test]
    fn consecutive_steps_do_not_overlap() {
        let mut clock = DeviceClock::default();
        let mut ended = 0;
        for step in 0..1_000_u64 {
            let begin = 1_000_000 + step * 5_000_000;
            // After the first step, steps are launched ahead on a busy device. Only drift moves the
            // estimate, in both directions.
            let ahead = if step == 0 { 5_000 } else { 900_000 };
            let host = clock.to_host(begin - ahead, begin..begin + 5_000_000, begin + 5_100_000);
            assert!(host.start >= ended, "step {step}: {host:?} begins before {ended}");
            ended = host.end;
        }
    }

    #[test]
    fn a_reset_of_the_device_clock_is_accepted() {
        let mut clock = DeviceClock::default();
        let _ = clock.to_host(1_000, device(0, 2_000..3_000), 4_000);
        let host = clock.to_host(11_000, device(1 << 50, 12_000..13_000), 14_000);
        assert_eq!(host, 11_000..12_000);
    }

    #[test]
    fn host_time_is_monotonic() {
        let before = now_nanos();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(now_nanos() >= before + 1_000_000);
    }
}
