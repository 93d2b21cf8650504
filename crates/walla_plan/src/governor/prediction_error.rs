//! Statistics of prediction errors.

use crate::frame::{BUCKETS, StepWork, bucket_index};

/// Histogram bins of relative errors, six per octave. Upper ends: 0.1 % to 1,840 % (2^(85/6) times
/// the first). Larger errors are counted in the last bin.
const BINS: usize = 86;
const FIRST_BIN: f32 = 0.001;
const BINS_PER_OCTAVE: f32 = 6.0;

/// Count at which a histogram is halved, so that recent steps dominate: 36 minutes of one bucket at
/// 60 steps per second.
const MAX_COUNT: u32 = 1 << 17;

/// Relative errors `|measured / predicted - 1|` of the steps of one bucket, or of all buckets.
/// Predictions are without margin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketError {
    /// Rows of the bucket; 0 for all buckets together.
    pub bucket: u32,
    /// Steps measured.
    pub steps: u64,
    /// Median error.
    pub p50: f32,
    /// 90th percentile of the error.
    pub p90: f32,
    /// 99th percentile of the error.
    pub p99: f32,
}

#[derive(Clone, Copy, Debug)]
struct Histogram {
    counts: [u32; BINS],
    count: u32,
    steps: u64,
}

impl Histogram {
    const EMPTY: Self = Self { counts: [0; BINS], count: 0, steps: 0 };

    fn add(&mut self, error: f32) {
        let bin = (libm::log2f(error.abs() / FIRST_BIN) * BINS_PER_OCTAVE).ceil();
        // The cast saturates and maps NaN to 0.
        let bin = (bin as usize).min(BINS - 1);
        self.counts[bin] += 1;
        self.count += 1;
        self.steps += 1;
        if self.count >= MAX_COUNT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.count = self.counts.iter().sum();
        }
    }

    /// The upper end of the bin that holds the quantile.
    fn quantile(&self, share: f32) -> f32 {
        if self.count == 0 {
            return 0.0;
        }
        let wanted = (self.count as f32 * share).ceil() as u32;
        let mut below = 0;
        let holds = |count: &u32| {
            below += count;
            below >= wanted
        };
        let bin = self.counts.iter().position(holds).unwrap_or(BINS - 1);
        FIRST_BIN * libm::exp2f(bin as f32 / BINS_PER_OCTAVE)
    }
}

/// Prediction errors of each bucket.
#[derive(Clone, Debug)]
pub struct PredictionErrors {
    all: Histogram,
    buckets: [Histogram; BUCKETS.len()],
    /// Updated every [`LOOK_AGAIN`] steps.
    summary: BucketError,
}

impl Default for PredictionErrors {
    fn default() -> Self {
        Self {
            all: Histogram::EMPTY,
            buckets: [Histogram::EMPTY; BUCKETS.len()],
            summary: BucketError::default(),
        }
    }
}

/// Steps between two updates of the quantiles of all buckets together. The update costs more than
/// the rest of a step's accounting.
const LOOK_AGAIN: u64 = 16;

impl PredictionErrors {
    pub(super) fn add(&mut self, work: StepWork, expected_micros: f32, micros: f32) {
        let error = micros / expected_micros - 1.0;
        self.all.add(error);
        self.buckets[bucket_index(work.rows())].add(error);
        if self.all.steps < LOOK_AGAIN || self.all.steps.is_multiple_of(LOOK_AGAIN) {
            self.summary = summary(0, &self.all);
        }
    }

    /// Errors of all buckets together, at most 16 steps old.
    #[must_use]
    pub fn all(&self) -> BucketError {
        self.summary
    }

    /// Errors of every bucket of [`BUCKETS`], including buckets without measurements.
    #[must_use]
    pub fn each(&self) -> [BucketError; BUCKETS.len()] {
        std::array::from_fn(|index| summary(BUCKETS[index], &self.buckets[index]))
    }

    /// Buckets that have been measured, smallest first.
    pub fn buckets(&self) -> impl Iterator<Item = BucketError> {
        self.each().into_iter().filter(|of| of.steps > 0)
    }
}

fn summary(bucket: u32, of: &Histogram) -> BucketError {
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| of.quantile(part));
    BucketError { bucket, steps: of.steps, p50, p90, p99 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_the_added_errors() {
        let mut errors = PredictionErrors::default();
        let work = StepWork { decode_rows: 5, ..StepWork::default() };
        for n in 1..=1_000 {
            errors.add(work, 100.0, 100.0 + n as f32 / 10.0); // 0.1 % to 100 %
        }
        let bucket = errors.buckets().next().unwrap();
        assert_eq!((bucket.bucket, bucket.steps), (6, 1_000));
        assert!((0.5..0.57).contains(&bucket.p50), "{bucket:?}");
        assert!((0.99..1.13).contains(&bucket.p99), "{bucket:?}");
    }

    #[test]
    fn small_and_invalid_errors_are_counted_in_some_bin() {
        let mut errors = PredictionErrors::default();
        let work = StepWork { decode_rows: 1, ..StepWork::default() };
        errors.add(work, 100.0, 100.0);
        assert!(errors.all().p99 <= FIRST_BIN);
        errors.add(work, 0.0, 0.0);
        errors.add(work, 1e-30, f32::MAX);
        assert_eq!(errors.all().steps, 3);
    }

    #[test]
    fn old_errors_decay() {
        let mut errors = PredictionErrors::default();
        let work = StepWork { decode_rows: 1, ..StepWork::default() };
        (0..MAX_COUNT).for_each(|_| errors.add(work, 1.0, 2.0));
        (0..4 * MAX_COUNT).for_each(|_| errors.add(work, 1.0, 1.01));
        assert!(errors.all().p50 < 0.02);
    }
}
