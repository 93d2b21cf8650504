use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::plan::Call;

/// A test's handle on a [`Faulty`](super::Faulty) device that an engine owns: counts calls and can
/// break the device at any time.
#[derive(Clone, Debug)]
pub struct FaultHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    calls: [AtomicU64; Call::ALL.len()],
    lost: AtomicBool,
    dropped: AtomicBool,
}

impl FaultHandle {
    pub(super) fn new() -> Self {
        let calls = std::array::from_fn(|_| AtomicU64::new(0));
        let (lost, dropped) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { shared: Arc::new(Shared { calls, lost, dropped }) }
    }

    /// Number of calls of one kind, including faults.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.shared.calls[call as usize].load(Ordering::Acquire)
    }

    /// Number of all calls.
    #[must_use]
    pub fn calls_total(&self) -> u64 {
        self.shared.calls.iter().map(|calls| calls.load(Ordering::Acquire)).sum()
    }

    /// Loses the device: its next call returns `Lost`.
    pub fn lose(&self) {
        self.shared.lost.store(true, Ordering::Release);
    }

    /// Whether the device is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.lost.load(Ordering::Acquire)
    }

    /// Whether a device was dropped, so that its memory was returned.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.shared.dropped.load(Ordering::Acquire)
    }

    pub(super) fn drop_device(&self) {
        self.shared.dropped.store(true, Ordering::Release);
    }

    /// Counts a call. Returns its number within its kind.
    pub(super) fn count(&self, call: Call) -> u64 {
        self.shared.calls[call as usize].fetch_add(1, Ordering::AcqRel)
    }
}
