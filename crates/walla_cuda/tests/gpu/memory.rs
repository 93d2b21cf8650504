//! Memory: ceilings, arenas, and leaks after a device is dropped.

use walla_cuda::CudaBackend;
use walla_device::{
    Backend, CacheDesc, CacheLayer, Device, DeviceError, KvType, OpenOptions, Registry,
};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{MANY_PAGES, Piece, Rig};
use crate::{bits, gpu, tested};

const MIB: u64 = 1 << 20;

/// A cache of `mib` MiB in 16 layers.
pub fn cache(mib: u32) -> CacheDesc {
    // A page of 16 tokens, 8 heads of 64 f16 numbers: 16 KiB of keys and 16 KiB of values. In all
    // (16 layers) 512 KiB.
    CacheDesc {
        layers: vec![CacheLayer::Kv { kv_heads: 8, head_dim: 64, rope: None }; 16],
        pages: 2 * mib,
        page_tokens: 16,
        max_sequences: 4,
        kv_type: KvType::F16,
    }
}

fn free_mib() -> u64 {
    let device = CudaBackend::default().open(&tested(), &OpenOptions::default()).unwrap();
    device.info().memory_free_bytes.unwrap() / MIB
}

fn has_virtual_memory(device: &dyn Device) -> bool {
    device.info().gpu.as_ref().unwrap().vmm_granularity_bytes.is_some()
}

#[test]
#[ignore = "counts the GPU's free memory: run it alone"]
fn a_dropped_device_frees_all_memory() {
    let mut device = gpu();
    let before = free_mib();
    let calls = device.counters();
    device.create_cache(&cache(1_000)).unwrap();
    let calls = device.counters() - calls;
    if has_virtual_memory(&*device) {
        // 32 blocks of 31.25 MiB, each in 16 pieces of 2 MiB, and three plain tables.
        assert_eq!(calls.allocations, 32 * 16 + 3, "{calls}");
    }
    let held_mib = device.memory().cache_bytes / MIB;
    assert!((1_000..=1_024).contains(&held_mib), "{held_mib} MiB");
    let during = free_mib();
    assert!(during + 990 < before, "{before} MiB free before, {during} with a cache of 1,000 MiB");
    drop(device);
    let after = free_mib();
    // The driver keeps some small allocations.
    assert!(after + 64 >= before, "{before} MiB free before, {after} after");
    println!("free: {before} MiB, with a cache of 1,000 MiB {during} MiB, after it {after} MiB");
}

#[gpu_test]
fn cache_memory_matches_its_description() {
    for kv_type in [KvType::F16, KvType::Q8] {
        let mut device = gpu();
        let desc = CacheDesc { kv_type, ..cache(100) };
        device.create_cache(&desc).unwrap();
        let wanted = desc.page_bytes() * u64::from(desc.pages);
        let found = device.memory().cache_bytes;
        // In addition to pages: recent tokens of four sequences, a table of layers, and rounding of
        // 64 blocks to 256 bytes. The total is rounded up to pieces of 2 MiB, or every block is if
        // that adds less than an eighth.
        let most = wanted + wanted / 8 + 2 * MIB + 32 * 1024;
        assert!((wanted..most).contains(&found), "{kv_type:?}: {found} for {wanted}");
    }
}

#[gpu_test]
fn a_memory_limit_applies_to_arenas() {
    let registry = Registry::new().with(CudaBackend::default());
    let options = OpenOptions { max_memory_bytes: Some(64 * MIB), ..OpenOptions::default() };
    let mut device = registry.open(&tested(), &options).unwrap();
    let refused = device.create_cache(&cache(80)).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    // 50 MiB are a multiple of the arena's granularity. A refused allocation leaves nothing behind.
    device.create_cache(&cache(50)).unwrap();
    let refused = device.create_cache(&cache(50)).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
}

