//! Default values of settings that several crates share. Each is defined here only; options of
//! other crates take their defaults from here.

use crate::BUCKETS;

/// Sequences with memory at the same time: agents that can speak at the same time.
pub const MAX_SEQUENCES: u32 = 64;

/// Tokens of one sequence: a persona and some twenty turns.
pub const CONTEXT_TOKENS: u32 = 1_024;

/// Tokens of a KV page. On average half a page per sequence is unused, and a page table for
/// [`CONTEXT_TOKENS`] has 64 entries. 16 to 64 suit GPUs.
pub const PAGE_TOKENS: u32 = 16;

/// Rows of one step: [`MAX_SEQUENCES`] decode rows and a prefill chunk of
/// [`MAX_PREFILL_TOKENS`]. It is the largest decode bucket.
pub const MAX_ROWS: u32 = 128;

/// Prompt tokens of one step: a prompt may lengthen a step, but not by a multiple.
pub const MAX_PREFILL_TOKENS: u32 = 64;

/// The same as [`MAX_ROWS`] on a GPU with this number of multiprocessors: the largest bucket with
/// at most four prompt tokens for each. The weights are read, and a step's kernels launched, once
/// per chunk, so prefill with 512 rows is twice as fast as with 128. The chunk that a frame's
/// budget allows may be shorter.
///
/// # Examples
/// ```
/// use walla_plan::defaults::max_gpu_rows;
/// assert_eq!([16, 33, 60, 132].map(max_gpu_rows), [128, 192, 256, 512]);
/// ```
#[must_use]
pub fn max_gpu_rows(multiprocessors: u32) -> u32 {
    let most = MAX_SEQUENCES + multiprocessors.saturating_mul(4);
    let fitting = BUCKETS.into_iter().rev().find(|rows| *rows <= most);
    fitting.unwrap_or(MAX_ROWS).max(MAX_ROWS)
}

/// Device time of a frame on a GPU, in microseconds: a quarter of a frame at 60 Hz.
pub const BUDGET_MICROS: u32 = 4_166;

/// Processor time of a frame on a CPU, in microseconds: half of a frame at 60 Hz. Twelve prompts at
/// once are evaluated in half the time that they take with a quarter, and the frames of a game that
/// fills all cores are not longer (`benches/README.md`, "First words").
pub const CPU_BUDGET_MICROS: u32 = 8_333;

/// Frames over their budget per 1,000 frames that the margin of predictions allows on a GPU.
pub const FRAMES_OVER_PER_1000: u32 = 1;

/// The same on a CPU, which other programs use too.
pub const CPU_FRAMES_OVER_PER_1000: u32 = 10;

/// Frames of unused budget that a CPU may use later.
pub const CPU_CARRY_FRAMES: u32 = 3;

/// Device time of one step on a GPU, in microseconds: a little less than the default budget. Next
/// to a renderer, a limit of 2 ms shortens the renderer's part of a frame by 0.3 ms in the median
/// and costs 40 % of the prompt tokens per second (`benches/results/rendered-latency.md`).
pub const MAX_LAUNCH_MICROS: u32 = 4_000;

const _: () = assert!(MAX_ROWS == MAX_SEQUENCES + MAX_PREFILL_TOKENS);
