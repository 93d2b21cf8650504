//! What a step costs, from measured steps.

use crate::frame::{BUCKETS, CostModel, LinearCost, StepWork, bucket_index};

/// Samples that one fit looks at; more are left out.
pub const SAMPLES_MAX: usize = 64;

/// Unknowns of a fit: what each bucket takes more than the one before it, and the rates.
const UNKNOWNS: usize = BUCKETS.len() + RATES;
const RATES: usize = 5;

/// Rounds of the fit in which samples far off lose weight.
const ROBUST_ROUNDS: usize = 8;

/// Sweeps over all unknowns in each round: the problems are small, and this many bring them below a
/// thousandth.
const SWEEPS: usize = 400;

/// Relative errors up to this count fully; beyond, a sample's pull stays the same however far off
/// it is (Huber's loss).
const USUAL_ERROR: f32 = 0.03;

/// A measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostSample {
    /// What it evaluated.
    pub work: StepWork,
    /// How long it took on the device, in microseconds.
    pub micros: f32,
}

/// Costs that no device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cost model needs finite numbers that are not negative, and a table that does not fall")]
pub struct InvalidCost;

/// What a step costs on a device: a table over buckets (the weights' bytes, the kernels'
/// boundaries, the arithmetic of rows) and [`Rates`] of all else, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    bucket_micros: [f32; BUCKETS.len()],
    rates: Rates,
}

/// What a step costs beyond its bucket, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// A cached token that is read: the cache's bytes.
    pub context_token: f32,
    /// A prompt token, beyond its row.
    pub prefill_token: f32,
    /// A prompt token's look at one cached token: its attention.
    pub prefill_pair: f32,
    /// A step with prompt tokens, however few: devices have other programs for those.
    pub prefill_step: f32,
    /// A cached token that is read in such a step, beyond [`context_token`](Self::context_token).
    pub prefill_context_token: f32,
}

impl Rates {
    /// In the order of the fields.
    #[must_use]
    pub const fn to_array(self) -> [f32; 5] {
        let Self { context_token, prefill_token, prefill_pair, .. } = self;
        let Self { prefill_step, prefill_context_token, .. } = self;
        [context_token, prefill_token, prefill_pair, prefill_step, prefill_context_token]
    }

    /// In the order of the fields.
    #[must_use]
    pub const fn from_array(rates: [f32; 5]) -> Self {
        let [context_token, prefill_token, prefill_pair, prefill_step, prefill_context_token] =
            rates;
        Self { context_token, prefill_token, prefill_pair, prefill_step, prefill_context_token }
    }
}

/// How much of each rate a step has.
fn counts(work: StepWork) -> [f32; RATES] {
    let context = work.context_tokens as f32;
    let (is_mixed, mixed_context) =
        if work.prefill_tokens > 0 { (1.0, context) } else { (0.0, 0.0) };
    [context, work.prefill_tokens as f32, work.prefill_pairs as f32, is_mixed, mixed_context]
}

impl StepCost {
    /// A cost of known numbers: the table for [`BUCKETS`], and the rates.
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

    /// The same costs as a linear model.
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

    /// Costs of a device that nobody has measured: the shape of a small model on a fast GPU. The
    /// first measured step says how far off they are.
    #[must_use]
    pub fn guess() -> Self {
        Self::from_linear(LinearCost {
            step_micros: 400.0,
            row_micros: 8.0,
            context_token_micros: 0.01,
            prefill_token_micros: 0.0,
        })
    }

    /// The cost that fits the samples best: least squares of relative errors, no unknown below 0,
    /// and samples far off (somebody else had the machine) pull no harder than those a little off.
    /// `None` without a sample that makes sense.
    ///
    /// Buckets between measured ones lie on a line between them, those below the first are as the
    /// first, those beyond the last go on as the line did.
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
        for sample in samples.iter().filter(usable).take(SAMPLES_MAX) {
            fit.add(sample);
        }
        (fit.count > 0).then(|| fit.solve())
    }

    /// The table, for [`BUCKETS`].
    #[must_use]
    pub fn bucket_micros(&self) -> &[f32; BUCKETS.len()] {
        &self.bucket_micros
    }

    /// All else.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.rates
    }

    /// What does not depend on the bucket.
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
    /// Each sample's factors of the unknowns, divided by its time: what they sum up to should be 1.
    factors: [[f32; UNKNOWNS]; SAMPLES_MAX],
    weights: [f32; SAMPLES_MAX],
    count: usize,
    is_measured: [bool; BUCKETS.len()],
}

impl Fit {
    fn new() -> Self {
        Self {
            factors: [[0.0; UNKNOWNS]; SAMPLES_MAX],
            weights: [1.0; SAMPLES_MAX],
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
        // A bucket that was not measured takes no more than the one before it: filled in
        // afterwards.
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

    /// Sets one unknown after the other to its best value, the others as they are.
    fn descend(&self, unknowns: &mut [f32; UNKNOWNS]) {
        let samples = || self.factors.iter().zip(&self.weights).take(self.count);
        let mut left = [0.0; SAMPLES_MAX];
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

    /// The table from what each measured bucket takes more than the one before.
    fn table(&self, unknowns: &[f32; UNKNOWNS]) -> [f32; BUCKETS.len()] {
        let mut table = [0.0; BUCKETS.len()];
        let mut micros = 0.0;
        let (mut last, mut slope): (Option<usize>, f32) = (None, 0.0);
        for bucket in (0..BUCKETS.len()).filter(|&bucket| self.is_measured[bucket]) {
            micros += unknowns[bucket];
            table[bucket] = micros;
            match last {
                None => table[..bucket].fill(micros),
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

    /// A device: what it takes for a work.
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
    fn a_few_samples_predict_all_else() {
        let samples: Vec<_> =
            works().into_iter().map(|work| CostSample { work, micros: truth(work) }).collect();
        assert_predicts(&StepCost::fit(&samples).unwrap(), 0.03);
    }

    #[test]
    fn samples_in_which_somebody_else_had_the_machine_are_outvoted() {
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
    fn a_fit_is_never_negative_and_never_falls() {
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
    fn costs_that_no_device_has_are_refused() {
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
