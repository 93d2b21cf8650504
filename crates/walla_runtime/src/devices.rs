//! The devices of this build.

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions, Registry};
use walla_types::environment::{self, CPU_VARIANT};

/// A registry of all devices of this build. A family that is not built in is listed with the reason
/// for its absence.
///
/// Settings of devices are taken from the environment:
/// `WALLA_CPU_VARIANT` selects the CPU kernels. A name that is unknown, or whose kernels this
/// machine cannot run, logs a warning, and the best kernels are used. With the feature `cuda`, the
/// variables `WALLA_CUDA_…` apply (`walla_cuda::CudaBackend::from_env`); with `vulkan`, the
/// variables `WALLA_VULKAN_…` (`walla_vulkan::VulkanBackend::from_env`).
#[must_use]
pub fn default_registry() -> Registry {
    let variant = environment::cpu_variant().and_then(|name| variant_named(&name));
    let registry =
        Registry::new().with(CpuBackend::new(CpuOptions { variant, ..CpuOptions::default() }));
    #[cfg(feature = "cuda")]
    let registry = registry.with(walla_cuda::CudaBackend::from_env());
    #[cfg(not(feature = "cuda"))]
    let registry = registry.with(NotBuilt {
        family: "cuda",
        reason: "this program was built without NVIDIA GPUs, the feature `cuda` of walla",
    });
    #[cfg(feature = "vulkan")]
    let registry = registry.with(walla_vulkan::VulkanBackend::from_env());
    #[cfg(not(feature = "vulkan"))]
    let registry = registry.with(NotBuilt {
        family: "vulkan",
        reason: "this program was built without Vulkan, the feature `vulkan` of walla",
    });
    registry
}

/// Replaces a backend that is not built in, so that errors and lists name its feature.
#[cfg_attr(all(feature = "cuda", feature = "vulkan"), expect(dead_code, reason = "all are built"))]
struct NotBuilt {
    family: &'static str,
    reason: &'static str,
}

impl Backend for NotBuilt {
    fn name(&self) -> &'static str {
        self.family
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        Err(self.reason.to_owned())
    }

    fn score(&self, _: &DeviceInfo) -> i32 {
        -1
    }

    fn open(&self, name: &str, _: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Unsupported { device: name.to_owned(), what: self.reason.to_owned() })
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
    use super::*;

    #[test]
    fn a_missing_gpu_has_a_reason() {
        let registry = default_registry();
        let reason = |name| match registry.open(name, &OpenOptions::default()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("no machine has 100 GPUs"),
        };
        let message = reason("cuda:99");
        if cfg!(not(feature = "cuda")) {
            assert!(message.contains("feature `cuda`"), "{message}");
        } else {
            assert!(message.contains("NVIDIA driver") || message.contains("cuda:0"), "{message}");
        }
        let message = reason("vulkan:99");
        if cfg!(not(feature = "vulkan")) {
            assert!(message.contains("feature `vulkan`"), "{message}");
        } else {
            assert!(message.contains("Vulkan") || message.contains("vulkan:0"), "{message}");
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
