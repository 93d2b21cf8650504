use walla_device::{DeviceInfo, DeviceKind};

use crate::options::{CpuOptions, Variant};
use crate::system::SystemMemory;

/// The information about a device with these options.
pub(crate) fn describe(options: &CpuOptions) -> DeviceInfo {
    let memory = SystemMemory::now();
    let free = memory.map(|memory| memory.available);
    let ceiling = options.max_memory_bytes;
    DeviceInfo {
        name: "cpu".to_owned(),
        kind: DeviceKind::Cpu,
        description: processor_name(),
        variant: options.variant.unwrap_or_else(Variant::best).name().to_owned(),
        threads: options.threads_resolved(),
        memory_total_bytes: memory.map(|memory| memory.total),
        memory_free_bytes: free.into_iter().chain(ceiling).min(),
        gpu: None,
    }
}

fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    name.filter(|name| !name.is_empty()).unwrap_or(std::env::consts::ARCH).to_owned()
}
