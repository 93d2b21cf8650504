//! Corrects a fitted cost model by measured step times.

use super::StepCost;
use crate::frame::{BUCKETS, CostModel, StepWork, bucket_index};

/// Minimum weight of a new measurement in the overall correction; weight in the mean deviation.
const GAIN: f32 = 1.0 / 32.0;

/// Minimum weight of a new measurement in a bucket's correction; weight in the `reads` correction
/// and in the bucket's mean deviation.
const GAIN_OF_BUCKET: f32 = 1.0 / 16.0;

/// Margin of an upper prediction, in mean absolute deviations. For normally distributed noise this
/// is 2.4 standard deviations: 99 % of steps are faster. [`Corrections::adjust_margin`] corrects
/// the rest.
const DEVIATIONS: f32 = 3.0;

/// Increase of the margin after one frame over its budget.
const CAUTION_STEP: f32 = 0.05;

/// Maximum of the caution margin, as a share of the prediction.
const CAUTION_MAX: f32 = 1.0;

/// Maximum relative error that one measurement can contribute: `OUTLIER` above or half of it below
/// the prediction. A single outlier does not predict the next step.
const OUTLIER: f32 = 1.0;

/// Minimum mean deviation when outliers are judged, as a share of the prediction.
const DEVIATION_MIN: f32 = 0.01;

/// Maximum weight of a measurement in a mean deviation, in mean deviations.
const USUAL_DEVIATIONS_MAX: f32 = 5.0;

/// Number of programs with separate corrections: each bucket without and with prompt tokens.
const PROGRAMS: usize = 2 * BUCKETS.len();

/// Weight of a fitted model, in measurements. An engine's first steps often run with cold caches.
const FIT_COUNTS: u32 = 8;

/// A cost model with multiplicative corrections:
/// `expected = overall * (bucket_table * bucket + reads * (context + prompt terms))`.
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
    caution: f32,
    /// Share of frames over budget at which the caution margin stays constant.
    over_share: f32,
    /// Upper predictions of the table term, ascending. Derived from the fields above.
    upper: [f32; PROGRAMS],
    /// Factor of the upper predictions' `reads` term.
    upper_reads: f32,
}

impl Corrections {
    pub fn new(cost: StepCost, over_share: f32) -> Self {
        let mut new = Self {
            cost,
            overall: 1.0,
            reads: 1.0,
            bucket: [1.0; PROGRAMS],
            measured: [0; PROGRAMS],
            measured_in_all: 0,
            // The initial margin is 15 % (3 mean deviations).
            deviation: 0.05,
            deviation_of_bucket: [0.0; PROGRAMS],
            caution: 0.0,
            over_share: over_share.clamp(1e-6, 0.5),
            upper: [0.0; PROGRAMS],
            upper_reads: 1.0,
        };
        new.update_predictions();
        new
    }

    /// The prediction without margin.
    pub fn expect_micros(&self, work: StepWork) -> f32 {
        let index = program(work);
        self.overall * (self.table_part(index) + self.reads * self.cost.reads_micros(work))
    }

    fn table_part(&self, index: usize) -> f32 {
        self.cost.bucket_micros()[index % BUCKETS.len()] * self.bucket[index]
    }

    /// Updates the corrections with a measured step time. Returns whether it is an outlier: no
    /// margin of a useful size contains it.
    pub fn update(&mut self, work: StepWork, micros: f32) -> bool {
        let index = program(work);
        let expected = self.expect_micros(work);
        // The condition is negated so that NaN is refused.
        if !(expected > 0.0 && micros.is_finite() && micros > 0.0) {
            return false;
        }
        let error = micros / expected - 1.0;
        let clipped = error.clamp(-OUTLIER / 2.0, OUTLIER);
        let is_guess = self.cost == StepCost::guess();
        let (seen, seen_in_all) = (self.measured[index], self.measured_in_all);
        self.measured[index] = seen.saturating_add(1);
        self.measured_in_all = seen_in_all.saturating_add(1);
        if seen_in_all == 0 && is_guess {
            // The first measurement replaces the guessed speed.
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
            // An outlier counts as a few usual deviations: one of them is no reason for a margin,
            // while a series of them is.
            let usual = self.deviation.max(DEVIATION_MIN);
            let deviation = clipped.abs().min(USUAL_DEVIATIONS_MAX * usual);
            self.deviation += GAIN * (deviation - self.deviation);
            let of_bucket = &mut self.deviation_of_bucket[index];
            if seen == 0 {
                *of_bucket = self.deviation;
            }
            *of_bucket += GAIN_OF_BUCKET * (deviation - *of_bucket);
        }
        self.update_predictions();
        error > OUTLIER
    }

    /// Limits the factors, so that repeated updates cannot overflow or underflow `f32`.
    fn keep_in_bounds(&mut self, index: usize) {
        for factor in [&mut self.overall, &mut self.reads, &mut self.bucket[index]] {
            *factor = factor.clamp(1e-3, 1e3);
        }
    }

    /// The caution margin, as a share of the prediction.
    pub fn caution(&self) -> f32 {
        self.caution
    }

