/// Row counts that a device prepares programs for. Padding is smallest where steps are most
/// frequent: exact up to 4 rows, then at most half more rows than needed. Decode steps have up to
/// 128 rows; the rest is for prompt chunks.
pub const BUCKETS: [u32; 18] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];

/// The smallest bucket that holds `rows`, or `None` if none does.
///
/// # Examples
/// ```
/// use walla_plan::bucket_for;
/// assert_eq!((bucket_for(0), bucket_for(5), bucket_for(128)), (Some(1), Some(6), Some(128)));
/// assert_eq!(bucket_for(513), None);
/// ```
#[must_use]
pub fn bucket_for(rows: u32) -> Option<u32> {
    let place = BUCKETS.partition_point(|&bucket| bucket < rows);
    BUCKETS.get(place).copied()
}

/// Index in [`BUCKETS`] of the smallest bucket that holds `rows`, or of the largest bucket.
pub(crate) fn bucket_index(rows: u32) -> usize {
    BUCKETS.partition_point(|&bucket| bucket < rows).min(BUCKETS.len() - 1)
}

/// Work of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepWork {
    /// Rows of decoding agents.
    pub decode_rows: u32,
    /// Rows of prompts.
    pub prefill_tokens: u32,
    /// Cached tokens that attention reads: the sum of the sequences' lengths after the step.
    pub context_tokens: u64,
    /// Pairs of a prompt token and a token that it attends to. The arithmetic of prompt attention
    /// is proportional to it.
    pub prefill_pairs: u64,
}

impl StepWork {
    /// Decode rows whose sequences have `context_tokens` cached tokens in total.
    #[must_use]
    pub const fn decode(decode_rows: u32, context_tokens: u64) -> Self {
        Self { decode_rows, prefill_tokens: 0, context_tokens, prefill_pairs: 0 }
    }

    /// A chunk of a prompt after `before` cached tokens.
    #[must_use]
    pub const fn prefill(prefill_tokens: u32, before: u32) -> Self {
        let (tokens, before) = (prefill_tokens as u64, before as u64);
        Self {
            decode_rows: 0,
            prefill_tokens,
            context_tokens: before + tokens,
            prefill_pairs: tokens * before + tokens * (tokens + 1) / 2,
        }
    }

    /// Decode rows and prompt tokens.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        self.decode_rows + self.prefill_tokens
    }

    /// Whether the step has no rows. An empty step is not launched and costs nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows() == 0
    }
}

/// Predicts device time.
///
/// More work must never cost less: the planner adds work until it no longer fits. A NaN prediction
/// counts as too expensive.
pub trait CostModel: core::fmt::Debug {
    /// Device time of a step with this work, in microseconds.
    fn predict_micros(&self, work: StepWork) -> f32;
}

/// `step + row * bucket_for(rows) + context_token * context_tokens + prefill_token *
/// prefill_tokens`, in microseconds.
///
/// The first two terms cover the weight bytes and the kernel boundaries, the third the KV cache
/// bytes, the fourth the arithmetic of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearCost {
    /// Fixed cost of a step.
    pub step_micros: f32,
    /// Cost per row of the bucket, padding included.
    pub row_micros: f32,
    /// Cost per cached token read.
    pub context_token_micros: f32,
    /// Additional cost per prompt token.
    pub prefill_token_micros: f32,
}

impl CostModel for LinearCost {
    fn predict_micros(&self, work: StepWork) -> f32 {
        let rows = bucket_for(work.rows()).unwrap_or(work.rows());
        self.step_micros
            + self.row_micros * rows as f32
            + self.context_token_micros * work.context_tokens as f32
            + self.prefill_token_micros * work.prefill_tokens as f32
    }
}
