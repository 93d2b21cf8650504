//! Fits a cost model to measured steps.

use crate::frame::{BUCKETS, CostModel, LinearCost, StepWork, bucket_index};

/// Maximum number of samples of one fit; further samples are ignored.
pub const MAX_SAMPLES: usize = 64;

/// Unknowns of a fit: the increment of each bucket over the previous one, and the rates.
const UNKNOWNS: usize = BUCKETS.len() + RATES;
const RATES: usize = 5;

/// Rounds of the fit; each one reduces the weight of outliers.
const ROBUST_ROUNDS: usize = 8;

/// Coordinate-descent sweeps over all unknowns per round. For problems of this size the remaining
/// error is below 0.1 %.
const SWEEPS: usize = 400;

/// Relative errors up to this threshold count fully. Beyond it, the influence of a sample is
/// constant (Huber loss).
const USUAL_ERROR: f32 = 0.03;

/// Additional rows that cost as much as a step with one row, until steps of two sizes are measured.
/// For a 0.5B model on a processor: 42 (up to eight rows) and 12 (prompts).
const ROWS_OF_A_STEP: f32 = 16.0;

/// A measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostSample {
    /// The evaluated work.
    pub work: StepWork,
    /// Measured device time, in microseconds.
    pub micros: f32,
}

/// The costs are negative, not finite, too large or decreasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cost model needs finite numbers that are not negative, and a table that does not fall")]
pub struct InvalidCost;

/// Cost of a step on a device, in microseconds: a table over buckets (weight bytes, kernel
/// boundaries, arithmetic of rows) and [`Rates`] for everything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    bucket_micros: [f32; BUCKETS.len()],
    rates: Rates,
}

/// Cost of a step in addition to its bucket, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Per cached token read: the bytes of the KV cache.
    pub context_token: f32,
    /// Per prompt token, in addition to its row.
    pub prefill_token: f32,
    /// Per pair of a prompt token and a cached token: the arithmetic of attention.
    pub prefill_pair: f32,
    /// Per step with prompt tokens, independent of their number: devices use other programs for
    /// them.
    pub prefill_step: f32,
    /// Per cached token read in such a step, in addition to [`context_token`](Self::context_token).
    pub prefill_context_token: f32,
}

impl Rates {
    /// The rates in field order.
    #[must_use]
    pub const fn to_array(self) -> [f32; 5] {
        let Self { context_token, prefill_token, prefill_pair, .. } = self;
        let Self { prefill_step, prefill_context_token, .. } = self;
        [context_token, prefill_token, prefill_pair, prefill_step, prefill_context_token]
    }

    /// Rates from an array in field order.
    #[must_use]
    pub const fn from_array(rates: [f32; 5]) -> Self {
        let [context_token, prefill_token, prefill_pair, prefill_step, prefill_context_token] =
            rates;
        Self { context_token, prefill_token, prefill_pair, prefill_step, prefill_context_token }
    }
}

/// Multiplier of each rate for a step.
fn counts(work: StepWork) -> [f32; RATES] {
    let context = work.context_tokens as f32;
    let (is_mixed, mixed_context) =
        if work.prefill_tokens > 0 { (1.0, context) } else { (0.0, 0.0) };
    [context, work.prefill_tokens as f32, work.prefill_pairs as f32, is_mixed, mixed_context]
}

impl StepCost {
    /// A cost model with known values: the table for [`BUCKETS`], and the rates.
    ///
    /// # Errors
    /// [`InvalidCost`].
    pub fn new(bucket_micros: [f32; BUCKETS.len()], rates: Rates) -> Result<Self, InvalidCost> {
        let is_cost = |micros: &f32| micros.is_finite() && (0.0..1e9).contains(micros);
        let falls = bucket_micros.windows(2).any(|two| two[1] < two[0]);
        if falls || !bucket_micros.iter().chain(&rates.to_array()).all(is_cost) {
            return Err(InvalidCost);
        }
        Ok(Self { bucket_micros, rates })
    }

