//! The frame budget: begin of frames, limits of steps, and accounting.
//!
//! A frame begins when a client that is paced per frame grants its second frame since the last
//! begin. With several such clients, the frames of the fastest one count. If the budget applies to
//! free-running clients too, frames are windows of [`WINDOW_MICROS`] on the clock while no client
//! grants frames.

use std::time::Duration;

use walla_plan::governor::{BucketError, BudgetStats, ChargedStep, MAX_DEBT_FRAMES, OVERDRAFT};
use walla_plan::{BUCKETS, Governor, GovernorOptions, Limits, StepCost, StepWork, defaults};

use crate::api::Pacing;
use crate::options::{EngineOptions, FrameBudget};

/// Frame of free-running clients, in microseconds: 1/60 s.
pub(super) const WINDOW_MICROS: u64 = 16_667;

/// Debt is cleared after this idle time, in microseconds. It is the maximum debt: a quarter of a
/// second at 60 Hz.
const IDLE_MICROS: u64 = MAX_DEBT_FRAMES as u64 * WINDOW_MICROS;

/// Estimated time of a copy of [`CHUNK_BYTES`](super::transfers::CHUNK_BYTES), in microseconds:
/// 10 GB/s over PCIe, 2.5 GB/s in memory.
const GPU_COPY_MICROS: u32 = 100;
const CPU_COPY_MICROS: u32 = 400;

/// Number of measured steps between two updates of the published prediction errors.
const MAX_STEPS_UNPUBLISHED: u32 = 16;

/// The governor and its frames.
#[derive(Debug)]
pub(super) struct Budget {
    pub governor: Governor,
    /// The budget as the host set it.
    setting: FrameBudget,
    /// Time that other work on the processor has reserved.
    reserved: Duration,
    is_gpu: bool,
    /// Whether the budget applies to free-running clients.
    holds_for_all: bool,
    /// Begin of the current frame. `None` before the first frame.
    begun_micros: Option<u64>,
    /// Number of frames, and of steps that no frame limits. Waiting times are measured in ticks.
    pub ticks: u64,
    /// Steps measured since prediction errors were last published.
    steps_unpublished: u32,
    /// A free-running client waits for the next window.
    pub waits_for_window: bool,
    /// Simulated step time in tests.
    #[cfg(test)]
    pretended: Option<fn(StepWork) -> u64>,
}

impl Budget {
    pub fn new(options: &EngineOptions, is_gpu: bool, cost: Option<StepCost>) -> Self {
        let (frames_over_per_1000, carry_frames) = if is_gpu {
            (defaults::FRAMES_OVER_PER_1000, 0)
        } else {
            (defaults::CPU_FRAMES_OVER_PER_1000, defaults::CPU_CARRY_FRAMES)
        };
        let governor_options = GovernorOptions {
            budget_micros: options.budget.of_device(is_gpu).map(micros),
            max_launch_micros: options.max_launch.filter(|_| is_gpu).map(micros),
            frames_over_per_1000,
            carry_frames: options.budget_carry.unwrap_or(carry_frames),
            // The kernels of the CPU compute the rows that a step has.
            pads_rows: is_gpu,
        };
        Self {
            governor: Governor::new(governor_options, cost.unwrap_or_else(StepCost::guess)),
            setting: options.budget,
            reserved: Duration::ZERO,
            is_gpu,
            holds_for_all: options.budget_free_running,
            begun_micros: None,
            ticks: 0,
            steps_unpublished: 0,
            waits_for_window: false,
            #[cfg(test)]
            pretended: None,
        }
    }

    pub fn set(&mut self, budget: FrameBudget) {
        self.setting = budget;
        // A budget that is set during play is meant for every client.
        self.holds_for_all = true;
        self.update_governor();
    }

    pub fn set_reserved(&mut self, time: Duration) {
        self.reserved = time;
        self.update_governor();
    }

    fn update_governor(&mut self) {
        let budget = self.setting.without(self.reserved, self.is_gpu);
        self.governor.set_budget(budget.map(micros));
    }

