//! Settings that hosts make for all agents together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine_core::Control;
use crate::options::FrameBudget;

/// Settings in transit to the device thread: one atomic word each, so that no call waits and the
/// latest value applies.
#[derive(Debug)]
pub(super) struct Controls {
    /// Nanoseconds, [`NO_LIMIT`], [`AUTO`] or [`UNCHANGED`].
    budget: AtomicU64,
    /// The latest budget, in transit or not: never [`UNCHANGED`].
    latest_budget: AtomicU64,
    /// Tokens, or [`UNCHANGED`].
    kv_tokens: AtomicU64,
}

const UNCHANGED: u64 = u64::MAX;
const AUTO: u64 = u64::MAX - 1;
const NO_LIMIT: u64 = u64::MAX - 2;

impl Controls {
    pub fn new() -> Self {
        Self {
            budget: AtomicU64::new(UNCHANGED),
            latest_budget: AtomicU64::new(AUTO),
            kv_tokens: AtomicU64::new(UNCHANGED),
        }
    }

    /// The budget of the options, which the device thread has.
    pub fn begin_with(&self, budget: FrameBudget) {
        self.latest_budget.store(word_of(budget), Ordering::Release);
    }

    /// The budget that was set last, although the device thread may not have it yet.
    pub fn latest_budget(&self) -> FrameBudget {
        budget_of(self.latest_budget.load(Ordering::Acquire))
    }

    pub fn set(&self, control: Control) {
        match control {
            Control::Budget(budget) => {
                let word = word_of(budget);
                // First, so that a host never reads an older budget than the device thread has
                // taken.
                self.latest_budget.store(word, Ordering::Release);
                self.budget.store(word, Ordering::Release);
            }
            Control::KvTokens(tokens) => self.kv_tokens.store(tokens.into(), Ordering::Release),
        }
    }

    /// Settings made since the last call.
    pub fn take(&self) -> impl Iterator<Item = Control> + use<> {
        let budget = match self.budget.swap(UNCHANGED, Ordering::AcqRel) {
            UNCHANGED => None,
            word => Some(Control::Budget(budget_of(word))),
        };
        let tokens = self.kv_tokens.swap(UNCHANGED, Ordering::AcqRel);
        // `UNCHANGED` is no `u32`.
        let tokens = u32::try_from(tokens).ok().map(Control::KvTokens);
        budget.into_iter().chain(tokens)
    }
}

fn word_of(budget: FrameBudget) -> u64 {
    match budget {
        FrameBudget::Auto => AUTO,
        FrameBudget::Unlimited => NO_LIMIT,
        FrameBudget::Time(time) => u64::try_from(time.as_nanos()).unwrap_or(NO_LIMIT).min(NO_LIMIT),
    }
}

fn budget_of(word: u64) -> FrameBudget {
    match word {
        AUTO => FrameBudget::Auto,
        NO_LIMIT => FrameBudget::Unlimited,
        nanos => FrameBudget::Time(Duration::from_nanos(nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_setting_is_taken_once() {
        let controls = Controls::new();
        assert_eq!(controls.take().count(), 0);
        controls.begin_with(FrameBudget::Unlimited);
        assert_eq!(controls.latest_budget(), FrameBudget::Unlimited);
        assert_eq!(controls.take().count(), 0);
        let budget = Control::Budget(FrameBudget::Time(Duration::from_millis(3)));
        for control in [Control::Budget(FrameBudget::Unlimited), budget, Control::KvTokens(7)] {
            controls.set(control);
        }
        assert_eq!(controls.take().collect::<Vec<_>>(), [budget, Control::KvTokens(7)]);
        assert_eq!(controls.take().count(), 0);
        let latest = FrameBudget::Time(Duration::from_millis(3));
        assert_eq!(controls.latest_budget(), latest, "also when it was taken");
        controls.set(Control::Budget(FrameBudget::Time(Duration::MAX)));
        let unlimited = Control::Budget(FrameBudget::Unlimited);
        assert_eq!(controls.take().collect::<Vec<_>>(), [unlimited]);
        controls.set(Control::Budget(FrameBudget::Auto));
        assert_eq!(controls.take().collect::<Vec<_>>(), [Control::Budget(FrameBudget::Auto)]);
    }
}