    /// A cost model equal to a linear one.
    #[must_use]
    pub fn from_linear(linear: LinearCost) -> Self {
        Self {
            bucket_micros: BUCKETS.map(|rows| linear.step_micros + linear.row_micros * rows as f32),
            rates: Rates {
                context_token: linear.context_token_micros,
                prefill_token: linear.prefill_token_micros,
                ..Rates::default()
            },
        }
    }

    /// Costs of an unmeasured device: typical of a small model on a fast GPU. The first measured
    /// step scales them.
    #[must_use]
    pub fn guess() -> Self {
        Self::from_linear(LinearCost {
            step_micros: 400.0,
            row_micros: 8.0,
            context_token_micros: 0.01,
            prefill_token_micros: 0.0,
        })
    }

    /// The cost model that fits the samples best: non-negative least squares of relative errors.
    /// Outliers (for example, another process used the machine) have limited influence. Returns
    /// `None` without a usable sample.
    ///
    /// Buckets between measured ones are interpolated linearly. Buckets below the first measured
    /// one have its cost. Buckets above the last one are extrapolated, with 1/16 of a step per row
    /// if only one was measured.
    ///
    /// # Examples
    /// ```
    /// use walla_plan::StepWork;
    /// use walla_plan::governor::{CostSample, StepCost};
    /// let sample = |rows, context_tokens, micros| CostSample { work: StepWork::decode(rows, context_tokens), micros };
    /// let cost = StepCost::fit(&[sample(1, 1, 500.0), sample(8, 8, 640.0), sample(8, 8_008, 1_440.0)]).expect("samples");
    /// assert!((cost.bucket_micros()[5] - 640.0).abs() < 10.0); // 8 rows
    /// assert!((cost.rates().context_token - 0.1).abs() < 0.01);
    /// ```
    #[must_use]
    pub fn fit(samples: &[CostSample]) -> Option<Self> {
        let usable = |sample: &&CostSample| {
            let micros = sample.micros;
            micros.is_finite() && micros > 0.0 && !sample.work.is_empty()
        };
        let mut fit = Fit::new();
        for sample in samples.iter().filter(usable).take(MAX_SAMPLES) {
            fit.add(sample);
        }
        (fit.count > 0).then(|| fit.solve())
    }

    /// The table for [`BUCKETS`].
    #[must_use]
    pub fn bucket_micros(&self) -> &[f32; BUCKETS.len()] {
        &self.bucket_micros
    }

    /// The rates.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.rates
    }

    /// The part of the cost that does not depend on the bucket.
    pub(super) fn reads_micros(&self, work: StepWork) -> f32 {
        let each = self.rates.to_array().into_iter().zip(counts(work));
        each.map(|(rate, count)| rate * count).sum()
    }
}

impl CostModel for StepCost {
    fn predict_micros(&self, work: StepWork) -> f32 {
        self.bucket_micros[bucket_index(work.rows())] + self.reads_micros(work)
    }
}

/// Non-negative least squares by coordinate descent, on the stack.
struct Fit {
    /// Coefficients of the unknowns for each sample, divided by its time: the target of each sum is
    /// 1.
    factors: [[f32; UNKNOWNS]; MAX_SAMPLES],
    weights: [f32; MAX_SAMPLES],
    count: usize,
    is_measured: [bool; BUCKETS.len()],
}

impl Fit {
    fn new() -> Self {
        Self {
            factors: [[0.0; UNKNOWNS]; MAX_SAMPLES],
            weights: [1.0; MAX_SAMPLES],
            count: 0,
            is_measured: [false; BUCKETS.len()],
        }
    }

    fn add(&mut self, sample: &CostSample) {
        let CostSample { work, micros } = *sample;
        let index = bucket_index(work.rows());
        self.is_measured[index] = true;
        let factors = &mut self.factors[self.count];
        factors[..=index].fill(1.0 / micros);
        for (factor, count) in factors[BUCKETS.len()..].iter_mut().zip(counts(work)) {
            *factor = count / micros;
        }
        self.count += 1;
    }

