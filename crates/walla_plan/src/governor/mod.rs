//! The frame budget governor: turns a budget in device time into a plan's limits, and learns from
//! what steps took.
//!
//! | part | what it does |
//! |---|---|
//! | [`StepCost`] | what a step costs on this device: a table over buckets, a rate for cached tokens, a rate for prompt tokens; fitted from [`CostSample`]s |
//! | corrections | measured over predicted, averaged with exponential weights, overall and for each bucket; a margin of three mean deviations |
//! | frames | what each frame used; what it used beyond its budget is a debt of the frames after it |
//!
//! The governor is pure: no clock, no device, no allocation. A host tells it when a [frame
//! begins](Governor::begin_frame), what was [submitted](Governor::submit) and what the device
//! [measured](Governor::observe); it answers with [`Limits`] for [`plan`](crate::plan).
//!
//! # Rules
//! 1. The steps of a frame are predicted, margin included, to take no longer than its budget less
//!    its debt. What would not fit is not started.
//! 2. **Debt.** What a frame used beyond its budget is taken from the grants of the next frames,
//!    which sit out if nothing is left. At most [`DEBT_FRAMES_MAX`] budgets are owed, so that one
//!    hiccup does not silence anyone for longer.
//! 3. **Progress.** If the smallest step that anyone wants is longer than a whole budget, a frame
//!    without debt runs it all the same, with as much company as fits in [`OVERDRAFT`] times its
//!    time. So does the row of an agent that has waited for [`Limits::wait_frames_max`] frames. The
//!    frames after it pay: over time, use is within the budget. A budget of zero is a pause:
//!    [`Governor::limits`] leaves no row, however long an agent has waited. Among `n` agents the
//!    wait is at most `wait_frames_max + (DEBT_FRAMES_MAX + 2) * n` frames.
//! 4. **Caution.** A frame over its budget that was not planned to be raises the margin of all
//!    predictions at once, and the share of a frame that only its first step may use; frames within
//!    their budgets, or without one, lower both, so slowly that one such frame in a thousand keeps
//!    them where they are.
//! 5. A new budget counts from the next frame on.
//! 6. **Launches.** No step is predicted to take longer than `launch_micros_max`, unless the
//!    smallest step does: then [`OVERDRAFT`] times that one.
//!
//! # Examples
//! ```
//! use walla_plan::governor::{Governor, GovernorOptions, StepCost};
//! use walla_plan::{AgentState, KvLedger, LedgerOptions, Limits, LinearCost, Plan, PlanRequest, StepWork, plan};
//! use walla_types::SeqId;
//!
//! let cost = StepCost::from_linear(LinearCost { step_micros: 900.0, row_micros: 10.0, ..LinearCost::default() });
//! let mut governor = Governor::new(GovernorOptions { budget_micros: Some(2_000), ..GovernorOptions::default() }, cost);
//! let ledger = KvLedger::new(LedgerOptions::default())?;
//! let requests = [PlanRequest::new(SeqId(0), AgentState::Decoding)];
//! let mut frame = Plan::new(64);
//!
//! governor.begin_frame();
//! let limits = governor.limits(Limits::default(), StepWork::decode(1, 1));
//! plan(&requests, &ledger, &limits, &mut frame)?;
//! assert_eq!(frame.steps().len(), 1); // a second step would take the frame beyond 2 ms
//! let step = governor.submit(frame.steps()[0]);
//! governor.observe(step, 2_500_000); // it took 2.5 ms
//!
//! governor.begin_frame(); // 0.5 ms are owed
//! assert_eq!(governor.stats().frames_over, 1);
//! assert_eq!(governor.stats().debt_micros, 500);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod correction;
mod fit;
mod frames;
mod prediction_error;

pub use fit::{CostSample, InvalidCost, Rates, SAMPLES_MAX, StepCost};
pub use frames::DEBT_FRAMES_MAX;
pub use prediction_error::{BucketError, PredictionErrors};

use self::correction::Corrections;
use self::frames::{Closed, Frames};
use crate::frame::{CostModel, Limits, StepWork};

/// How much longer than the smallest step a step may be that no limit leaves room for.
pub const OVERDRAFT: f32 = 1.5;

/// The largest share of a budget that is kept for hiccups once a frame has run something.
const RESERVE_MAX: f32 = 0.6;

/// Device time of a frame, in microseconds, unless something else is said: a quarter of a frame at
/// 60 Hz.
pub const DEFAULT_BUDGET_MICROS: u32 = 4_166;

/// The frame of steps that belong to none: frames count from 1.
const BESIDE: u64 = 0;

