//! What came of a simulation.

use walla_plan::GovernorStats;
use walla_plan::governor::BucketError;

/// Numbers in ascending order, and what most of them are below.
#[derive(Clone, Debug, Default)]
pub struct Spread(Vec<f32>);

impl Spread {
    pub fn add(&mut self, value: f32) {
        self.0.push(value);
    }

    /// At each share of 0 to 1, the value that so many are at or below; 0 without any.
    pub fn at<const N: usize>(&mut self, shares: [f64; N]) -> [f32; N] {
        self.0.sort_unstable_by(f32::total_cmp);
        let last = self.0.len().saturating_sub(1) as f64;
        shares.map(|share| self.0.get((share * last).round() as usize).copied().unwrap_or(0.0))
    }
}

/// What became of the agents of one level of detail.
#[derive(Clone, Debug, Default)]
pub struct OfDetail {
    pub replies: u64,
    pub tokens: u64,
    /// Tokens of voices that came more than a frame after they were due.
    pub tokens_late: u64,
    /// Frames in a row in which somebody's voice or prompt wanted something and got nothing, at
    /// most.
    pub longest_wait: u32,
    /// Frames from an ask to its first token.
    pub first_token_frames: Spread,
    pub(super) waits: Spread,
}

impl OfDetail {
    /// Waits of those who had to wait at all.
    pub fn waits(&mut self) -> &mut Spread {
        &mut self.waits
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    pub stats: GovernorStats,
    /// Frames that ran something.
    pub frames_used: u64,
    /// Device time of such a frame over its budget.
    pub use_share: Spread,
    pub errors: Vec<BucketError>,
    pub details: [OfDetail; 3],
    /// Steps, and rows of all of them.
    pub steps: u64,
    pub rows: u64,
    pub agents_active_max: usize,
    pub preemptions: u64,
    /// Frames in a row that the planner counted, at most, and the most that it may.
    pub planner_wait: (u32, u32),
}

impl Report {
    /// The share of frames that kept to their budget.
    pub fn adherence(&self) -> f64 {
        1.0 - self.stats.frames_over as f64 / self.frames_used.max(1) as f64
    }
}
