//! Memory: ceilings, arenas, and what is left when a device is gone.

use walla_cuda::CudaBackend;
use walla_device::{Backend, CacheDesc, CacheLayer, DeviceError, KvType, OpenOptions, Registry};

use crate::gpu;

const MIB: u64 = 1 << 20;

/// A cache of `mib` MiB in 16 layers.
pub fn cache(mib: u32) -> CacheDesc {
    // A page of 16 tokens, 8 heads of 64 halves: 16 KiB of keys, as much of values; 16 layers: 512 KiB.
    CacheDesc {
        layers: vec![CacheLayer::Kv { kv_heads: 8, head_dim: 64, rope: None }; 16],
        pages: 2 * mib,
        page_tokens: 16,
        sequences_max: 4,
        kv_type: KvType::F16,
    }
}

fn free_mib() -> u64 {
    let device = CudaBackend::default().open("cuda:0", &OpenOptions::default()).unwrap();
    device.info().memory_free_bytes.unwrap() / MIB
}

#[test]
#[ignore = "counts the GPU's free memory: run it alone"]
fn a_dropped_device_gives_all_memory_back() {
    let Some(mut device) = gpu() else { return };
    let before = free_mib();
    let calls = device.counters();
    device.create_cache(&cache(1_000)).unwrap();
    let calls = device.counters() - calls;
    let facts = device.info().gpu.clone().unwrap();
    if facts.vmm_granularity_bytes.is_some() {
        // 1,000 MiB in pieces of 64 MiB, and three plain tables.
        assert_eq!(calls.allocations, 16 + 3, "{calls}");
    }
    assert_eq!(device.memory().cache_bytes / MIB, 1_000);
    let during = free_mib();
    assert!(during + 990 < before, "{before} MiB free before, {during} with a cache of 1,000 MiB");
    drop(device);
    let after = free_mib();
    // The driver keeps small things of its own.
    assert!(after + 64 >= before, "{before} MiB free before, {after} after");
    println!("free: {before} MiB, with a cache of 1,000 MiB {during} MiB, after it {after} MiB");
}

#[test]
fn a_ceiling_holds_for_arenas() {
    if gpu().is_none() {
        return;
    }
    let registry = Registry::new().with(CudaBackend::default());
    let options = OpenOptions { memory_bytes_max: Some(64 * MIB), ..OpenOptions::default() };
    let mut device = registry.open("cuda:0", &options).unwrap();
    let refused = device.create_cache(&cache(80)).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    // 50 MiB are whole pieces of the arena's granularity; what is refused leaves nothing behind.
    device.create_cache(&cache(50)).unwrap();
    let refused = device.create_cache(&cache(50)).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
}
