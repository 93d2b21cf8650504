use walla_types::SeqId;

use super::CostModel;
use crate::governor::DEFAULT_BUDGET_MICROS;

/// Tokens of a prompt that an aged agent gets at a time, if rows and budget allow.
pub const AGED_CHUNK_TOKENS: u32 = 16;

/// What an agent is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentState {
    /// Reads a prompt.
    Prefill {
        /// Tokens that are not evaluated yet, at least 1.
        tokens: u32,
    },
    /// Speaks: one token a step.
    Decoding,
}

/// How much of the machine an agent is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Detail {
    /// All steps of a frame that its voice needs. Default.
    #[default]
    Full,
    /// One step a frame at most.
    Reduced,
    /// What others leave; one step a frame at most. Nobody of more detail loses a cache to it.
    Background,
}

/// What one agent wants of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanRequest {
    /// The agent's sequence; a sequence can ask once.
    pub seq: SeqId,
    /// What it is about to do.
    pub state: AgentState,
    /// Higher goes first.
    pub priority: i32,
    /// How much it is worth.
    pub detail: Detail,
    /// Tokens by which it will be behind its voice at the frame's end, if it gets none: below 0 it
    /// is ahead. `None`: it has no voice rate, is never ahead and takes steps that are left. NaN
    /// counts as 0. Of prompts it says no more than which goes first.
    pub due: Option<f32>,
    /// Frames in a row in which it wanted something and got nothing.
    pub waited_frames: u32,
}

impl PlanRequest {
    /// A request of an agent with priority 0, full detail and no voice rate that has not waited.
    #[must_use]
    pub const fn new(seq: SeqId, state: AgentState) -> Self {
        Self { seq, state, priority: 0, detail: Detail::Full, due: None, waited_frames: 0 }
    }

    /// Tokens behind, as a number that is never NaN.
    pub(super) fn lateness(&self) -> f32 {
        self.due.filter(|due| !due.is_nan()).unwrap_or(0.0)
    }

    /// Whether it speaks and its voice needs a token now.
    pub(super) fn is_due(&self) -> bool {
        self.state == AgentState::Decoding && self.lateness() >= 0.0
    }

    pub(super) fn wants_work(&self) -> bool {
        match self.state {
            AgentState::Prefill { tokens } => tokens > 0,
            AgentState::Decoding => true,
        }
    }
}

/// What a frame may use.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Rows of one pass: decode rows and prompt tokens together. Default: `128`, the largest decode
    /// bucket.
    pub rows_max: u32,
    /// Prompt tokens of one frame. Default: `64`: a prompt may stretch a step, but not by a
    /// multiple.
    pub prefill_tokens_max: u32,
    /// A chunk of a prompt is no reason for a step that takes less than so many times as long as
    /// one for a single token, unless the prompt ends with it: most of that time would be the
    /// step's own. Default: `1.0`, any chunk is. A host that fills what is left of a frame asks for
    /// more.
    pub chunk_gain_min: f32,
    /// Sequences of one pass. Default: `128`.
    pub sequences_max: u32,
    /// Decode steps of one frame, cut to `1..=`[`STEPS_MAX`](super::STEPS_MAX). Default: `4`.
    pub steps_max: u32,
    /// Frames after which a waiting agent goes before others. Default: `60`, a second at 60 Hz.
    pub wait_frames_max: u32,
    /// Device time that the frame may use, in microseconds. Default: [`DEFAULT_BUDGET_MICROS`], a
    /// quarter of a 60 Hz frame.
    pub device_micros_max: u32,
    /// Device time of one step, in microseconds. Default: [`u32::MAX`], as long as the frame
    /// allows.
    pub step_micros_max: u32,
    /// Whether the first agent that has waited [`wait_frames_max`](Self::wait_frames_max) gets its
    /// row even beyond all time limits. Default: `true`. A host that plans a frame step by step
    /// forbids it after the first.
    pub forces: bool,
    /// What work costs; without it time is not limited. Default: `None`.
    pub cost: Option<&'a dyn CostModel>,
}

impl Default for Limits<'_> {
    fn default() -> Self {
        Self {
            rows_max: 128,
            prefill_tokens_max: 64,
            chunk_gain_min: 1.0,
            sequences_max: 128,
            steps_max: 4,
            wait_frames_max: 60,
            device_micros_max: DEFAULT_BUDGET_MICROS,
            step_micros_max: u32::MAX,
            forces: true,
            cost: None,
        }
    }
}

impl core::fmt::Debug for Limits<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Limits")
            .field("rows_max", &self.rows_max)
            .field("prefill_tokens_max", &self.prefill_tokens_max)
            .field("chunk_gain_min", &self.chunk_gain_min)
            .field("sequences_max", &self.sequences_max)
            .field("steps_max", &self.steps_max)
            .field("wait_frames_max", &self.wait_frames_max)
            .field("device_micros_max", &self.device_micros_max)
            .field("step_micros_max", &self.step_micros_max)
            .field("forces", &self.forces)
            .field("has_cost", &self.cost.is_some())
            .finish()
    }
}
