//! Settings that hosts make for all agents together.

use std::time::Duration;

use super::sync::{AtomicU64, Mark, Ordering};
use crate::engine_core::Control;
use crate::options::FrameBudget;

/// Settings in transit to the device thread: one atomic word each, so that no call waits and the
/// latest value applies.
#[derive(Debug)]
pub(super) struct Controls {
    /// The latest budget, in transit or not: nanoseconds, [`NO_LIMIT`] or [`AUTO`].
    latest_budget: AtomicU64,
    is_budget_new: Mark,
    /// Sum of the nanoseconds that clients have reserved.
    reserved: AtomicU64,
    is_reserved_new: Mark,
    /// Tokens, or [`UNCHANGED`].
    kv_tokens: AtomicU64,
}

const UNCHANGED: u64 = u64::MAX;
const AUTO: u64 = u64::MAX;
const NO_LIMIT: u64 = u64::MAX - 1;

impl Controls {
    pub fn new() -> Self {
        Self {
            latest_budget: AtomicU64::new(AUTO),
            is_budget_new: Mark::new(false),
            reserved: AtomicU64::new(0),
            is_reserved_new: Mark::new(false),
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

    pub fn set_budget(&self, budget: FrameBudget) {
        self.latest_budget.store(word_of(budget), Ordering::Release);
        self.is_budget_new.set();
    }

    pub fn set_kv_tokens(&self, tokens: u32) {
        self.kv_tokens.store(tokens.into(), Ordering::Release);
    }

    /// Replaces a part of the reserved time.
    pub fn reserve(&self, before_nanos: u64, nanos: u64) {
        // Each part is subtracted once, after it was added, so the sum is exact even if it wraps.
        self.reserved.fetch_add(nanos.wrapping_sub(before_nanos), Ordering::Relaxed);
        self.is_reserved_new.set();
    }

    /// Settings made since the last call.
    pub fn take(&self) -> impl Iterator<Item = Control> + use<> {
        let budget = self.is_budget_new.take().then(|| Control::Budget(self.latest_budget()));
        let tokens = self.kv_tokens.swap(UNCHANGED, Ordering::AcqRel);
        // `UNCHANGED` is no `u32`.
        let tokens = u32::try_from(tokens).ok().map(Control::KvTokens);
        let reserved = self.is_reserved_new.take().then(|| {
            Control::Reserved(Duration::from_nanos(self.reserved.load(Ordering::Relaxed)))
        });
        budget.into_iter().chain(reserved).chain(tokens)
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
