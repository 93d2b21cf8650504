//! Corrects a fitted cost model by measured step times.
//!
//! The model is `overall * (table * bucket + rates * reads)`: three factors. There is one
//! `bucket` per program. A measured step is one equation for three unknowns, so each factor has
//! a variance, and the error of a step is divided in proportion to them (a Kalman filter of the
//! logarithms, without covariances). Factors of programs that were measured often are certain: an
//! error there is a change of the whole device, and all predictions follow. The factor of a new
//! program is uncertain: an error there changes no other prediction.

use super::StepCost;
use crate::frame::{BUCKETS, CostModel, StepWork, bucket_index};

/// Variance of a measurement of the logarithm of a step's time: 10 %.
const NOISE: f32 = 0.01;

/// Variances of factors after a fit: of the whole device, of a program and of the reads. An
/// engine's first steps often run with cold caches, so the whole is trusted.
const OVERALL_FIT: f32 = 0.000_4;
const BUCKET_FIT: f32 = 0.01;
const READS_FIT: f32 = 0.01;

/// Increase of variances with each measurement: the device changes fast (other programs, clocks),
/// the relations of its programs slowly.
const OVERALL_DRIFT: f32 = 0.000_3;
const BUCKET_DRIFT: f32 = 0.000_002;

/// Maximum variance: 50 %.
const MAX_VARIANCE: f32 = 0.25;

/// Errors beyond this number of standard deviations count as this number. The second one in
/// succession in the same direction increases a variance: one outlier is ignored, more are
/// believed.
const SURPRISE: f32 = 2.0;

/// Measurements of a program after which a large error is a change of the whole device.
const KNOWN_COUNT: u32 = 4;

/// Weight of a new measurement in the mean deviation.
const GAIN: f32 = 1.0 / 32.0;

/// Weight of a new measurement in a program's mean deviation.
const GAIN_OF_BUCKET: f32 = 1.0 / 16.0;

/// Margin of an upper prediction, in mean absolute deviations. For normally distributed noise this
/// is 2.4 standard deviations: 99 % of steps are faster. [`Corrections::adjust_margin`] corrects
/// the rest.
const DEVIATIONS: f32 = 3.0;

/// Increase of the margin after one frame over its budget.
const CAUTION_STEP: f32 = 0.05;

/// Maximum of the caution margin, as a share of the prediction.
const MAX_CAUTION: f32 = 1.0;

/// Maximum relative error that one measurement can contribute: `OUTLIER` above or half of it below
/// the prediction. A single outlier does not predict the next step.
const OUTLIER: f32 = 1.0;

/// The same for a program that is [doubted](Corrections::doubt).
const MAX_DOUBTED: f32 = 50.0;

/// Measurements after which a program's mean deviation is outdated, if none is its own.
const DEVIATION_AGE: u32 = 256;

/// Minimum mean deviation when outliers are judged, as a share of the prediction.
const DEVIATION_MIN: f32 = 0.01;

/// Mean deviation after a fit: the initial margin is 15 %.
const DEVIATION_FIT: f32 = 0.05;

/// Maximum weight of a measurement in a mean deviation, in mean deviations.
const MAX_USUAL_DEVIATIONS: f32 = 5.0;

/// Number of programs with separate corrections: each bucket without and with prompt tokens.
pub(super) const PROGRAMS: usize = 2 * BUCKETS.len();

/// The logarithm of a factor, and its variance.
#[derive(Clone, Copy, Debug)]
struct Factor {
    log: f32,
    variance: f32,
}

impl Factor {
    const fn one(variance: f32) -> Self {
        Self { log: 0.0, variance }
    }

    fn value(self) -> f32 {
        libm::expf(self.log)
    }

    /// Takes its part of an error. `share`: change of the logarithm of the prediction with this
    /// factor's; `all`: variance of the measurement.
    fn take(&mut self, error: f32, share: f32, all: f32, drift: f32) {
        let gain = share * self.variance / all;
        // The bounds keep repeated updates from an overflow of `exp`.
        self.log = (self.log + gain * error).clamp(-7.0, 7.0);
        self.variance = (self.variance * (1.0 - gain * share) + drift).min(MAX_VARIANCE);
    }

    fn doubt(&mut self, variance: f32) {
        self.variance = (self.variance + variance).min(MAX_VARIANCE);
    }
}

