use std::ops::Range;

use crate::error::DeviceError;

/// The bytes of a weight matrix: in memory, or in a file that is read in chunks while the matrix is
/// loaded.
///
/// A device reads from several threads concurrently, in any order, and may read a range twice.
/// Every type that can be borrowed as bytes (`Vec<u8>`, `&[u8]`) is a source.
///
/// # Examples
/// ```
/// use walla_device::WeightSource;
/// let source: &dyn WeightSource = &vec![1_u8, 2, 3, 4];
/// let mut buffer = Vec::new();
/// assert_eq!(source.bytes(), 4);
/// assert_eq!(source.read(1..3, &mut buffer), Ok(&[2, 3][..]));
/// assert!(source.read(3..5, &mut buffer).is_err());
/// ```
pub trait WeightSource: Sync {
    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// The bytes of `range`: borrowed, or read into `buffer`, which the caller reuses for the next
    /// range.
    ///
    /// # Errors
    /// [`DeviceError::Source`] if the read fails, [`DeviceError::Invalid`] beyond the end.
    fn read<'a>(
        &'a self,
        range: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], DeviceError>;

    /// Copies the bytes from `start` on into `out`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), DeviceError>;
}

impl<T: AsRef<[u8]> + Sync> WeightSource for T {
    fn bytes(&self) -> usize {
        self.as_ref().len()
    }

    fn read<'a>(
        &'a self,
        range: Range<usize>,
        _: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], DeviceError> {
        let (all, Range { start, end }) = (self.as_ref(), range);
        let beyond = || {
            let bytes = all.len();
            DeviceError::Invalid(format!("bytes {start}..{end} of a matrix of {bytes} bytes"))
        };
        all.get(start..end).ok_or_else(beyond)
    }

    fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let end = start.saturating_add(out.len());
        out.copy_from_slice(self.read(start..end, &mut Vec::new())?);
        Ok(())
    }
}
