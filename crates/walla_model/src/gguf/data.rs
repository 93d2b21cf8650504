//! The data of a tensor, as stored in the file.

use std::{borrow::Cow, io::ErrorKind, ops::Range};

use super::{
    TensorError,
    bytes::Bytes,
    file::{ModelFile, ReadError, grow},
};

/// The bytes of a tensor, or of some of its rows: in memory, or in a file that is read on request.
///
/// Several threads can read at the same time.
///
/// # Examples
/// ```
/// # use walla_model::{Gguf, ModelSpec, synth};
/// # let bytes = synth::write(&synth::Model::TINY, synth::Mixture::Q8_0, 0, Vec::new())?;
/// # let gguf = Gguf::from_bytes(bytes)?;
/// let model = ModelSpec::from_gguf(&gguf, 1_024)?;
/// let data = gguf.matrix_data(&model.embedding)?;
/// let mut buffer = Vec::new();
/// for start in (0..data.len()).step_by(1 << 16) {
///     let piece = data.read(start..data.len().min(start + (1 << 16)), &mut buffer)?;
///     assert!(!piece.is_empty());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct TensorData<'a> {
    bytes: &'a Bytes,
    name: &'a str,
    /// Position of the first byte in the file.
    start: u64,
    len: usize,
}

impl std::fmt::Debug for TensorData<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TensorData")
            .field("name", &self.name)
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<'a> TensorData<'a> {
    pub(super) const fn new(bytes: &'a Bytes, name: &'a str, start: u64, len: usize) -> Self {
        Self { bytes, name, start, len }
    }

    /// The bytes `range` of the data; `None` if it is shorter.
    pub(super) fn part(self, range: Range<usize>) -> Option<Self> {
        if range.end > self.len {
            return None;
        }
        let len = range.end.checked_sub(range.start)?;
        Some(Self { start: self.start + range.start as u64, len, ..self })
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes `range`: borrowed from memory, or read from the file into `buffer`, which only
    /// grows. Reuse the buffer.
    ///
    /// # Errors
    /// [`TensorError::Range`] beyond the end, [`TensorError::Truncated`] if the file was shortened
    /// after it was opened, [`TensorError::Read`] if it cannot be read.
    pub fn read<'b>(
        &'b self,
        range: Range<usize>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], TensorError> {
        let part = self.part(range.clone()).ok_or_else(|| self.out_of_range(&range))?;
        if let Some(bytes) = part.in_memory() {
            return Ok(bytes);
        }
        grow(buffer, part.len).map_err(|error| self.refused(&error))?;
        let out = buffer.get_mut(..part.len).unwrap_or_default();
        part.fill(out)?;
        Ok(out)
    }

    /// Copies the bytes from `start` on into `out`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), TensorError> {
        let range = start..start.saturating_add(out.len());
        let part = self.part(range.clone()).ok_or_else(|| self.out_of_range(&range))?;
        match part.in_memory() {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => part.fill(out),
        }
    }

    /// All bytes: borrowed from memory, or a copy of that part of the file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_bytes(&self) -> Result<Cow<'a, [u8]>, TensorError> {
        if let Some(bytes) = self.in_memory() {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut copy = Vec::new();
        self.read(0..self.len, &mut copy)?;
        Ok(Cow::Owned(copy))
    }

    fn in_memory(&self) -> Option<&'a [u8]> {
        if matches!(self.bytes, Bytes::File { .. }) {
            return None;
        }
        // The range was checked when the header was read.
        let start = self.start as usize;
        Some(self.bytes.header().get(start..start + self.len).unwrap_or_default())
    }

    fn file(&self) -> Option<&'a ModelFile> {
        if let Bytes::File { file, .. } = self.bytes { Some(file) } else { None }
    }

    /// Fills `out`, which has the length of this part, from the file.
    fn fill(&self, out: &mut [u8]) -> Result<(), TensorError> {
        let Some(file) = self.file() else { return Ok(()) };
        match file.read_exact_at(self.start, out) {
            Ok(()) => Ok(()),
            Err(ReadError::Io(error)) => Err(self.refused(&error)),
            Err(ReadError::End) => Err(TensorError::Truncated {
                path: file.path().to_owned(),
                tensor: self.name.to_owned(),
                end: self.start + self.len as u64,
                file_bytes: file.len().unwrap_or_default(),
            }),
        }
    }

    fn refused(&self, error: &std::io::Error) -> TensorError {
        TensorError::Read {
            path: self.file().map(|file| file.path().to_owned()).unwrap_or_default(),
            tensor: self.name.to_owned(),
            kind: error.kind(),
            reason: match error.kind() {
                ErrorKind::OutOfMemory => "no memory for it".to_owned(),
                _ => error.to_string(),
            },
        }
    }

    fn out_of_range(&self, range: &Range<usize>) -> TensorError {
        TensorError::Range {
            tensor: self.name.to_owned(),
            wanted: format!("bytes {}..{}", range.start, range.end),
            found: format!("{} bytes", self.len),
        }
    }
}
