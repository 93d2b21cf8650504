//! A simulated device whose true costs differ from its model.

use walla_plan::governor::{CostSample, Rates};
use walla_plan::{BUCKETS, CostModel, StepCost, StepWork};

use super::HERTZ;
use super::random::Random;

/// A device whose true costs differ from the model: a factor per bucket, noise, outliers, slow
/// drift, and periods in which another process uses a part of it.
pub struct Device {
    model: StepCost,
    of_bucket: [f32; BUCKETS.len()],
    random: Random,
}

impl Device {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let rates = Rates {
            context_token: 0.006,
            prefill_token: 1.5,
            prefill_pair: 0.001,
            prefill_step: 40.0,
            prefill_context_token: 0.002,
        };
        let table = BUCKETS.map(|rows| 260.0 + 4.0 * rows as f32);
        let model = StepCost::new(table, rates).expect("costs");
        let of_bucket = BUCKETS.map(|_| 0.85 + 0.4 * random.share());
        Self { model, of_bucket, random }
    }

    pub fn micros(&mut self, work: StepWork, frame: u32) -> f32 {
        let bucket = BUCKETS.partition_point(|&rows| rows < work.rows()).min(BUCKETS.len() - 1);
        let seconds = frame as f32 / HERTZ;
        let warm = 1.0 + 0.1 * (seconds / 97.0).sin();
        let shared = if frame % 10_000 > 8_800 { 1.35 } else { 1.0 };
        let noise = 1.0 + 0.02 * self.random.normal();
        let hiccup =
            if self.random.below(20_000) == 0 { 2.0 + 3.0 * self.random.share() } else { 1.0 };
        self.model.predict_micros(work) * self.of_bucket[bucket] * warm * shared * noise * hiccup
    }

    /// The result of a calibration at load.
    pub fn calibrated(&mut self) -> StepCost {
        let works = [
            StepWork::decode(1, 16),
            StepWork::decode(1, 768),
            StepWork::decode(8, 8 * 16),
            StepWork::decode(8, 8 * 768),
            StepWork::decode(64, 64 * 16),
            StepWork::decode(64, 64 * 768),
            StepWork::decode(128, 128 * 16),
            StepWork::prefill(64, 16),
            StepWork::prefill(64, 768),
            StepWork { decode_rows: 8, ..StepWork::prefill(48, 16) },
            StepWork { decode_rows: 8, ..StepWork::prefill(48, 768) },
        ];
        let mut samples = Vec::new();
        for work in works {
            samples.extend((0..3).map(|_| CostSample { work, micros: self.micros(work, 0) }));
        }
        StepCost::fit(&samples).expect("samples")
    }
}
