use std::ptr;

use super::api::*;
use super::*;
use crate::driver::memory_of;

const PIECE: usize = 2 << 20;

fn properties() -> CUmemAllocationProp {
    // SAFETY: plain data for which zeros mean "none".
    let mut wanted: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    wanted.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted
}

fn access() -> CUmemAccessDesc {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemAccessDesc { location: properties().location, flags }
}

fn reserve(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    ok!(cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0));
    address
}

fn create(bytes: usize) -> CUmemGenericAllocationHandle {
    let (mut handle, wanted) = (0, properties());
    ok!(cuMemCreate(&raw mut handle, bytes, &raw const wanted, 0));
    handle
}

/// As walla does: only the mapping keeps the memory alive.
fn map(address: CUdeviceptr) {
    let handle = create(PIECE);
    ok!(cuMemMap(address, PIECE, 0, handle, 0));
    ok!(cuMemRelease(handle));
}

fn allow(address: CUdeviceptr, bytes: usize) {
    let access = access();
    ok!(cuMemSetAccess(address, bytes, &raw const access, 1));
}

fn is_memory(address: CUdeviceptr) -> bool {
    memory_of(0).contains(&(address..address + PIECE as u64))
}

#[test]
fn pieces_are_mapped_unmapped_and_mapped_again() {
    let _device = Device::open();
    let before = free_bytes();
    let first = reserve(2 * PIECE);
    let second = first + PIECE as u64;
    assert!(first.is_multiple_of(PIECE as u64));
    assert_eq!(free_bytes(), before, "addresses alone take nothing");
    map(first);
    map(second);
    assert_eq!(free_bytes(), before - 2 * PIECE as u64);
    assert!(!is_memory(first), "mapped, but nobody may use it");
    allow(first, 2 * PIECE);
    assert!(is_memory(first) && is_memory(second));
    upload(second - 2, &[1, 2, 3, 4]);
    assert_eq!(download(second - 2, 4), [1, 2, 3, 4]);

    ok!(cuMemUnmap(second, PIECE));
    assert!(is_memory(first) && !is_memory(second));
    assert_eq!(free_bytes(), before - PIECE as u64);
    refused!(cuMemUnmap(second, PIECE), CUDA_ERROR_INVALID_VALUE);
    map(second);
    allow(second, PIECE);
    assert_eq!(download(second - 2, 4), [1, 2, 0, 0], "what was there is gone");

    refused!(cuMemAddressFree(first, 2 * PIECE), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(first, 2 * PIECE));
    refused!(cuMemAddressFree(first, PIECE), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemAddressFree(first, 2 * PIECE));
    refused!(cuMemAddressFree(first, 2 * PIECE), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free_bytes(), before);
}

#[test]
fn mappings_outlive_the_context() {
    let mut device = Device::open();
    let before = free_bytes();
    let address = reserve(PIECE);
    map(address);
    allow(address, PIECE);
    upload(address, &[9]);
    ok!(cuCtxDestroy_v2(device.context));
    ok!(cuCtxCreate_v2(&raw mut device.context, 0, 0));
    assert_eq!(download(address, 1), [9]);
    assert_eq!(free_bytes(), before - PIECE as u64);
    // Freeing needs no current context.
    ok!(cuCtxSetCurrent(ptr::null_mut()));
    ok!(cuMemUnmap(address, PIECE));
    ok!(cuMemAddressFree(address, PIECE));
}

#[test]
fn unmapped_memory_counts_as_used() {
    let _device = Device::open();
    let before = free_bytes();
    let all = before as usize / PIECE * PIECE;
    let whole = create(all);
    let (mut handle, wanted) = (0, properties());
    refused!(cuMemCreate(&raw mut handle, PIECE, &raw const wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
    let mut address = 0;
    refused!(cuMemAlloc_v2(&raw mut address, PIECE), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuMemRelease(whole));
    refused!(cuMemRelease(whole), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(free_bytes(), before);
}

#[test]
fn mappings_that_do_not_fit_are_refused() {
    let _device = Device::open();
    let (mut place, mut bytes, wanted) = (0, 0, properties());
    ok!(cuMemGetAllocationGranularity(&raw mut bytes, &raw const wanted, 1));
    assert_eq!(bytes, PIECE);
    refused!(cuMemAddressReserve(&raw mut place, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    refused!(
        cuMemCreate(&raw mut place, PIECE + 1, &raw const wanted, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    let (address, handle) = (reserve(2 * PIECE), create(PIECE));
    let end = address + 2 * PIECE as u64;
    refused!(cuMemMap(end, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    refused!(cuMemMap(address + 4096, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    refused!(cuMemMap(address, 2 * PIECE, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    refused!(cuMemMap(address, PIECE, 0, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuMemMap(address, PIECE, 0, handle, 0));
    refused!(cuMemMap(address + PIECE as u64, PIECE, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    let other = create(PIECE);
    refused!(cuMemMap(address, PIECE, 0, other, 0), CUDA_ERROR_ALREADY_MAPPED);
    let access = access();
    refused!(cuMemSetAccess(address, 2 * PIECE, &raw const access, 1), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemRelease(handle));
    ok!(cuMemRelease(other));
    ok!(cuMemUnmap(address, PIECE));
    ok!(cuMemAddressFree(address, 2 * PIECE));
}
