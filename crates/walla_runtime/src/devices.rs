//! The devices that walla was built with.

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_device::Registry;

/// A registry of all devices of this build.
///
/// The environment is read here and nowhere else: `WALLA_CPU_VARIANT` (`scalar`, `avx2fma`, `avxvnni`, `avx512vnni`, `neon`) picks the CPU's
/// kernels; a name that is unknown, or that this machine does not run, is a warning, and the best ones are used. With the feature `cuda`, `WALLA_CUDA_GRAPHS=0` launches programs op by op, and
/// `WALLA_CUDA_IMAGES` names kernel images to consider; `WALLA_CUDA_WARPGROUPS=0` does without warpgroups
/// (`walla_cuda::CudaBackend::from_env`).
#[must_use]
pub fn default_registry() -> Registry {
    let variant = std::env::var("WALLA_CPU_VARIANT").ok().and_then(|name| variant_named(&name));
    let registry =
        Registry::new().with(CpuBackend::new(CpuOptions { variant, ..CpuOptions::default() }));
    #[cfg(feature = "cuda")]
    let registry = registry.with(walla_cuda::CudaBackend::from_env());
    registry
}

/// The CPU's kernels of this name, if there are some and they run here; else a warning says which do.
fn variant_named(name: &str) -> Option<Variant> {
    let variant = Variant::from_name(name).filter(|variant| variant.score().is_some());
    if variant.is_none() {
        let runs = Variant::ALL.iter().filter(|variant| variant.score().is_some());
        let runs: Vec<_> = runs.map(|variant| variant.name()).collect();
        tracing::warn!(%name, ?runs, "WALLA_CPU_VARIANT names no kernels that run here");
    }
    variant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_picks_kernels_that_run_here_or_none() {
        assert_eq!(variant_named("scalar"), Some(Variant::Scalar));
        assert_eq!(variant_named("avx2"), None, "no name, though it looks like one");
        for variant in Variant::ALL {
            let runs = variant.score().is_some();
            assert_eq!(variant_named(variant.name()), runs.then_some(*variant));
        }
    }
}
