use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions};

use crate::device::CpuDevice;
use crate::info::describe;
use crate::options::CpuOptions;

/// The backend with one device: `cpu`.
///
/// # Examples
/// ```
/// use walla_cpu::CpuBackend;
/// use walla_device::{OpenOptions, Registry};
///
/// let registry = Registry::new().with(CpuBackend::default());
/// let device = registry.open("auto", &OpenOptions::default())?;
/// assert_eq!(device.info().name, "cpu");
/// # Ok::<(), walla_device::RegistryError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend {
    options: CpuOptions,
}

impl CpuBackend {
    /// A backend whose devices use `options`. Options given to [`open`](Backend::open) take
    /// precedence.
    #[must_use]
    pub fn new(options: CpuOptions) -> Self {
        Self { options }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        Ok(vec![describe(&self.options)])
    }

    fn score(&self, _info: &DeviceInfo) -> i32 {
        0
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        if name != "cpu" {
            return Err(DeviceError::Invalid(format!("no device {name:?} in the cpu backend")));
        }
        let options = CpuOptions {
            threads: options.threads.or(self.options.threads),
            max_memory_bytes: options.max_memory_bytes.or(self.options.max_memory_bytes),
            ..self.options
        };
        Ok(Box::new(CpuDevice::new(options)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused() {
        assert!(CpuBackend::default().open("cuda:0", &OpenOptions::default()).is_err());
    }

    #[test]
    fn no_threads_are_refused() {
        let open = |threads| {
            let options = OpenOptions { threads: Some(threads), ..OpenOptions::default() };
            CpuBackend::default().open("cpu", &options).map(drop)
        };
        assert!(
            matches!(open(0), Err(DeviceError::Invalid(reason)) if reason.contains("0 threads"))
        );
        assert_eq!(open(1), Ok(()));
    }
}
