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
/// # use walla_doubles::synth;
/// # use walla_model::{Gguf, ModelSpec};
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
    /// Bytes of a band, and the distance between the starts of two bands; `None`: no gaps.
    bands: Option<(usize, u64)>,
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
        Self { bytes, name, start, len, bands: None }
    }

    /// The bytes `range` of the data, which have no gaps; `None` if it is shorter, or they have.
    pub(super) fn part(self, range: Range<usize>) -> Option<Self> {
        if range.end > self.len {
            return None;
        }
        let len = range.end.checked_sub(range.start)?;
        let mut start = self.start.checked_add(range.start as u64)?;
        if let Some((band, stride)) = self.bands {
            let (index, offset) = (range.start.checked_div(band)?, range.start.checked_rem(band)?);
            if offset.checked_add(len)? > band {
                return None;
            }
            start = stride.checked_mul(index as u64)?.checked_add(self.start)? + offset as u64;
        }
        Some(Self { start, len, bands: None, ..self })
    }

    /// Bands of `band` bytes at distances of `stride` bytes, `len` bytes in total, instead of
    /// adjacent bytes; `None` if the data is shorter.
    pub(super) fn banded(self, band: usize, stride: usize, len: usize) -> Option<Self> {
        let last = len.checked_div(band)?.checked_sub(1)?;
        let end = last.checked_mul(stride)?.checked_add(band)?;
        let fits = band <= stride && end <= self.len && len.is_multiple_of(band);
        fits.then_some(Self { len, bands: Some((band, stride as u64)), ..self })
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
        let part = self.part(range.clone());
        if let Some(bytes) = part.and_then(|part| part.in_memory()) {
            return Ok(bytes);
        }
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= self.len);
        let len = len.ok_or_else(|| self.out_of_range(&range))?;
        grow(buffer, len).map_err(|error| self.refused(&error))?;
        let out = buffer.get_mut(..len).unwrap_or_default();
        self.read_into(range.start, out)?;
        Ok(out)
    }

    /// Copies the bytes from `start` on into `out`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), TensorError> {
        let (mut start, mut out) = (start, out);
        loop {
            let within = match self.bands {
                Some((band, _)) => out.len().min(band - start % band),
                None => out.len(),
            };
            let (piece, rest) = out.split_at_mut(within);
            let range = start..start.saturating_add(within);
            let part = self.part(range.clone()).ok_or_else(|| self.out_of_range(&range))?;
            match part.in_memory() {
                Some(bytes) => piece.copy_from_slice(bytes),
                None => part.fill(piece)?,
            }
            if rest.is_empty() {
                return Ok(());
            }
            (start, out) = (start + within, rest);
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
        if matches!(self.bytes, Bytes::File { .. }) || self.bands.is_some() {
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
