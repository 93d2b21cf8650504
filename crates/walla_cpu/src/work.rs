//! The number of threads of a step and of its jobs, from estimates of their work.
//!
//! A thread that joins a job reads its inputs and changes the job's counters, one thread after
//! another. So a job of `w` nanoseconds takes about `w / n + n * join` nanoseconds on `n` threads,
//! which is least for `n = sqrt(w / join)`. A step has many jobs, for which its threads stay awake.
//! Waking them for a step that gains less than that costs makes it slower.
//!
//! The choice never affects results: they do not depend on tiles or threads.

use walla_device::{DeltaShape, HeadShape};
use walla_types::TensorType;

use crate::options::Variant;

/// Costs of threads, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadCosts {
    /// One more thread of a job.
    join: u64,
}

impl ThreadCosts {
    /// Default of [`join`](Self::join): four cache lines that move between cores.
    pub(crate) const JOIN_NANOS: u32 = 300;

    pub(crate) const fn new(join_nanos: u32) -> Self {
        Self { join: join_nanos as u64 }
    }

    /// Number of tiles for a job of `work` nanoseconds on `threads` threads: several for each, so
    /// that a late thread delays the job by a part of its share. A tile has the work of several
    /// joins, because claiming it costs a fraction of one. Where tiles stay much larger than that,
    /// there are more of them: the threads of a job wait for its last tile.
    pub(crate) fn tiles(self, work: u64, threads: usize) -> usize {
        let each = |joins: u64| {
            let tiles = work.checked_div(joins * self.join).unwrap_or(u64::MAX);
            tiles / threads as u64
        };
        // The same number for each thread, so that equal tiles end together.
        let each = each(6).min(4).max(each(40)).clamp(1, 16);
        if threads == 1 { 1 } else { threads * each as usize }
    }

    /// Waking the first threads of a step: two system calls. Each may interrupt a sleeping core.
    const fn step(self) -> u64 {
        64 * self.join
    }

    /// Minimum work of a job for which threads that fell asleep are woken again. The wake-up takes
    /// as long as the first threads of a step.
    pub(crate) const fn rouse(self) -> u64 {
        self.step()
    }

    /// Number of threads for a job of `work` nanoseconds, of at most `max`.
    pub(crate) fn of_job(self, work: u64, max: usize) -> usize {
        let best = work.checked_div(self.join).map_or(u64::MAX, u64::isqrt);
        usize::try_from(best).unwrap_or(usize::MAX).clamp(1, max.max(1))
    }

    /// Number of threads for a step of this work, of at most `max`.
    pub(crate) fn of_step(self, step: StepWork, max: usize) -> usize {
        let jobs = step.jobs.max(1);
        let threads = self.of_job(step.nanos / jobs, max);
        let joins = (jobs * self.join).saturating_mul(threads as u64);
        let together = (step.nanos / threads as u64).saturating_add(joins);
        if threads > 1 && together.saturating_add(self.step()) > step.nanos { 1 } else { threads }
    }
}

/// Estimated work of a step on one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepWork {
    pub nanos: u64,
    /// Jobs that several threads can share.
    pub jobs: u64,
}

impl StepWork {
    /// Adds a job of `nanos` nanoseconds.
    pub(crate) fn add(&mut self, nanos: u64) {
        self.nanos = self.nanos.saturating_add(nanos);
        self.jobs += 1;
    }
}

/// Nanoseconds of a product of `rows` rows with a matrix of `numbers` numbers in `bytes` bytes.
///
/// One thread reads about 24 bytes per nanosecond from the L3 cache. Products per nanosecond are
/// from `device -- cached` in the benchmarks, rounded.
pub(crate) fn product(
    variant: Variant,
    ty: TensorType,
    bytes: usize,
    numbers: usize,
    rows: usize,
) -> u64 {
    const BYTES: u64 = 24;
    let speed: u64 = match (variant, ty.is_quantized()) {
        (Variant::Scalar, _) => 1,
        // Estimates: half of the numbers of a register of AVX2 per instruction.
        (Variant::Neon | Variant::NeonDot | Variant::NeonI8mm, false) => 10,
        (Variant::Neon, true) => 20,
        (Variant::NeonDot, true) => 40,
        (Variant::NeonI8mm, true) => 50,
        (Variant::Avx2Fma | Variant::AvxVnni | Variant::Avx512Vnni, false) => 25,
        (Variant::Avx2Fma, true) => 50,
        (Variant::AvxVnni, true) => 80,
        (Variant::Avx512Vnni, true) => 100,
    };
    (bytes as u64 / BYTES).max(numbers as u64 * rows as u64 / speed)
}

/// Nanoseconds of a simple operation on `numbers` numbers.
pub(crate) fn elements(numbers: usize) -> u64 {
    numbers as u64 / 2
}

