//! Memory of the device and pinned memory of the host, and copies between them.

use std::alloc::{self, Layout};
use std::ffi::{c_uchar, c_uint, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUresult, CUstream};

use super::context::current;
use super::facts::facts;
use super::stream::stream;
use super::table::Table;
use super::work::Operation;
use super::{MAX_DEVICES, MEMORIES, Outcome, answer, give, memory_of};
use crate::memory::Memory;

/// Alignment of device memory, as with the driver.
const DEVICE_ALIGNMENT: usize = 256;

/// Alignment of pinned memory: a page.
const PINNED_ALIGNMENT: usize = 4096;

/// Guard bytes behind each allocation that no kernel may access.
const GUARD_BYTES: usize = 256;

/// New memory is filled with this byte, so that uninitialised reads do not find zeros. As a half or
/// a float it is a plain number.
const NEW_BYTE: u8 = 0xcd;

/// Bytes in use of each device's memory.
static USED_BYTES: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

/// A reservation of a device's memory, released when it is dropped.
pub(super) struct Share {
    pub(super) device: CUdevice,
    bytes: u64,
}

impl Share {
    /// Reserves memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`: less memory is left.
    pub(super) fn take(device: CUdevice, bytes: u64) -> Outcome<Self> {
        let total = facts()?.memory_bytes;
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= total);
        used_bytes(device)
            .try_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map(|_| Self { device, bytes })
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        used_bytes(self.device).fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Counter of an existing device.
fn used_bytes(device: CUdevice) -> &'static AtomicU64 {
    &USED_BYTES[device as usize]
}

/// An allocation, accessible to kernels until it is dropped.
pub(super) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    /// Its share of a device's memory; `None`: host memory.
    share: Option<Share>,
}

// SAFETY: plain memory with one owner, which only frees it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// Allocations of all devices by address.
pub(super) static ALLOCATIONS: Table<Block> = Table::new();

/// Pinned allocations by address.
pub(super) static PINNED: Table<Block> = Table::new();

impl Block {
    fn new(bytes: usize, alignment: usize, share: Option<Share>) -> Outcome<Self> {
        let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let whole = bytes.checked_add(GUARD_BYTES).ok_or(refused)?;
        let layout = Layout::from_size_align(whole, alignment).map_err(|_| refused)?;
        // SAFETY: the layout is not empty, since it includes the guard.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(refused)?;
        // SAFETY: just allocated, with at least `bytes` bytes.
        unsafe { start.write_bytes(NEW_BYTE, bytes) };
        let block = Self { start, layout, share };
        for memory in block.memories() {
            memory.add(block.address()..block.address() + bytes as u64);
        }
        Ok(block)
    }

    /// Memories to which the allocation belongs: pinned memory is accessible to kernels of all
    /// devices.
    fn memories(&self) -> &'static [Memory] {
        let device = self.share.as_ref().map(|share| share.device);
        device.map_or(&MEMORIES, |device| std::slice::from_ref(memory_of(device)))
    }

    fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        for memory in self.memories() {
            memory.remove(self.address());
        }
        // SAFETY: allocated with this layout, and in no list any more. A caller that frees memory
        // guarantees that no work uses it.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Lists a new allocation of the current context under its address.
fn allocate(
    table: &Table<Block>,
    bytes: usize,
    alignment: usize,
    share: impl FnOnce(CUdevice) -> Outcome<Option<Share>>,
) -> Outcome<usize> {
    let context = current()?;
    if bytes == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let block = Block::new(bytes, alignment, share(context.space.device)?)?;
    let address = block.start.addr().get();
    table.insert_at(address, context.space.number, Arc::new(block));
    Ok(address)
}

/// Frees the allocation that begins at an address.
fn free(table: &Table<Block>, address: usize) -> Outcome {
    current()?;
    table.remove(address).map(drop).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(place: *mut CUdeviceptr, bytes: usize) -> CUresult {
    let find = || {
        let share = |device| Share::take(device, bytes as u64).map(Some);
        allocate(&ALLOCATIONS, bytes, DEVICE_ALIGNMENT, share).map(|address| address as u64)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    answer(free(&ALLOCATIONS, address as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    place: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> CUresult {
    let find = || {
        let address = allocate(&PINNED, bytes, PINNED_ALIGNMENT, |_| Ok(None))?;
        Ok(address as *mut c_void)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    answer(free(&PINNED, start.addr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    let found = current().and_then(|context| Ok((context.space.device, facts()?.memory_bytes)));
    let (device, total_bytes) = match found {
        Ok(found) => found,
        Err(error) => return error,
    };
    let free_bytes = total_bytes - used_bytes(device).load(Ordering::Relaxed);
    // SAFETY: guaranteed by the caller.
    match unsafe { give(free, || Ok(free_bytes as usize)) } {
        // SAFETY: guaranteed by the caller.
        CUresult::CUDA_SUCCESS => unsafe { give(total, || Ok(total_bytes as usize)) },
        error => error,
    }
}

/// Enqueues an operation on a range of device memory. An empty range is ignored.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`: the range is not memory of the stream's device.
fn enqueue(
    raw: CUstream,
    start: CUdeviceptr,
    bytes: usize,
    operation: impl FnOnce(Range<u64>) -> Operation,
) -> Outcome {
    let stream = stream(raw)?;
    if bytes == 0 {
        return Ok(());
    }
    let end = start.checked_add(bytes as u64).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if !memory_of(stream.space.device).contains(&(start..end)) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    stream.enqueue(&[operation(start..end)])
}

/// The host address of a copy.
fn host(start: *const c_void, bytes: usize) -> Outcome<u64> {
    if start.is_null() && bytes > 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(start.expose_provenance() as u64)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    raw: CUstream,
) -> CUresult {
    answer(
        host(from, bytes).and_then(|from| {
            enqueue(raw, to, bytes, |device| Operation::Copy { to, from, device })
        }),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    raw: CUstream,
) -> CUresult {
    answer(
        host(to, bytes).and_then(|to| {
            enqueue(raw, from, bytes, |device| Operation::Copy { to, from, device })
        }),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    byte: c_uchar,
    bytes: usize,
    raw: CUstream,
) -> CUresult {
    answer(enqueue(raw, to, bytes, |device| Operation::Fill { device, byte }))
}
