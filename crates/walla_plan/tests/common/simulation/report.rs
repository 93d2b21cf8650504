//! Results of a simulation.

use walla_plan::governor::{BucketError, BudgetStats};

/// A sample of numbers, with quantiles.
#[derive(Clone, Debug, Default)]
pub struct Spread(Vec<f32>);

impl Spread {
    pub fn add(&mut self, value: f32) {
        self.0.push(value);
    }

    /// The quantile at each share of 0 to 1; 0 without numbers.
    pub fn at<const N: usize>(&mut self, shares: [f64; N]) -> [f32; N] {
        self.0.sort_unstable_by(f32::total_cmp);
        let last = self.0.len().saturating_sub(1) as f64;
        shares.map(|share| self.0.get((share * last).round() as usize).copied().unwrap_or(0.0))
    }
}

/// Results for the agents of one level of detail.
#[derive(Clone, Debug, Default)]
pub struct OfDetail {
    pub replies: u64,
    pub tokens: u64,
    /// Tokens of voices that were more than a frame late.
    pub tokens_late: u64,
    /// Maximum number of consecutive frames in which an agent's voice or prompt was due and got
    /// nothing.
    pub longest_wait: u32,
    /// Frames from a request to its first token.
    pub first_token_frames: Spread,
    pub(super) waits: Spread,
}

impl OfDetail {
    /// Waits of the agents that had to wait.
    pub fn waits(&mut self) -> &mut Spread {
        &mut self.waits
    }
}

/// Results of one run.
#[derive(Clone, Debug)]
pub struct Report {
    pub stats: BudgetStats,
    /// Frames in which a step ran.
    pub frames_used: u64,
    /// Device time of such a frame, relative to its budget.
    pub use_share: Spread,
    pub errors: Vec<BucketError>,
    pub details: [OfDetail; 3],
    /// Number of steps, and of rows in all steps.
    pub steps: u64,
    pub rows: u64,
    pub max_agents_active: usize,
    pub preemptions: u64,
    /// Maximum number of consecutive waiting frames counted by the planner, and its bound.
    pub planner_wait: (u32, u32),
}

impl Report {
    /// Share of frames within their budget.
    pub fn adherence(&self) -> f64 {
        1.0 - self.stats.frames_over as f64 / self.frames_used.max(1) as f64
    }
}