    fn solve(mut self) -> StepCost {
        // Buckets without measurements are excluded here and filled in by `table`.
        for (bucket, _) in self.is_measured.iter().enumerate().filter(|(_, is)| !**is) {
            self.factors[..self.count].iter_mut().for_each(|factors| factors[bucket] = 0.0);
        }
        let mut unknowns = [0.0; UNKNOWNS];
        for _ in 0..ROBUST_ROUNDS {
            self.descend(&mut unknowns);
            for (weight, factors) in self.weights.iter_mut().zip(&self.factors).take(self.count) {
                let error = (product(factors, &unknowns) - 1.0).abs();
                *weight = (USUAL_ERROR / error.max(USUAL_ERROR)).min(1.0);
            }
        }
        let rates = std::array::from_fn(|rate| unknowns[BUCKETS.len() + rate]);
        StepCost { bucket_micros: self.table(&unknowns), rates: Rates::from_array(rates) }
    }

    /// Sets each unknown in turn to its optimum, with the others fixed.
    fn descend(&self, unknowns: &mut [f32; UNKNOWNS]) {
        let samples = || self.factors.iter().zip(&self.weights).take(self.count);
        let mut left = [0.0; MAX_SAMPLES];
        for (left, factors) in left.iter_mut().zip(&self.factors).take(self.count) {
            *left = 1.0 - product(factors, unknowns);
        }
        for _ in 0..SWEEPS {
            for (unknown, value) in unknowns.iter_mut().enumerate() {
                let square: f32 = samples().map(|(f, w)| w * f[unknown] * f[unknown]).sum();
                if square <= 0.0 {
                    continue;
                }
                let pull: f32 = samples().zip(&left).map(|((f, w), l)| w * f[unknown] * l).sum();
                let better = (*value + pull / square).max(0.0);
                let change = better - *value;
                *value = better;
                for (left, factors) in left.iter_mut().zip(&self.factors).take(self.count) {
                    *left -= factors[unknown] * change;
                }
            }
        }
    }

    /// The table: cumulative sum of the increments of measured buckets; other buckets are inter- or
    /// extrapolated.
    fn table(&self, unknowns: &[f32; UNKNOWNS]) -> [f32; BUCKETS.len()] {
        let mut table = [0.0; BUCKETS.len()];
        let mut micros = 0.0;
        let (mut last, mut slope): (Option<usize>, f32) = (None, 0.0);
        for bucket in (0..BUCKETS.len()).filter(|&bucket| self.is_measured[bucket]) {
            micros += unknowns[bucket];
            table[bucket] = micros;
            match last {
                None => {
                    table[..bucket].fill(micros);
                    slope = micros / (ROWS_OF_A_STEP + BUCKETS[bucket] as f32 - 1.0);
                }
                Some(last) => {
                    let rows = (BUCKETS[bucket] - BUCKETS[last]) as f32;
                    slope = (micros - table[last]) / rows;
                    let start = table[last];
                    for between in last + 1..bucket {
                        table[between] = start + slope * (BUCKETS[between] - BUCKETS[last]) as f32;
                    }
                }
            }
            last = Some(bucket);
        }
        let Some(last) = last else { return table };
        for beyond in last + 1..BUCKETS.len() {
            table[beyond] = micros + slope * (BUCKETS[beyond] - BUCKETS[last]) as f32;
        }
        table
    }
}

