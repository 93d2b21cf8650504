//! The frame budget governor. It converts a device-time budget into limits for the planner and
//! updates its cost model from measured steps.
//!
//! | part | purpose |
//! |---|---|
//! | [`StepCost`] | bucket table and rates per cached/prompt token, fitted from [`CostSample`]s |
//! | corrections | measured/predicted, as factors of the device, of each program and of its reads, each with a variance (a Kalman filter); margin |
//! | frames | device time of each frame; time beyond the budget is charged to later frames |
//!
//! The margin is three mean deviations. The governor is pure: no clock, no device, no allocation.
//! The host reports when a [frame begins](Governor::begin_frame), each
//! [submitted](Governor::submit) step and each [measured](Governor::observe) time. The governor
//! returns [`Limits`] for [`plan`](crate::plan).
//!
//! # Rules
//! 1. **Budget.** The predicted time of a frame's steps, margin included, is at most the budget
//!    minus the debt, or plus the time that earlier frames left. Work that would exceed it is not
//!    started.
//! 2. **Debt.** Time that a frame used beyond its budget is subtracted from the following frames. A
//!    frame with nothing left runs no step. The debt is at most [`MAX_DEBT_FRAMES`] budgets, which
//!    limits the pause after one outlier.
//! 3. **Carry.** Unused time is left to later frames, up to [`GovernorOptions::carry_frames`]
//!    budgets. While more can be left, prompts alone start no step with a chunk that costs more
//!    than 1.1 times the cheapest cost per token: rather a larger chunk some frames later.
//! 4. **Progress.** If the smallest requested step is longer than a budget, a frame without
//!    debt runs it anyway, with as many other rows as fit in [`NEEDED`] times its time, if later
//!    frames can pay for that, and at least in [`OVERDRAFT`] times its time. With prompts among
//!    the requests, these are multiples of a step with a prompt token. The frame exceeds its
//!    budget in any case, so these predictions have no margin, except with a limit of launches. A
//!    step with one row runs at times, so that its time is known. The same holds for the row of an
//!    agent that has waited for [`Limits::max_wait_frames`] frames. Later frames pay the debt:
//!    over time, use stays within the budget. A budget of zero is a pause: [`Governor::limits`]
//!    then permits no row, independent of waiting times. Among `n` agents the wait is at most
//!    `max_wait_frames + (MAX_DEBT_FRAMES + 2) * n` frames. Work that nothing waits for makes no
//!    debt: it runs when earlier frames have left the time of its step, up to [`MAX_DEBT_FRAMES`]
//!    budgets.
//! 5. **Caution.** A frame that exceeds its budget without being planned to immediately raises the
//!    margin of all predictions and the share of a frame that only its first step may use. Frames
//!    within their budgets, or without a budget, lower both: at
//!    [`GovernorOptions::frames_over_per_1000`] such overruns they stay constant. A frame with a
//!    step of more than twice its predicted time changes neither: no useful margin contains such
//!    an outlier. It only leaves a debt.
//! 6. A new budget applies from the next frame on.
//! 7. **Launches.** The predicted time of a step is at most `max_launch_micros`. If the smallest
//!    step is longer, the limit is [`OVERDRAFT`] times its time.
//! 8. **Trials.** A program that requests want and that does not run, because it is predicted to
//!    take too long, is predicted as the next smaller one in one step after [`TRIAL_STEPS`] such
//!    steps if steps are longer than a budget, else after twice the number of frames in which one
//!    may exceed its budget. The number doubles with each trial, up to 32 times. Measured times
//!    then replace the prediction. So no program is excluded for ever by a wrong prediction.
//!
//! # Examples
//! ```
//! use walla_plan::governor::{Governor, GovernorOptions, StepCost};
//! use walla_plan::{NextWork, KvLedger, LedgerOptions, Limits, LinearCost, Plan, PlanRequest, StepWork, plan};
//! use walla_types::SeqId;
//!
//! let cost = StepCost::from_linear(LinearCost { step_micros: 900.0, row_micros: 10.0, ..LinearCost::default() });
//! let mut governor = Governor::new(GovernorOptions { budget_micros: Some(2_000), ..GovernorOptions::default() }, cost);
//! let ledger = KvLedger::new(LedgerOptions::default())?;
//! let requests = [PlanRequest::new(SeqId(0), NextWork::Decoding)];
//! let mut frame = Plan::new(64);
//!
//! governor.begin_frame();
//! let row = StepWork::decode(1, 1);
//! let limits = governor.limits(Limits::default(), row, row);
//! plan(&requests, &ledger, &limits, &mut frame)?;
//! let step = governor.submit(frame.step());
//! governor.observe(step, 2_500_000); // it took 2.5 ms
//!
//! governor.begin_frame(); // 0.5 ms are owed
//! assert_eq!(governor.stats().frames_over, 1);
//! assert_eq!(governor.stats().debt.as_micros(), 500);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod correction;
mod fit;
mod frames;
mod prediction_error;
mod trials;

