//! Limits of a store, and the formula that decides which entries it keeps.

use std::time::Duration;

use crate::Entry;

/// Limits of a [`Store`](crate::Store). Each has an effect on [`add`](crate::Store::add) and on
/// [`load`](crate::Store::load).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Number of entries. Default: 1,000, about a day of play with one memory each minute.
    pub max_entries: u32,
    /// Total bytes of texts and names. Default: 512 KiB.
    pub max_bytes: u64,
    /// Bytes of one entry, text and names. Default: 2,048, about 400 words.
    pub max_entry_bytes: u32,
    /// Tags of an entry, and separately names in `visible_to`. Default: 8.
    pub max_tags: u32,
    /// Entries older than this are never found, and [`expire`](crate::Store::expire) removes them.
    /// Default: none.
    pub max_age: Option<Duration>,
    /// Game time in which the [retention](Self::retention) of an entry halves. Default:
    /// [`HALF_LIFE`].
    pub half_life: Duration,
}

/// Default half-life of recency: 138 hours of game time, a decay to 0.995 of the value in each
/// hour, as in Park et al., "Generative Agents: Interactive Simulacra of Human Behavior",
/// UIST 2023, section 4.1. There the hours count since the last retrieval, here since
/// [`Entry::time`].
pub const HALF_LIFE: Duration = Duration::from_hours(138);

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            max_entries: 1_000,
            max_bytes: 512 << 10,
            max_entry_bytes: 2_048,
            max_tags: 8,
            max_age: None,
            half_life: HALF_LIFE,
        }
    }
}

impl StoreLimits {
    /// Limits for lore of a game: 100,000 entries of 64 MiB in total.
    #[must_use]
    pub fn lore() -> Self {
        Self { max_entries: 100_000, max_bytes: 64 << 20, ..Self::default() }
    }

    /// Value of an entry at the game time `now`, 0 to 1: `importance * 2^(-age / half_life)`. A
    /// full store evicts the entry with the lowest value; of equal ones, the one with the lower id.
    ///
    /// The product of importance and recency, in place of the sum that Park et al. use to rank,
    /// makes the order of two entries independent of `now`. The age of a future entry is zero
    /// here, whereas eviction uses its time as it is.
    #[must_use]
    pub fn retention(&self, entry: &Entry, now: Duration) -> f64 {
        f64::from(entry.importance) * recency(entry.time, now, self.half_life)
    }

    /// Binary logarithm of the retention at game time zero, which orders entries as the retention
    /// does at any time. Negative infinity for importance zero.
    pub(crate) fn log_retention(&self, entry: &Entry) -> f64 {
        let half_lives = entry.time.as_secs_f64() / positive(self.half_life).as_secs_f64();
        libm::log2(f64::from(entry.importance)) + half_lives
    }

    /// Whether an entry is older than the limit.
    #[must_use]
    pub fn is_expired(&self, entry: &Entry, now: Duration) -> bool {
        self.max_age.is_some_and(|most| now.saturating_sub(entry.time) > most)
    }
}

/// `2^(-age / half_life)`. The function is the one of `libm`, so that the result does not depend
/// on the platform.
pub(crate) fn recency(time: Duration, now: Duration, half_life: Duration) -> f64 {
    let age = now.saturating_sub(time).as_secs_f64();
    libm::exp2(-age / positive(half_life).as_secs_f64())
}

/// A half-life of zero would divide by zero.
fn positive(half_life: Duration) -> Duration {
    half_life.max(Duration::from_millis(1))
}
