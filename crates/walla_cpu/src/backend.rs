use walla_device::{Backend, Device, DeviceError, DeviceInfo, DeviceKind, OpenOptions};

use crate::device::CpuDevice;
use crate::options::CpuOptions;
use crate::system::SystemMemory;

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
            memory_bytes_max: options.memory_bytes_max.or(self.options.memory_bytes_max),
            ..self.options
        };
        Ok(Box::new(CpuDevice::new(options)?))
    }
}

/// The information about a device with these options.
pub(crate) fn describe(options: &CpuOptions) -> DeviceInfo {
    let memory = SystemMemory::now();
    DeviceInfo {
        name: "cpu".to_owned(),
        kind: DeviceKind::Cpu,
        description: processor_name(),
        variant: options.variant.unwrap_or_else(crate::Variant::best).name().to_owned(),
        threads: options.threads_resolved(),
        memory_total_bytes: memory.map(|memory| memory.total),
        memory_free_bytes: memory.map(|memory| memory.available),
        gpu: None,
    }
}

fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    name.filter(|name| !name.is_empty()).unwrap_or(std::env::consts::ARCH).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused() {
        assert!(CpuBackend::default().open("cuda:0", &OpenOptions::default()).is_err());
    }
}
