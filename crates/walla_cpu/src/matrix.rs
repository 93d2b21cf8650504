use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use walla_device::{DeviceError, MatrixDesc, MatrixUse, WeightSource};
use walla_types::{TensorType, blocks};

use crate::memory::Bytes;
use crate::operands::{Input, PANEL, Products};
use crate::options::Variant;
use crate::panels::{self, Layout};
use crate::pool::Pool;
use crate::{kernels, scalar, work};

#[cfg(test)]
pub(crate) mod tests;

/// Bytes that a thread reads from a file per call. Large enough that the copy costs more than the
/// call, and small enough that the copy is still in the L2 cache when it is packed.
const READ_BYTES: usize = 256 << 10;

/// A weight matrix in the layout of its variant.
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub ty: TensorType,
    pub usage: MatrixUse,
    variant: Variant,
    /// `None`: rows are stored as in the file.
    panels: Option<Layout>,
    bytes: Bytes,
}

impl Matrix {
    /// Bytes of a matrix in the layout of `variant`.
    pub(crate) fn bytes_of(
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
        variant: Variant,
    ) -> usize {
        if !desc.usage.multiply || !variant.has_vectors() {
            return source.bytes();
        }
        let panels = (desc.rows as usize).div_ceil(PANEL);
        Layout::new(desc.ty, desc.cols as usize).bytes.saturating_mul(panels)
    }

    /// Checks sizes and copies the numbers into the layout of `variant`. All threads of the pool
    /// read and pack panels.
    pub(crate) fn load(
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
        variant: Variant,
        pool: &Pool,
    ) -> Result<Self, DeviceError> {
        let row_bytes = check(desc, source.bytes())?;
        let (rows, cols, ty, usage) = (desc.rows as usize, desc.cols as usize, desc.ty, desc.usage);
        if !usage.multiply || !variant.has_vectors() {
            let mut stored = Bytes::zeroed(desc.name, source.bytes())?;
            source.read_into(0, stored.bytes_mut())?;
            return Ok(Self { rows, cols, ty, usage, variant, panels: None, bytes: stored });
        }
        let layout = Layout::new(ty, cols);
        let len = layout.bytes.checked_mul(rows.div_ceil(PANEL)).unwrap_or(usize::MAX / 2);
        let mut stored = Bytes::zeroed(desc.name, len)?;
        let panel_bytes = PANEL * row_bytes;
        let of_panels = |panels: Range<usize>| {
            panels.start * panel_bytes..source.bytes().min(panels.end * panel_bytes)
        };
        let buffers: Vec<_> = (0..pool.workers()).map(|_| Mutex::new(Vec::new())).collect();
        let failure = Mutex::new(None);
        let panels_per_tile = (READ_BYTES / panel_bytes).max(1);
        let tile = (panels_per_tile, layout.bytes);
        // More work than any rest of a helper: all of them join.
        pool.wake(pool.workers(), u64::MAX);
        pool.tiles(stored.bytes_mut(), layout.bytes, tile, u64::MAX, &|worker, tile| {
            // One buffer per worker, so the lock is free.
            let mut buffer = buffers[worker].lock().unwrap_or_else(PoisonError::into_inner);
            match source.read(of_panels(tile.row..tile.row + tile.rows), &mut buffer) {
                Ok(bytes) => {
                    for (panel, bytes) in bytes.chunks(panel_bytes).enumerate() {
                        let rows = bytes.chunks_exact(row_bytes);
                        panels::pack(ty, cols, rows, tile.row_mut(panel));
                    }
                }
                Err(error) => {
                    // Any error will do; the other threads finish their tiles without effect.
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        });
        pool.rest();
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        Ok(Self { rows, cols, ty, usage, variant, panels: Some(layout), bytes: stored })
    }

    /// Number of panels, including a partial last one.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Whether it is multiplied by rounded activations.
    pub(crate) fn takes_groups(&self) -> bool {
        self.variant.rounds_activations() && self.ty.is_quantized()
    }

    /// Estimated nanoseconds of a product with `rows` rows.
    pub(crate) fn nanos(&self, rows: usize) -> u64 {
        work::product(self.variant, self.ty, self.bytes.len(), self.rows * self.cols, rows)
    }

    /// Estimated nanoseconds of the products of `rows` rows with `used` of `count` equal parts, one
    /// part for each row.
    pub(crate) fn part_nanos(&self, count: usize, used: usize, rows: usize) -> u64 {
        let (bytes, numbers) = (self.bytes.len() / count, self.rows / count * self.cols);
        work::product(self.variant, self.ty, bytes.saturating_mul(used), numbers, rows)
    }

    /// Row `row`, dequantised.
    pub(crate) fn gather(&self, row: usize, out: &mut [f32]) {
        match self.panels {
            Some(layout) => {
                let panel = &self.bytes.bytes()[row / PANEL * layout.bytes..][..layout.bytes];
                panels::gather(self.ty, panel, row % PANEL, out);
            }
            None => blocks::dequantize(self.ty, self.raw_row(row), out),
        }
    }

    /// Products of panel `panel` with the rows of `input` (at most [`ROWS`]). Lanes beyond the last
    /// row are zeros.
    pub(crate) fn multiply(
        &self,
        panel: usize,
        input: Input<'_>,
        scratch: &mut [f32],
        out: &mut Products,
    ) {
        if let Some(layout) = self.panels {
            let bytes = &self.bytes.bytes()[panel * layout.bytes..][..layout.bytes];
            return kernels::multiply(self.variant, self.ty, bytes, input, out);
        }
        let weights = &mut scratch[..self.cols];
        for lane in 0..PANEL {
            let row = panel * PANEL + lane;
            if row >= self.rows {
                out.iter_mut().for_each(|products| products[lane] = 0.0);
                continue;
            }
            blocks::dequantize(self.ty, self.raw_row(row), weights);
            for (products, values) in out.iter_mut().zip(input.values.chunks_exact(self.cols)) {
                products[lane] = scalar::dot(weights, values);
            }
        }
    }

    fn raw_row(&self, row: usize) -> &[u8] {
        let row_bytes = self.bytes.len() / self.rows;
        &self.bytes.bytes()[row * row_bytes..][..row_bytes]
    }
}

/// Checks type and sizes; returns the bytes of a row.
fn check(desc: &MatrixDesc<'_>, len: usize) -> Result<usize, DeviceError> {
    let invalid = |what: String| DeviceError::Invalid(format!("matrix {}: {what}", desc.name));
    if !TensorType::ALL.contains(&desc.ty) {
        return Err(DeviceError::Unsupported {
            device: "cpu".to_owned(),
            what: format!("tensor type {} of {}", desc.ty, desc.name),
        });
    }
    let (rows, cols, ty) = (desc.rows as usize, desc.cols as usize, desc.ty);
    if rows == 0 || cols == 0 {
        return Err(invalid("no rows or no columns".to_owned()));
    }
    let row_bytes = ty.row_bytes(cols);
    let row_bytes =
        row_bytes.ok_or_else(|| invalid(format!("{cols} columns are no whole blocks of {ty}")))?;
    if row_bytes.checked_mul(rows) != Some(len) {
        return Err(invalid(format!(
            "{len} bytes given, {rows} rows of {row_bytes} bytes expected"
        )));
    }
    Ok(row_bytes)
}
