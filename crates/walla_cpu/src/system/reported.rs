//! Facts of the machine that Windows and macOS report to `sysinfo`.

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::SystemMemory;

/// See [`SystemMemory::now`]. A limit of a container or of a job object is not known.
pub(super) fn memory() -> Option<SystemMemory> {
    // Without the page file.
    let ram = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(ram).ok()?;
    let total = system.total_memory();
    let available = system.available_memory().min(total);
    (total > 0).then_some(SystemMemory { total, available })
}

/// All physical cores.
pub(super) fn cores() -> Option<usize> {
    System::physical_core_count().ok()
}

/// The brand of the first processor.
pub(super) fn processor_name() -> Option<String> {
    let cpus = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(cpus).ok()?;
    system.cpus().first().map(|cpu| cpu.brand().to_owned())
}