/// A cost model with multiplicative corrections. See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Corrections {
    cost: StepCost,
    /// Whether a step costs as much as one with all rows of its bucket. Otherwise costs between
    /// buckets are interpolated.
    pads_rows: bool,
    overall: Factor,
    reads: Factor,
    bucket: [Factor; PROGRAMS],
    measured: [u32; PROGRAMS],
    /// Value of `measured_in_all` at the last measurement.
    measured_at: [u32; PROGRAMS],
    measured_in_all: u32,
    /// Part of the last error that counted as an outlier.
    beyond: f32,
    deviation: f32,
    deviation_of_bucket: [f32; PROGRAMS],
    caution: f32,
    /// Share of frames over budget at which the caution margin stays constant.
    over_share: f32,
    /// A program that is predicted to cost as little as the one before it, once: see
    /// [`try_out`](Self::try_out).
    tried: Option<usize>,
    has_margins: bool,
    /// Predictions of the table term without margin. Derived from the fields above.
    expected: [f32; PROGRAMS],
    /// Upper predictions of the table term, ascending. Derived from the fields above.
    upper: [f32; PROGRAMS],
    /// Factor of the upper predictions' `reads` term.
    upper_reads: f32,
}

impl Corrections {
    pub fn new(cost: StepCost, over_share: f32, pads_rows: bool) -> Self {
        let mut new = Self {
            cost,
            pads_rows,
            overall: Factor::one(OVERALL_FIT),
            reads: Factor::one(READS_FIT),
            bucket: [Factor::one(BUCKET_FIT); PROGRAMS],
            measured: [0; PROGRAMS],
            measured_at: [0; PROGRAMS],
            measured_in_all: 0,
            beyond: 0.0,
            deviation: DEVIATION_FIT,
            deviation_of_bucket: [0.0; PROGRAMS],
            caution: 0.0,
            over_share: over_share.clamp(1e-6, 0.5),
            tried: None,
            has_margins: true,
            expected: [0.0; PROGRAMS],
            upper: [0.0; PROGRAMS],
            upper_reads: 1.0,
        };
        new.update_predictions();
        new
    }

    /// The prediction without margin.
    pub fn expect_micros(&self, work: StepWork) -> f32 {
        let reads = self.overall.value() * self.reads.value() * self.cost.reads_micros(work);
        self.of_rows(&self.expected, work) + reads
    }

    /// The table term of a step.
    fn of_rows(&self, table: &[f32; PROGRAMS], work: StepWork) -> f32 {
        let index = program(work);
        match self.share_below(work) {
            0.0 => table[index],
            below => below * table[index - 1] + (1.0 - below) * table[index],
        }
    }