/// What a governor keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GovernorOptions {
    /// Device time of a frame, in microseconds; `None`: no limit. Default:
    /// [`DEFAULT_BUDGET_MICROS`].
    pub budget_micros: Option<u32>,
    /// Device time of one step, in microseconds; `None`: no limit. Default: `2_000`: a renderer
    /// that shares the device waits for a step that runs, so this is the longest that walla can
    /// delay its next launch.
    pub launch_micros_max: Option<u32>,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        Self { budget_micros: Some(DEFAULT_BUDGET_MICROS), launch_micros_max: Some(2_000) }
    }
}

/// A step on its way: give it back to [`Governor::observe`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct SubmittedStep {
    work: StepWork,
    frame: u64,
    /// As predicted, without margin.
    expected_micros: f32,
    /// What the frame was charged: with margin.
    charged_micros: f32,
}

impl SubmittedStep {
    /// What it evaluates.
    #[must_use]
    pub const fn work(&self) -> StepWork {
        self.work
    }

    /// How long it should take, without margin, in microseconds.
    #[must_use]
    pub const fn expected_micros(&self) -> f32 {
        self.expected_micros
    }
}

/// Counters of a governor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GovernorStats {
    /// Frames begun.
    pub frames: u64,
    /// The budget of the current frame in microseconds; `None`: no limit.
    pub budget_micros: Option<u32>,
    /// Device time of the latest frame whose steps have all been measured, in microseconds.
    pub used_micros: u32,
    /// What earlier frames used too much and the current one pays for, in microseconds.
    pub debt_micros: u32,
    /// Frames that used more than their budget.
    pub frames_over: u64,
    /// Those of them that were planned to, since not even the smallest step fits in a budget.
    pub frames_overdrawn: u64,
    /// Frames in which somebody wanted something and nothing was run.
    pub frames_sat_out: u64,
    /// How far measured steps are from their predictions, in the middle, over all buckets: 0.1 is
    /// 10 %.
    pub error_p50: f32,
    /// How far all but one in a hundred are.
    pub error_p99: f32,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Governor {
    options: GovernorOptions,
    budget_wanted: Option<u32>,
    corrections: Corrections,
    frames: Frames,
    errors: PredictionErrors,
    stats: GovernorStats,
    /// Somebody wanted something in the current frame.
    is_wanted: bool,
}

impl Governor {
    /// A governor that begins with these costs. No frame has begun: nothing is granted yet.
    #[must_use]
    pub fn new(options: GovernorOptions, cost: StepCost) -> Self {
        Self {
            options,
            budget_wanted: options.budget_micros,
            corrections: Corrections::new(cost),
            frames: Frames::default(),
            errors: PredictionErrors::default(),
            stats: GovernorStats { budget_micros: options.budget_micros, ..Default::default() },
            is_wanted: false,
        }
    }

    /// Changes the budget, in microseconds of a frame, from the next frame on.
    pub fn set_budget(&mut self, budget_micros: Option<u32>) {
        self.budget_wanted = budget_micros;
    }

    /// The budget that the next frame will have.
    #[must_use]
    pub fn budget_micros(&self) -> Option<u32> {
        self.budget_wanted
    }

    /// Forgets what is owed, because the device has rested meanwhile. What steps on their way take
    /// too long still counts.
    pub fn forgive(&mut self) {
        self.frames.forgive();
    }

    /// Begins a frame: a new grant, less what is owed.
    pub fn begin_frame(&mut self) {
        if self.is_wanted && self.stats.frames > 0 && !self.frames.is_used() {
            self.stats.frames_sat_out += 1;
        }
        self.is_wanted = false;
        self.options.budget_micros = self.budget_wanted;
        self.frames.begin(self.options.budget_micros);
        self.count_closed();
        self.stats.frames += 1;
        self.stats.budget_micros = self.options.budget_micros;
        self.stats.debt_micros = self.frames.debt_micros() as u32;
    }

    /// Limits of the next step of this frame: `base`, with its times and costs as the [rules](self)
    /// say. `smallest` is the smallest step that any request can use: one row of the agent with the
    /// shortest context, a row of a prompt where there are only prompts.
    ///
    /// For one step at a time: plan with these limits, [`submit`](Self::submit) the step, ask
    /// again.
    #[must_use]
    pub fn limits<'a>(&'a mut self, base: Limits<'a>, smallest: StepWork) -> Limits<'a> {
        if self.options.budget_micros == Some(0) {
            return Limits { rows_max: 0, forces: false, device_micros_max: 0, ..base };
        }
        self.is_wanted = true;
        let smallest_micros = self.corrections.predict_micros(smallest);
        let least = smallest_micros * OVERDRAFT;
        let mut limits = base;
        limits.forces = base.forces && self.frames.is_fresh();
        if let Some(launch_max) = self.options.launch_micros_max {
            let is_too_long = smallest_micros > launch_max as f32;
            limits.step_micros_max = if is_too_long { whole(least) } else { launch_max };
        }
        if let Some(budget) = self.options.budget_micros {
            let left = self.left_micros(budget);
            let is_too_long = smallest_micros > budget as f32;
            let granted =
                if is_too_long && self.frames.is_fresh() { whole(least) } else { left as u32 };
            limits.device_micros_max = granted;
        } else {
            limits.device_micros_max = u32::MAX;
        }
        limits.cost = if self.is_limiting() { Some(&self.corrections) } else { base.cost };
        limits
    }

