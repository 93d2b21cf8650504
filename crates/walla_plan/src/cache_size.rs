//! Default number of agents and size of the KV cache on a CPU.
//!
//! A GPU has a slot with a full context for each of 64 agents. A CPU shares its memory with the
//! game, and a model of 0.5B parameters takes 768 MiB for 64 contexts of 1,024 tokens. So the
//! default is a part of the memory that is free: all agents share fewer pages, because few of them
//! have a full context, and only if the pages would be too few for them are there fewer agents. The
//! context never changes, because replies depend on it.

use std::fmt;

use crate::defaults::{CONTEXT_TOKENS, MAX_SEQUENCES, PAGE_TOKENS};

/// Part of the free memory that the cache may take: an eighth, because the game needs memory after
/// the engine is loaded.
const FREE_PART: u64 = 8;

/// Maximum bytes of the cache: 42 full contexts of a 0.5B model, 16 of a 1B model. A CPU does not
/// evaluate more in a time that a player waits.
const MAX_BYTES: u64 = 512 << 20;

/// Bytes of the cache if the system does not report its free memory: an eighth of 2 GiB.
const BYTES_UNKNOWN: u64 = 256 << 20;

/// Minimum number of agents, each with a full context.
const AGENTS_MIN: u32 = 4;

/// Minimum tokens of an agent on average, as a part of the context: a persona and a few turns.
const CONTEXT_PART: u32 = 4;

/// Memory that agents of a model take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheNeeds {
    /// Tokens of an agent's context.
    pub context_tokens: u32,
    /// Bytes of the keys and values of a token.
    pub kv_bytes_per_token: u64,
    /// Bytes of the recurrent state of an agent.
    pub state_bytes_per_agent: u64,
}

/// A number of agents, and the tokens of the KV pages that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Agents that can speak at the same time: slots.
    pub agents: u32,
    /// Capacity of the KV pages in tokens.
    pub kv_tokens: u32,
    /// Its reason.
    pub limit: CacheLimit,
}

/// What determines the size of a cache. `Display` completes the sentence "the cache has …".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLimit {
    /// A page for each token of each context: on a GPU, or if it is small enough.
    Whole,
    /// The options.
    Options,
    /// An eighth of the free bytes.
    Free(u64),
    /// The maximum of the default.
    Maximum,
    /// The system does not report its free memory.
    Unknown,
    /// Four full contexts, although an eighth of the free bytes is less.
    Minimum,
}

impl fmt::Display for CacheLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Self::Whole => write!(f, "room for all contexts"),
            Self::Options => write!(f, "the size of the options"),
            Self::Free(free) => {
                write!(f, "an eighth of the {} MiB that the model leaves", mib(*free))
            }
            Self::Maximum => write!(f, "the default's maximum of {} MiB", mib(MAX_BYTES)),
            Self::Unknown => {
                write!(f, "{} MiB, because the free memory is unknown", mib(BYTES_UNKNOWN))
            }
            Self::Minimum => write!(f, "room for {AGENTS_MIN} contexts, the least"),
        }
    }
}

impl CacheSize {
    /// A page for each token of each context.
    #[must_use]
    pub fn whole(agents: u32, context_tokens: u32, limit: CacheLimit) -> Self {
        Self { agents, kv_tokens: agents.saturating_mul(paged(context_tokens)), limit }
    }

    /// The default on a device with this many free bytes, for a model of this size: on a CPU as
    /// a part of the bytes that the model leaves, on a GPU a full context for each of 64 agents.
    ///
    /// # Examples
    /// ```
    /// use walla_plan::{CacheNeeds, CacheSize};
    /// // A 0.5B model of 400 MiB on a machine with 2.4 GiB of free memory.
    /// let needs = CacheNeeds { context_tokens: 1_024, kv_bytes_per_token: 12_288, state_bytes_per_agent: 0 };
    /// let size = CacheSize::of_device(needs, true, Some(2_448 << 20), 400 << 20);
    /// assert_eq!((size.agents, size.kv_tokens), (64, 21_840));
    /// assert_eq!(size.limit.to_string(), "an eighth of the 2048 MiB that the model leaves");
    /// ```
    #[must_use]
    pub fn of_device(
        needs: CacheNeeds,
        is_cpu: bool,
        free_bytes: Option<u64>,
        model_bytes: u64,
    ) -> Self {
        if is_cpu {
            Self::of_cpu(needs, free_bytes.map(|free| free.saturating_sub(model_bytes)))
        } else {
            Self::whole(MAX_SEQUENCES, needs.context_tokens, CacheLimit::Whole)
        }
    }