    /// The share that the program before a step's program has in the step's cost.
    fn share_below(&self, work: StepWork) -> f32 {
        let (bucket, rows) = (bucket_index(work.rows()), work.rows());
        if self.pads_rows || bucket == 0 || rows >= BUCKETS[bucket] {
            return 0.0;
        }
        let (less, most) = (BUCKETS[bucket - 1], BUCKETS[bucket]);
        (most - rows) as f32 / (most - less) as f32
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
        // Nothing is known of a doubted program that a measurement could contradict.
        let is_doubted = self.bucket[index].variance >= MAX_VARIANCE;
        let max_error = if is_doubted { MAX_DOUBTED } else { OUTLIER };
        let clipped = error.clamp(-max_error / (1.0 + max_error), max_error);
        let is_guess = self.cost == StepCost::guess();
        let (seen, seen_in_all) = (self.measured[index], self.measured_in_all);
        // Its prediction may have been that of a similar program, or bounded by others until now.
        let uncorrected = self.overall.value() * self.cost.bucket_micros()[index % BUCKETS.len()];
        if uncorrected > 0.0 && self.expected[index] > 0.0 {
            self.bucket[index].log =
                libm::logf(self.expected[index] / uncorrected).clamp(-7.0, 7.0);
        }
        self.measured[index] = seen.saturating_add(1);
        self.measured_in_all = seen_in_all.saturating_add(1);
        self.measured_at[index] = self.measured_in_all;
        if seen_in_all == 0 && is_guess {
            // The first measurement replaces the guessed speed.
            self.overall.log += libm::logf(1.0 + error).clamp(-4.6, 4.6);
        } else {
            self.divide(work, expected, libm::log1pf(clipped));
            if is_doubted {
                self.update_predictions();
                return false;
            }
            // An outlier counts as a few usual deviations: one of them is no reason for a margin,
            // while a series of them is.
            let usual = self.deviation.max(DEVIATION_MIN);
            let deviation = clipped.abs().min(MAX_USUAL_DEVIATIONS * usual);
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

    /// Forgets the measurements of a program: its next measurement replaces its prediction.
    pub fn doubt(&mut self, work: StepWork) {
        let index = program(work);
        self.bucket[index].variance = MAX_VARIANCE;
        self.deviation_of_bucket[index] = self.deviation_of_bucket[index].min(DEVIATION_FIT);
    }

    /// Divides the error of a prediction among the factors.
    fn divide(&mut self, work: StepWork, expected: f32, error: f32) {
        let (index, below) = (program(work), self.share_below(work));
        // Changes of the logarithm of the prediction with the logarithms of the factors.
        let of_bucket = (1.0 - below) * self.expected[index] / expected;
        let is_below = below > 0.0 && self.measured[index - 1] > 0;
        let of_below = if is_below { below * self.expected[index - 1] / expected } else { 0.0 };
        let reads = 1.0 - self.of_rows(&self.expected, work) / expected;
        let of_reads = reads * reads * self.reads.variance;
        let mut all = NOISE + self.overall.variance + of_reads;
        all += of_bucket * of_bucket * self.bucket[index].variance;
        if is_below {
            all += of_below * of_below * self.bucket[index - 1].variance;
        }
        let usual = SURPRISE * all.sqrt();
        let usual_error = error.clamp(-usual, usual);
        self.overall.take(usual_error, 1.0, all, OVERALL_DRIFT);
        self.reads.take(usual_error, reads, all, BUCKET_DRIFT);
        self.bucket[index].take(usual_error, of_bucket, all, BUCKET_DRIFT);
        if is_below {
            self.bucket[index - 1].take(usual_error, of_below, all, BUCKET_DRIFT);
        }
        let beyond = error - usual_error;
        if beyond * self.beyond > 0.0 {
            let is_known = self.measured[index] > KNOWN_COUNT;
            let doubted = if is_known { &mut self.overall } else { &mut self.bucket[index] };
            doubted.doubt((error * error - usual_error * usual_error) / 4.0);
        }
        self.beyond = beyond;
    }

    /// The measured program whose factor a program without measurements has: the nearest with fewer
    /// rows, else with more, else of the other kind. The program itself if none is measured.
    fn similar(&self, index: usize) -> usize {
        let half = BUCKETS.len();
        let (kind, bucket) = (index / half * half, index % half);
        let is_known = |place: &usize| self.measured[*place] > 0;
        let of_kind = |kind: usize| {
            let less = (kind..=kind + bucket).rev().find(is_known);
            less.or_else(|| (kind + bucket..kind + half).find(is_known))
        };
        of_kind(kind).or_else(|| of_kind(half - kind)).unwrap_or(index)
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
        self.caution = (self.caution + change).clamp(0.0, MAX_CAUTION);
        self.update_predictions();
    }

    /// Predicts that `program` costs no more than the one with the next fewer rows, and that its
    /// prompt tokens cost no more than decode rows, until it is called with `None`. Predictions
    /// have margins again.
    pub fn try_out(&mut self, program: Option<usize>) {
        if self.tried != program || !self.has_margins {
            (self.tried, self.has_margins) = (program, true);
            self.update_predictions();
        }
    }

    /// Predicts without margins until the next [`try_out`](Self::try_out).
    pub fn drop_margins(&mut self) {
        if self.has_margins {
            self.has_margins = false;
            self.update_predictions();
        }
    }

    /// Recomputes the predictions.
    fn update_predictions(&mut self) {
        let kinds = [0, BUCKETS.len()];
        kinds.into_iter().for_each(|kind| self.expect_kind(kind));
        let sources = self.lower_outdated();
        kinds.into_iter().for_each(|kind| self.limit_kind(kind, &sources));
        let margin = self.margin(self.deviation);
        self.upper_reads = self.overall.value() * self.reads.value() * margin;
    }

    /// Factor of upper predictions.
    fn margin(&self, deviation: f32) -> f32 {
        if self.has_margins { 1.0 + DEVIATIONS * deviation + self.caution } else { 1.0 }
    }

    /// The mean deviation of a program. An outdated one is no more than that of all programs:
    /// otherwise one that is not wanted any more would limit all with more rows.
    fn deviation_of(&self, index: usize) -> f32 {
        let its = self.deviation_of_bucket[index];
        match self.measured_in_all - self.measured_at[index] {
            _ if self.measured[index] == 0 => self.deviation,
            0..=DEVIATION_AGE => its,
            _ => its.min(self.deviation),
        }
    }

    /// Predictions without margin of the programs with or without prompt tokens.
    fn expect_kind(&mut self, kind: usize) {
        let overall = self.overall.value();
        // The lowest measured cost of a row among the programs with fewer rows.
        let mut row_micros = f32::INFINITY;
        for (bucket, (&rows, &micros)) in BUCKETS.iter().zip(self.cost.bucket_micros()).enumerate()
        {
            let index = kind + bucket;
            let is_known = self.measured[index] > 0;
            let factor = self.bucket[if is_known { index } else { self.similar(index) }];
            let expected = overall * micros * factor.value();
            self.expected[index] = expected.min(row_micros * rows as f32);
            if is_known {
                row_micros = row_micros.min(self.expected[index] / rows as f32);
            }
        }
    }

    /// A program costs no more than one that was measured later and has more rows, or prompt tokens
    /// in place of decode rows. Returns the program that each prediction is from.
    fn lower_outdated(&mut self) -> [usize; PROGRAMS] {
        let mut sources = std::array::from_fn(|index| index);
        let half = BUCKETS.len();
        for index in (0..PROGRAMS).rev() {
            let of_kind = index + 1..index / half * half + half;
            let with_prompts = index + half..PROGRAMS;
            for larger in of_kind.chain(with_prompts) {
                if self.measured_at[larger] > self.measured_at[index]
                    && self.expected[larger] < self.expected[index]
                {
                    self.expected[index] = self.expected[larger];
                    sources[index] = sources[larger];
                }
            }
        }
        sources
    }

    /// Upper predictions. They never decrease with more rows, nor when prompt tokens replace decode
    /// rows, as [`CostModel`] requires.
    fn limit_kind(&mut self, kind: usize, sources: &[usize; PROGRAMS]) {
        let mut highest = 0.0_f32;
        for bucket in 0..BUCKETS.len() {
            let index = kind + bucket;
            let margin = self.margin(self.deviation_of(sources[index]));
            // Programs with prompt tokens cost at least as much as the ones without.
            let without = if kind > 0 { self.upper[bucket] } else { 0.0 };
            let is_tried = [index, index + BUCKETS.len()].map(Some).contains(&self.tried);
            if is_tried && kind > 0 {
                let smaller = &mut self.upper[kind..index];
                smaller.iter_mut().for_each(|upper| *upper = upper.min(without));
                highest = highest.min(without);
            } else if !is_tried {
                highest = highest.max(self.expected[index] * margin);
            }
            highest = highest.max(without);
            self.upper[index] = highest;
        }
    }
}

/// Index of a step's program: buckets without prompt tokens, then buckets with prompt tokens.
pub(super) fn program(work: StepWork) -> usize {
    bucket_index(work.rows()) + if work.prefill_tokens > 0 { BUCKETS.len() } else { 0 }
}

impl CostModel for Corrections {
    fn predict_micros(&self, work: StepWork) -> f32 {
        if work.is_empty() {
            return 0.0;
        }
        self.of_rows(&self.upper, work) + self.upper_reads * self.cost.reads_micros(work)
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
        let mut known = Corrections::new(cost(), 0.001, true);
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
        let mut known = Corrections::new(cost(), 0.001, true);
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
        let mut known = Corrections::new(StepCost::guess(), 0.001, true);
        known.update(WORK, 20_000.0);
        assert!((known.expect_micros(WORK) / 20_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_fitted_model_is_kept_after_its_first_step() {
        let mut known = Corrections::new(cost(), 0.001, true);
        let usual = known.expect_micros(WORK);
        known.update(WORK, 40.0 * usual);
        assert!(known.expect_micros(WORK) < 1.2 * usual);
    }

    #[test]
    fn predictions_are_monotonic_in_work() {
        let mut known = Corrections::new(cost(), 0.001, true);
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
        let mut known = Corrections::new(cost(), 0.001, true);
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

    /// Prompts of few rows were slow and irregular, and are not wanted for long.
    #[test]
    fn an_outdated_margin_of_a_smaller_program_limits_no_larger_one() {
        let reading = |rows: u32| StepWork { decode_rows: 1, prefill_tokens: rows - 1, ..WORK };
        let mut known = Corrections::new(cost(), 0.001, true);
        for n in 0..40 {
            known.update(reading(32), if n % 2 == 0 { 4_000.0 } else { 1_000.0 });
        }
        (0..300).for_each(|_| _ = known.update(reading(64), 1_500.0));
        let predicted = known.predict_micros(reading(64));
        assert!((1_500.0..1.2 * 1_500.0).contains(&predicted), "{predicted}");
    }

    #[test]
    fn invalid_measurements_are_ignored() {
        let mut known = Corrections::new(cost(), 0.001, true);
        let before = known.predict_micros(WORK);
        for micros in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            known.update(WORK, micros);
        }
        assert_eq!(known.predict_micros(WORK), before);
    }

    #[test]
    fn the_margin_rises_at_once_and_falls_slowly() {
        let mut known = Corrections::new(cost(), 0.001, true);
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
