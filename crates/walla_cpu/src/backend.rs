use walla_device::{Backend, Device, DeviceError, DeviceInfo, DeviceKind, OpenOptions};

use crate::device::CpuDevice;
use crate::options::CpuOptions;

/// The family with one device: `cpu`.
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
    /// A backend whose devices work as `options` say; what is given when opening counts more than what is given here.
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

/// What the device with these options is.
pub(crate) fn describe(options: &CpuOptions) -> DeviceInfo {
    let (memory_total_bytes, memory_free_bytes) = memory_bytes();
    DeviceInfo {
        name: "cpu".to_owned(),
        kind: DeviceKind::Cpu,
        description: processor_name(),
        variant: options.variant.unwrap_or_else(crate::Variant::best).name().to_owned(),
        threads: options.threads_resolved(),
        memory_total_bytes,
        memory_free_bytes: Some(memory_free_bytes),
        gpu: None,
    }
}

/// All memory and available memory of this machine in bytes; zeros where the system does not tell.
pub(crate) fn memory_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (meminfo_bytes(&text, "MemTotal:"), meminfo_bytes(&text, "MemAvailable:"))
}

/// A line of `/proc/meminfo`, which counts in KiB.
fn meminfo_bytes(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
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
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:        2048 kB\nMemFree: 1 kB\nMemAvailable:   12 kB\n";
        assert_eq!(meminfo_bytes(text, "MemTotal:"), 2 << 20);
        assert_eq!(meminfo_bytes(text, "MemAvailable:"), 12 << 10);
        assert_eq!(meminfo_bytes("", "MemTotal:"), 0);
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(CpuBackend::default().open("cuda:0", &OpenOptions::default()).is_err());
    }
}