/// Nanoseconds of the attention of all heads to `cells` cells in total.
pub(crate) fn attention(in_vectors: bool, shape: HeadShape, cells: u64) -> u64 {
    let numbers = cells * u64::from(shape.kv_heads) * u64::from(shape.head_dim);
    let group = u64::from(shape.heads / shape.kv_heads.max(1));
    if in_vectors { numbers * (3 + group) / 32 } else { 2 * numbers * group }
}

/// Nanoseconds of the delta rule for `rows` rows.
pub(crate) fn delta_rule(variant: Variant, shape: DeltaShape, rows: usize) -> u64 {
    let numbers = u64::from(shape.values()) * u64::from(shape.head_dim) * rows as u64;
    if variant == Variant::Scalar { 2 * numbers } else { numbers / 8 }
}

/// Nanoseconds of sampling `outputs` tokens.
pub(crate) fn sample(outputs: usize, vocab: u32) -> u64 {
    2 * outputs as u64 * u64::from(vocab)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: ThreadCosts = ThreadCosts::new(ThreadCosts::JOIN_NANOS);

    /// Work from nothing to hours, in steps of a quarter.
    fn works() -> impl Iterator<Item = u64> {
        let more = |work: &u64| work.checked_add(work / 4 + 1).filter(|work| *work < 1 << 45);
        std::iter::successors(Some(0), more)
    }

    fn step(nanos: u64, jobs: u64) -> StepWork {
        StepWork { nanos, jobs }
    }

    #[test]
    fn at_least_one_thread_and_at_most_all() {
        for max in 0..=64 {
            for work in works().chain([u64::MAX]) {
                let range = 1..=max.max(1);
                assert!(range.contains(&COSTS.of_job(work, max)), "{work} {max}");
                for jobs in [0, 1, 41, 1000] {
                    assert!(range.contains(&COSTS.of_step(step(work, jobs), max)), "{work} {max}");
                }
            }
        }
    }

    #[test]
    fn more_work_never_has_fewer_threads() {
        let grows = |threads: &dyn Fn(u64) -> usize| works().is_sorted_by_key(threads);
        for max in [1, 2, 3, 4, 8, 16, 64] {
            assert!(grows(&|work| COSTS.of_job(work, max)), "{max}");
            for jobs in [1, 41, 300] {
                assert!(grows(&|work| COSTS.of_step(step(work, jobs), max)), "{max} {jobs}");
            }
        }
    }

    #[test]
    fn more_threads_are_never_predicted_to_be_slower() {
        let predicted = |nanos: u64, jobs: u64, threads: u64| {
            let wake = if threads > 1 { COSTS.step() } else { 0 };
            let joins = if threads > 1 { jobs * COSTS.join * threads } else { 0 };
            nanos / threads + joins + wake
        };
        for work in works() {
            for jobs in [1, 41, 300] {
                let times = [1, 2, 4, 8, 16]
                    .map(|max| predicted(work, jobs, COSTS.of_step(step(work, jobs), max) as u64));
                // Work is divided into jobs of whole nanoseconds, and so is the square root.
                let slack = jobs * COSTS.join;
                assert!(times.is_sorted_by(|a, b| *b <= a + slack), "{work} {jobs}: {times:?}");
            }
        }
    }

    #[test]
    fn small_steps_run_on_one_thread_and_large_ones_on_all() {
        assert_eq!(COSTS.of_step(step(20_000, 41), 16), 1);
        assert_eq!(COSTS.of_step(step(300_000_000, 300), 16), 16);
        let free = ThreadCosts::new(0);
        assert_eq!(free.of_step(step(1, 41), 16), 16);
        assert_eq!(ThreadCosts::new(u32::MAX).of_step(step(300_000_000, 300), 16), 1);
    }

    #[test]
    fn threads_have_equally_many_tiles() {
        for threads in 1..=16 {
            for work in works() {
                let tiles = COSTS.tiles(work, threads);
                assert!(tiles.is_multiple_of(threads) && tiles <= 16 * threads, "{work} {threads}");
                // A tile is worth its claim, and the last one is a small part of a large job.
                let tile = work / tiles as u64;
                assert!(tiles <= threads || tile >= 6 * COSTS.join, "{work} {threads}");
                assert!(threads == 1 || tile <= 80 * COSTS.join || tiles == 16 * threads, "{work}");
            }
        }
    }

    #[test]
    fn a_product_takes_time_for_its_weights_or_for_its_multiplications() {
        let nanos = |rows| product(Variant::Avx512Vnni, TensorType::Q8_0, 1 << 20, 1 << 20, rows);
        assert_eq!(nanos(1), nanos(4));
        assert_eq!(nanos(64), 8 * nanos(8));
    }
}
