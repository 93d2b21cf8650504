use std::ops::Range;
use std::sync::atomic::AtomicU64;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    self, CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUresult,
};
use walla_device::DeviceError;

use super::objects::Object;
use super::{Context, Stream};

/// Device memory. Lives as long as its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceMemory {
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// `bytes` bytes at `address`.
    pub(super) fn new(address: CUdeviceptr, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Splits off the first `bytes` bytes (at most all), rounded up to 256, so that the rest keeps
    /// the alignment of the whole.
    pub(crate) fn take(&mut self, bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(256).min(self.bytes);
        let taken = Self { address: self.address, bytes };
        self.address += bytes as u64;
        self.bytes -= bytes;
        taken
    }

    /// Start address for kernel parameters: a multiple of 256.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Pinned host memory: plain (not write-combined), because the host reads it.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner; see `Context` for its lifetime.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address for kernels: with unified addressing, it equals the host's.
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// The same memory as a device buffer.
    pub(crate) fn mapped(&self) -> DeviceMemory {
        DeviceMemory { address: self.address(), bytes: self.bytes }
    }

    /// A range of the bytes.
    ///
    /// # Panics
    /// If the range is out of bounds. The caller guarantees that no copy and no kernel writes
    /// there.
    pub(crate) fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "inside");
        // SAFETY: inside by the line above.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: valid for that many initialised bytes as long as the context lives; the device
        // that owns both calls this only when nothing in flight writes them.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// A word that kernels may write while the host polls it.
    ///
    /// # Panics
    /// If it is out of bounds or not aligned.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "inside and aligned");
        // SAFETY: inside by the line above.
        let word = unsafe { self.start.add(offset) };
        // SAFETY: aligned, since the allocation starts at a page boundary; valid as long as the
        // context lives. While a kernel may write the word, the host accesses it only as an atomic,
        // and reads it as bytes only afterwards.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// All bytes. The caller guarantees that no copy is in flight.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Context {
    /// Allocates device memory of at least `bytes` bytes (at least 256), uninitialised, after a
    /// check of the free memory.
    pub(crate) fn allocate(&self, what: &str, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        let bytes = bytes.max(1).next_multiple_of(256);
        let free_bytes = self.memory_left_bytes()?;
        let refused = || DeviceError::OutOfMemory {
            what: what.to_owned(),
            wanted_bytes: bytes as u64,
            free_bytes,
        };
        if bytes as u64 > free_bytes {
            return Err(refused());
        }
        self.count(|c| &mut c.allocations);
        // SAFETY: the context is current, and nothing reads the memory before it is written.
        let address = match unsafe { result::malloc_sync(bytes) } {
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Err(refused()),
            allocated => self.value("cuMemAlloc", allocated)?,
        };
        self.keep(Object::Memory(address));
        self.allocated_bytes.set(self.allocated_bytes.get() + bytes as u64);
        Ok(DeviceMemory { address, bytes })
    }

    /// Enqueues a fill of all bytes.
    pub(crate) fn fill(
        &self,
        stream: Stream,
        memory: &DeviceMemory,
        byte: u8,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.fills);
        // SAFETY: the range is the whole allocation.
        let result = unsafe { sys::cuMemsetD8Async(memory.address, byte, memory.bytes, stream.0) };
        self.check("cuMemsetD8Async", result)
    }

    /// Allocates zeroed pinned host memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if the system cannot pin more (its limit is unknown), or a
    /// driver error.
    pub(crate) fn allocate_pinned(
        &self,
        what: &str,
        bytes: usize,
    ) -> Result<PinnedMemory, DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.allocations);
        let bytes = bytes.max(1).next_multiple_of(64);
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: nothing reads the memory before it is written, below.
        let start = match unsafe { result::malloc_host(bytes, flags) } {
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (what, wanted_bytes) =
                    (format!("{what} (pinned memory of the host)"), bytes as u64);
                return Err(DeviceError::OutOfMemory { what, wanted_bytes, free_bytes: 0 });
            }
            allocated => self.value("cuMemHostAlloc", allocated)?,
        };
        self.keep(Object::Pinned(start));
        let start = start.cast::<u8>();
        // SAFETY: the driver gave `bytes` bytes, and nothing else knows them yet.
        unsafe { start.write_bytes(0, bytes) };
        Ok(PinnedMemory { start, bytes })
    }

    /// Enqueues a copy to the device. The caller keeps the host bytes untouched until the stream
    /// has passed it.
    pub(crate) fn upload(
        &self,
        stream: Stream,
        (from, from_offset): (&PinnedMemory, usize),
        (to, to_offset): (&DeviceMemory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        inside("upload", from.bytes, from_offset, bytes)?;
        inside("upload", to.bytes, to_offset, bytes)?;
        self.enter()?;
        self.count(|c| &mut c.copies);
        let target = to.address + to_offset as u64;
        // SAFETY: the offset was checked against the allocation.
        let source = unsafe { from.start.add(from_offset) };
        // SAFETY: both ranges were checked, and only the context frees pinned memory.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes, stream.0) };
        self.check("cuMemcpyHtoDAsync", result)
    }

    /// Enqueues a copy to the host. The caller keeps away from the host bytes until the stream has
    /// passed it.
    pub(crate) fn download(
        &self,
        stream: Stream,
        (from, from_offset): (&DeviceMemory, usize),
        (to, to_offset): (&PinnedMemory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        inside("download", from.bytes, from_offset, bytes)?;
        inside("download", to.bytes, to_offset, bytes)?;
        self.enter()?;
        self.count(|c| &mut c.copies);
        let source = from.address + from_offset as u64;
        // SAFETY: the offset was checked against the allocation.
        let target = unsafe { to.start.add(to_offset) };
        // SAFETY: both ranges were checked, and only the context frees pinned memory.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes, stream.0) };
        self.check("cuMemcpyDtoHAsync", result)
    }
}

fn inside(what: &str, length: usize, offset: usize, bytes: usize) -> Result<(), DeviceError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= length => Ok(()),
        _ => Err(DeviceError::Invalid(format!(
            "{what} of {bytes} bytes at {offset} of a buffer of {length}"
        ))),
    }
}
