use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Microseconds that pass only when a test says so. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    micros: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that stands at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time in microseconds.
    #[must_use]
    pub fn now_micros(&self) -> u64 {
        self.micros.load(Ordering::Acquire)
    }

    /// Lets time pass.
    pub fn advance(&self, micros: u64) {
        self.micros.fetch_add(micros, Ordering::AcqRel);
    }

    /// Lets time pass until `micros`, unless it is later already.
    pub fn advance_to(&self, micros: u64) {
        self.micros.fetch_max(micros, Ordering::AcqRel);
    }
}
