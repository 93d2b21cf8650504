//! Weights that are read in parts, as from a file.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use walla_device::{DeviceError, WeightSource};

/// A source that copies, like a file.
pub struct InFile<'a> {
    bytes: &'a [u8],
    /// Number of reads that succeed.
    max_reads: usize,
    pub reads: AtomicUsize,
    /// Bytes of the largest read.
    pub largest: AtomicUsize,
}

impl<'a> InFile<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::failing(bytes, usize::MAX)
    }

    pub fn failing(bytes: &'a [u8], max_reads: usize) -> Self {
        let (reads, largest) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { bytes, max_reads, reads, largest }
    }
}

impl WeightSource for InFile<'_> {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn read<'a>(
        &'a self,
        range: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], DeviceError> {
        buffer.resize(range.len().max(buffer.len()), 0);
        self.largest.fetch_max(range.len(), Ordering::Relaxed);
        let part = &mut buffer[..range.len()];
        self.read_into(range.start, part)?;
        Ok(part)
    }

    fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        if self.reads.fetch_add(1, Ordering::Relaxed) >= self.max_reads {
            return Err(DeviceError::Source { matrix: "m".into(), reason: "cut off".into() });
        }
        out.copy_from_slice(&self.bytes[start..][..out.len()]);
        Ok(())
    }
}
