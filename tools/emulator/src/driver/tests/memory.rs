use std::ptr;

use super::api::*;
use super::*;
use crate::driver::facts::facts;
use crate::driver::memory_of;

#[test]
fn new_memory_is_aligned_and_not_zeroed() {
    let _device = Device::open();
    let memory = allocate(1000);
    assert!(memory.is_multiple_of(256));
    assert!(download(memory, 1000).iter().all(|byte| *byte != 0));
    let numbers: Vec<u8> = (0..200).collect();
    upload(memory + 256, &numbers);
    ok!(cuMemsetD8Async(memory + 300, 7, 10, ptr::null_mut()));
    let found = download(memory + 256, 200);
    assert_eq!((&found[..44], &found[54..]), (&numbers[..44], &numbers[54..]));
    assert_eq!(found[44..54], [7; 10]);
}

#[test]
fn copies_beyond_an_allocation_are_refused() {
    let _device = Device::open();
    let memory = allocate(512);
    let mut host = [0_u8; 16];
    let (stream, place) = (ptr::null_mut(), host.as_mut_ptr().cast());
    for start in [memory + 497, memory + 512, memory.wrapping_sub(1), 0, u64::MAX - 3] {
        refused!(cuMemcpyHtoDAsync_v2(start, place, 16, stream), CUDA_ERROR_INVALID_VALUE);
        refused!(cuMemcpyDtoHAsync_v2(place, start, 16, stream), CUDA_ERROR_INVALID_VALUE);
        refused!(cuMemsetD8Async(start, 0, 16, stream), CUDA_ERROR_INVALID_VALUE);
        ok!(cuMemsetD8Async(start, 0, 0, stream));
    }
    refused!(cuMemcpyHtoDAsync_v2(memory, ptr::null(), 16, stream), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(memory));
    refused!(cuMemcpyHtoDAsync_v2(memory, place, 16, stream), CUDA_ERROR_INVALID_VALUE);
    refused!(cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn allocations_are_limited_by_device_memory() {
    let _device = Device::open();
    let before = free_bytes();
    let mut address = 0;
    let too_much = before as usize + 1;
    refused!(cuMemAlloc_v2(&raw mut address, too_much), CUDA_ERROR_OUT_OF_MEMORY);
    refused!(cuMemAlloc_v2(&raw mut address, usize::MAX), CUDA_ERROR_OUT_OF_MEMORY);
    refused!(cuMemAlloc_v2(&raw mut address, 0), CUDA_ERROR_INVALID_VALUE);
    refused!(cuMemAlloc_v2(ptr::null_mut(), 256), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free_bytes(), before);
    assert!(before <= facts().unwrap().memory_bytes);
    let memory = allocate(256);
    assert_eq!(free_bytes(), before - 256);
    ok!(cuMemFree_v2(memory));
    assert_eq!(free_bytes(), before);
}

#[test]
fn pinned_memory_is_accessible_to_host_and_kernels() {
    let _device = Device::open();
    let before = free_bytes();
    let mut start = ptr::null_mut();
    ok!(cuMemHostAlloc(&raw mut start, 100, 0));
    assert_eq!(free_bytes(), before);
    let address = start.expose_provenance() as u64;
    assert!(address.is_multiple_of(4096) && memory_of(0).contains(&(address..address + 100)));
    upload(address, &[5; 100]);
    assert_eq!(download(address, 100), [5; 100]);
    ok!(cuMemFreeHost(start));
    assert!(!memory_of(0).contains(&(address..address + 1)));
    refused!(cuMemFreeHost(start), CUDA_ERROR_INVALID_VALUE);
}
