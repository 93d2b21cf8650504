//! State of an agent's background prefill.

/// Minimum time between two encodings of a conversation that changes while the agent is not asked,
/// in microseconds.
const INTERVAL_MICROS: u64 = 1_000_000;

/// Background prefill of an agent: evaluation of tokens that its next prompt begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::core) struct BackgroundPrefill {
    stage: Stage,
    /// Version of the conversation: an encoding of another version is discarded.
    version: u32,
    /// Earliest time of the next encoding.
    next_micros: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The cache may lack tokens of the conversation.
    #[default]
    Outdated,
    /// The text thread encodes the conversation.
    Encoding,
    /// The device evaluates the tokens of the sequence.
    Prefilling,
    /// Nothing is left to do.
    Done,
}

impl BackgroundPrefill {
    /// The conversation or the specification has changed.
    pub fn outdate(&mut self) {
        self.stage = Stage::Outdated;
        self.version = self.version.wrapping_add(1);
    }

    /// [`outdate`](Self::outdate), without a minimum time since the last encoding: a reply has
    /// ended, or the agent has a new sequence.
    pub fn restart(&mut self) {
        self.outdate();
        self.next_micros = 0;
    }

    /// Time until the conversation may be encoded; 0: now. `None` if it need not be.
    pub fn micros_to_encoding(&self, now_micros: u64) -> Option<u64> {
        (self.stage == Stage::Outdated).then(|| self.next_micros.saturating_sub(now_micros))
    }

    /// The conversation is being encoded. Returns its version.
    pub fn encode(&mut self, now_micros: u64) -> u32 {
        self.stage = Stage::Encoding;
        self.next_micros = now_micros + INTERVAL_MICROS;
        self.version
    }

    /// Whether it waits for the encoding of this version.
    pub fn expects(&self, version: u32) -> bool {
        self.stage == Stage::Encoding && self.version == version
    }

    /// The sequence has the tokens to evaluate.
    pub fn prefill(&mut self) {
        self.stage = Stage::Prefilling;
    }

    /// Whether the device evaluates the tokens of the sequence.
    pub fn is_prefilling(&self) -> bool {
        self.stage == Stage::Prefilling
    }

    /// Whether the cache may lack tokens of the conversation that will be evaluated.
    pub fn is_pending(&self) -> bool {
        self.stage != Stage::Done
    }

    /// All tokens are evaluated, or will not be.
    pub fn end(&mut self) {
        self.stage = Stage::Done;
    }

    /// The cache holds nothing of the sequence any more. Its tokens are evaluated again with the
    /// next prompt only: agents without enough pages for all would otherwise evict each other.
    pub fn forget_cache(&mut self) {
        if self.stage == Stage::Prefilling {
            self.end();
        }
    }
}
