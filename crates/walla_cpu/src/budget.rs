//! Limits the computing time per frame of threads next to an engine: of embedders and of
//! voices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Budgets of debt that a batch may leave before the rest is forgiven, as in the engine.
const MAX_DEBT_FRAMES: u32 = 15;
/// The value of no budget, or of frames that only the host grants.
const NONE: u64 = u64::MAX;
/// Bounds of the time between frames: a longer one is beyond the clock.
const FRAME_TIMES: [Duration; 2] = [Duration::from_millis(1), Duration::from_hours(24)];

/// Settings and frames of the host.
#[derive(Debug)]
pub struct Grants {
    /// Nanoseconds per frame, or [`NONE`].
    budget_nanos: AtomicU64,
    /// Nanoseconds between frames that the thread grants itself, or [`NONE`].
    frame_nanos: AtomicU64,
    frames: AtomicU64,
}

impl Grants {
    /// With time per frame; `None`: without a limit.
    #[must_use]
    pub fn new(budget: Option<Duration>) -> Self {
        let grants = Self {
            budget_nanos: AtomicU64::new(NONE),
            frame_nanos: AtomicU64::new(NONE),
            frames: AtomicU64::new(0),
        };
        grants.set(budget);
        grants
    }

    /// Changes the time per frame.
    pub fn set(&self, budget: Option<Duration>) {
        store(&self.budget_nanos, budget);
    }

    /// Sets the time between frames that the thread grants itself; `None`: the host grants them.
    pub fn set_frame_time(&self, time: Option<Duration>) {
        let [min, max] = FRAME_TIMES;
        store(&self.frame_nanos, time.map(|time| time.clamp(min, max)));
    }

    /// Grants a frame.
    pub fn frame(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    fn budget(&self) -> Option<Duration> {
        load(&self.budget_nanos)
    }

    fn frame_time(&self) -> Option<Duration> {
        load(&self.frame_nanos)
    }
}

fn store(setting: &AtomicU64, time: Option<Duration>) {
    // The largest value is taken: it means none.
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(NONE - 1);
    setting.store(time.map_or(NONE, nanos), Ordering::Relaxed);
}

fn load(setting: &AtomicU64) -> Option<Duration> {
    let nanos = setting.load(Ordering::Relaxed);
    (nanos != NONE).then(|| Duration::from_nanos(nanos))
}

/// Frames that the thread grants itself while it has work.
#[derive(Debug, Default)]
pub struct OwnFrames {
    last: Option<Instant>,
}

impl OwnFrames {
    /// Grants a frame if the time for it has come. Returns the time until the next one; `None`: the
    /// host grants frames.
    pub fn grant(&mut self, grants: &Grants) -> Option<Duration> {
        // Without a budget there is nothing to wait for, and zero is a pause.
        grants.budget().filter(|budget| !budget.is_zero())?;
        let time = grants.frame_time()?;
        let since_last = self.last.map_or(Duration::MAX, |last| last.elapsed());
        let left = time.saturating_sub(since_last);
        if !left.is_zero() {
            return Some(left);
        }
        self.last = Some(Instant::now());
        grants.frame();
        Some(time)
    }
}

/// The thread's account: time of the current frame that is left, less the debt of earlier batches.
#[derive(Debug, Default)]
pub struct Account {
    frames_seen: u64,
    left_nanos: i128,
    /// Frames whose unused time is kept.
    saved_frames: u32,
    /// Estimated nanoseconds of a token.
    token_nanos: f64,
}

impl Account {
    /// With the unused time of this number of frames, for work that comes at once after a pause.
    /// `default()` keeps none.
    #[must_use]
    pub fn with_savings(saved_frames: u32) -> Self {
        Self { saved_frames, ..Self::default() }
    }

    /// Tokens that the next batch may have: `None` without a limit, 0 if it must wait for a frame.
    /// A positive number may be less than the next text has; it runs all the same.
    pub fn tokens(&mut self, grants: &Grants) -> Option<usize> {
        let frames = grants.frames.load(Ordering::Relaxed);
        let granted = frames.wrapping_sub(self.frames_seen);
        self.frames_seen = frames;
        let Some(budget) = grants.budget() else {
            self.left_nanos = 0;
            return None;
        };
        let budget = budget.as_nanos() as i128;
        let paid = self.left_nanos.saturating_add(budget.saturating_mul(i128::from(granted)));
        self.left_nanos = paid.min(budget.saturating_mul(1 + i128::from(self.saved_frames)));
        if self.left_nanos <= 0 {
            return Some(0);
        }
        if self.token_nanos <= 0.0 {
            return Some(1);
        }
        Some(((self.left_nanos as f64 / self.token_nanos) as usize).max(1))
    }

    /// Deducts a batch.
    pub fn spend(&mut self, tokens: usize, time: Duration, grants: &Grants) {
        let sample = time.as_nanos() as f64 / tokens.max(1) as f64;
        let is_first = self.token_nanos <= 0.0;
        self.token_nanos = if is_first { sample } else { 0.8 * self.token_nanos + 0.2 * sample };
        // The estimate is kept up without a budget too: one may be set before the next batch.
        let Some(budget) = grants.budget() else { return };
        let max_debt = budget.as_nanos().saturating_mul(u128::from(MAX_DEBT_FRAMES)) as i128;
        let left = self.left_nanos.saturating_sub(time.as_nanos() as i128);
        self.left_nanos = left.max(max_debt.saturating_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_a_budget_nothing_waits() {
        let (grants, mut account) = (Grants::new(None), Account::default());
        for _ in 0..3 {
            assert_eq!(account.tokens(&grants), None);
            account.spend(100, MS * 50, &grants);
        }
    }

    #[test]
    fn a_budget_holds_on_average() {
        let (grants, mut account) = (Grants::new(Some(MS)), Account::default());
        assert_eq!(account.tokens(&grants), Some(0), "no frame yet");
        let mut spent = Duration::ZERO;
        for _ in 0..1000 {
            grants.frame();
            while account.tokens(&grants) > Some(0) {
                account.spend(10, MS * 3, &grants);
                spent += MS * 3;
            }
        }
        assert!((999..=1003).contains(&spent.as_millis()), "{spent:?}");
    }

    #[test]
    fn savings_are_spent_at_once_and_bounded() {
        let (grants, mut account) = (Grants::new(Some(MS)), Account::with_savings(15));
        for (frames, expected) in [(1, 1), (5, 5), (100, 16), (0, 0), (1, 1)] {
            (0..frames).for_each(|_| grants.frame());
            let mut spent = 0;
            while account.tokens(&grants) > Some(0) {
                account.spend(1, MS, &grants);
                spent += 1;
            }
            assert_eq!(spent, expected, "{frames} frames");
        }
    }

    #[test]
    fn unused_frames_do_not_add_up_and_debts_are_bounded() {
        let (grants, mut account) = (Grants::new(Some(MS)), Account::default());
        (0..100).for_each(|_| grants.frame());
        assert_eq!(account.tokens(&grants), Some(1), "the cost of a token is not known");
        account.spend(100, MS, &grants);
        assert_eq!(account.tokens(&grants), Some(0));
        grants.frame();
        assert_eq!(account.tokens(&grants), Some(100), "10 µs each");
        account.spend(1, MS * 1000, &grants);
        let frames = (1..).find(|_| {
            grants.frame();
            account.tokens(&grants) > Some(0)
        });
        assert_eq!(frames, Some(16));
        grants.set(None);
        assert_eq!(account.tokens(&grants), None);
    }
}
