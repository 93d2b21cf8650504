//! When a helper that found no free processor is woken again.
//!
//! Where the system puts a thread that wakes depends on what runs at that moment: the owner of the
//! device, a frame of the game, or another program may have had the free processor for some
//! microseconds. So the first attempt follows soon, and each further one after twice the work. The
//! bound keeps the cost of attempts on a busy machine below one percent, and no helper is ever
//! given up.

/// Estimated work, in nanoseconds, before the first new attempt: longer than the owner of the
/// device runs after a launch.
const FIRST_NANOS: u64 = 125_000;
/// The same, at most. An attempt costs the executor some microseconds.
const MOST_NANOS: u64 = 2_000_000;

/// Attempts to wake one helper. All amounts are estimated nanoseconds of the executor's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    /// Work from now on for which the helper is not woken.
    rest: u64,
    /// `rest` after the next attempt that fails.
    next: u64,
}

impl Retry {
    pub(crate) const fn new() -> Self {
        Self { rest: 0, next: FIRST_NANOS }
    }

    /// The helper found itself on the executor's processor.
    pub(crate) fn failed(&mut self) {
        self.rest = self.next;
        self.next = (2 * self.next).min(MOST_NANOS);
    }

    /// The helper has a processor of its own.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::new();
    }

    /// Whether the helper may be woken now.
    pub(crate) fn is_due(self) -> bool {
        self.rest == 0
    }

    /// Whether the helper is to be woken within the next `nanos` of work.
    pub(crate) fn is_due_within(self, nanos: u64) -> bool {
        self.rest == 0 || self.rest < nanos
    }

    /// The executor begins `nanos` of work.
    pub(crate) fn advance(&mut self, nanos: u64) {
        self.rest = self.rest.saturating_sub(nanos);
    }
}
