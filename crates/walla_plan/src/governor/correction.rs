//! What steps really take: a fitted model, corrected by what was measured.

use super::StepCost;
use crate::frame::{BUCKETS, CostModel, StepWork, bucket_index};

/// Weight of a new measurement in the overall correction, once there have been some.
const GAIN: f32 = 1.0 / 32.0;

/// Weight of a new measurement in a bucket's own correction and in the mean deviations.
const GAIN_OF_BUCKET: f32 = 1.0 / 16.0;

/// Mean deviations that a prediction is above the mean: for normally distributed noise 2.4 standard
/// deviations, or all but one step in a hundred; [`Corrections::take_care`] does the rest.
const DEVIATIONS: f32 = 3.0;

/// What one frame over its budget adds to the margin.
const CARE: f32 = 0.05;

/// The share of frames over their budget that keeps the margin where it is.
const OVER_SHARE: f32 = 0.001;

/// The largest share that caution adds.
const CARE_MAX: f32 = 1.0;

/// One measurement changes the mean as if it were at most so much above or half as much below the
/// prediction: a hiccup of the system says nothing about the next step.
const OUTLIER: f32 = 1.0;

/// Programs of a bucket that are corrected apart: those of steps with and without prompt tokens.
const PROGRAMS: usize = 2 * BUCKETS.len();

/// Measurements that a fitted model counts as: the first steps of an engine often meet cold caches.
const FIT_COUNTS: u32 = 8;

/// A cost model with corrections. `expected = overall * (bucket_table * bucket + reads * (context +
/// prompt terms))`.
#[derive(Clone, Debug)]
pub(super) struct Corrections {
    cost: StepCost,
    overall: f32,
    reads: f32,
    bucket: [f32; PROGRAMS],
    measured: [u32; PROGRAMS],
    measured_in_all: u32,
    deviation: f32,
    deviation_of_bucket: [f32; PROGRAMS],
    care: f32,
    /// Upper predictions of the table's part, ascending: they follow from all above.
    upper: [f32; PROGRAMS],
    /// Factor of the upper predictions' other part.
    upper_reads: f32,
}

impl Corrections {
    pub fn new(cost: StepCost) -> Self {
        let mut new = Self {
            cost,
            overall: 1.0,
            reads: 1.0,
            bucket: [1.0; PROGRAMS],
            measured: [0; PROGRAMS],
            measured_in_all: 0,
            // Before anything was measured: a margin of 15 %.
            deviation: 0.05,
            deviation_of_bucket: [0.0; PROGRAMS],
            care: 0.0,
            upper: [0.0; PROGRAMS],
            upper_reads: 1.0,
        };
        new.predict_anew();
        new
    }

    /// Without margin.
    pub fn expect_micros(&self, work: StepWork) -> f32 {
        let index = program(work);
        self.overall * (self.table_part(index) + self.reads * self.cost.reads_micros(work))
    }

    fn table_part(&self, index: usize) -> f32 {
        self.cost.bucket_micros()[index % BUCKETS.len()] * self.bucket[index]
    }