use std::time::Duration;

pub use fit::{CostSample, InvalidCost, MAX_SAMPLES, Rates, StepCost};
pub use frames::MAX_DEBT_FRAMES;
pub use prediction_error::{BucketError, PredictionErrors};

use self::correction::Corrections;
use self::frames::Frames;
use self::trials::Trials;
use crate::defaults;
use crate::frame::{BUCKETS, CostModel, Limits, StepWork};

/// Limit of a step, relative to the smallest step, when even the smallest step exceeds the launch
/// limit or more budgets than later frames can pay, and of a step that nothing waits for.
pub const OVERDRAFT: f32 = 1.5;

/// Maximum share of a budget that is reserved for outliers after a frame's first step.
const MAX_RESERVE: f32 = 0.6;

/// Cost per token of a prompt chunk that is worth to wait for, relative to the cheapest chunk.
const MAX_CHUNK_COST: f32 = 1.1;

/// Limit of a step, relative to the smallest step, in a frame whose budget is shorter than the
/// smallest step. Two thirds of such a step are the work of rows. With less, most of a crowd's time
/// is the fixed cost of steps: 40 prompts of 14 tokens and 320 tokens of a 0.5B model, whose
/// step with one row takes 18 ms, take 6.0 s with 1.5 times, 4.4 s with 2 times, 3.3 s with 3 times
/// and 2.9 s with 4 times, at half of a processor's time (`tests/crowd.rs`).
pub const NEEDED: f32 = 3.0;

/// Steps without a wanted program before its first trial, if the smallest step is longer than a
/// budget: each such step overdraws its frame anyway.
pub const TRIAL_STEPS: u32 = 8;

/// Limit of a trial, relative to the limit of its frame.
const TRIAL_OVERDRAFT: f32 = 1.25;

/// Frame number of steps that are charged to no frame. Frame numbers start at 1.
const UNCHARGED: u64 = 0;

/// Settings of a governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GovernorOptions {
    /// Maximum device time of a frame, in microseconds; `None`: no limit. Default:
    /// [`defaults::BUDGET_MICROS`].
    pub budget_micros: Option<u32>,
    /// Maximum device time of one step, in microseconds; `None`: no limit. Default:
    /// [`defaults::MAX_LAUNCH_MICROS`]. A renderer on the same device waits for the running step
    /// at most.
    pub max_launch_micros: Option<u32>,
    /// Frames over their budget that the margin of predictions allows, per 1,000 frames. Frames
    /// with outliers do not count. Default: [`defaults::FRAMES_OVER_PER_1000`].
    pub frames_over_per_1000: u32,
    /// Maximum unused device time that earlier frames leave to a frame, in budgets. With it a frame
    /// can run a step that is longer than its budget, and the mean over some frames stays within
    /// it. Default: `0`.
    pub carry_frames: u32,
    /// Whether a step costs as much as one with all rows of its bucket, as in captured graphs.
    /// Default: `true`.
    pub pads_rows: bool,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        Self {
            budget_micros: Some(defaults::BUDGET_MICROS),
            max_launch_micros: Some(defaults::MAX_LAUNCH_MICROS),
            frames_over_per_1000: defaults::FRAMES_OVER_PER_1000,
            carry_frames: 0,
            pads_rows: true,
        }
    }
}

/// A submitted step and the time that its frame was charged. Pass it to [`Governor::observe`] or
/// [`Governor::charge_unmeasured`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct ChargedStep {
    work: StepWork,
    frame: u64,
    /// Predicted time without margin.
    expected_micros: f32,
    /// Time charged to the frame: predicted time with margin.
    charged_micros: f32,
}

impl ChargedStep {
    /// The work of the step.
    #[must_use]
    pub const fn work(&self) -> StepWork {
        self.work
    }
}

