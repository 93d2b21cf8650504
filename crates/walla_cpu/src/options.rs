use std::fmt;

/// A set of kernels, fit for some processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// Plain Rust: dequantised weights times f32 activations. Exact, slow, runs anywhere: the oracle of all others.
    Scalar,
}

impl Variant {
    /// Every variant, best first.
    pub const ALL: [Self; 1] = [Self::Scalar];

    /// The name in [`DeviceInfo::variant`](walla_device::DeviceInfo::variant).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
        }
    }

    /// The variant of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }

    /// How good the variant is on this machine; `None` if it cannot run here.
    #[must_use]
    pub fn score(self) -> Option<u32> {
        match self {
            Self::Scalar => Some(0),
        }
    }

    /// The variant with the best score on this machine.
    #[must_use]
    pub fn best() -> Self {
        let scored = Self::ALL.into_iter().filter_map(|variant| Some((variant.score()?, variant)));
        scored.max_by_key(|&(score, _)| score).map_or(Self::Scalar, |(_, variant)| variant)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a [`CpuDevice`](crate::CpuDevice) works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that kernels run on. Default `None`: half of the cores, at least one, because a game keeps its own.
    pub threads: Option<u32>,
    /// Kernels to use. Default `None`: the best that this machine runs.
    pub variant: Option<Variant>,
    /// Runs every command on the calling thread, inside the call, and starts no thread. Default `false`; `true` makes a
    /// simulation deterministic.
    pub inline: bool,
}

impl CpuOptions {
    /// Most threads that a device uses: more never helped a memory-bound step.
    pub const THREADS_MAX: u32 = 64;

    /// Threads after defaults and limits.
    #[must_use]
    pub fn threads_resolved(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let half = u32::try_from(cores / 2).unwrap_or(Self::THREADS_MAX);
        let wanted = if self.inline { 1 } else { self.threads.unwrap_or(half) };
        wanted.clamp(1, Self::THREADS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for variant in Variant::ALL {
            assert_eq!(Variant::from_name(variant.name()), Some(variant));
        }
    }

    #[test]
    fn the_best_variant_runs_here() {
        assert!(Variant::best().score().is_some());
    }

    #[test]
    fn at_least_one_thread_and_one_only_when_inline() {
        let options = |threads, inline| CpuOptions { threads, inline, ..Default::default() };
        assert_eq!(options(Some(0), false).threads_resolved(), 1);
        assert_eq!(options(Some(3), false).threads_resolved(), 3);
        assert_eq!(options(Some(3), true).threads_resolved(), 1);
        assert!(options(None, false).threads_resolved() >= 1);
    }
}