/// Sequence 0 is in pages that stay mapped, sequence 5 in pages that are unmapped.
#[gpu_test]
fn kept_pages_are_unchanged_and_mapped_again_pages_are_zero() {
    let device = gpu();
    let gives_back = has_virtual_memory(&*device);
    let shape = Shape::llama(TensorType::Q4K);
    let text = tokens(shape.vocab, 41, 9);
    let piece =
        |sequence, from: usize, to: usize| Piece::new(sequence, from as u32, &text[from..to]);
    // 4 KiB per page of keys or values: 16 MiB per block; its first 513 pages are 2 MiB.
    let mut rig = Rig::with_steps(device, &shape, KvType::F16, (7, false), MANY_PAGES);
    let last = |rig: &mut Rig, sequence| bits(&rig.step(&[piece(sequence, 40, 41)], 0).logits[0]);
    let over_zeros = last(&mut rig, 5);
    rig.step(&[piece(0, 0, 40)], 0);
    rig.step(&[piece(5, 0, 40)], 0);
    let before = [0, 5].map(|sequence| last(&mut rig, sequence));
    assert_ne!(before[1], over_zeros);

    let whole = rig.device.memory().cache_bytes;
    rig.device.resize_cache(rig.cache, 513).unwrap();
    let held = rig.device.memory().cache_bytes;
    assert_eq!(gives_back, held < whole / 2, "{held} of {whole} bytes");
    assert_eq!(last(&mut rig, 0), before[0], "while the rest is gone");
    rig.device.resize_cache(rig.cache, u32::MAX).unwrap();
    assert_eq!(rig.device.memory().cache_bytes, whole);
    assert_eq!(last(&mut rig, 0), before[0]);
    assert_eq!(last(&mut rig, 5), if gives_back { over_zeros } else { before[1].clone() });
}

/// Another program allocates all free memory, like a renderer that loads a level.
#[test]
#[ignore = "takes all of the GPU's memory: run it alone"]
fn steps_continue_while_another_program_uses_all_memory() {
    let device = gpu();
    let gives_back = has_virtual_memory(&*device);
    let shape = Shape::llama(TensorType::Q4K);
    let text = tokens(shape.vocab, 41, 9);
    let mut rig = Rig::with_steps(device, &shape, KvType::F16, (7, false), MANY_PAGES);
    rig.step(&[Piece::new(0, 0, &text[..40])], 0);
    let last = |rig: &mut Rig| bits(&rig.step(&[Piece::new(0, 40, &text[40..])], 0).logits[0]);
    let expected = last(&mut rig);
    let whole = rig.device.memory().cache_bytes;
    // The cache has shrunk before the other program allocates.
    rig.device.resize_cache(rig.cache, 513).unwrap();
    let held = rig.device.memory().cache_bytes;
    let registry = Registry::new().with(CudaBackend::default());
    let mut hog = registry.open(&tested(), &OpenOptions::default()).unwrap();
    let mut taken = 0;
    for mib in [1_024, 64, 4, 1] {
        while hog.create_buffer("everything", mib * MIB as usize).is_ok() {
            taken += mib;
        }
    }
    println!("the other program has {taken} MiB");
    assert!(taken > 100, "{taken}");
    for _ in 0..3 {
        assert_eq!(last(&mut rig), expected);
    }
    if gives_back {
        let refused = rig.device.resize_cache(rig.cache, u32::MAX).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
        assert_eq!(rig.device.memory().cache_bytes, held, "as before");
    }
    assert_eq!(last(&mut rig), expected, "a refusal changes nothing");
    drop(hog);
    rig.device.resize_cache(rig.cache, u32::MAX).unwrap();
    assert_eq!(rig.device.memory().cache_bytes, whole);
    assert_eq!(last(&mut rig), expected);
}

#[test]
#[ignore = "counts the GPU's free memory: run it alone"]
fn a_cache_returns_memory_and_acquires_it_again() {
    let mut device = gpu();
    if !has_virtual_memory(&*device) {
        println!("SKIPPED: no virtual memory management");
        return;
    }
    let id = device.create_cache(&cache(1_000)).unwrap();
    let whole = device.memory().cache_bytes;
    let free = free_mib();
    for (pages, held_mib) in [(1_000, 500), (1, 0), (2_000, 1_000), (400, 200), (u32::MAX, 1_000)] {
        device.resize_cache(id, pages).unwrap();
        let held = device.memory().cache_bytes / MIB;
        let gained = free_mib() - free;
        println!("{pages} pages: {held} MiB held, {gained} MiB more free");
        // Pieces of 2 MiB in each of 32 blocks.
        assert!((held_mib..=held_mib + 64).contains(&held), "{held}");
        assert_eq!(gained, whole / MIB - held);
    }
    // Another device allocates the released memory.
    device.resize_cache(id, 100).unwrap();
    let registry = Registry::new().with(CudaBackend::default());
    let mut other = registry.open(&tested(), &OpenOptions::default()).unwrap();
    let taken = (free_mib() - 200) * MIB;
    other.create_buffer("everything", taken as usize).unwrap();
    let held = device.memory().cache_bytes;
    let refused = device.resize_cache(id, 2_000).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    assert_eq!(device.memory().cache_bytes, held, "as before");
    drop(other);
    device.resize_cache(id, 2_000).unwrap();
    assert_eq!(device.memory().cache_bytes, whole);
}
