use bytemuck::{Pod, Zeroable};
use walla_device::DeviceError;

use crate::system::SystemMemory;

/// One cache line; aligns every buffer to 64 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes at an address that is a multiple of 64. Never moved or grown.
#[derive(Default)]
pub(crate) struct Bytes {
    lines: Vec<Line>,
    len: usize,
}

impl Bytes {
    /// Allocates `len` zeroed bytes.
    pub(crate) fn zeroed(what: &str, len: usize) -> Result<Self, DeviceError> {
        let mut lines = Vec::new();
        let count = len.div_ceil(64);
        lines.try_reserve_exact(count).map_err(|_| out_of_memory(what, len))?;
        large_pages(&mut lines);
        lines.resize(count, Line([0; 64]));
        Ok(Self { lines, len })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// All bytes, mutable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
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

/// Requests huge pages before the memory is first touched.
///
/// Weights are read once per step, in order. With 4 KiB pages every 4 KiB costs a page walk, which
/// takes twice as long in a virtual machine. Page walks took a third of the time of a step with 8
/// rows. If the request is refused, only speed is lost.
fn large_pages(lines: &mut Vec<Line>) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        let bytes = lines.capacity() * size_of::<Line>();
        let start = lines.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(4096);
        if bytes < 2 * LARGE || skipped > bytes {
            return;
        }
        let first = start.wrapping_add(skipped).cast();
        #[expect(unsafe_code, reason = "a system call about memory")]
        // SAFETY: the range is in memory that this vector owns. The advice changes how it is
        // mapped, not its contents.
        let _ = unsafe { libc::madvise(first, bytes - skipped, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = lines;
}

/// Allocates `count` copies of `value`; an error names the purpose `what`.
pub(crate) fn filled<T: Clone>(what: &str, count: usize, value: T) -> Result<Vec<T>, DeviceError> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)
        .map_err(|_| out_of_memory(what, count.saturating_mul(size_of::<T>())))?;
    all.resize(count, value);
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
        let bytes = Bytes::zeroed("test", 130).unwrap();
        assert_eq!(bytes.bytes(), [0; 130]);
        assert_eq!(bytes.bytes().as_ptr().align_offset(64), 0);
        assert_eq!(bytes.as_slice::<f32>().len(), 32);
    }

    #[test]
    fn an_impossible_size_is_an_error_and_no_abort() {
        let error = Bytes::zeroed("the moon", usize::MAX / 2).err();
        assert!(matches!(error, Some(DeviceError::OutOfMemory { .. })), "{error:?}");
    }
}
