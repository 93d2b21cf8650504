use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions};

use crate::device::{self, CudaDevice};
use crate::driver::Library;
use crate::images;

/// Set to anything but `0`, this environment variable keeps programs from being captured as graphs.
const GRAPHS_OFF: &str = "WALLA_CUDA_DISABLE_GRAPHS";

/// Lists and opens GPUs through CUDA's driver API. Where there is no driver it says so and lists none.
#[derive(Clone, Debug, Default)]
pub struct CudaBackend {
    eager: Option<String>,
}

impl CudaBackend {
    /// A backend with settings from the environment: `WALLA_CUDA_DISABLE_GRAPHS` launches programs op by op.
    #[must_use]
    pub fn from_env() -> Self {
        let off = std::env::var_os(GRAPHS_OFF).is_some_and(|value| value != "0");
        Self { eager: off.then(|| format!("{GRAPHS_OFF} is set")) }
    }

    /// A backend that launches programs op by op, for the stated reason.
    #[must_use]
    pub fn eager(reason: &str) -> Self {
        Self { eager: Some(reason.to_owned()) }
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
        Ok(gpus.iter().enumerate().map(|(ordinal, gpu)| device::info(ordinal, gpu)).collect())
    }

    /// Every GPU that has kernels is better than the CPU; among them the one with more multiprocessors.
    fn score(&self, info: &DeviceInfo) -> i32 {
        let facts = info.gpu.as_ref();
        match facts.filter(|facts| images::variant(facts.compute_capability).is_some()) {
            Some(facts) => 100 + facts.multiprocessors.cast_signed(),
            None => -1,
        }
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        let failed = |reason| DeviceError::Failed { call: "open", reason };
        let gpus = Library::load().and_then(Library::gpus).map_err(failed)?;
        let ordinal = name.strip_prefix("cuda:").and_then(|number| number.parse::<usize>().ok());
        let found = ordinal.and_then(|ordinal| Some((ordinal, gpus.get(ordinal)?)));
        let Some((ordinal, gpu)) = found else {
            return Err(DeviceError::Invalid(format!("{name} is none of {} GPUs", gpus.len())));
        };
        Ok(Box::new(CudaDevice::open(ordinal, gpu, self.eager.clone(), options.memory_bytes_max)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_is_told_why_and_nothing_panics() {
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