    /// Raises the caution margin after a frame over its budget; lowers it slightly otherwise.
    pub fn adjust_margin(&mut self, is_over: bool) {
        let change = if is_over {
            CAUTION_STEP
        } else {
            -CAUTION_STEP * self.over_share / (1.0 - self.over_share)
        };
        self.caution = (self.caution + change).clamp(0.0, CAUTION_MAX);
        self.update_predictions();
    }

    /// Recomputes the upper predictions. They never decrease with more rows, nor when prompt tokens
    /// replace decode rows, as [`CostModel`] requires.
    fn update_predictions(&mut self) {
        let mut highest = 0.0_f32;
        for index in 0..PROGRAMS {
            if index == BUCKETS.len() {
                highest = 0.0;
            }
            let is_known = self.measured[index] > 0;
            let deviation = if is_known { self.deviation_of_bucket[index] } else { self.deviation };
            let margin = 1.0 + DEVIATIONS * deviation + self.caution;
            highest = highest.max(self.overall * self.table_part(index) * margin);
            // Programs with prompt tokens have the higher indices and cost at least as much as the
            // ones without.
            let without = index.checked_sub(BUCKETS.len()).map_or(0.0, |same| self.upper[same]);
            highest = highest.max(without);
            self.upper[index] = highest;
        }
        self.upper_reads =
            self.overall * self.reads * (1.0 + DEVIATIONS * self.deviation + self.caution);
    }
}

/// Index of a step's program: buckets without prompt tokens, then buckets with prompt tokens.
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
        let mut known = Corrections::new(cost(), 0.001);
        for rows in (1..100).cycle().take(3_000) {
            let work =
                StepWork { decode_rows: rows, context_tokens: u64::from(rows) * 300, ..WORK };
            // Slower than the model by a different factor in each term.
            let truth = 1.4 * 500.0 + 13.0 * bucket_at(rows) + 0.3 * work.context_tokens as f32;
            known.update(work, truth);
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
    fn one_outlier_changes_little_and_decays() {
        let mut known = Corrections::new(cost(), 0.001);
        let usual = known.expect_micros(WORK);
        (0..200).for_each(|_| _ = known.update(WORK, usual));
        let before = known.expect_micros(WORK);
        known.update(WORK, 50.0 * usual);
        assert!(known.expect_micros(WORK) < 1.11 * before);
        (0..200).for_each(|_| _ = known.update(WORK, usual));
        assert!((known.expect_micros(WORK) / before - 1.0).abs() < 0.01);
        let after = known.predict_micros(WORK);
        assert!(after < 1.05 * before, "{after} for {before}: {known:?}");
    }

    #[test]
    fn a_model_that_was_never_fitted_learns_with_the_first_step() {
        let mut known = Corrections::new(StepCost::guess(), 0.001);
        known.update(WORK, 20_000.0);
        assert!((known.expect_micros(WORK) / 20_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_fitted_model_is_kept_after_its_first_step() {
        let mut known = Corrections::new(cost(), 0.001);
        let usual = known.expect_micros(WORK);
        known.update(WORK, 40.0 * usual);
        assert!(known.expect_micros(WORK) < 1.2 * usual);
    }

    #[test]
    fn predictions_are_monotonic_in_work() {
        let mut known = Corrections::new(cost(), 0.001);
        // One bucket is slow and noisy; larger buckets are not.
        for n in 0..100 {
            known.update(WORK, if n % 2 == 0 { 4_000.0 } else { 1_000.0 });
        }
        let mut last = 0.0;
        for decode_rows in 1..=512 {
            let predicted = known.predict_micros(StepWork { decode_rows, ..WORK });
            assert!(predicted >= last, "{decode_rows} rows");
            last = predicted;
        }
    }

    #[test]
    fn prefill_steps_are_corrected_separately_and_never_predicted_shorter() {
        let mut known = Corrections::new(cost(), 0.001);
        let reading = StepWork { decode_rows: 3, prefill_tokens: 1, prefill_pairs: 10, ..WORK };
        for _ in 0..600 {
            known.update(WORK, 900.0);
            known.update(reading, 1_800.0);
        }
        assert!((known.expect_micros(WORK) / 900.0 - 1.0).abs() < 0.02);
        assert!((known.expect_micros(reading) / 1_800.0 - 1.0).abs() < 0.02);
        for _ in 0..600 {
            known.update(WORK, 1_800.0);
            known.update(reading, 900.0);
        }
        assert!(known.predict_micros(reading) >= known.predict_micros(WORK));
    }

    #[test]
    fn invalid_measurements_are_ignored() {
        let mut known = Corrections::new(cost(), 0.001);
        let before = known.predict_micros(WORK);
        for micros in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            known.update(WORK, micros);
        }
        assert_eq!(known.predict_micros(WORK), before);
    }

    #[test]
    fn the_margin_rises_at_once_and_falls_slowly() {
        let mut known = Corrections::new(cost(), 0.001);
        let before = known.predict_micros(WORK);
        known.adjust_margin(true);
        let after = known.predict_micros(WORK);
        assert!(after > 1.02 * before);
        (0..500).for_each(|_| known.adjust_margin(false));
        let later = known.predict_micros(WORK);
        assert!(before < later && later < after);
        (0..1_000).for_each(|_| known.adjust_margin(false));
        assert!((known.predict_micros(WORK) / before - 1.0).abs() < 1e-4);
    }
}