/// Use of the frame budget. Counts are since the engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetStats {
    /// Device time that the current frame may use; `None`: no limit.
    pub budget: Option<Duration>,
    /// Device time of the latest frame whose steps have all been measured. Frames without steps are
    /// skipped.
    pub used: Duration,
    /// Debt: time by which earlier frames exceeded their budget, which the current frame repays.
    pub debt: Duration,
    /// Frames begun.
    pub frames: u64,
    /// Frames that exceeded their budget.
    pub frames_over: u64,
    /// Frames that were planned over budget: not even the smallest step fits in a budget
    /// ([`smallest_step`](Self::smallest_step)), an agent had waited for a second, or the step was
    /// one of the [`trials`](Self::trials). They are included in `frames_over`; the following
    /// frames repay the debt. Work that no reply waits for never overdraws a frame.
    pub frames_overdrawn: u64,
    /// Predicted time of the smallest step that was requested last, margin included. If it is
    /// longer than the budget, a step runs in some frames only, so that the mean over frames keeps
    /// to the budget.
    pub smallest_step: Duration,
    /// Steps that were larger than predictions allow, because a step of that size had not run for
    /// long: its time replaces the prediction.
    pub trials: u64,
    /// Frames that ran no step although work was pending, because they repaid debt.
    pub frames_skipped: u64,
    /// Prompt tokens that the latest frame was granted.
    pub prefill_tokens: u32,
    /// Agents that have been waiting since before the latest frame and got no rows in it.
    pub agents_deferred: u32,
    /// Median of the relative error between predicted and measured step time: 0.1 is 10 %.
    pub error_p50: f32,
    /// 90th percentile of that error.
    pub error_p90: f32,
    /// 99th percentile of that error.
    pub error_p99: f32,
}

/// The frame budget governor. See the [module](self).
#[derive(Clone, Debug)]
pub struct Governor {
    options: GovernorOptions,
    budget_wanted: Option<u32>,
    corrections: Corrections,
    frames: Frames,
    errors: PredictionErrors,
    trials: Trials,
    stats: BudgetStats,
    /// Whether the current frame has requests.
    is_wanted: bool,
}

impl Governor {
    /// A governor with initial costs. No frame has begun, so nothing is granted yet.
    #[must_use]
    pub fn new(options: GovernorOptions, cost: StepCost) -> Self {
        Self {
            options,
            budget_wanted: options.budget_micros,
            corrections: Corrections::new(cost, over_share(options), options.pads_rows),
            frames: Frames::new(options.carry_frames as f32),
            errors: PredictionErrors::default(),
            trials: Trials::new(),
            stats: BudgetStats {
                budget: options.budget_micros.map(micros),
                ..BudgetStats::default()
            },
            is_wanted: false,
        }
    }

    /// Sets the budget per frame, in microseconds, from the next frame on.
    pub fn set_budget(&mut self, budget_micros: Option<u32>) {
        self.budget_wanted = budget_micros;
    }

    /// The budget of the next frame.
    #[must_use]
    pub fn budget_micros(&self) -> Option<u32> {
        self.budget_wanted
    }

    /// Cancels the debt, because the device was idle in the meantime. Overruns of steps in flight
    /// still count.
    pub fn forgive(&mut self) {
        self.frames.forgive();
    }

    /// Begins a frame with a new budget, minus the debt.
    pub fn begin_frame(&mut self) {
        if self.is_wanted && self.stats.frames > 0 && !self.frames.is_used() {
            self.stats.frames_skipped += 1;
        }
        self.is_wanted = false;
        self.options.budget_micros = self.budget_wanted;
        self.frames.begin(self.options.budget_micros);
        self.count_closed();
        self.stats.frames += 1;
        self.stats.budget = self.options.budget_micros.map(micros);
        self.stats.debt = micros(self.frames.debt_micros() as u32);
        (self.stats.prefill_tokens, self.stats.agents_deferred) = (0, 0);
    }

