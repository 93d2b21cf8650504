use walla_device::{DeviceInfo, DeviceKind};

use crate::options::{CpuOptions, Variant};
use crate::system::{SystemMemory, processor_name};

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
        facts: Vec::new(),
    }
}
