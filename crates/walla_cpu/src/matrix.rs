use walla_device::{DeviceError, MatrixDesc, MatrixUse};
use walla_types::TensorType;

use crate::blocks;
use crate::memory::Bytes;
use crate::options::Variant;
use crate::scalar;

/// Weight rows that a kernel multiplies at a time.
pub(crate) const PANEL: usize = 16;
/// Activation rows that a kernel multiplies at a time.
pub(crate) const ROWS: usize = 8;

/// Products of one panel with up to [`ROWS`] activation rows.
pub(crate) type Products = [[f32; PANEL]; ROWS];

/// A weight matrix in the layout of its variant.
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub ty: TensorType,
    pub usage: MatrixUse,
    bytes: Bytes,
}

/// Activations to multiply with, `[rows, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub cols: usize,
    pub values: &'a [f32],
}

impl Input<'_> {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.values.len() / self.cols
    }
}

impl Matrix {
    /// Checks sizes and copies the numbers into the layout of `variant`.
    pub(crate) fn load(
        desc: &MatrixDesc<'_>,
        bytes: &[u8],
        _variant: Variant,
    ) -> Result<Self, DeviceError> {
        let invalid = |what: &str| DeviceError::Invalid(format!("matrix {}: {what}", desc.name));
        if !TensorType::ALL.contains(&desc.ty) {
            return Err(DeviceError::Unsupported {
                device: "cpu".to_owned(),
                what: format!("tensor type {} of {}", desc.ty, desc.name),
            });
        }
        let (rows, cols) = (desc.rows as usize, desc.cols as usize);
        if rows == 0 || cols == 0 {
            return Err(invalid("no rows or no columns"));
        }
        let row_bytes = desc.ty.row_bytes(cols).ok_or_else(|| {
            invalid(&format!("{cols} columns are no multiple of the block of {}", desc.ty))
        })?;
        if row_bytes.checked_mul(rows) != Some(bytes.len()) {
            return Err(invalid(&format!(
                "{} bytes given, {rows} rows of {row_bytes} bytes expected",
                bytes.len()
            )));
        }
        let mut stored = Bytes::zeroed(desc.name, bytes.len())?;
        stored.bytes_mut().copy_from_slice(bytes);
        Ok(Self { rows, cols, ty: desc.ty, usage: desc.usage, bytes: stored })
    }

    /// Bytes that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Panels, the last one perhaps not full.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Row `row`, dequantised.
    pub(crate) fn gather(&self, row: usize, out: &mut [f32]) {
        blocks::dequantise(self.ty, self.raw_row(row), out);
    }

    /// The products of panel `panel` with the rows of `input` (at most [`ROWS`]); lanes beyond the last row are zeros.
    pub(crate) fn multiply(
        &self,
        panel: usize,
        input: Input<'_>,
        scratch: &mut [f32],
        out: &mut Products,
    ) {
        let weights = &mut scratch[..self.cols];
        for lane in 0..PANEL {
            let row = panel * PANEL + lane;
            if row >= self.rows {
                out.iter_mut().for_each(|products| products[lane] = 0.0);
                continue;
            }
            blocks::dequantise(self.ty, self.raw_row(row), weights);
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