    /// The default on a CPU with this many free bytes, or an unknown number.
    fn of_cpu(needs: CacheNeeds, free_bytes: Option<u64>) -> Self {
        let (bytes, limit) = match free_bytes {
            None => (BYTES_UNKNOWN, CacheLimit::Unknown),
            Some(free) if free / FREE_PART < MAX_BYTES => {
                (free / FREE_PART, CacheLimit::Free(free))
            }
            Some(_) => (MAX_BYTES, CacheLimit::Maximum),
        };
        let context = paged(needs.context_tokens);
        // States take half at most.
        let of_states = (bytes / 2).checked_div(needs.state_bytes_per_agent);
        let agents =
            of_states.map_or(MAX_SEQUENCES, |agents| u32::try_from(agents).unwrap_or(u32::MAX));
        let agents = agents.clamp(AGENTS_MIN, MAX_SEQUENCES);
        let states = needs.state_bytes_per_agent.saturating_mul(agents.into());
        let tokens = bytes.saturating_sub(states).checked_div(needs.kv_bytes_per_token);
        let tokens = tokens.map_or(u32::MAX, |tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let least = AGENTS_MIN.saturating_mul(context);
        let kv_tokens = tokens.clamp(least, agents.saturating_mul(context).max(least));
        let kv_tokens = kv_tokens - kv_tokens % PAGE_TOKENS;
        let per_agent = (context / CONTEXT_PART).max(CONTEXT_TOKENS / 16);
        let agents = agents.min((kv_tokens / per_agent).max(AGENTS_MIN));
        let is_whole = agents == MAX_SEQUENCES && kv_tokens >= agents.saturating_mul(context);
        let limit = match () {
            () if is_whole => CacheLimit::Whole,
            () if tokens < least => CacheLimit::Minimum,
            () => limit,
        };
        Self { agents, kv_tokens, limit }
    }
}

/// The tokens of whole pages.
fn paged(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE_TOKENS).saturating_mul(PAGE_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn needs(
        context_tokens: u32,
        kv_bytes_per_token: u64,
        state_bytes_per_agent: u64,
    ) -> CacheNeeds {
        CacheNeeds { context_tokens, kv_bytes_per_token, state_bytes_per_agent }
    }

    /// Agents, tokens and limit of a model with this many bytes per token.
    fn size(kv_bytes_per_token: u64, free: impl Into<Option<u64>>) -> (u32, u32, CacheLimit) {
        let size = CacheSize::of_cpu(needs(1_024, kv_bytes_per_token, 0), free.into());
        (size.agents, size.kv_tokens, size.limit)
    }

    #[test]
    fn the_cache_is_a_part_of_the_free_memory() {
        // Qwen2.5 0.5B in f16: 24 layers of two heads of 64 numbers.
        assert_eq!(size(12_288, 64 * GIB), (64, 43_680, CacheLimit::Maximum));
        assert_eq!(size(12_288, 2 * GIB), (64, 21_840, CacheLimit::Free(2 * GIB)));
        assert_eq!(size(12_288, GIB), (42, 10_912, CacheLimit::Free(GIB)));
        assert_eq!(size(12_288, None), (64, 21_840, CacheLimit::Unknown));
        // The least, whether it fits or not: the device refuses memory that it lacks.
        assert_eq!(size(12_288, 300 << 20), (16, 4_096, CacheLimit::Minimum));
        assert_eq!(size(12_288, 0), (16, 4_096, CacheLimit::Minimum));
        // The demo model: everything.
        assert_eq!(size(1_024, 8 * GIB), (64, 65_536, CacheLimit::Whole));
        // Models of 1B and 8B.
        assert_eq!(size(32_768, 16 * GIB), (64, 16_384, CacheLimit::Maximum));
        assert_eq!(size(131_072, 16 * GIB), (16, 4_096, CacheLimit::Maximum));
    }

    #[test]
    fn recurrent_states_take_half_at_most() {
        // Qwen 3.5 0.8B: 19 MB of state, and keys and values in every fourth layer.
        let of = |free| CacheSize::of_cpu(needs(1_024, 12_288, 19 << 20), Some(free));
        assert_eq!((of(64 * GIB).agents, of(64 * GIB).limit), (13, CacheLimit::Maximum));
        assert_eq!(of(64 * GIB).kv_tokens, 13 * 1_024);
        assert_eq!(of(GIB).agents, 4);
        let small = CacheSize::of_cpu(needs(1_024, 1_024, 4_096), Some(8 * GIB));
        assert_eq!((small.agents, small.limit), (64, CacheLimit::Whole));
    }

    /// For all numbers: the bounds, and the memory.
    #[test]
    fn sizes_are_bounded() {
        let mut random = 1_u64;
        // A number of up to this many bits.
        let mut draw = |bits: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 20) & ((1 << ((random >> 52) % (bits + 1))) - 1)
        };
        for _ in 0..20_000 {
            let needs = needs(1 + draw(20) as u32, draw(24), draw(30));
            let free = (draw(3) > 0).then(|| draw(40));
            let CacheSize { agents, kv_tokens, limit } = CacheSize::of_cpu(needs, free);
            assert!((AGENTS_MIN..=MAX_SEQUENCES).contains(&agents), "{needs:?} {free:?}: {agents}");
            assert!(
                kv_tokens
                    >= paged(needs.context_tokens).saturating_mul(AGENTS_MIN) / PAGE_TOKENS
                        * PAGE_TOKENS
            );
            let pages = needs.kv_bytes_per_token.saturating_mul(kv_tokens.into());
            let states = needs.state_bytes_per_agent.saturating_mul(agents.into());
            let most = free.map_or(BYTES_UNKNOWN, |free| (free / FREE_PART).min(MAX_BYTES));
            let is_least = agents == AGENTS_MIN || limit == CacheLimit::Minimum;
            assert!(is_least || pages + states <= most, "{needs:?} {free:?}: {agents} {kv_tokens}");
            // More free memory never means less.
            let more = CacheSize::of_cpu(needs, free.map(|free| free * 2));
            assert!(more.agents >= agents && more.kv_tokens >= kv_tokens, "{needs:?} {free:?}");
        }
    }
}
