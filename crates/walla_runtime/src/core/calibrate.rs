//! Step costs of this device, measured at load on scratch sequences.

use std::time::Duration;

use walla_exec::{Completed, ExecError, Sequences, StepError};
use walla_plan::governor::{CostSample, MAX_SAMPLES};
use walla_plan::{Batch, Output, StepCost, StepWork, TokenInput};
use walla_types::{Sampling, SeqId, TokenId};

use crate::clock::Clock;
use crate::engine_core::Progress;

/// Maximum device time of the measurement, in microseconds. A step that could exceed the remaining
/// time is not started, so only one step of a very slow device can exceed this limit. It suffices
/// for one step of each kind with a 0.5B model on one thread of a processor (18 ms with one row,
/// 110 ms with a prompt chunk of 64 tokens).
const MAX_CALIBRATION_MICROS: f32 = 450_000.0;

/// Measurements per kind of step, if time is left: first one of each kind. The fit is robust
/// against single disturbed measurements.
const REPEATS: usize = 3;

/// Cached tokens of a short and a long context, as far as context and pages allow.
const SHORT_TOKENS: u32 = 16;
const LONG_TOKENS: u32 = 768;

/// A kind of step: `speakers` decode rows and, if `prompt_tokens` is not 0, one prefill chunk. Each
/// sequence has `cached_tokens` cached tokens.
#[derive(Clone, Copy, Debug)]
struct Trial {
    speakers: u32,
    prompt_tokens: u32,
    cached_tokens: u32,
}

impl Trial {
    fn work(self) -> StepWork {
        let context_tokens = u64::from(self.speakers) * u64::from(self.cached_tokens + 1);
        if self.prompt_tokens == 0 {
            return StepWork::decode(self.speakers, context_tokens);
        }
        let reading = StepWork::prefill(self.prompt_tokens, self.cached_tokens);
        let context_tokens = context_tokens + reading.context_tokens;
        StepWork { decode_rows: self.speakers, context_tokens, ..reading }
    }

    /// Sequences of the step, with their rows.
    fn sequences(self) -> impl Iterator<Item = (SeqId, u32)> {
        let speaking = (0..self.speakers).map(|seq| (SeqId(seq), 1));
        let reader = (self.prompt_tokens > 0).then_some((SeqId(self.speakers), self.prompt_tokens));
        speaking.chain(reader)
    }
}

/// How to wait for steps, and the receiver of load progress.
pub(super) struct Waiting<'a, 'b> {
    pub clock: &'a Clock,
    /// A step that takes longer means that the device hangs.
    pub max_step: Option<Duration>,
    pub progress: &'a mut Progress<'b>,
}

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Runs some steps and fits a cost model to the times that the device measured. Returns `None` if
/// the device measures no times or a step failed: without it the engine corrects its costs while
/// it runs.
///
/// Steps are timed by the device's clock. All sequences are empty afterwards.
///
/// # Errors
/// A device that is lost or hangs, or [`ExecError::Stopped`] if the load is stopped.
pub(super) fn calibrate(
    sequences: &mut Sequences,
    max_prefill_tokens: u32,
    waiting: &mut Waiting<'_, '_>,
) -> Result<Option<StepCost>, StepError> {
    match measure(sequences, max_prefill_tokens, waiting) {
        Err(StepError::Exec(ExecError::Stopped)) => Err(ExecError::Stopped.into()),
        Err(StepError::Exec(ExecError::Device(error))) if error.is_lost() => {
            Err(ExecError::Device(error).into())
        }
        Err(error) => {
            tracing::warn!(target: "walla::load", %error, "steps could not be measured");
            while let Some(completed) = wait(sequences, waiting)? {
                sequences.release(completed);
            }
            remove_all(sequences, sequences.limits().max_sequences)?;
            Ok(None)
        }
        measured => measured,
    }
}

fn measure(
    sequences: &mut Sequences,
    max_prefill_tokens: u32,
    waiting: &mut Waiting<'_, '_>,
) -> Result<Option<StepCost>, StepError> {
    let mut samples: Vec<CostSample> = Vec::with_capacity(MAX_SAMPLES);
    let mut left_micros = MAX_CALIBRATION_MICROS;
    let trials = trials(sequences, max_prefill_tokens);
    // The first step runs with cold caches and, on a CPU, with sleeping threads.
    let warm_up = trials.first().copied().into_iter();
    let measured = (0..REPEATS).flat_map(|_| trials.iter().copied());
    for (number, trial) in warm_up.chain(measured).enumerate() {
        // Predicted with the lowest time per row of steps with as many rows or fewer, which
        // overestimates most steps.
        let rows = trial.work().rows();
        let smaller = samples.iter().filter(|sample| sample.work.rows() <= rows);
        let row_micros = smaller.map(|sample| sample.micros / sample.work.rows() as f32);
        let row_micros = row_micros.fold(f32::INFINITY, f32::min);
        if row_micros.is_finite() && row_micros * rows as f32 > left_micros {
            continue;
        }
        let Some(micros) = time(sequences, trial, waiting)? else { return Ok(None) };
        left_micros -= micros;
        if number == 1 {
            samples.clear(); // drops the warm-up; on a very slow device it is the only sample
        }
        samples.push(CostSample { work: trial.work(), micros });
    }
    Ok(StepCost::fit(&samples))
}

