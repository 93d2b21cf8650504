//! Steps in flight: their outputs, results and failures.

use std::collections::VecDeque;
use std::time::Duration;

use walla_device::step::{ResultHeader, ResultRow};
use walla_exec::{Completed, ExecError, Executor};
use walla_plan::ChargedStep;
use walla_trace::{DeviceClock, StepTimes};
use walla_types::{MAX_CANDIDATES, TokenId};

use super::agents::Epoch;
use crate::api::TokenLogprobs;
use crate::clock::WaitMeter;

/// Consecutive failed polls of the steps in flight after which the device counts as lost.
const MAX_FAILURES: u32 = 16;

/// Maximum time between two polls that counts as waiting.
const MAX_POLL_GAP: Duration = Duration::from_millis(250);

/// Measures how long the oldest step has been in flight.
pub(super) fn step_meter() -> WaitMeter {
    WaitMeter::new(MAX_POLL_GAP)
}

/// Agent and position of an output of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingOutput {
    pub slot: usize,
    pub epoch: Epoch,
    pub position: u32,
}

/// Length of an agent's sequence after a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evaluated {
    pub slot: usize,
    pub epoch: Epoch,
    pub tokens: u32,
}

/// A result of an output: the sampled token, and its probabilities if they were requested.
pub(super) type OutputResult = (ResultRow, Option<Box<TokenLogprobs>>);

/// A step in flight.
#[derive(Debug)]
pub(super) struct StepInFlight {
    pub number: u64,
    pub at_micros: u64,
    pub outputs: Vec<PendingOutput>,
    pub evaluated: Vec<Evaluated>,
    pub charged: ChargedStep,
}

/// Steps whose results have not been read, oldest first. Their buffers are reused.
#[derive(Debug)]
pub(super) struct InFlight {
    steps: VecDeque<StepInFlight>,
    free: Vec<(Vec<PendingOutput>, Vec<Evaluated>)>,
    /// For traces.
    device_clock: DeviceClock,
    /// Results of the step being read.
    pub results: Vec<OutputResult>,
    /// Time for which the oldest step has been in flight.
    meter: WaitMeter,
    /// Consecutive failed polls.
    failures: u32,
}

impl InFlight {
    pub fn new(max_steps: usize, max_outputs: usize) -> Self {
        // A step has at most as many agents as outputs.
        let buffers = || (Vec::with_capacity(max_outputs), Vec::with_capacity(max_outputs));
        Self {
            steps: VecDeque::with_capacity(max_steps),
            free: (0..max_steps).map(|_| buffers()).collect(),
            device_clock: DeviceClock::default(),
            results: Vec::with_capacity(max_outputs),
            meter: step_meter(),
            failures: 0,
        }
    }

    pub fn start(&mut self, number: u64, at_micros: u64, charged: ChargedStep) {
        let (outputs, evaluated) = self.free.pop().unwrap_or_default();
        self.steps.push_back(StepInFlight { number, at_micros, outputs, evaluated, charged });
    }

    /// Adds an agent of the step started last.
    pub fn push_evaluated(&mut self, evaluated: Evaluated) {
        if let Some(step) = self.steps.back_mut() {
            step.evaluated.push(evaluated);
        }
    }

    /// Adds the next output of the step started last.
    pub fn push(&mut self, output: PendingOutput) {
        if let Some(step) = self.steps.back_mut() {
            step.outputs.push(output);
        }
    }

    /// Length that an agent's sequence has after all steps in flight; 0 without one.
    pub fn tokens_of(&self, slot: usize, epoch: Epoch) -> u32 {
        let all = self.steps.iter().flat_map(|step| &step.evaluated);
        let of_agent = all.filter(|of| of.slot == slot && of.epoch == epoch);
        of_agent.map(|of| of.tokens).max().unwrap_or(0)
    }

    /// Removes the oldest step, which has completed. The caller [recycles](Self::recycle) it.
    pub fn complete(&mut self) -> Option<StepInFlight> {
        self.steps.pop_front()
    }

    /// Takes back the buffers of a completed step.
    pub fn recycle(&mut self, step: StepInFlight) {
        let StepInFlight { mut outputs, mut evaluated, .. } = step;
        outputs.clear();
        evaluated.clear();
        self.free.push((outputs, evaluated));
    }

    /// Time for which the oldest step has been in flight, in microseconds, if it exceeds `max`.
    pub fn overdue_micros(&mut self, max: Duration, now_micros: u64) -> Option<u64> {
        let step = self.steps.front().map(|step| step.number);
        let waited_micros = self.meter.look(step, now_micros);
        let is_overdue = step.is_some() && Duration::from_micros(waited_micros) > max;
        is_overdue.then_some(waited_micros)
    }

    /// A poll of the steps in flight has succeeded.
    pub fn polled(&mut self) {
        self.failures = 0;
    }

    /// A poll has failed. Returns whether the steps may be polled again.
    pub fn may_poll_again(&mut self) -> bool {
        let may = self.failures < MAX_FAILURES;
        self.failures += u32::from(may);
        may
    }

    /// Reads a step's results for [`take_results`](Self::take_results). Returns its device time in
    /// nanoseconds; 0: unknown.
    pub fn read(
        &mut self,
        executor: &mut Executor,
        completed: Completed,
    ) -> Result<u64, ExecError> {
        let Self { results, device_clock, .. } = self;
        results.clear();
        let mut nanos = 0;
        executor.read_results(completed, &mut |view| {
            nanos = view.header.device_nanos();
            trace_step(device_clock, completed, view.header);
            for (output, row) in view.rows.iter().take(completed.outputs as usize).enumerate() {
                let candidates = view.candidates.get(output * MAX_CANDIDATES as usize..);
                let logprobs = (row.candidates > 0).then(|| {
                    let listed =
                        candidates.unwrap_or_default().iter().take(row.candidates as usize);
                    Box::new(TokenLogprobs {
                        token: TokenId(row.token),
                        log_probability: row.log_probability,
                        candidates: listed.map(|c| (TokenId(c.token), c.log_probability)).collect(),
                    })
                });
                results.push((*row, logprobs));
            }
        })?;
        Ok(nanos)
    }
}

/// Traces when the device ran the step. A step that was launched before a listener existed is
/// skipped.
fn trace_step(clock: &mut DeviceClock, completed: Completed, header: &ResultHeader) {
    let Completed { step, rows, launched_nanos, .. } = completed;
    if launched_nanos == 0 || !walla_trace::is_listening() {
        return;
    }
    let device_nanos = header.begin_nanos..header.end_nanos;
    let seen_nanos = walla_trace::now_nanos();
    let times = StepTimes { step, rows, launched_nanos, device_nanos, seen_nanos };
    walla_trace::device_step(clock, times);
}