    /// Limits of a step that nothing waits for, without a budget: the default budget, or the time
    /// of the smallest step if that is longer.
    pub fn unbudgeted_spare_limits<'a>(
        &'a self,
        base: Limits<'a>,
        smallest: StepWork,
    ) -> Limits<'a> {
        let cost = self.governor.cost();
        let least = (cost.predict_micros(smallest) * OVERDRAFT).ceil() as u32;
        let max_device_micros = defaults::BUDGET_MICROS.max(least);
        Limits { cost: Some(cost), max_device_micros, ..base }
    }

    /// Whether the frame's budget is spent, or the budget is zero: no step may begin.
    pub fn is_spent(&self) -> bool {
        self.is_zero() || self.governor.is_spent()
    }

    /// Simulates step times.
    #[cfg(test)]
    pub fn pretend(&mut self, micros: fn(StepWork) -> u64) {
        self.pretended = Some(micros);
    }

    /// Whether the budget was last set to zero, which is a pause. It applies at once, not from the
    /// next frame on.
    pub fn is_zero(&self) -> bool {
        self.governor.budget_micros() == Some(0)
    }

    /// Whether all clients are without a budget while a client with this pacing has work.
    pub fn is_unbudgeted_for(&self, pacing: Pacing) -> bool {
        pacing == Pacing::FreeRunning && !(self.holds_for_all && self.has_limit())
    }

    /// Whether frames have a budget.
    pub fn has_limit(&self) -> bool {
        self.governor.stats().budget.is_some()
    }

    /// Continues the settings and counters of another device, but not its costs.
    pub fn inherit(&mut self, other: &Self) {
        self.governor.inherit(&other.governor);
        (self.setting, self.reserved) = (other.setting, other.reserved);
        self.update_governor();
        self.holds_for_all = other.holds_for_all;
        self.begun_micros = other.begun_micros;
        self.ticks = other.ticks;
    }

    /// Copies of cache contents per frame: a quarter of the budget, at least one. `None`: no limit.
    /// 0 in a pause.
    pub fn copies_per_frame(&self, is_free_running: bool) -> Option<u32> {
        if self.is_zero() {
            return Some(0);
        }
        if is_free_running && self.is_unbudgeted_for(Pacing::FreeRunning) {
            return None;
        }
        let budget_micros = micros(self.governor.stats().budget?);
        let copy_micros = if self.is_gpu { GPU_COPY_MICROS } else { CPU_COPY_MICROS };
        Some((budget_micros / 4 / copy_micros).max(1))
    }

    /// Begins a frame.
    pub fn begin_frame(&mut self, now_micros: u64) {
        let idle_micros = now_micros.saturating_sub(self.begun_micros.unwrap_or(now_micros));
        if idle_micros > IDLE_MICROS {
            // The device was idle for as long as the largest debt takes.
            self.governor.forgive();
        }
        self.begun_micros = Some(now_micros);
        self.governor.begin_frame();
        self.ticks += 1;
    }

    /// Begins a window if one is due. Windows exist only if a free-running client must keep to the
    /// budget.
    pub fn begin_window(&mut self, now_micros: u64, has_free_client: bool) {
        if self.holds_for_all && has_free_client && self.micros_to_window(now_micros) == 0 {
            self.begin_frame(now_micros);
        }
    }

    /// Remaining time of the current window, if no client grants a frame.
    pub fn micros_to_window(&self, now_micros: u64) -> u64 {
        let end = self.begun_micros.map_or(0, |begun| begun + WINDOW_MICROS);
        end.saturating_sub(now_micros)
    }

    /// Prediction errors, once per [`MAX_STEPS_UNPUBLISHED`] measured steps: computing them takes
    /// some microseconds.
    pub fn changed_errors(&mut self) -> Option<[BucketError; BUCKETS.len()]> {
        let is_due = self.steps_unpublished >= MAX_STEPS_UNPUBLISHED;
        is_due.then(|| {
            self.steps_unpublished = 0;
            self.governor.errors().each()
        })
    }

    pub fn stats(&self) -> BudgetStats {
        let stats = self.governor.stats();
        let budget = if self.is_zero() { Some(Duration::ZERO) } else { stats.budget };
        BudgetStats { budget, ..stats }
    }

    /// Charges a submitted step to the current frame, or to none if `is_unbudgeted`.
    pub fn charge(&mut self, work: StepWork, is_unbudgeted: bool) -> ChargedStep {
        if is_unbudgeted {
            // Without frames, waiting is measured in steps.
            self.ticks += 1;
            self.governor.submit_uncharged(work)
        } else {
            self.governor.submit(work)
        }
    }

    /// Records a completed step with its device time; 0: unknown.
    pub fn completed(&mut self, step: ChargedStep, nanos: u64) {
        self.steps_unpublished += 1;
        #[cfg(test)]
        if let Some(pretended) = self.pretended {
            return self.governor.observe(step, pretended(step.work()));
        }
        if nanos > 0 {
            self.governor.observe(step, nanos);
        } else {
            self.governor.charge_unmeasured(step);
        }
    }
}

/// Whole microseconds, rounded up, because zero is a pause. The maximum is 71 minutes.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX)
}
