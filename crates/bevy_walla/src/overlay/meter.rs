//! Counters between two refreshes. Time is passed in, and nothing allocates.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bevy_ecs::prelude::*;
use walla_runtime::{FirstTokenTimes, Usage};

/// Frames of the histogram: about four seconds at 60 Hz.
const FRAMES: usize = 256;

/// Number of bars of the histogram.
pub(super) const BARS: usize = 40;

/// Possible widths of a bar, in microseconds. 40 bars of a millisecond reach to 40 ms. The last bar
/// counts all longer frames.
const BAR_MICROS: [u32; 5] = [1_000, 2_000, 5_000, 10_000, 25_000];

/// All counters.
#[derive(Resource, Default)]
pub(super) struct Meters {
    pub frames: FrameTimes,
    pub device: DeviceTime,
    pub tokens: Rate,
    pub background_tokens: Rate,
    #[cfg(feature = "speech")]
    pub voice_micros: Rate,
    pub first_tokens: FirstTokens,
    /// Tokens of each engine of several.
    pub engines: HashMap<Arc<str>, Rate>,
    /// When the latest frame began.
    pub frame_start: Option<Instant>,
    /// When the panel was last refreshed.
    pub refreshed: Option<Instant>,
}

/// The latest frame times.
pub(super) struct FrameTimes {
    micros: [u32; FRAMES],
    next: usize,
    len: usize,
}

/// Distribution of the latest frame times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spread {
    pub p50: u32,
    pub p99: u32,
    pub max: u32,
}

impl Default for FrameTimes {
    fn default() -> Self {
        Self { micros: [0; FRAMES], next: 0, len: 0 }
    }
}

impl FrameTimes {
    /// Adds a frame time and drops the oldest.
    pub fn add(&mut self, time: Duration) {
        self.micros[self.next] = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.next = (self.next + 1) % FRAMES;
        self.len = (self.len + 1).min(FRAMES);
    }

    /// Median, 99th percentile (nearest rank) and maximum; zeros without frames.
    pub fn spread(&self) -> Spread {
        let mut sorted = self.micros;
        let Some(sorted) = sorted.get_mut(..self.len).filter(|frames| !frames.is_empty()) else {
            return Spread::default();
        };
        sorted.sort_unstable();
        let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
        Spread { p50: at(50), p99: at(99), max: at(100) }
    }

    /// Width of a bar in microseconds, so that the median is in the left two thirds.
    pub fn bar_micros(&self) -> u32 {
        let reaches = |width: &&u32| self.spread().p50 <= **width * (BARS as u32 * 2 / 3);
        BAR_MICROS.iter().find(reaches).copied().unwrap_or(25_000)
    }

    /// Heights of the bars of this width, 0 to 1, on a logarithmic scale: a single slow frame of
    /// 256 is a bar of an eighth and thus visible.
    pub fn bars(&self, bar_micros: u32) -> [f32; BARS] {
        let mut counts = [0_u16; BARS];
        for micros in &self.micros[..self.len] {
            counts[((micros / bar_micros.max(1)) as usize).min(BARS - 1)] += 1;
        }
        counts.map(|count| f32::from(1 + count).log2() / (FRAMES as f32 + 1.0).log2())
    }
}

/// Device time of the frames since the last refresh.
#[derive(Default)]
pub(super) struct DeviceTime {
    /// The engine's total at the last refresh.
    before: Option<Duration>,
    frames: u32,
    longest: Duration,
}

/// Device time of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceUse {
    pub mean: Duration,
    pub longest: Duration,
}

impl DeviceTime {
    /// Adds a frame; `latest` is the device time of the latest measured frame.
    pub fn add_frame(&mut self, latest: Duration) {
        self.frames += 1;
        self.longest = self.longest.max(latest);
    }

    /// Device time of the frames since the last call. `total`: the engine's total since its start.
    pub fn take(&mut self, total: Duration) -> DeviceUse {
        let used = total.saturating_sub(self.before.unwrap_or(total));
        let mean = used.checked_div(self.frames).unwrap_or_default();
        // The engine does not report a frame without device time, so `latest` would repeat the last
        // frame with some for ever: hence zero. In a slow game, the total may include the latest
        // frame before its own measurement is available: hence the maximum with the mean.
        let longest = if used.is_zero() { Duration::ZERO } else { self.longest.max(mean) };
        *self = Self { before: Some(total), ..Self::default() };
        DeviceUse { mean, longest }
    }
}

/// Replies whose first tokens are kept.
const REPLIES: usize = 64;

/// Times to the first token of the latest replies.
pub(super) struct FirstTokens {
    times: [(u64, FirstTokenTimes); REPLIES],
    next: usize,
    len: usize,
}

/// Times to the first token, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstTokenSpread {
    pub latest: u64,
    pub mean: u64,
    pub max: u64,
    /// The parts of `max`.
    pub max_parts: FirstTokenTimes,
}

impl Default for FirstTokens {
    fn default() -> Self {
        Self { times: [(0, FirstTokenTimes::default()); REPLIES], next: 0, len: 0 }
    }
}

