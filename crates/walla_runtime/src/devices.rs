//! The devices of this build.

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_device::Registry;
#[cfg(not(feature = "cuda"))]
use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions};
use walla_types::environment::{self, CPU_VARIANT};

/// A registry of all devices of this build. Without the feature `cuda` it lists the CUDA family
/// with the reason for its absence.
///
/// Settings of devices are taken from the environment:
/// `WALLA_CPU_VARIANT` selects the CPU kernels. A name that is unknown, or whose kernels this
/// machine cannot run, logs a warning, and the best kernels are used. With the feature `cuda`, the
/// variables `WALLA_CUDA_…` apply (`walla_cuda::CudaBackend::from_env`).
#[must_use]
pub fn default_registry() -> Registry {
    let variant = environment::cpu_variant().and_then(|name| variant_named(&name));
    let registry =
        Registry::new().with(CpuBackend::new(CpuOptions { variant, ..CpuOptions::default() }));
    #[cfg(feature = "cuda")]
    let registry = registry.with(walla_cuda::CudaBackend::from_env());
    #[cfg(not(feature = "cuda"))]
    let registry = registry.with(NotBuilt);
    registry
}

/// Replaces the CUDA backend in a build without it, so that errors and lists name the feature.
#[cfg(not(feature = "cuda"))]
struct NotBuilt;

#[cfg(not(feature = "cuda"))]
impl NotBuilt {
    const REASON: &str = "this program was built without NVIDIA GPUs, the feature `cuda` of walla";
}

#[cfg(not(feature = "cuda"))]
impl Backend for NotBuilt {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        Err(Self::REASON.to_owned())
    }

    fn score(&self, _: &DeviceInfo) -> i32 {
        -1
    }

    fn open(&self, name: &str, _: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Unsupported { device: name.to_owned(), what: Self::REASON.to_owned() })
    }
}

/// The CPU kernels of this name. Returns `None` and logs the available names if it is unknown or
/// its kernels cannot run on this machine.
fn variant_named(name: &str) -> Option<Variant> {
    let variant = Variant::from_name(name).filter(|variant| variant.score().is_some());
    if variant.is_none() {
        let runs = Variant::ALL.iter().filter(|variant| variant.score().is_some());
        let runs: Vec<_> = runs.map(|variant| variant.name()).collect();
        let what = format!("{CPU_VARIANT} names no kernels that run here");
        tracing::warn!(%name, ?runs, "{what}");
        walla_trace::warn_if_unlogged(format_args!("{what}: {name:?}, not {runs:?}"));
    }
    variant
}

#[cfg(test)]
mod tests {
    use walla_device::OpenOptions;

    use super::*;

    #[test]
    fn a_missing_gpu_has_a_reason() {
        let registry = default_registry();
        let Err(error) = registry.open("cuda:99", &OpenOptions::default()) else {
            panic!("no machine has 100 GPUs");
        };
        let message = error.to_string();
        if cfg!(not(feature = "cuda")) {
            assert!(message.contains("feature `cuda`"), "{message}");
        } else {
            assert!(message.contains("NVIDIA driver") || message.contains("cuda:0"), "{message}");
        }
    }

    #[test]
    fn a_name_selects_supported_kernels_or_none() {
        assert_eq!(variant_named("scalar"), Some(Variant::Scalar));
        assert_eq!(variant_named("avx2"), None, "no name, though it looks like one");
        for variant in Variant::ALL {
            let runs = variant.score().is_some();
            assert_eq!(variant_named(variant.name()), runs.then_some(*variant));
        }
    }
}
