use std::fmt;

use crate::system;

/// A set of kernels for a class of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// Plain Rust: dequantised weights times f32 activations. Exact, slow and portable; the oracle
    /// for all other variants.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C: activations rounded to 8 bits in groups of 32 for quantised
    /// weights.
    Avx2Fma,
    /// As `Avx2Fma`, and AVX-VNNI: four products of bytes in one instruction.
    AvxVnni,
    /// x86-64 with AVX-512 (F, BW, VL) and VNNI: the same rounding.
    Avx512Vnni,
    /// AArch64 with NEON: the same rounding. Not yet run on hardware, as the next two.
    Neon,
    /// As `Neon`, and dot products of bytes: four products of bytes in one instruction.
    NeonDot,
    /// As `NeonDot`, and products of 8-bit matrices: the same for two rows and two columns at once.
    NeonI8mm,
}

impl Variant {
    /// Every variant, best first.
    pub const ALL: &'static [Self] = &[
        Self::Avx512Vnni,
        Self::AvxVnni,
        Self::Avx2Fma,
        Self::NeonI8mm,
        Self::NeonDot,
        Self::Neon,
        Self::Scalar,
    ];

    /// The name in [`DeviceInfo::variant`](walla_device::DeviceInfo::variant).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2Fma => "avx2fma",
            Self::AvxVnni => "avxvnni",
            Self::Avx512Vnni => "avx512vnni",
            Self::Neon => "neon",
            Self::NeonDot => "neondot",
            Self::NeonI8mm => "neoni8mm",
        }
    }

    /// The variant with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|variant| variant.name() == name)
    }

    /// The variant's rank on this machine; `None` if it cannot run here.
    #[must_use]
    pub fn score(self) -> Option<u32> {
        #[cfg(target_arch = "aarch64")]
        use std::arch::is_aarch64_feature_detected as has;
        #[cfg(target_arch = "x86_64")]
        use std::arch::is_x86_feature_detected as has;
        #[cfg(target_arch = "x86_64")]
        let has_avx2 = has!("avx2") && has!("fma") && has!("f16c");
        match self {
            Self::Scalar => Some(0),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma => has_avx2.then_some(1),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => (has_avx2 && has!("avxvnni")).then_some(2),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                let has_avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl");
                (has_avx2 && has_avx512 && has!("avx512vnni")).then_some(3)
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => has!("neon").then_some(1),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => (has!("neon") && has!("dotprod")).then_some(2),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => (has!("neon") && has!("dotprod") && has!("i8mm")).then_some(3),
            _ => None,
        }
    }

    /// Whether kernels use vector instructions, and take matrices in panels instead of the file's
    /// layout.
    pub(crate) const fn has_vectors(self) -> bool {
        !matches!(self, Self::Scalar)
    }

    /// Whether quantised weights are multiplied with activations rounded to 8 bits.
    #[must_use]
    pub const fn rounds_activations(self) -> bool {
        self.has_vectors()
    }

    /// The variant with the best score on this machine.
    #[must_use]
    pub fn best() -> Self {
        let scored = Self::ALL.iter().filter_map(|&variant| Some((variant.score()?, variant)));
        scored.max_by_key(|&(score, _)| score).map_or(Self::Scalar, |(_, variant)| variant)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Configuration of a [`CpuDevice`](crate::CpuDevice).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Maximum number of kernel threads; each step and each of its ops uses as many of them as make
    /// it faster. At least 1; numbers beyond the hardware threads that the process may use, or
    /// beyond [`MAX_THREADS`](Self::MAX_THREADS), are lowered to them. Default `None`: half of the
    /// cores, at least one, because the game needs the other half. On Linux, hardware threads that
    /// share a core count as one core; elsewhere each counts as one.
    pub threads: Option<u32>,
    /// Kernels to use. Default `None`: the best variant for this machine.
    pub variant: Option<Variant>,
    /// Ceiling of the device's memory, in bytes. Allocations beyond it return
    /// [`OutOfMemory`](walla_device::DeviceError::OutOfMemory). Default `None`: 15/16 of the memory
    /// that is available to the machine or container at the time of the allocation. Only Linux
    /// reports this; elsewhere there is no ceiling.
    pub max_memory_bytes: Option<u64>,
    /// Estimated cost of one more thread in an op, in nanoseconds. An op of `w` nanoseconds runs on
    /// up to `sqrt(w / cost)` threads; 0 means that all threads share every op. Default `None`:
    /// 300. Results do not depend on it.
    pub thread_cost_nanos: Option<u32>,
    /// Runs every command inside the call, on the calling thread, and starts no thread. Default
    /// `false`; `true` makes a simulation deterministic.
    pub inline: bool,
}

impl CpuOptions {
    /// Maximum number of threads: more never made a memory-bound step faster.
    pub const MAX_THREADS: u32 = 64;

    /// Number of threads after defaults and limits.
    #[must_use]
    pub fn threads_resolved(&self) -> u32 {
        let half = || u32::try_from(system::cores() / 2).unwrap_or(Self::MAX_THREADS);
        let wanted = if self.inline { 1 } else { self.threads.unwrap_or_else(half) };
        // Threads that take turns on a processor wait for each other in every op.
        let processors = u32::try_from(system::processors()).unwrap_or(Self::MAX_THREADS);
        wanted.clamp(1, processors.clamp(1, Self::MAX_THREADS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &variant in Variant::ALL {
            assert_eq!(Variant::from_name(variant.name()), Some(variant));
        }
    }

    #[test]
    fn the_best_variant_runs_here() {
        assert!(Variant::best().score().is_some());
    }

    #[test]
    fn threads_are_limited_by_the_processors_and_to_one_when_inline() {
        let options = |threads, inline| CpuOptions { threads, inline, ..Default::default() };
        let processors = u32::try_from(system::processors()).unwrap();
        for threads in 1..=3 {
            let resolved = options(Some(threads), false).threads_resolved();
            assert_eq!(resolved, threads.min(processors));
        }
        assert!(options(Some(u32::MAX), false).threads_resolved() <= CpuOptions::MAX_THREADS);
        assert_eq!(options(Some(3), true).threads_resolved(), 1);
        assert!(options(None, false).threads_resolved() >= 1);
    }
}