    /// A step took so long.
    pub fn learn(&mut self, work: StepWork, micros: f32) {
        let index = program(work);
        let expected = self.expect_micros(work);
        // Negated, so that what is not a number goes no further.
        if !(expected > 0.0 && micros.is_finite() && micros > 0.0) {
            return;
        }
        let error = micros / expected - 1.0;
        let clipped = error.clamp(-OUTLIER / 2.0, OUTLIER);
        let is_guess = self.cost == StepCost::guess();
        let (seen, seen_in_all) = (self.measured[index], self.measured_in_all);
        self.measured[index] = seen.saturating_add(1);
        self.measured_in_all = seen_in_all.saturating_add(1);
        if seen_in_all == 0 && is_guess {
            // It is told once how fast this machine is.
            self.overall *= (1.0 + error).clamp(0.01, 100.0);
        } else {
            let reads_share = self.overall * self.reads * self.cost.reads_micros(work) / expected;
            let known = if is_guess { 1 } else { FIT_COUNTS };
            let gain = GAIN.max(1.0 / (seen_in_all.saturating_add(known)) as f32);
            let gain_of_bucket = GAIN_OF_BUCKET.max(0.5 / (seen.saturating_add(known)) as f32);
            self.overall *= 1.0 + gain * clipped;
            self.bucket[index] *= 1.0 + gain_of_bucket * clipped * (1.0 - reads_share);
            self.reads *= 1.0 + GAIN_OF_BUCKET * clipped * reads_share;
            self.keep_in_bounds(index);
            let deviation = clipped.abs();
            self.deviation += GAIN * (deviation - self.deviation);
            let of_bucket = &mut self.deviation_of_bucket[index];
            if seen == 0 {
                *of_bucket = self.deviation;
            }
            *of_bucket += GAIN_OF_BUCKET * (deviation - *of_bucket);
        }
        self.predict_anew();
    }

    /// Products of small steps cannot run away to where `f32` ends.
    fn keep_in_bounds(&mut self, index: usize) {
        for factor in [&mut self.overall, &mut self.reads, &mut self.bucket[index]] {
            *factor = factor.clamp(1e-3, 1e3);
        }
    }

    /// The share that caution adds.
    pub fn care(&self) -> f32 {
        self.care
    }

    /// A frame was over its budget, or one that used most of it was not.
    pub fn take_care(&mut self, is_over: bool) {
        let change = if is_over { CARE } else { -CARE * OVER_SHARE / (1.0 - OVER_SHARE) };
        self.care = (self.care + change).clamp(0.0, CARE_MAX);
        self.predict_anew();
    }

    /// Makes the upper predictions: never less for more rows, nor for prompt tokens in place of
    /// speakers, as a [`CostModel`] must be.
    fn predict_anew(&mut self) {
        let mut highest = 0.0_f32;
        for index in 0..PROGRAMS {
            if index == BUCKETS.len() {
                highest = 0.0;
            }
            let is_known = self.measured[index] > 0;
            let deviation = if is_known { self.deviation_of_bucket[index] } else { self.deviation };
            let margin = 1.0 + DEVIATIONS * deviation + self.care;
            highest = highest.max(self.overall * self.table_part(index) * margin);
            // Steps with prompt tokens come second, and cost no less than those without.
            let without = index.checked_sub(BUCKETS.len()).map_or(0.0, |same| self.upper[same]);
            highest = highest.max(without);
            self.upper[index] = highest;
        }
        self.upper_reads =
            self.overall * self.reads * (1.0 + DEVIATIONS * self.deviation + self.care);
    }
}

/// The place of a step's program: buckets without prompt tokens, then buckets with them.
fn program(work: StepWork) -> usize {
    bucket_index(work.rows()) + if work.prefill_tokens > 0 { BUCKETS.len() } else { 0 }
}