/// The kinds of steps, the most informative ones first: a slow device measures only some.
fn trials(sequences: &Sequences, max_prefill_tokens: u32) -> Vec<Trial> {
    let limits = sequences.limits();
    let max_sequences = limits.max_tokens.min(limits.max_batch_sequences).min(limits.max_outputs);
    let options = sequences.ledger.options();
    let context = options.page_tokens * options.max_pages_per_sequence;
    let pages = sequences.ledger.free_pages();
    let chunk = max_prefill_tokens.min(context / 2);
    let crowd = 64.min(max_sequences);
    let mut kinds = vec![(1, 0), (8, 0), (0, chunk / 4), (16, 0), (0, chunk), (crowd, 0)];
    kinds.extend([(8, chunk / 2), (4, 0), (max_sequences, 0)]);
    let (mut trials, mut with_long_context) = (Vec::new(), Vec::new());
    for (place, &(speakers, prompt_tokens)) in kinds.iter().enumerate() {
        let sequences = speakers + u32::from(prompt_tokens > 0);
        let is_possible =
            sequences <= max_sequences && speakers + prompt_tokens <= limits.max_tokens;
        let is_empty = sequences == 0 || (prompt_tokens > 0 && chunk < 8);
        let is_known = kinds[..place].contains(&(speakers, prompt_tokens));
        if !is_possible || is_empty || is_known {
            continue;
        }
        // One page less per sequence, for the step's rows.
        let room = (pages / sequences).saturating_sub(1) * options.page_tokens;
        let room = room.min(context.saturating_sub(options.page_tokens));
        let room = room.saturating_sub(prompt_tokens);
        let (short, long) = (SHORT_TOKENS.min(room), LONG_TOKENS.min(room));
        trials.push(Trial { speakers, prompt_tokens, cached_tokens: short });
        if long > 2 * short {
            with_long_context.push(Trial { speakers, prompt_tokens, cached_tokens: long });
        }
    }
    trials.append(&mut with_long_context);
    trials
}

/// Runs one step. Returns `None` if the device reports no duration.
fn time(
    sequences: &mut Sequences,
    trial: Trial,
    waiting: &mut Waiting<'_, '_>,
) -> Result<Option<f32>, StepError> {
    let sampling = Sampling::greedy();
    let mut batch = Batch::new(sequences.limits());
    for (seq, rows) in trial.sequences() {
        // Reading unwritten cache positions costs as much as reading others.
        sequences.ledger.append(seq, trial.cached_tokens, &mut sequences.commands)?;
        for row in 1..=rows {
            let output = if row == rows { Output::Sample } else { Output::None };
            batch.push(TokenInput::Id(TokenId(0)), None, seq, output)?;
        }
    }
    sequences.flush_cache_ops()?;
    sequences.submit(&mut batch, &|_| Some((&sampling).into()))?;
    let mut nanos = 0;
    if let Some(completed) = wait(sequences, waiting)? {
        sequences.executor.read_results(completed, &mut |view| {
            nanos = view.header.device_nanos();
        })?;
        sequences.release(completed);
    }
    remove_all(sequences, trial.speakers + 1)?;
    Ok((nanos > 0).then_some(nanos as f32 / 1e3))
}

fn remove_all(sequences: &mut Sequences, count: u32) -> Result<(), StepError> {
    for seq in (0..count.min(sequences.limits().max_sequences)).map(SeqId) {
        sequences.remove(seq)?;
    }
    sequences.free_fenced();
    Ok(())
}

/// Waits for a step, or until the load must stop: a device that hangs must not block its thread.
fn wait(
    sequences: &mut Sequences,
    waiting: &mut Waiting<'_, '_>,
) -> Result<Option<Completed>, ExecError> {
    let start_micros = waiting.clock.now_micros();
    while sequences.executor.in_flight() > 0 {
        if let Some(completed) = sequences.poll()? {
            return Ok(Some(completed));
        }
        if (waiting.progress)(1.0).is_break() {
            return Err(ExecError::Stopped);
        }
        let waited_micros = waiting.clock.now_micros() - start_micros;
        if waiting.max_step.is_some_and(|max| Duration::from_micros(waited_micros) > max) {
            return Err(super::deadline::hung(&mut sequences.executor, waited_micros).into());
        }
        waiting.clock.pause(POLL_INTERVAL);
    }
    Ok(None)
}