impl FirstTokens {
    /// Adds a reply, if it had a token, and drops the oldest.
    pub fn add(&mut self, usage: &Usage) {
        if usage.first_token_micros > 0 {
            self.times[self.next] = (usage.first_token_micros, usage.first_token);
            self.next = (self.next + 1) % REPLIES;
            self.len = (self.len + 1).min(REPLIES);
        }
    }

    /// `None` without replies.
    pub fn spread(&self) -> Option<FirstTokenSpread> {
        let times = &self.times[..self.len];
        let (max, max_parts) = times.iter().copied().max_by_key(|(micros, _)| *micros)?;
        let (latest, _) = self.times[(self.next + REPLIES - 1) % REPLIES];
        let mean = times.iter().map(|(micros, _)| micros).sum::<u64>() / self.len as u64;
        Some(FirstTokenSpread { latest, mean, max, max_parts })
    }
}

/// Growth of a counter per second, smoothed over about a second.
#[derive(Default)]
pub(super) struct Rate {
    since: Option<(Instant, u64)>,
    per_second: f64,
}

impl Rate {
    /// The rate at the counter value `count`.
    pub fn update(&mut self, now: Instant, count: u64) -> f64 {
        if let Some((then, before)) = self.since.replace((now, count)) {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            if seconds > 0.0 {
                let latest = count.saturating_sub(before) as f64 / seconds;
                // The weight of an average with a time constant of one second.
                self.per_second += (latest - self.per_second) * (1.0 - (-seconds).exp());
            }
        }
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_cover_the_latest_frames() {
        let mut frames = FrameTimes::default();
        assert_eq!(frames.spread(), Spread::default());
        frames.add(Duration::from_millis(90));
        for _ in 0..FRAMES - 2 {
            frames.add(Duration::from_millis(16));
        }
        frames.add(Duration::from_millis(33));
        assert_eq!(frames.spread(), Spread { p50: 16_000, p99: 16_000, max: 90_000 });
        frames.add(Duration::from_millis(16));
        assert_eq!(frames.spread().max, 33_000, "the oldest is forgotten");
    }

    #[test]
    fn one_slow_frame_is_visible() {
        let mut frames = FrameTimes::default();
        for _ in 0..FRAMES - 1 {
            frames.add(Duration::from_micros(16_600));
        }
        frames.add(Duration::from_secs(2));
        let bars = frames.bars(frames.bar_micros());
        assert!(bars[16] > 0.99 && bars[BARS - 1] > 0.1);
        assert_eq!(bars.iter().filter(|height| **height > 0.0).count(), 2);
    }

    #[test]
    fn slow_frames_widen_the_bars() {
        let width = |millis| {
            let mut frames = FrameTimes::default();
            frames.add(Duration::from_millis(millis));
            frames.bar_micros()
        };
        assert_eq!((width(16), width(26), width(33)), (1_000, 1_000, 2_000));
        assert_eq!((width(100), width(9_000)), (5_000, 25_000));
    }

    #[test]
    fn the_slowest_first_token_is_kept_with_its_parts_while_it_is_recent() {
        let usage = |waiting_micros, decode_micros| Usage {
            first_token_micros: waiting_micros + decode_micros,
            first_token: FirstTokenTimes { waiting_micros, decode_micros, ..Default::default() },
            ..Usage::default()
        };
        let mut tokens = FirstTokens::default();
        tokens.add(&Usage::default());
        assert_eq!(tokens.spread(), None, "a reply without a token does not count");
        tokens.add(&usage(900, 100));
        for _ in 1..REPLIES {
            tokens.add(&usage(0, 100));
        }
        let spread = tokens.spread().unwrap();
        assert_eq!((spread.latest, spread.max), (100, 1_000));
        assert_eq!(spread.mean, (1_000 + 63 * 100) / 64);
        assert_eq!(spread.max_parts, usage(900, 100).first_token);
        tokens.add(&usage(0, 200));
        let spread = tokens.spread().unwrap();
        assert_eq!((spread.latest, spread.max), (200, 200), "the oldest is forgotten");
    }

    #[test]
    fn device_time_counts_from_the_last_refresh() {
        let millis = Duration::from_millis;
        let mut device = DeviceTime::default();
        device.add_frame(millis(9));
        assert_eq!(
            device.take(millis(100)),
            DeviceUse::default(),
            "what ran before does not count"
        );
        device.add_frame(millis(2));
        device.add_frame(millis(4));
        let used = device.take(millis(106));
        assert_eq!(used, DeviceUse { mean: millis(3), longest: millis(4) });
        device.add_frame(millis(4));
        assert_eq!(device.take(millis(106)), DeviceUse::default(), "nothing ran");
    }

    #[test]
    fn a_rate_converges() {
        let mut rate = Rate::default();
        let start = Instant::now();
        let mut last = 0.0;
        for tick in 0..50_u64 {
            last = rate.update(start + Duration::from_millis(200) * tick as u32, tick * 20);
        }
        assert!((last - 100.0).abs() < 0.1, "{last}");
    }
}