fn product(factors: &[f32; UNKNOWNS], unknowns: &[f32; UNKNOWNS]) -> f32 {
    factors.iter().zip(unknowns).map(|(factor, unknown)| factor * unknown).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The true cost of a simulated device.
    fn truth(work: StepWork) -> f32 {
        300.0
            + 6.0 * BUCKETS[bucket_index(work.rows())] as f32
            + 0.05 * work.context_tokens as f32
            + 4.0 * work.prefill_tokens as f32
            + 0.002 * work.prefill_pairs as f32
            + if work.prefill_tokens > 0 { 90.0 + 0.03 * work.context_tokens as f32 } else { 0.0 }
    }

    fn mixed(decode_rows: u32, each: u64, prefill_tokens: u32) -> StepWork {
        let (speaking, reading) =
            (decode(decode_rows, each), StepWork::prefill(prefill_tokens, 20));
        StepWork {
            decode_rows,
            context_tokens: speaking.context_tokens + reading.context_tokens,
            ..reading
        }
    }

    fn decode(decode_rows: u32, each: u64) -> StepWork {
        StepWork::decode(decode_rows, u64::from(decode_rows) * each)
    }

    fn works() -> Vec<StepWork> {
        vec![
            decode(1, 1),
            decode(1, 500),
            decode(8, 20),
            decode(8, 500),
            decode(64, 20),
            decode(64, 500),
            StepWork::prefill(64, 0),
            StepWork::prefill(64, 900),
            StepWork::prefill(16, 0),
            mixed(8, 20, 48),
            mixed(8, 900, 48),
        ]
    }

    fn assert_predicts(cost: &StepCost, tolerance: f32) {
        for work in [
            decode(3, 200),
            decode(16, 100),
            decode(48, 300),
            StepWork::prefill(48, 400),
            mixed(20, 300, 30),
        ] {
            let (predicted, expected) = (cost.predict_micros(work), truth(work));
            let error = predicted / expected - 1.0;
            assert!(error.abs() < tolerance, "{work:?}: {predicted} for {expected}");
        }
    }

    #[test]
    fn a_few_samples_predict_all_other_steps() {
        let samples: Vec<_> =
            works().into_iter().map(|work| CostSample { work, micros: truth(work) }).collect();
        assert_predicts(&StepCost::fit(&samples).unwrap(), 0.03);
    }

    #[test]
    fn outliers_of_a_busy_machine_are_rejected() {
        let mut samples = Vec::new();
        for work in works() {
            for repeat in 0..3 {
                let noise = 1.0 + 0.01 * (repeat as f32 - 1.0);
                samples.push(CostSample { work, micros: noise * truth(work) });
            }
        }
        for disturbed in [1, 7, 14] {
            samples[disturbed].micros *= 6.0;
        }
        assert_predicts(&StepCost::fit(&samples).unwrap(), 0.06);
    }

    #[test]
    fn a_fit_is_nonnegative_and_monotonic() {
        // A device that is faster with more rows and more context.
        let samples = [
            CostSample { work: decode(1, 100), micros: 900.0 },
            CostSample { work: decode(8, 500), micros: 300.0 },
            CostSample { work: decode(64, 900), micros: 100.0 },
        ];
        let cost = StepCost::fit(&samples).unwrap();
        assert_eq!(StepCost::new(*cost.bucket_micros(), cost.rates()), Ok(cost));
    }

    #[test]
    fn one_sample_is_a_model_and_none_is_not() {
        let sample = CostSample { work: decode(4, 10), micros: 250.0 };
        let cost = StepCost::fit(&[sample]).unwrap();
        assert!((cost.predict_micros(sample.work) / 250.0 - 1.0).abs() < 0.01);
        assert!(cost.predict_micros(decode(128, 10)) >= 250.0 * 0.99);
        let useless = [
            CostSample { micros: f32::NAN, ..sample },
            CostSample { micros: 0.0, ..sample },
            CostSample { work: StepWork::default(), ..sample },
        ];
        assert_eq!(StepCost::fit(&useless), None);
    }

    #[test]
    fn impossible_costs_are_refused() {
        let table = [100.0; BUCKETS.len()];
        let mut falling = table;
        falling[3] = 99.0;
        assert_eq!(StepCost::new(falling, Rates::default()), Err(InvalidCost));
        assert_eq!(
            StepCost::new(table, Rates { prefill_token: f32::NAN, ..Rates::default() }),
            Err(InvalidCost)
        );
        assert_eq!(
            StepCost::new(table, Rates { prefill_step: -1.0, ..Rates::default() }),
            Err(InvalidCost)
        );
        assert_eq!(StepCost::new([1e30; BUCKETS.len()], Rates::default()), Err(InvalidCost));
        assert!(StepCost::new(table, Rates::default()).is_ok());
    }
}
