use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock in microseconds that only a test advances. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    micros: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time in microseconds.
    #[must_use]
    pub fn now_micros(&self) -> u64 {
        self.micros.load(Ordering::Acquire)
    }

    /// Advances the clock.
    pub fn advance(&self, micros: u64) {
        self.micros.fetch_add(micros, Ordering::AcqRel);
    }

    /// Advances the clock to `micros`, unless it is later already.
    pub fn advance_to(&self, micros: u64) {
        self.micros.fetch_max(micros, Ordering::AcqRel);
    }
}
