//! The devices that walla was built with.

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_device::Registry;

/// A registry of all devices of this build.
///
/// The environment is read here and nowhere else: `WALLA_CPU_VARIANT` (`scalar`, `avx2`, …) picks the CPU's kernels; an unknown or
/// unsupported name is ignored. With the feature `cuda`, `WALLA_CUDA_GRAPHS=0` launches programs op by op, and
/// `WALLA_CUDA_IMAGES` names kernel images to consider; `WALLA_CUDA_WARPGROUPS=0` does without warpgroups
/// (`walla_cuda::CudaBackend::from_env`).
#[must_use]
pub fn default_registry() -> Registry {
    let variant = std::env::var("WALLA_CPU_VARIANT").ok();
    let variant = variant.as_deref().and_then(Variant::from_name).filter(|v| v.score().is_some());
    let registry =
        Registry::new().with(CpuBackend::new(CpuOptions { variant, ..CpuOptions::default() }));
    #[cfg(feature = "cuda")]
    let registry = registry.with(walla_cuda::CudaBackend::from_env());
    registry
}
