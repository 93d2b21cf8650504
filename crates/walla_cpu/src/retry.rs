//! When a helper that found no free processor is woken again.
//!
//! Where the system puts a thread that wakes depends on what runs at that moment: the owner of the
//! device, a frame of the game, or another program may have had the free processor for some
//! microseconds. So the first attempt follows soon, and each further one after twice the work. The
//! bound keeps the cost of attempts on a busy machine below one percent, and no helper is ever
//! given up.

//!
//! Helpers that share their processors with other programs have tiles when the system deschedules
//! them, and the executor waits. [`Balance`] compares this time with the work that helpers did. If
//! they cost more than they save, the executor works alone for a longer, also bounded time.

/// Attempts to wake helpers. All amounts are estimated nanoseconds of the executor's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    /// Work from now on before the next attempt.
    rest: u64,
    /// `rest` after the next attempt that fails.
    next: u64,
    /// Bounds of `next`.
    first: u64,
    most: u64,
}

impl Retry {
    /// For a helper that found itself on the executor's processor. The first time is longer than
    /// the owner of the device runs after a launch. An attempt costs the executor some
    /// microseconds.
    pub(crate) const fn of_displaced() -> Self {
        Self::between(125_000, 2_000_000)
    }

    /// For helpers that cost time. An attempt costs up to a millisecond ([`Balance`]).
    pub(crate) const fn of_late() -> Self {
        Self::between(2_000_000, 128_000_000)
    }

    const fn between(first: u64, most: u64) -> Self {
        Self { rest: 0, next: first, first, most }
    }

    /// The attempt failed.
    pub(crate) fn failed(&mut self) {
        self.rest = self.next;
        self.next = (2 * self.next).min(self.most);
    }

    /// The attempt succeeded.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::between(self.first, self.most);
    }

    /// Whether the next attempt may begin now.
    pub(crate) fn is_due(self) -> bool {
        self.rest == 0
    }

    /// Whether the next attempt is to begin within the next `nanos` of work.
    pub(crate) fn is_due_within(self, nanos: u64) -> bool {
        self.rest == 0 || self.rest < nanos
    }

    /// The executor begins `nanos` of work.
    pub(crate) fn advance(&mut self, nanos: u64) {
        self.rest = self.rest.saturating_sub(nanos);
    }
}

/// Time that helpers saved, less the time for which the executor waited for them, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    /// At most [`MOST`](Self::MOST).
    nanos: i64,
    /// Since the last verdict.
    total: i64,
}

/// Result of a [`Balance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Open,
    Save,
    Cost,
}

impl Balance {
    /// Savings that count: an older success does not hide that a processor became busy.
    const MOST: i64 = 2_000_000;
    /// Loss after which the executor works alone.
    const LEAST: i64 = -1_000_000;
    /// Savings after which the helpers count as useful: more than in the time for which the system
    /// lets two programs take turns.
    const USEFUL: i64 = 20_000_000;

    /// Adds a job in which helpers did `saved` nanoseconds of estimated work, and the executor
    /// waited for the last of them for `waited` nanoseconds.
    pub(crate) fn add(&mut self, saved: u64, waited: u64) -> Verdict {
        let signed = |nanos| i64::try_from(nanos).unwrap_or(i64::MAX);
        let change = signed(saved).saturating_sub(signed(waited));
        self.nanos = self.nanos.saturating_add(change).min(Self::MOST);
        self.total = self.total.saturating_add(change);
        if self.nanos < Self::LEAST {
            *self = Self::default();
            Verdict::Cost
        } else if self.total >= Self::USEFUL {
            self.total = 0;
            Verdict::Save
        } else {
            Verdict::Open
        }
    }
}
