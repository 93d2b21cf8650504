//! `walla devices`.

use std::io::Write;

use serde_json::{Value, json};
use walla_device::DeviceInfo;

use crate::Failure;
use crate::args::Devices;

pub fn run(arguments: &Devices) -> Result<(), Failure> {
    let registry = walla_runtime::default_registry();
    let devices = registry.devices();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let list: Vec<Value> = devices.iter().map(|(info, score)| to_json(info, *score)).collect();
        writeln!(out, "{}", Value::Array(list))?;
        return Ok(());
    }
    for (info, score) in &devices {
        writeln!(out, "{}", describe(info, *score))?;
    }
    for (name, reason) in registry.absent() {
        writeln!(out, "{name}: none ({reason})")?;
    }
    Ok(())
}

fn describe(info: &DeviceInfo, score: i32) -> String {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let (free, total) = (gib(info.memory_free_bytes), gib(info.memory_total_bytes));
    let mut text = format!(
        "{}: {}, kernels {}, {free:.1} of {total:.1} GiB free, score {score}",
        info.name, info.description, info.variant
    );
    if info.threads > 0 {
        text += &format!(", {} threads", info.threads);
    }
    if let Some(gpu) = &info.gpu {
        let (major, minor) = gpu.compute_capability;
        text += &format!(
            ", sm_{major}{minor}, {} SMs, {} threads a warp, {} KiB shared a block ({} KiB opt-in), driver {}",
            gpu.multiprocessors,
            gpu.warp_threads,
            gpu.shared_bytes_per_block / 1_024,
            gpu.shared_bytes_per_block_optin / 1_024,
            gpu.driver_version,
        );
        match gpu.vmm_granularity_bytes {
            Some(bytes) => text += &format!(", VMM in {} KiB", bytes / 1_024),
            None => text += ", no VMM",
        }
    }
    text
}

fn to_json(info: &DeviceInfo, score: i32) -> Value {
    let gpu = info.gpu.as_ref().map(|gpu| {
        json!({
            "compute_capability": format!("{}.{}", gpu.compute_capability.0, gpu.compute_capability.1),
            "multiprocessors": gpu.multiprocessors,
            "warp_threads": gpu.warp_threads,
            "shared_bytes_per_block": gpu.shared_bytes_per_block,
            "shared_bytes_per_block_optin": gpu.shared_bytes_per_block_optin,
            "vmm_granularity_bytes": gpu.vmm_granularity_bytes,
            "l2_bytes": gpu.l2_bytes,
            "driver_version": gpu.driver_version,
            "programmatic_launch": gpu.programmatic_launch,
        })
    });
    json!({
        "name": info.name,
        "kind": format!("{:?}", info.kind).to_lowercase(),
        "description": info.description,
        "variant": info.variant,
        "threads": info.threads,
        "memory_total_bytes": info.memory_total_bytes,
        "memory_free_bytes": info.memory_free_bytes,
        "score": score,
        "gpu": gpu,
    })
}
