//! Limits of a program: open asks, their bytes, agents. Atomic counters, so that no host blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use walla_runtime::{AskOptions, Prompt, ReplyError, Turn};

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundsMax {
    pub asks: u32,
    pub ask_bytes: u64,
    pub agents: u32,
    /// Agents of the engine that can speak at the same time.
    pub slots: u32,
}

/// The current counts.
#[derive(Debug)]
pub(crate) struct Bounds {
    max: BoundsMax,
    asks: AtomicU32,
    ask_bytes: AtomicU64,
    agents: AtomicU32,
}

impl Bounds {
    pub fn new(max: BoundsMax) -> Self {
        let (asks, ask_bytes, agents) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0));
        Self { max, asks, ask_bytes, agents }
    }

    pub fn max(&self) -> BoundsMax {
        self.max
    }

    /// Counts one more ask until the permit is dropped.
    pub fn reserve_ask(
        bounds: &Arc<Self>,
        turns: &[Turn],
        prompt: &Prompt,
        options: &AskOptions,
    ) -> Result<AskPermit, ReplyError> {
        let of_turns: usize = turns.iter().map(|turn| turn.text.len()).sum();
        Self::reserve_bytes(bounds, (prompt.bytes() + of_turns + options.source_bytes()) as u64)
    }

    /// Counts one more ask with this number of bytes until the permit is dropped.
    pub fn reserve_bytes(bounds: &Arc<Self>, bytes: u64) -> Result<AskPermit, ReplyError> {
        let BoundsMax { asks: max_asks, ask_bytes: max_bytes, .. } = bounds.max;
        let too_many = || ReplyError::TooManyAsks {
            asks: bounds.asks.load(Ordering::Relaxed),
            max_asks,
            bytes: bounds.ask_bytes.load(Ordering::Relaxed),
            max_bytes,
        };
        let one_more = |asks: u32| (asks < max_asks).then(|| asks + 1);
        let relaxed = Ordering::Relaxed;
        bounds.asks.fetch_update(relaxed, relaxed, one_more).map_err(|_| too_many())?;
        // From here on the permit releases the count.
        let mut permit = AskPermit { bounds: Arc::clone(bounds), bytes: 0 };
        let more = |open: u64| open.checked_add(bytes).filter(|open| *open <= max_bytes);
        bounds.ask_bytes.fetch_update(relaxed, relaxed, more).map_err(|_| too_many())?;
        permit.bytes = bytes;
        Ok(permit)
    }

    /// Counts one more agent until the permit is dropped. `None`: there are too many.
    pub fn reserve_agent(bounds: &Arc<Self>) -> Option<AgentPermit> {
        let one_more = |agents: u32| (agents < bounds.max.agents).then(|| agents + 1);
        let reserved = bounds.agents.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        reserved.ok().map(|_| AgentPermit(Arc::clone(bounds)))
    }
}

/// One open ask.
#[derive(Debug)]
pub(crate) struct AskPermit {
    bounds: Arc<Bounds>,
    bytes: u64,
}

impl Drop for AskPermit {
    fn drop(&mut self) {
        self.bounds.asks.fetch_sub(1, Ordering::Relaxed);
        self.bounds.ask_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One agent.
#[derive(Debug)]
pub(crate) struct AgentPermit(Arc<Bounds>);

impl Drop for AgentPermit {
    fn drop(&mut self) {
        self.0.agents.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use walla_types::TokenId;

    use super::*;

    fn bounds() -> Arc<Bounds> {
        Arc::new(Bounds::new(BoundsMax { asks: 2, ask_bytes: 10, agents: 1, slots: 1 }))
    }

    fn open(bounds: &Bounds) -> (u32, u64) {
        (bounds.asks.load(Ordering::Relaxed), bounds.ask_bytes.load(Ordering::Relaxed))
    }

    #[test]
    fn asks_are_counted_until_their_permits_are_dropped() {
        let bounds = bounds();
        let none = AskOptions::default();
        let reserve = |bytes: usize| {
            Bounds::reserve_ask(&bounds, &[], &Prompt::Raw("x".repeat(bytes)), &none)
        };
        let first = reserve(6).unwrap();
        let error = reserve(5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 asks with 6 bytes have not ended; at most 2 with 10 bytes may be open"
        );
        assert_eq!(open(&bounds), (1, 6), "what is refused does not count");
        let second =
            Bounds::reserve_ask(&bounds, &[], &Prompt::Tokens(vec![TokenId(1)]), &none).unwrap();
        assert_eq!(open(&bounds), (2, 10));
        assert!(reserve(0).is_err());
        drop((first, second));
        assert_eq!(open(&bounds), (0, 0));
        assert!(reserve(10).is_ok());
    }

    #[test]
    fn agents_are_counted_until_their_permits_are_dropped() {
        let bounds = bounds();
        let agent = Bounds::reserve_agent(&bounds);
        assert!(agent.is_some() && Bounds::reserve_agent(&bounds).is_none());
        drop(agent);
        assert!(Bounds::reserve_agent(&bounds).is_some());
    }
}
