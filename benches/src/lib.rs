//! Code shared by the measurements: facts about the machine, output files, synthetic models, and a
//! game's frames.

pub mod game;
pub mod machine;
pub mod models;
pub mod output;
mod synthetic;

use std::time::Duration;

pub use synthetic::{synthetic, write_synthetic};

/// The middle value, the upper one of two; 0 of no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The limit of a step's device time from an argument in milliseconds; 0: no limit.
#[must_use]
pub fn max_launch(ms: f64) -> Option<Duration> {
    (ms > 0.0).then(|| Duration::from_secs_f64(ms / 1e3))
}
