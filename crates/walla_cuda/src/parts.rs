//! Splits a weight matrix into parts that are read into reused buffers.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use walla_device::{DeviceError, MatrixDesc, WeightSource};
use walla_types::TensorType;

use crate::repack::{self, Layout};

/// Buffers for parts of a matrix: one per reading thread.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, buffer: Vec<u8>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

/// A matrix split into parts: byte ranges of its source.
pub(crate) struct Parts<'a> {
    pub(crate) source: &'a dyn WeightSource,
    /// Bytes of each part; the last may be smaller.
    pub(crate) part_bytes: usize,
    pub(crate) buffers: &'a Buffers,
}

impl Parts<'_> {
    pub(crate) fn count(&self) -> usize {
        self.source.bytes().div_ceil(self.part_bytes)
    }

    pub(crate) fn range(&self, i: usize) -> Range<usize> {
        let start = i * self.part_bytes;
        start..self.source.bytes().min(start + self.part_bytes)
    }

    /// [`repack::largest`] of some parts.
    pub(crate) fn largest(&self, ty: TensorType, parts: Range<usize>) -> Result<f32, DeviceError> {
        let mut buffer = self.buffers.take();
        let mut largest = 0.0_f32;
        for i in parts {
            let part = self.source.read(self.range(i), &mut buffer)?;
            largest = largest.max(repack::largest(ty, part));
        }
        self.buffers.give_back(buffer);
        Ok(largest)
    }
}

/// Checks a matrix against its length in bytes. Returns bytes per row, layout and type code.
pub(crate) fn shape(
    desc: &MatrixDesc<'_>,
    len: usize,
) -> Result<(usize, Layout, u32), DeviceError> {
    let cols = desc.cols as usize;
    let known = Layout::of(desc.ty, cols).zip(repack::kind(desc.ty));
    let Some((layout, kind)) = known else {
        let what = format!("{} with {} columns of {}", desc.name, cols, desc.ty);
        return Err(DeviceError::Unsupported { device: "cuda".to_owned(), what });
    };
    let row_bytes = desc.ty.row_bytes(cols).unwrap_or_default();
    let wanted = row_bytes.checked_mul(desc.rows as usize);
    if row_bytes == 0 || desc.rows == 0 || wanted != Some(len) {
        return Err(DeviceError::Invalid(format!(
            "{}: {} x {} of {} are not {} bytes",
            desc.name, desc.rows, cols, desc.ty, len
        )));
    }
    Ok((row_bytes, layout, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repack::TILE_ROWS;

    #[test]
    fn parts_cover_the_source_once() {
        let source: Vec<u8> = (0..=99).collect();
        for part_bytes in [1, 7, 50, 99, 100, 101] {
            let parts = Parts { source: &source, part_bytes, buffers: &Buffers::default() };
            let all: Vec<usize> = (0..parts.count()).flat_map(|i| parts.range(i)).collect();
            assert_eq!(all, (0..100).collect::<Vec<_>>(), "{part_bytes}");
        }
    }

    /// A part's buffer is therefore at most as large as the pinned memory that the part is repacked
    /// into.
    #[test]
    fn no_type_takes_more_bytes_in_a_file_than_in_a_tile() {
        for ty in TensorType::ALL {
            for cols in [256, 2_560, 32_768] {
                let Some(layout) = Layout::of(ty, cols) else { continue };
                let in_file = TILE_ROWS * ty.row_bytes(cols).unwrap();
                assert!(in_file <= layout.tile_bytes(), "{ty}");
            }
        }
    }
}
