use bytemuck::{Pod, Zeroable};
use walla_device::DeviceError;

use crate::system::SystemMemory;

/// One cache line; aligns every buffer to 64 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes at an address that is a multiple of 64. Never moved or grown.
///
/// All of them are written when they are allocated, so that no step waits for the system.
#[derive(Default)]
pub(crate) struct Bytes {
    block: Block,
    len: usize,
}

impl Bytes {
    /// Allocates `len` zeroed bytes.
    pub(crate) fn zeroed(what: &str, len: usize) -> Result<Self, DeviceError> {
        let block = Block::zeroed(len.div_ceil(64)).ok_or_else(|| out_of_memory(what, len))?;
        Ok(Self { block, len })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(self.block.lines())[..self.len]
    }

    /// All bytes, mutable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(self.block.lines_mut())[..self.len]
    }

    /// All bytes as numbers of type `T`, without a remainder shorter than a number.
    pub(crate) fn as_slice<T: Pod>(&self) -> &[T] {
        let count = self.len / size_of::<T>();
        bytemuck::cast_slice(&self.bytes()[..count * size_of::<T>()])
    }

    /// All bytes as numbers of type `T`, mutable.
    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let count = self.len / size_of::<T>();
        bytemuck::cast_slice_mut(&mut self.bytes_mut()[..count * size_of::<T>()])
    }
}

/// Lines of a small block from the allocator, or of a large one from the system.
///
/// A model has hundreds of tensors of some megabytes. An allocator takes such blocks from a heap
/// that it keeps: glibc does after the first of them has been freed, and one small block behind
/// them keeps them resident. So after some loads the process would hold the memory of two models
/// and more. A separate mapping is returned when it is dropped.
enum Block {
    Allocated(Vec<Line>),
    #[cfg(target_os = "linux")]
    Mapped(mapped::Mapping),
}

impl Default for Block {
    fn default() -> Self {
        Self::Allocated(Vec::new())
    }
}

impl Block {
    /// `None` if there is not enough memory.
    fn zeroed(count: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if count >= mapped::LINES_MIN {
            return mapped::Mapping::zeroed(count).map(Self::Mapped);
        }
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, Line([0; 64]));
        Some(Self::Allocated(lines))
    }

    fn lines(&self) -> &[Line] {
        match self {
            Self::Allocated(lines) => lines,
            #[cfg(target_os = "linux")]
            Self::Mapped(mapping) => mapping.lines(),
        }
    }

    fn lines_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Allocated(lines) => lines,
            #[cfg(target_os = "linux")]
            Self::Mapped(mapping) => mapping.lines_mut(),
        }
    }
}

/// Memory mappings.
#[cfg(target_os = "linux")]
mod mapped {
    use std::ptr::NonNull;

    use super::Line;

    /// Lines of a block that is mapped: 256 KiB. A smaller one costs the allocator little.
    pub(super) const LINES_MIN: usize = (256 << 10) / size_of::<Line>();

    /// An anonymous mapping of this process alone.
    pub(super) struct Mapping {
        start: NonNull<Line>,
        count: usize,
    }

    #[expect(unsafe_code, reason = "memory that a single value owns")]
    // SAFETY: the mapping belongs to this value, as the elements of a vector do.
    unsafe impl Send for Mapping {}

    #[expect(unsafe_code, reason = "memory that a single value owns")]
    // SAFETY: as above; shared access only reads.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        /// `None` if the system refuses the memory.
        pub fn zeroed(count: usize) -> Option<Self> {
            let bytes = count.checked_mul(size_of::<Line>()).filter(|bytes| *bytes > 0)?;
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
            #[expect(unsafe_code, reason = "a system call about memory")]
            // SAFETY: a new anonymous mapping at an address that the system chooses affects no
            // other memory.
            let start = unsafe {
                libc::mmap(std::ptr::null_mut(), bytes, access, kind | libc::MAP_ANONYMOUS, -1, 0)
            };
            if start == libc::MAP_FAILED {
                return None;
            }
            let mut mapping = Self { start: NonNull::new(start.cast())?, count };
            mapping.request_large_pages(bytes);
            mapping.lines_mut().fill(Line([0; 64]));
            Some(mapping)
        }

        /// Requests huge pages before the memory is first touched.
        ///
        /// Weights are read once per step, in order. With 4 KiB pages every 4 KiB costs a page
        /// walk, which takes twice as long in a virtual machine. Page walks took a third of the
        /// time of a step with 8 rows. If the request is refused, only speed is lost.
        fn request_large_pages(&mut self, bytes: usize) {
            const LARGE: usize = 2 << 20;
            if bytes >= 2 * LARGE {
                #[expect(unsafe_code, reason = "a system call about memory")]
                // SAFETY: the range is this mapping. The advice changes how it is mapped, not its
                // contents.
                let _ = unsafe {
                    libc::madvise(self.start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE)
                };
            }
        }

        pub fn lines(&self) -> &[Line] {
            #[expect(unsafe_code, reason = "memory of a mapping")]
            // SAFETY: `start` is aligned to a page and is the begin of `count` lines, which are
            // initialised and live as long as this value. `lines_mut` needs the value alone.
            unsafe {
                std::slice::from_raw_parts(self.start.as_ptr(), self.count)
            }
        }

        pub fn lines_mut(&mut self) -> &mut [Line] {
            #[expect(unsafe_code, reason = "memory of a mapping")]
            // SAFETY: as in `lines`; the mutable borrow excludes other references.
            unsafe {
                std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count)
            }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            let bytes = self.count * size_of::<Line>();
            #[expect(unsafe_code, reason = "a system call about memory")]
            // SAFETY: the mapping was made with this length, and nothing refers to it any more.
            let _unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
        }
    }
}

/// Allocates `count` copies of `value`; an error names the purpose `what`.
pub(crate) fn filled<T: Clone>(what: &str, count: usize, value: T) -> Result<Vec<T>, DeviceError> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)
        .map_err(|_| out_of_memory(what, count.saturating_mul(size_of::<T>())))?;
    all.resize(count, value);
    Ok(all)
}

/// Allocates a copy of `values`; an error names the purpose `what`.
pub(crate) fn copied<T: Copy>(what: &str, values: &[T]) -> Result<Vec<T>, DeviceError> {
    let mut all = Vec::new();
    all.try_reserve_exact(values.len()).map_err(|_| out_of_memory(what, size_of_val(values)))?;
    all.extend_from_slice(values);
    Ok(all)
}

/// The error of a failed allocation.
pub(crate) fn out_of_memory(what: &str, wanted: usize) -> DeviceError {
    DeviceError::OutOfMemory {
        what: what.to_owned(),
        wanted_bytes: wanted as u64,
        free_bytes: SystemMemory::now().map_or(0, |memory| memory.available),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_aligned_zeroed_and_of_the_length_asked_for() {
        for len in [130, (256 << 10) + 130, (8 << 20) + 130] {
            let mut bytes = Bytes::zeroed("test", len).unwrap();
            assert!(bytes.len() == len && bytes.bytes().iter().all(|byte| *byte == 0));
            assert_eq!(bytes.bytes().as_ptr().align_offset(64), 0);
            assert_eq!(bytes.as_slice::<f32>().len(), len / 4);
            bytes.bytes_mut()[len - 1] = 7;
            assert_eq!(bytes.bytes()[len - 1], 7);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error_and_no_abort() {
        let error = Bytes::zeroed("the moon", usize::MAX / 2).err();
        assert!(matches!(error, Some(DeviceError::OutOfMemory { .. })), "{error:?}");
    }
}