    /// Limits of the next step of this frame: `base` with times and costs set by the [rules](self).
    /// `smallest` is the smallest step that any request can use: one row of the agent with the
    /// shortest context, or one prompt row if all requests are prompts. `wanted`: decode rows and
    /// prompt tokens of all requests, as far as rows permit; its other numbers have no effect.
    ///
    /// Call it once per step: plan with these limits, [`submit`](Self::submit) the step, then call
    /// it again.
    #[must_use]
    pub fn limits<'a>(
        &'a mut self,
        base: Limits<'a>,
        smallest: StepWork,
        wanted: StepWork,
    ) -> Limits<'a> {
        if self.options.budget_micros == Some(0) {
            return Limits { max_rows: 0, forces: false, max_device_micros: 0, ..base };
        }
        self.is_wanted = true;
        let tried = self.trials.begin(wanted, !self.frames.is_used());
        self.corrections.try_out(tried);
        let smallest_micros = self.corrections.predict_micros(smallest);
        self.note_smallest(smallest_micros);
        let mut limits = base;
        limits.forces = base.forces && self.frames.is_fresh();
        limits.max_step_micros =
            self.max_step_micros(smallest_micros).unwrap_or(base.max_step_micros);
        if let Some(budget) = self.options.budget_micros {
            let left = self.left_micros(budget);
            let most = self.most_micros(budget);
            if self.frames.carried_micros() + 1.0 < most - budget as f32 {
                limits.chunk_tokens_min = self.efficient_chunk(base.max_prefill_tokens, most);
            }
            let is_needed = smallest_micros > budget as f32 && self.frames.is_fresh();
            let least = if is_needed { self.needed_micros(smallest, wanted, budget) } else { 0.0 };
            limits.max_device_micros = whole(least).max(left as u32);
            if let Some(tried) = tried {
                limits.max_rows = limits.max_rows.min(BUCKETS[tried % BUCKETS.len()]);
                // More rows read more of the cache, so the same time would not suffice.
                limits.max_device_micros = whole(limits.max_device_micros as f32 * TRIAL_OVERDRAFT);
                limits.max_step_micros = whole(limits.max_step_micros as f32 * TRIAL_OVERDRAFT);
            } else if is_needed && self.trials.needs_smallest() {
                (limits.max_rows, limits.chunk_tokens_min) =
                    (base.max_rows.min(1), base.chunk_tokens_min);
            }
        } else {
            limits.max_device_micros = u32::MAX;
        }
        limits.cost = if self.is_limiting() { Some(&self.corrections) } else { base.cost };
        limits
    }

    /// Limits of a step that no request waits for: it uses at most the rest of one budget, and no
    /// time that earlier frames left. If the smallest step is longer than a whole budget, it runs
    /// only with `is_quiet` (no other work is expected soon), in a frame without debt and other
    /// steps, when earlier frames have left its time. A frame that cannot run it does not count as
    /// [skipped](BudgetStats::frames_skipped).
    #[must_use]
    pub fn spare_limits<'a>(
        &'a mut self,
        base: Limits<'a>,
        smallest: StepWork,
        is_quiet: bool,
    ) -> Limits<'a> {
        self.corrections.try_out(None);
        let smallest_micros = self.corrections.predict_micros(smallest);
        self.note_smallest(smallest_micros);
        let mut limits = Limits { forces: false, max_device_micros: u32::MAX, ..base };
        limits.max_step_micros =
            self.max_step_micros(smallest_micros).unwrap_or(base.max_step_micros);
        if let Some(budget) = self.options.budget_micros {
            let is_too_long = smallest_micros > budget as f32;
            let carried = self.frames.carried_micros();
            let left = self.frames.left_micros(budget);
            let most = self.most_micros(budget).max(smallest_micros * OVERDRAFT);
            if is_too_long && carried + 1.0 < most - budget as f32 {
                limits.chunk_tokens_min = self.efficient_chunk(base.max_prefill_tokens, most);
            }
            limits.max_device_micros = match () {
                () if is_too_long && is_quiet && self.frames.is_fresh() => left.min(most) as u32,
                () if is_too_long => 0,
                () => {
                    let carried = carried.min(self.most_micros(budget) - budget as f32);
                    (self.left_micros(budget) - carried).max(0.0) as u32
                }
            };
        }
        limits.cost = Some(&self.corrections);
        limits
    }

    /// Limit of a step if the smallest one exceeds a budget: see rule 4. The frame exceeds its
    /// budget anyway, so this frame's predictions have no margin unless launches are limited.
    fn needed_micros(&mut self, smallest: StepWork, wanted: StepWork, budget: u32) -> f32 {
        if self.options.max_launch_micros.is_none() {
            self.corrections.drop_margins();
        }
        let mut micros = self.corrections.predict_micros(smallest);
        if wanted.prefill_tokens > 0 {
            // What runs if nothing else fits: it is measured then, which corrects this limit.
            let context_tokens = smallest.context_tokens;
            let prompt = StepWork { context_tokens, ..StepWork::prefill(1, 0) };
            micros = micros.max(self.corrections.predict_micros(prompt));
        }
        let payable = budget as f32 * (1 + MAX_DEBT_FRAMES) as f32;
        (micros * NEEDED).min(payable).max(micros * OVERDRAFT)
    }

    /// Time that a frame can have: its budget and what earlier frames can leave.
    fn most_micros(&self, budget: u32) -> f32 {
        budget as f32 * (1.0 + self.options.carry_frames as f32)
    }

    /// Notes the predicted time of the smallest step. Frames leave enough for it and the rows that
    /// cost little more.
    fn note_smallest(&mut self, smallest: f32) {
        self.stats.smallest_step = micros(whole(smallest));
        let budget = self.options.budget_micros.filter(|budget| smallest > *budget as f32);
        let saved =
            budget.map_or(0.0, |budget| (smallest * OVERDRAFT / budget as f32).ceil() - 1.0);
        let max_carry = (self.options.carry_frames as f32).max(saved.min(MAX_DEBT_FRAMES as f32));
        self.frames.set_max_carry(max_carry);
    }

    /// Votes for a first trial: see rule 8.
    fn trial_votes(&self) -> u32 {
        let is_too_long = |budget: u32| self.stats.smallest_step > micros(budget);
        if self.options.budget_micros.is_some_and(is_too_long) {
            return TRIAL_STEPS;
        }
        (2.0 / over_share(self.options)) as u32
    }

    /// The limit of a step by rule 7, if there is one.
    fn max_step_micros(&self, smallest_micros: f32) -> Option<u32> {
        let max_launch = self.options.max_launch_micros?;
        let is_too_long = smallest_micros > max_launch as f32;
        Some(if is_too_long { whole(smallest_micros * OVERDRAFT) } else { max_launch })
    }

    /// The smallest prompt chunk that costs at most [`MAX_CHUNK_COST`] times as much per token as
    /// the cheapest one whose step takes at most `max_micros`.
    fn efficient_chunk(&self, max_tokens: u32, max_micros: f32) -> u32 {
        let micros = |tokens: u32| self.corrections.predict_micros(StepWork::prefill(tokens, 0));
        let sizes = BUCKETS.iter().copied().take_while(|&tokens| tokens <= max_tokens);
        let sizes = sizes.take_while(|&tokens| micros(tokens) <= max_micros);
        let each = |tokens: u32| micros(tokens) / tokens as f32;
        let least = sizes.clone().map(each).fold(f32::INFINITY, f32::min);
        sizes.clone().find(|&tokens| each(tokens) <= MAX_CHUNK_COST * least).unwrap_or(1)
    }

    /// Whether a time limit is set.
    #[must_use]
    pub fn is_limiting(&self) -> bool {
        self.options.budget_micros.is_some() || self.options.max_launch_micros.is_some()
    }

    /// Whether this frame has submitted a step.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.frames.is_used()
    }

    /// Whether this frame has no time left for another step.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.options
            .budget_micros
            .is_some_and(|budget| self.frames.is_used() && self.left_micros(budget) < 1.0)
    }

    /// Remaining device time of this frame. After the first step a reserve is kept: many
    /// consecutive small steps use up the whole budget including their margins, and then one
    /// outlier exceeds it.
    fn left_micros(&self, budget: u32) -> f32 {
        // Earlier frames leave more only for work that nothing waits for.
        let max_carry = self.most_micros(budget) - budget as f32;
        let beyond = (self.frames.carried_micros() - max_carry).max(0.0);
        let left = (self.frames.left_micros(budget) - beyond).max(0.0);
        if !self.frames.is_used() {
            return left;
        }
        let reserve = self.corrections.caution().min(MAX_RESERVE) * budget as f32;
        (left - reserve).max(0.0)
    }

    /// Charges a step to the current frame.
    pub fn submit(&mut self, work: StepWork) -> ChargedStep {
        self.stats.prefill_tokens += work.prefill_tokens;
        // The frame of a trial is charged the usual prediction.
        self.corrections.try_out(None);
        if self.trials.submitted(work, self.trial_votes()) {
            self.stats.trials += 1;
            self.corrections.doubt(work);
            // A trial may exceed the budget, so its frame does not change the margin.
            self.frames.mark_overdrawn();
        }
        let charged_micros = self.corrections.predict_micros(work);
        let expected_micros = self.corrections.expect_micros(work);
        let frame = self.frames.charge(charged_micros);
        ChargedStep { work, frame, expected_micros, charged_micros }
    }

    /// A step that is charged to no frame, because its budget was lifted. It only updates the cost
    /// model.
    pub fn submit_uncharged(&mut self, work: StepWork) -> ChargedStep {
        self.stats.prefill_tokens += work.prefill_tokens;
        let expected_micros = self.corrections.expect_micros(work);
        ChargedStep { work, frame: UNCHARGED, expected_micros, charged_micros: 0.0 }
    }

    /// Records the device time of a step, in nanoseconds. The step may belong to an earlier frame.
    pub fn observe(&mut self, step: ChargedStep, device_nanos: u64) {
        let micros = device_nanos as f32 / 1e3;
        self.errors.add(step.work, step.expected_micros, micros);
        let is_outlier = self.corrections.update(step.work, micros);
        if step.frame != UNCHARGED {
            if is_outlier {
                self.frames.mark_outlier(step.frame);
            }
            self.frames.replace_charge(step.frame, step.charged_micros, micros);
        }
        self.count_closed();
        let BucketError { p50, p90, p99, .. } = self.errors.all();
        (self.stats.error_p50, self.stats.error_p90, self.stats.error_p99) = (p50, p90, p99);
    }

    /// Records a step that failed or was not measured: its frame is charged the predicted time.
    pub fn charge_unmeasured(&mut self, step: ChargedStep) {
        if step.frame != UNCHARGED {
            self.frames.replace_charge(step.frame, step.charged_micros, step.charged_micros);
            self.count_closed();
        }
    }

    /// Takes over settings and counters of another device's governor, but not its costs, debt and
    /// errors.
    pub fn inherit(&mut self, other: &Self) {
        self.budget_wanted = other.budget_wanted;
        self.options.budget_micros = other.options.budget_micros;
        self.stats = BudgetStats {
            debt: Duration::ZERO,
            prefill_tokens: 0,
            agents_deferred: 0,
            error_p50: 0.0,
            error_p90: 0.0,
            error_p99: 0.0,
            ..other.stats
        };
    }

    /// Counts ended frames whose steps have all been measured.
    fn count_closed(&mut self) {
        while let Some(closed) = self.frames.next_closed() {
            let used_micros = closed.used_micros;
            self.stats.used = micros(used_micros as u32);
            let Some(granted) = closed.granted_micros() else {
                self.corrections.adjust_margin(false);
                continue;
            };
            let is_over = used_micros > granted;
            self.stats.frames_over += u64::from(is_over);
            self.stats.frames_overdrawn += u64::from(is_over && closed.is_overdrawn);
            let is_usual = !closed.is_overdrawn && !closed.has_outlier;
            if is_usual && (is_over || used_micros > granted / 2.0) {
                self.corrections.adjust_margin(is_over);
            }
        }
    }

    /// Sets the counter of agents that got no rows.
    pub fn set_deferred(&mut self, agents: u32) {
        self.stats.agents_deferred = agents;
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        self.stats
    }

    /// Prediction errors per bucket.
    #[must_use]
    pub fn errors(&self) -> &PredictionErrors {
        &self.errors
    }

    /// The current cost model, with margin.
    #[must_use]
    pub fn cost(&self) -> &dyn CostModel {
        &self.corrections
    }

    /// Predicted device time of a step without margin, in microseconds.
    #[must_use]
    pub fn expect_micros(&self, work: StepWork) -> f32 {
        self.corrections.expect_micros(work)
    }
}

/// Share of frames that may exceed their budget; never 0.
fn over_share(options: GovernorOptions) -> f32 {
    (options.frames_over_per_1000 as f32 / 1e3).clamp(1e-6, 0.5)
}

const fn micros(micros: u32) -> Duration {
    Duration::from_micros(micros as u64)
}

/// Rounds up.
fn whole(micros: f32) -> u32 {
    micros.ceil() as u32 // saturates; NaN becomes 0
}
