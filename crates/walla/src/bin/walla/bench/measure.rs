//! Steps of some agents, timed by the host and by the device's own clock.

use std::time::{Duration, Instant};

use walla_device::DeviceCounters;
use walla_exec::{Lockstep, StepNanos};
use walla_model::ModelSpec;
use walla_types::{SeqId, TokenId};

use crate::Failure;

/// Warm-up steps: caches are filled and clocks settle.
const WARM_UP_STEPS: u32 = 4;

/// Length of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Tokens of context before the first step.
    pub context: u32,
    /// Measured steps: first awaited one by one, then launched ahead.
    pub tokens: u32,
    /// Prompt tokens per prefill step.
    pub prefill_rows: u32,
}

impl Run {
    fn steps(self) -> u32 {
        self.tokens.saturating_add(WARM_UP_STEPS).saturating_mul(2)
    }

    /// Tokens of context after the last step.
    pub fn max_context(self) -> u32 {
        self.context.saturating_add(self.steps())
    }

    /// Context length in the middle of the steps that are launched ahead.
    pub fn context_mean(self) -> u32 {
        self.max_context().saturating_sub(self.tokens / 2)
    }
}

/// Sorted values.
#[derive(Clone, Debug, Default)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    fn new(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        Self(numbers)
    }

    /// The quantile `q`; 0 without values.
    pub fn quantile(&self, q: f64) -> f64 {
        let index = (self.0.len().saturating_sub(1) as f64 * q).round() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    /// The mean; 0 without values. For times between ends of steps, it is the total time divided by
    /// the number of steps.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }
}

/// Measurements of one set of agents.
#[derive(Clone, Debug)]
pub struct Measured {
    /// From one step's end to the next, with one step launched ahead, as in a game.
    pub step_ms: Sorted,
    /// From submitting a step to receiving its tokens, with no step launched ahead.
    pub awaited_ms: Sorted,
    /// Device time of a step, if the device time-stamps its results.
    pub device_ms: Sorted,
    /// Idle time of the device between two steps, if it time-stamps its results.
    pub gap_us: Sorted,
    /// Host time to submit a step.
    pub submit_us: Sorted,
    pub prefill_tokens_per_second: f64,
    /// Driver calls of the steps launched ahead.
    pub calls: DeviceCounters,
    pub steps: u32,
}

/// Measures a subset of an executor's sequences.
pub fn measure(
    lockstep: &mut Lockstep,
    active: Vec<SeqId>,
    run: Run,
    model: &ModelSpec,
) -> Result<Measured, Failure> {
    let agents = active.len();
    lockstep.restart(active)?;
    let vocab = model.vocab as u32;
    let tokens: Vec<TokenId> =
        (0..run.context).map(|index| TokenId((index * 7 + 11) % vocab)).collect();
    let start = Instant::now();
    lockstep.prefill(&tokens, run.prefill_rows)?;
    let prefill = start.elapsed();
    let awaited_ms = awaited(lockstep, run)?;
    let ahead = Ahead::run(lockstep, run)?;
    let stamped = ahead.nanos.len() > 1
        && ahead.nanos.iter().all(|nanos| nanos.end > nanos.begin && nanos.begin > 0);
    let stamps = if stamped { ahead.nanos.as_slice() } else { &[] };
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let between = |part: fn(&StepNanos, &StepNanos) -> (u64, u64)| {
        let pairs = stamps.windows(2).map(|pair| part(&pair[0], &pair[1]));
        pairs.map(|(from, to)| ms(from, to)).collect::<Vec<_>>()
    };
    let ends = between(|step, next| (step.end, next.end));
    let gaps = between(|step, next| (step.end, next.begin));
    Ok(Measured {
        step_ms: Sorted::new(if stamped { ends } else { ahead.host_ms }),
        awaited_ms: Sorted::new(awaited_ms),
        device_ms: Sorted::new(stamps.iter().map(|step| ms(step.begin, step.end)).collect()),
        gap_us: Sorted::new(gaps.into_iter().map(|gap_ms| gap_ms * 1e3).collect()),
        submit_us: Sorted::new(ahead.submit_us),
        prefill_tokens_per_second: agents as f64 * f64::from(run.context) / prefill.as_secs_f64(),
        calls: ahead.calls,
        steps: run.tokens,
    })
}

/// Milliseconds of steps that are awaited one by one.
fn awaited(lockstep: &mut Lockstep, run: Run) -> Result<Vec<f64>, Failure> {
    let mut steps_ms = Vec::with_capacity(run.tokens as usize);
    for step in 0..WARM_UP_STEPS + run.tokens {
        let start = Instant::now();
        lockstep.submit_step()?;
        lockstep.collect()?;
        if step >= WARM_UP_STEPS {
            steps_ms.push(ms(start.elapsed()));
        }
    }
    Ok(steps_ms)
}

/// Measurements with one step always launched ahead of the awaited one.
struct Ahead {
    nanos: Vec<StepNanos>,
    /// From one result to the next, by the host's clock.
    host_ms: Vec<f64>,
    submit_us: Vec<f64>,
    calls: DeviceCounters,
}

impl Ahead {
    fn run(lockstep: &mut Lockstep, run: Run) -> Result<Self, Failure> {
        let (mut nanos, mut host_ms, mut submit_us) = (Vec::new(), Vec::new(), Vec::new());
        let mut before = DeviceCounters::default();
        let mut last = Instant::now();
        lockstep.submit_step()?;
        for step in 1..WARM_UP_STEPS + run.tokens {
            if step == WARM_UP_STEPS {
                before = lockstep.executor().device().counters();
            }
            let start = Instant::now();
            lockstep.submit_step()?;
            let submitted = start.elapsed();
            let stamps = lockstep.collect()?;
            if step >= WARM_UP_STEPS {
                nanos.push(stamps);
                host_ms.push(ms(last.elapsed()));
                submit_us.push(ms(submitted) * 1e3);
            }
            last = Instant::now();
        }
        let calls = lockstep.executor().device().counters() - before;
        lockstep.collect()?;
        Ok(Self { nanos, host_ms, submit_us, calls })
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_step_moves_the_mean_and_not_the_median() {
        let steps_ms = Sorted::new([vec![1.0; 39], vec![40.0]].concat());
        assert_eq!((steps_ms.quantile(0.5), steps_ms.mean()), (1.0, 79.0 / 40.0));
        assert_eq!(Sorted::default().mean(), 0.0);
    }
}
