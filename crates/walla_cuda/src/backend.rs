use std::path::PathBuf;

use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions};
use walla_types::environment::{self, CUDA_GRAPHS};

use crate::device::{self, CudaDevice};
use crate::driver::Library;
use crate::images::Images;
use crate::loading::LoadSettings;

/// Lists and opens GPUs through CUDA's driver API. Without a driver, it reports why and lists no
/// GPU.
#[derive(Clone, Debug, Default)]
pub struct CudaBackend {
    eager: Option<String>,
    without_warpgroups: bool,
    load: LoadSettings,
    images: Images,
}

impl CudaBackend {
    /// A backend with settings from the [environment](walla_types::environment).
    /// `WALLA_CUDA_GRAPHS=0` launches programs op by op. `WALLA_CUDA_IMAGES` names kernel images
    /// (files and folders, separated as in `PATH`); one is used if it is at least as good as the
    /// crate's. Images in a folder `walla_images` next to the executable are considered as well.
    ///
    /// `WALLA_CUDA_HOST_TABLES=0` loads all tables to the device:
    /// [`host_table_bytes_min`](Self::host_table_bytes_min).
    ///
    /// `WALLA_CUDA_WARPGROUPS=0` is for comparisons: GPUs of compute capability 9.0 then use the
    /// same kernels for many rows as other GPUs, instead of WGMMA kernels
    /// (`kernels/gemm/gemm_sm90.cuh`). Results are bitwise identical.
    #[must_use]
    pub fn from_env() -> Self {
        let without_warpgroups = !environment::cuda_warpgroups();
        let eager = (!environment::cuda_graphs()).then(|| format!("{CUDA_GRAPHS} is 0"));
        let images = Images::find(&environment::cuda_images());
        let backend = Self { eager, without_warpgroups, load: LoadSettings::default(), images };
        match environment::cuda_host_tables() {
            true => backend,
            false => backend.host_table_bytes_min(usize::MAX),
        }
    }

    /// A backend that launches programs op by op, for the given reason.
    #[must_use]
    pub fn eager(reason: &str) -> Self {
        Self { eager: Some(reason.to_owned()), ..Self::default() }
    }

    /// Disables the WGMMA kernels even if image and GPU support them: see
    /// [`from_env`](Self::from_env).
    #[must_use]
    pub fn without_warpgroups(mut self) -> Self {
        self.without_warpgroups = true;
        self
    }

    /// Sets the number of threads that read and repack weights during model load, from 1 to 8.
    /// Default: half of the cores, at most 8. Eight threads saturate the bus, and a game uses its
    /// other cores while a model loads.
    #[must_use]
    pub fn load_threads(mut self, threads: usize) -> Self {
        self.load.threads = Some(threads);
        self
    }

    /// Sets the size from which tables that are only looked up stay in pinned memory of the host:
    /// an embedding that is not also the output head, or Gemma 4's embeddings of its layers. A step
    /// reads one row of the table, some KB, for each of its rows. Default: 64 MiB. `usize::MAX`
    /// loads every table to the device.
    #[must_use]
    pub fn host_table_bytes_min(mut self, bytes: usize) -> Self {
        self.load.host_table_bytes_min = Some(bytes);
        self
    }

    /// Adds the kernel images in the named files and folders, and those next to the executable, to
    /// the crate's.
    #[must_use]
    pub fn with_images(mut self, places: &[PathBuf]) -> Self {
        self.images = Images::find(places);
        self
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        let gpus = Library::load()?.gpus()?;
        if gpus.is_empty() {
            return Err("the NVIDIA driver finds no GPU".to_owned());
        }
        let info = |(ordinal, gpu)| device::info(ordinal, gpu, &self.images, self.eager.as_deref());
        Ok(gpus.iter().enumerate().map(info).collect())
    }

    /// Every GPU with usable kernels scores higher than the CPU; more multiprocessors score higher.
    fn score(&self, info: &DeviceInfo) -> i32 {
        let facts = info.gpu.as_ref();
        match facts.filter(|facts| !self.images.ranked(facts).is_empty()) {
            Some(facts) => 100 + facts.multiprocessors.cast_signed(),
            None => -1,
        }
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(self.open_gpu(name, options)?))
    }
}

impl CudaBackend {
    /// Opens a GPU by its name and returns its concrete type, which has more methods than the
    /// contract.
    ///
    /// # Errors
    /// A driver error, or [`DeviceError::Invalid`] for an unknown name.
    pub fn open_gpu(&self, name: &str, options: &OpenOptions) -> Result<CudaDevice, DeviceError> {
        let failed = |reason| DeviceError::Failed { call: "open", reason };
        let gpus = Library::load().and_then(Library::gpus).map_err(failed)?;
        let ordinal = name.strip_prefix("cuda:").and_then(|number| number.parse::<usize>().ok());
        let found = ordinal.and_then(|ordinal| Some((ordinal, gpus.get(ordinal)?)));
        let Some((ordinal, gpu)) = found else {
            return Err(DeviceError::Invalid(format!("{name} is none of {} GPUs", gpus.len())));
        };
        let eager = self.eager.clone();
        let settings = (eager, !self.without_warpgroups, self.load);
        CudaDevice::open(ordinal, gpu, &self.images, settings, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_gpu_is_an_error_with_a_reason() {
        let backend = CudaBackend::default();
        match backend.devices() {
            Ok(devices) => assert!(!devices.is_empty()),
            Err(reason) => {
                assert!(reason.contains("NVIDIA"), "{reason}");
                assert!(backend.open("cuda:0", &OpenOptions::default()).is_err());
            }
        }
    }
}