    /// Whether time is limited at all.
    #[must_use]
    pub fn is_limiting(&self) -> bool {
        self.options.budget_micros.is_some() || self.options.launch_micros_max.is_some()
    }

    /// Whether this frame has run something.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.frames.is_used()
    }

    /// Whether this frame takes no further step, however small.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.options
            .budget_micros
            .is_some_and(|budget| self.frames.is_used() && self.left_micros(budget) < 1.0)
    }

    /// What this frame may still use. After its first step some of the budget is kept in reserve:
    /// many small steps in a row use up all that their margins leave, and then a hiccup of any of
    /// them takes the frame over.
    fn left_micros(&self, budget: u32) -> f32 {
        let left = self.frames.left_micros(budget);
        if !self.frames.is_used() {
            return left;
        }
        let reserve = self.corrections.care().min(RESERVE_MAX) * budget as f32;
        (left - reserve).max(0.0)
    }

    /// Charges a step to the current frame.
    pub fn submit(&mut self, work: StepWork) -> SubmittedStep {
        let charged_micros = self.corrections.predict_micros(work);
        let expected_micros = self.corrections.expect_micros(work);
        let frame = self.frames.charge(charged_micros);
        SubmittedStep { work, frame, expected_micros, charged_micros }
    }

    /// A step that no frame pays for, because its budget has been lifted: only to learn from it.
    pub fn submit_beside(&mut self, work: StepWork) -> SubmittedStep {
        let expected_micros = self.corrections.expect_micros(work);
        SubmittedStep { work, frame: BESIDE, expected_micros, charged_micros: 0.0 }
    }

    /// A step took `device_nanos`, as the device measured it. Steps may come back in later frames.
    pub fn observe(&mut self, step: SubmittedStep, device_nanos: u64) {
        let micros = device_nanos as f32 / 1e3;
        if step.frame != BESIDE {
            self.frames.settle(step.frame, step.charged_micros, micros);
        }
        self.errors.add(step.work, step.expected_micros, micros);
        self.corrections.learn(step.work, micros);
        self.count_closed();
        self.stats.error_p50 = self.errors.all().p50;
        self.stats.error_p99 = self.errors.all().p99;
    }

    /// A step failed, or its time was not measured: its frame used what was predicted.
    pub fn forget(&mut self, step: SubmittedStep) {
        if step.frame != BESIDE {
            self.frames.settle(step.frame, step.charged_micros, step.charged_micros);
            self.count_closed();
        }
    }

    /// Takes over another device's governor: what was set and counted, not its costs, debts and
    /// errors.
    pub fn inherit(&mut self, other: &Self) {
        self.budget_wanted = other.budget_wanted;
        self.options.budget_micros = other.options.budget_micros;
        let (error_p50, error_p99) = (0.0, 0.0);
        self.stats = GovernorStats { debt_micros: 0, error_p50, error_p99, ..other.stats };
    }

    /// Counts the frames whose steps have all been measured by now.
    fn count_closed(&mut self) {
        while let Some(closed) = self.frames.next_closed() {
            let Closed { used_micros, budget_micros, is_overdrawn } = closed;
            self.stats.used_micros = used_micros as u32;
            let Some(budget) = budget_micros.map(|budget| budget as f32) else {
                self.corrections.take_care(false);
                continue;
            };
            let is_over = used_micros > budget;
            self.stats.frames_over += u64::from(is_over);
            self.stats.frames_overdrawn += u64::from(is_over && is_overdrawn);
            if !is_overdrawn && (is_over || used_micros > budget / 2.0) {
                self.corrections.take_care(is_over);
            }
        }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> GovernorStats {
        self.stats
    }

    /// Prediction errors of each bucket.
    #[must_use]
    pub fn errors(&self) -> &PredictionErrors {
        &self.errors
    }

    /// What steps cost, as far as is known: predictions with margin.
    #[must_use]
    pub fn cost(&self) -> &dyn CostModel {
        &self.corrections
    }

    /// How long a step of this work should take, without margin, in microseconds.
    #[must_use]
    pub fn expect_micros(&self, work: StepWork) -> f32 {
        self.corrections.expect_micros(work)
    }
}

/// Rounds up.
fn whole(micros: f32) -> u32 {
    micros.ceil() as u32 // saturates; NaN becomes 0
}
