use walla_types::SeqId;

use super::{CostModel, StepWork};
use crate::defaults;

/// Maximum prompt tokens per step for an aged agent, if rows and budget allow.
pub const AGED_CHUNK_TOKENS: u32 = 16;

/// Next work of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextWork {
    /// Evaluates a prompt.
    Prefill {
        /// Prompt tokens that are not evaluated yet, at least 1.
        tokens: u32,
    },
    /// Decodes one token.
    Decoding,
}

/// Level of detail: limits the device time that an agent gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Detail {
    /// All steps of a frame that its voice rate needs. Default.
    #[default]
    Full,
    /// At most one step per frame.
    Reduced,
    /// Uses spare capacity only; at most one step per frame. No agent of higher detail is preempted
    /// for it.
    Background,
}

/// Work that one agent requests for a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanRequest {
    /// The agent's sequence. Only the first request of a sequence counts.
    pub seq: SeqId,
    /// The agent's next work.
    pub work: NextWork,
    /// Higher values are served first.
    pub priority: i32,
    /// Level of detail.
    pub detail: Detail,
    /// Tokens by which the agent will be behind its voice at the end of the frame if it gets none.
    /// Negative: it is ahead. `None`: it has no voice rate and is never ahead. NaN counts as 0. For
    /// prompts, only the order depends on it.
    pub due: Option<f32>,
    /// Consecutive frames in which the agent requested work and got nothing.
    pub waited_frames: u32,
}

impl PlanRequest {
    /// A request with priority 0, full detail and no voice rate, of an agent that has not waited.
    #[must_use]
    pub const fn new(seq: SeqId, work: NextWork) -> Self {
        Self { seq, work, priority: 0, detail: Detail::Full, due: None, waited_frames: 0 }
    }

    /// Tokens behind; never NaN.
    pub(super) fn lateness(&self) -> f32 {
        self.due.filter(|due| !due.is_nan()).unwrap_or(0.0)
    }

    pub(super) fn wants_work(&self) -> bool {
        match self.work {
            NextWork::Prefill { tokens } => tokens > 0,
            NextWork::Decoding => true,
        }
    }
}

impl StepWork {
    /// The decode rows and prompt tokens that a step has if no time limits it.
    #[must_use]
    pub fn wanted(requests: &[PlanRequest], limits: &Limits<'_>) -> Self {
        let (mut decode_rows, mut prefill_tokens) = (0_u32, 0_u32);
        for request in requests {
            match request.work {
                NextWork::Prefill { tokens } => {
                    prefill_tokens = prefill_tokens.saturating_add(tokens);
                }
                NextWork::Decoding => decode_rows += 1,
            }
        }
        let decode_rows = decode_rows.min(limits.max_rows);
        let rows_left = limits.max_rows - decode_rows;
        let prefill_tokens = prefill_tokens.min(limits.max_prefill_tokens).min(rows_left);
        Self { decode_rows, prefill_tokens, ..Self::default() }
    }
}

/// Frames that a prompt waits for a larger chunk at most.
pub const CHUNK_WAIT_FRAMES: u32 = 8;

/// Limits of one step.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Maximum rows: decode rows and prompt tokens together. Default:
    /// [`defaults::MAX_ROWS`].
    pub max_rows: u32,
    /// Maximum prompt tokens. Default: [`defaults::MAX_PREFILL_TOKENS`].
    pub max_prefill_tokens: u32,
    /// Minimum cost of a step that is started for a prompt chunk alone, as a multiple of the cost
    /// of a step with one token. In a smaller step the fixed cost dominates. A chunk that finishes
    /// its prompt is exempt. Default: `1.0`: any chunk is accepted. A host that fills the rest of a
    /// frame uses a higher value.
    pub chunk_gain_min: f32,
    /// Minimum tokens of a chunk in a step that is started for prompts alone. A chunk that finishes
    /// its prompt, and an agent that has waited [`CHUNK_WAIT_FRAMES`] frames, are exempt. Default:
    /// `1`.
    pub chunk_tokens_min: u32,
    /// Maximum sequences. Default: [`defaults::MAX_ROWS`].
    pub max_sequences: u32,
    /// Frames after which a waiting agent is served before others. Default: `60`, one second at 60
    /// Hz.
    pub max_wait_frames: u32,
    /// Device time that the frame has left, in microseconds. Default: [`defaults::BUDGET_MICROS`].
    pub max_device_micros: u32,
    /// Maximum device time of the step, in microseconds. Default: [`u32::MAX`], limited by the
    /// frame only.
    pub max_step_micros: u32,
    /// Whether the first agent that has waited [`max_wait_frames`](Self::max_wait_frames) gets its
    /// row even beyond all time limits. Default: `true`. A host that plans a frame step by step
    /// sets `false` after the first step.
    pub forces: bool,
    /// Cost model. Without one, time is not limited. Default: `None`.
    pub cost: Option<&'a dyn CostModel>,
}

impl Default for Limits<'_> {
    fn default() -> Self {
        Self {
            max_rows: defaults::MAX_ROWS,
            max_prefill_tokens: defaults::MAX_PREFILL_TOKENS,
            chunk_gain_min: 1.0,
            chunk_tokens_min: 1,
            max_sequences: defaults::MAX_ROWS,
            max_wait_frames: 60,
            max_device_micros: defaults::BUDGET_MICROS,
            max_step_micros: u32::MAX,
            forces: true,
            cost: None,
        }
    }
}
