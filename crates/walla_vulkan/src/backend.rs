use std::path::PathBuf;

use walla_device::{Backend, Device, DeviceError, DeviceInfo, DeviceKind, OpenOptions};

use ash::vk::PhysicalDeviceType;
use walla_types::environment;

use crate::device::VulkanDevice;
use crate::driver::{Gpu, Library, OPTIONAL};

/// Lists and opens GPUs through Vulkan. Without a loader or a driver, it reports why and lists no
/// GPU.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VulkanBackend {
    without: Vec<String>,
    cache: Option<PathBuf>,
}

impl VulkanBackend {
    /// A backend with settings from the [environment](walla_types::environment).
    /// `WALLA_VULKAN_WITHOUT` names features of a GPU that are not used; with an unknown name no
    /// GPU is listed or opened. Compiled shaders are kept in the user's cache folder, or in the
    /// folder `WALLA_VULKAN_CACHE`; `0`: not at all.
    #[must_use]
    pub fn from_env() -> Self {
        Self { without: environment::vulkan_without(), cache: environment::vulkan_cache() }
    }

    fn check_names(&self) -> Result<(), String> {
        let is_unknown = |name: &&String| !OPTIONAL.contains(&name.as_str());
        let Some(name) = self.without.iter().find(is_unknown) else { return Ok(()) };
        let (variable, known) = (environment::VULKAN_WITHOUT, OPTIONAL.join(", "));
        Err(format!("{variable} names {name:?}, which is none of {known}"))
    }

    /// Keeps compiled shaders in a folder, which is created. Without this call they are compiled at
    /// each load.
    #[must_use]
    pub fn with_cache(mut self, folder: PathBuf) -> Self {
        self.cache = Some(folder);
        self
    }
}

/// Facts about a GPU.
pub(crate) fn info(ordinal: usize, gpu: &Gpu, free_bytes: Option<u64>) -> DeviceInfo {
    let (major, minor) = gpu.api;
    let queue = if gpu.is_compute_only { ", queue for compute" } else { "" };
    let dot = if gpu.has_dot_product { ", 8-bit dot products" } else { "" };
    let matrices = if gpu.has_matrices { ", matrices" } else { "" };
    DeviceInfo {
        name: format!("vulkan:{ordinal}"),
        kind: DeviceKind::Vulkan,
        description: format!("{} ({})", gpu.name, gpu.driver),
        variant: format!("vulkan {major}.{minor}, {} lanes{dot}{matrices}{queue}", gpu.lanes),
        threads: 0,
        memory_total_bytes: Some(gpu.memory_bytes),
        memory_free_bytes: free_bytes,
        gpu: None,
        facts: gpu.facts(),
    }
}

/// Kind of a GPU with all required features.
fn kind(info: &DeviceInfo) -> Option<PhysicalDeviceType> {
    let gpu = Library::load().ok()?.gpus().get(ordinal(&info.name)?)?;
    gpu.lacks.is_none().then_some(gpu.kind)
}

/// The number in `vulkan:0`.
fn ordinal(name: &str) -> Option<usize> {
    name.strip_prefix("vulkan:")?.parse().ok()
}

impl Backend for VulkanBackend {
    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        self.check_names()?;
        let library = Library::load()?;
        let gpus = library.gpus();
        if gpus.is_empty() {
            return Err("no Vulkan driver finds a GPU".to_owned());
        }
        let info = |(ordinal, gpu): (usize, &Gpu)| {
            info(ordinal, &gpu.without(&self.without), library.free_bytes(gpu))
        };
        Ok(gpus.iter().enumerate().map(info).collect())
    }

    /// A discrete GPU scores higher than the CPU, and lower than the same GPU with CUDA. An
    /// integrated GPU is measured. Drivers in software are chosen by name only.
    fn score(&self, info: &DeviceInfo) -> i32 {
        if kind(info) == Some(PhysicalDeviceType::DISCRETE_GPU) { 50 } else { -1 }
    }

    /// A virtual GPU may be any device of the host.
    fn is_measured(&self, info: &DeviceInfo) -> bool {
        let kinds = [PhysicalDeviceType::INTEGRATED_GPU, PhysicalDeviceType::VIRTUAL_GPU];
        kind(info).is_some_and(|kind| kinds.contains(&kind))
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(self.open_gpu(name, options)?))
    }
}

impl VulkanBackend {
    /// Opens a GPU by its name and returns its concrete type, which has more methods than the
    /// contract.
    ///
    /// # Errors
    /// The driver's error, [`DeviceError::Unsupported`] with the feature that the GPU lacks, or
    /// [`DeviceError::Invalid`] for an unknown name.
    pub fn open_gpu(&self, name: &str, options: &OpenOptions) -> Result<VulkanDevice, DeviceError> {
        let failed = |reason| DeviceError::Failed { call: "open", reason };
        self.check_names().map_err(failed)?;
        let library = Library::load().map_err(failed)?;
        let found = ordinal(name).and_then(|ordinal| Some((ordinal, library.gpus().get(ordinal)?)));
        let Some((ordinal, gpu)) = found else {
            let count = library.gpus().len();
            return Err(DeviceError::Invalid(format!("{name} is none of {count} GPUs")));
        };
        let gpu = gpu.without(&self.without);
        VulkanDevice::open((library, &gpu, ordinal), self.cache.as_deref(), options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_refused_by_name() {
        let without = ["dot", "matrix"].map(str::to_owned).to_vec();
        let backend = VulkanBackend { without, ..VulkanBackend::default() };
        let refused = backend.open_gpu("vulkan:0", &OpenOptions::default()).unwrap_err();
        for reason in [backend.devices().unwrap_err(), refused.to_string()] {
            assert!(reason.contains("\"matrix\", which is none of dot, matrices"), "{reason}");
        }
    }
}