impl CostModel for Corrections {
    fn predict_micros(&self, work: StepWork) -> f32 {
        if work.is_empty() {
            return 0.0;
        }
        self.upper[program(work)] + self.upper_reads * self.cost.reads_micros(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinearCost;

    const WORK: StepWork =
        StepWork { decode_rows: 4, prefill_tokens: 0, context_tokens: 1_000, prefill_pairs: 0 };

    fn cost() -> StepCost {
        StepCost::from_linear(LinearCost {
            step_micros: 500.0,
            row_micros: 10.0,
            context_token_micros: 0.2,
            prefill_token_micros: 5.0,
        })
    }

    #[test]
    fn a_steady_device_is_predicted_within_a_percent() {
        let mut known = Corrections::new(cost());
        for rows in (1..100).cycle().take(3_000) {
            let work =
                StepWork { decode_rows: rows, context_tokens: u64::from(rows) * 300, ..WORK };
            // Slower than the model in all parts, and by another factor in each.
            let truth = 1.4 * 500.0 + 13.0 * bucket_at(rows) + 0.3 * work.context_tokens as f32;
            known.learn(work, truth);
        }
        let work = StepWork { decode_rows: 32, context_tokens: 32 * 300, ..WORK };
        let truth = 1.4 * 500.0 + 13.0 * 32.0 + 0.3 * 32.0 * 300.0;
        let expected = known.expect_micros(work);
        assert!((expected / truth - 1.0).abs() < 0.03, "{expected} for {truth}");
        assert!(known.predict_micros(work) < truth * 1.25);
        assert!(known.predict_micros(work) > truth);
    }

    fn bucket_at(rows: u32) -> f32 {
        BUCKETS[bucket_index(rows)] as f32
    }

    #[test]
    fn one_hiccup_changes_little_and_is_forgotten() {
        let mut known = Corrections::new(cost());
        let usual = known.expect_micros(WORK);
        (0..200).for_each(|_| known.learn(WORK, usual));
        let before = known.expect_micros(WORK);
        known.learn(WORK, 50.0 * usual);
        assert!(known.expect_micros(WORK) < 1.11 * before);
        (0..200).for_each(|_| known.learn(WORK, usual));
        assert!((known.expect_micros(WORK) / before - 1.0).abs() < 0.01);
        let after = known.predict_micros(WORK);
        assert!(after < 1.05 * before, "{after} for {before}: {known:?}");
    }

    #[test]
    fn a_model_that_was_never_fitted_learns_with_the_first_step() {
        let mut known = Corrections::new(StepCost::guess());
        known.learn(WORK, 20_000.0);
        assert!((known.expect_micros(WORK) / 20_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_fitted_model_is_not_given_up_for_its_first_step() {
        let mut known = Corrections::new(cost());
        let usual = known.expect_micros(WORK);
        known.learn(WORK, 40.0 * usual);
        assert!(known.expect_micros(WORK) < 1.2 * usual);
    }

    #[test]
    fn predictions_never_fall_when_work_grows() {
        let mut known = Corrections::new(cost());
        // One bucket is slow and noisy; those above are not.
        for n in 0..100 {
            known.learn(WORK, if n % 2 == 0 { 4_000.0 } else { 1_000.0 });
        }
        let mut last = 0.0;
        for decode_rows in 1..=512 {
            let predicted = known.predict_micros(StepWork { decode_rows, ..WORK });
            assert!(predicted >= last, "{decode_rows} rows");
            last = predicted;
        }
    }

    #[test]
    fn steps_with_prompts_are_corrected_apart_and_never_predicted_to_be_shorter() {
        let mut known = Corrections::new(cost());
        let reading = StepWork { decode_rows: 3, prefill_tokens: 1, prefill_pairs: 10, ..WORK };
        for _ in 0..600 {
            known.learn(WORK, 900.0);
            known.learn(reading, 1_800.0);
        }
        assert!((known.expect_micros(WORK) / 900.0 - 1.0).abs() < 0.02);
        assert!((known.expect_micros(reading) / 1_800.0 - 1.0).abs() < 0.02);
        for _ in 0..600 {
            known.learn(WORK, 1_800.0);
            known.learn(reading, 900.0);
        }
        assert!(known.predict_micros(reading) >= known.predict_micros(WORK));
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let mut known = Corrections::new(cost());
        let before = known.predict_micros(WORK);
        for micros in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            known.learn(WORK, micros);
        }
        assert_eq!(known.predict_micros(WORK), before);
    }

    #[test]
    fn care_rises_at_once_and_falls_slowly() {
        let mut known = Corrections::new(cost());
        let before = known.predict_micros(WORK);
        known.take_care(true);
        let after = known.predict_micros(WORK);
        assert!(after > 1.02 * before);
        (0..500).for_each(|_| known.take_care(false));
        let later = known.predict_micros(WORK);
        assert!(before < later && later < after);
        (0..1_000).for_each(|_| known.take_care(false));
        assert!((known.predict_micros(WORK) / before - 1.0).abs() < 1e-4);
    }
}
