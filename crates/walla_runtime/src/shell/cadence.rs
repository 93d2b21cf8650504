//! Prediction of the next frame, and how the device thread waits for it.
//!
//! A host that unparks a parked thread pays for the wake-up within its frame: a system call, 2 to
//! 20 µs. Therefore the device thread does not park around the time when a frame is due. It naps
//! and polls instead, and unparking is then only an atomic exchange for the host. Each nap costs
//! the device thread some microseconds, so it naps only where a frame is due.

use std::time::{Duration, Instant};

/// Minimum period of predicted frames. No host renders faster.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// Maximum period of predicted frames.
const MAX_PERIOD: Duration = Duration::from_millis(100);
/// Length of a nap. The system adds its timers' slack (50 µs on Linux).
const NAP: Duration = Duration::from_micros(50);
/// Shorter parks are naps. On Windows a park ends at a tick of the system's clock, after 1 to 15.6
/// ms, and a nap within half a millisecond; what would end the park waits for less than this.
const PARK_MIN: Duration = Duration::from_millis(if cfg!(windows) { 1 } else { 0 });
/// Minimum tolerance around the predicted time of a frame.
const SPREAD_MIN: Duration = Duration::from_micros(100);

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Sleep for this time, without wake-up.
    Nap(Duration),
    /// Park for this time (`None`: without limit), or until unparked.
    Park(Option<Duration>),
}

/// Times of frames.
#[derive(Debug, Default)]
pub(super) struct Cadence {
    last: Option<Instant>,
    /// Mean period and mean deviation, smoothed like TCP round trips (RFC 6298, section 2).
    period: Option<(Duration, Duration)>,
}

impl Cadence {
    /// A frame was granted.
    pub(super) fn frame(&mut self, now: Instant) {
        let since = self.last.replace(now).map(|last| now.saturating_duration_since(last));
        self.period = match (since, self.period) {
            (Some(since), _) if !(PERIOD_MIN..=MAX_PERIOD).contains(&since) => None,
            (Some(since), None) => Some((since, since / 2)),
            (Some(since), Some((period, spread))) => {
                Some(((7 * period + since) / 8, (3 * spread + since.abs_diff(period)) / 4))
            }
            (None, _) => None,
        };
    }

    /// How to wait for at most `at_most`.
    pub(super) fn rest(&self, now: Instant, at_most: Option<Duration>) -> Rest {
        match self.exact_rest(now, at_most) {
            Rest::Park(Some(short)) if short < PARK_MIN => Rest::Nap(short),
            rest => rest,
        }
    }

    fn exact_rest(&self, now: Instant, at_most: Option<Duration>) -> Rest {
        let (Some(last), Some((period, spread))) = (self.last, self.period) else {
            return Rest::Park(at_most);
        };
        // At most a quarter of a period before and after: with a larger deviation the prediction is
        // useless.
        let early = (4 * spread).max(SPREAD_MIN).min(period / 4);
        let from = last + period - early;
        if now < from {
            let ahead = from - now;
            return Rest::Park(Some(at_most.map_or(ahead, |most| most.min(ahead))));
        }
        if now < from + 2 * early {
            return Rest::Nap(at_most.map_or(NAP, |most| most.min(NAP)));
        }
        Rest::Park(at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A cadence after frames at these times.
    fn after(start: Instant, frames: impl IntoIterator<Item = Duration>) -> Cadence {
        let mut cadence = Cadence::default();
        frames.into_iter().for_each(|at| cadence.frame(start + at));
        cadence
    }

    #[test]
    fn naps_surround_the_expected_time_of_a_frame() {
        let start = Instant::now();
        let cadence = after(start, (0..60).map(|frame| frame * 16 * MILLISECOND));
        let last = start + 59 * 16 * MILLISECOND;
        let rest =
            |micros: u64, at_most| cadence.rest(last + Duration::from_micros(micros), at_most);
        let micros = Duration::from_micros;
        assert_eq!(rest(0, None), Rest::Park(Some(micros(15_900))));
        assert_eq!(rest(0, Some(MILLISECOND)), Rest::Park(Some(MILLISECOND)));
        let short = if cfg!(windows) { Rest::Nap(micros(1)) } else { Rest::Park(Some(micros(1))) };
        assert_eq!(rest(15_899, None), short);
        for late in [15_900, 16_000, 16_099] {
            assert_eq!(rest(late, None), Rest::Nap(NAP));
            assert_eq!(rest(late, Some(micros(7))), Rest::Nap(micros(7)));
        }
        // The frame did not arrive: a later host call pays for the wake-up.
        assert_eq!(rest(16_100, None), Rest::Park(None));
        assert_eq!(rest(16_100, Some(MILLISECOND)), Rest::Park(Some(MILLISECOND)));
    }

    #[test]
    fn uneven_frames_widen_the_nap_window() {
        let start = Instant::now();
        let uneven = |frame: u32| frame * 10 * MILLISECOND + frame % 2 * MILLISECOND / 2;
        let cadence = after(start, (0..60).map(uneven));
        let last = start + uneven(59);
        // Half a millisecond around ten: smoothed, with four times the deviation on each side.
        for micros in [8_600, 9_500, 10_500, 11_400] {
            assert_eq!(cadence.rest(last + Duration::from_micros(micros), None), Rest::Nap(NAP));
        }
        let early = cadence.rest(last + 6 * MILLISECOND, None);
        assert!(matches!(early, Rest::Park(Some(_))), "{early:?}");
        assert_eq!(cadence.rest(last + 13 * MILLISECOND, None), Rest::Park(None));
    }

    #[test]
    fn aperiodic_frames_cause_no_naps() {
        let start = Instant::now();
        let never = [
            vec![],
            vec![0],
            // Faster and slower than predicted periods.
            vec![0, 500, 1_000, 1_500],
            vec![0, 150_000, 300_000],
            // A pause is not a period.
            vec![0, 16_000, 32_000, 900_000],
        ];
        for frames in never {
            let cadence = after(start, frames.iter().map(|at| Duration::from_micros(*at)));
            for micros in (0..1_200_000).step_by(100) {
                let rest = cadence.rest(start + Duration::from_micros(micros), None);
                assert_eq!(rest, Rest::Park(None), "{frames:?}, {micros}");
            }
        }
    }
}
