use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use walla_device::{DeviceError, MatrixDesc, MatrixUse, WeightSource};
use walla_types::TensorType;

use crate::blocks;
use crate::memory::Bytes;
use crate::options::Variant;
use crate::panels::{self, Layout};
use crate::pool::Pool;
use crate::quantise::Group;
use crate::{kernels, scalar};

/// Weight rows that a kernel multiplies at a time.
pub(crate) const PANEL: usize = 16;
/// Activation rows that a kernel multiplies at a time.
pub(crate) const ROWS: usize = 8;

/// Bytes that a thread reads from a file at a time: large enough that the call costs little beside the copy, small enough that the copy
/// is still in the second-level cache when it is packed.
const READ_BYTES: usize = 256 << 10;

/// Products of one panel with up to [`ROWS`] activation rows.
pub(crate) type Products = [[f32; PANEL]; ROWS];

/// A weight matrix in the layout of its variant.
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub ty: TensorType,
    pub usage: MatrixUse,
    variant: Variant,
    /// `None`: rows as in the file.
    panels: Option<Layout>,
    bytes: Bytes,
}

/// Activations to multiply with, `[rows, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub cols: usize,
    pub values: &'a [f32],
    /// The same rounded, for quantised matrices of variants that round: blocks of [`ROWS`] rows (the last one smaller), each
    /// `[cols / 32, rows of the block]`.
    pub groups: &'a [Group],
}

impl Input<'_> {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.values.len() / self.cols
    }

    /// Rows `first..first + count`: one block, or with `first` 0 and all of one block's rows, the same.
    pub(crate) fn part(self, first: usize, count: usize) -> Self {
        let groups = if self.groups.is_empty() { 0 } else { self.cols / crate::quantise::GROUP };
        Self {
            values: &self.values[first * self.cols..][..count * self.cols],
            groups: &self.groups[first * groups..][..count * groups],
            ..self
        }
    }
}

impl Matrix {
    /// Bytes that a matrix takes in the layout of `variant`.
    pub(crate) fn bytes_of(
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
        variant: Variant,
    ) -> usize {
        if !desc.usage.multiply || !variant.takes_panels(desc.ty.is_quantised()) {
            return source.bytes();
        }
        let panels = (desc.rows as usize).div_ceil(PANEL);
        Layout::new(desc.ty, desc.cols as usize).bytes.saturating_mul(panels)
    }

    /// Checks sizes and copies the numbers into the layout of `variant`: panels are read and packed on all threads of the pool.
    pub(crate) fn load(
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
        variant: Variant,
        pool: &Pool,
    ) -> Result<Self, DeviceError> {
        let row_bytes = check(desc, source.bytes())?;
        let (rows, cols, ty, usage) = (desc.rows as usize, desc.cols as usize, desc.ty, desc.usage);
        if !usage.multiply || !variant.takes_panels(ty.is_quantised()) {
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
        pool.grid(stored.bytes_mut(), layout.bytes, tile, &|worker, tile| {
            // Its own: never waits.
            let mut buffer = buffers[worker].lock().unwrap_or_else(PoisonError::into_inner);
            match source.read(of_panels(tile.row..tile.row + tile.rows), &mut buffer) {
                Ok(bytes) => {
                    for (panel, bytes) in bytes.chunks(panel_bytes).enumerate() {
                        let rows = bytes.chunks_exact(row_bytes);
                        panels::pack(ty, cols, rows, tile.row_mut(panel));
                    }
                }
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        Ok(Self { rows, cols, ty, usage, variant, panels: Some(layout), bytes: stored })
    }

    /// Bytes that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Panels, the last one perhaps not full.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Whether it is multiplied with rounded activations.
    pub(crate) fn takes_groups(&self) -> bool {
        self.variant.rounds_activations() && self.ty.is_quantised()
    }

    /// Row `row`, dequantised.
    pub(crate) fn gather(&self, row: usize, out: &mut [f32]) {
        match self.panels {
            Some(layout) => {
                let panel = &self.bytes.bytes()[row / PANEL * layout.bytes..][..layout.bytes];
                panels::gather(self.ty, panel, row % PANEL, out);
            }
            None => blocks::dequantise(self.ty, self.raw_row(row), out),
        }
    }

    /// The products of panel `panel` with the rows of `input` (at most [`ROWS`]); lanes beyond the last row are zeros.
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

/// Checks type and sizes; bytes of a row.
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

#[cfg(test)]
mod tests {
    use walla_device::{philox4x32, unit_interval};

    use super::*;
    use crate::int_dot::{self, Offset};
    use crate::quantise::GROUP;

    fn word(i: u32, seed: u32) -> u32 {
        philox4x32([i, 0, 0, 0], [seed, 5])[0]
    }

    /// Random blocks with moderate scales.
    fn random_bytes(ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
        let len = ty.row_bytes(cols).unwrap() * rows;
        let mut bytes: Vec<u8> = (0..len as u32).map(|i| word(i, ty.to_ggml()) as u8).collect();
        for (i, block) in bytes.chunks_mut(ty.block_bytes()).enumerate() {
            let scale = half::f16::from_f32(unit_interval(word(i as u32, 77)) - 0.5).to_le_bytes();
            match ty {
                TensorType::F32 => {
                    block.copy_from_slice(&(unit_interval(word(i as u32, 78)) - 0.5).to_le_bytes());
                }
                TensorType::BF16 => block[1] = 0x3C | block[1] & 0x83,
                TensorType::F16 => block.copy_from_slice(&scale),
                TensorType::Q6K => block[208..].copy_from_slice(&scale),
                _ => {
                    block[..2].copy_from_slice(&scale);
                    if matches!(
                        ty,
                        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K
                    ) {
                        block[2..4].copy_from_slice(&scale);
                    }
                }
            }
        }
        bytes
    }

    fn load(ty: TensorType, rows: usize, cols: usize, bytes: &[u8], variant: Variant) -> Matrix {
        load_on(&Pool::inline(), ty, rows, cols, bytes, variant)
    }

    fn load_on(
        pool: &Pool,
        ty: TensorType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        variant: Variant,
    ) -> Matrix {
        let usage = MatrixUse { gather: true, multiply: true };
        let desc = MatrixDesc { name: "w", rows: rows as u32, cols: cols as u32, ty, usage };
        Matrix::load(&desc, &bytes, variant, pool).unwrap()
    }

    fn simd() -> impl Iterator<Item = Variant> {
        let runs = |variant: &Variant| *variant != Variant::Scalar && variant.score().is_some();
        Variant::ALL.iter().copied().filter(runs)
    }

    /// Columns that are one block, several, and (where blocks are single numbers) odd.
    fn columns(ty: TensorType) -> [usize; 3] {
        match ty.block_elements() {
            256 => [256, 512, 1280],
            32 => [32, 96, 576],
            _ => [1, 37, 64],
        }
    }

    #[test]
    fn packed_rows_are_gathered_bit_for_bit() {
        for ty in TensorType::ALL {
            let cols = columns(ty)[1];
            let bytes = random_bytes(ty, 35, cols);
            let scalar = load(ty, 35, cols, &bytes, Variant::Scalar);
            for variant in simd() {
                let packed = load(ty, 35, cols, &bytes, variant);
                for row in [0, 1, 15, 16, 34] {
                    let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
                    scalar.gather(row, &mut a);
                    packed.gather(row, &mut b);
                    assert_eq!(a, b, "{ty} {variant} row {row}");
                }
            }
        }
    }

    #[test]
    fn panels_are_the_same_whoever_packs_them() {
        let pool = Pool::start(3).unwrap();
        for (ty, variant) in TensorType::ALL.into_iter().flat_map(|ty| simd().map(move |v| (ty, v)))
        {
            // The last panel is not full.
            let (rows, cols) = (100, columns(ty)[2]);
            let bytes = random_bytes(ty, rows, cols);
            let alone = load(ty, rows, cols, &bytes, variant);
            let together = load_on(&pool, ty, rows, cols, &bytes, variant);
            assert!(alone.bytes.bytes() == together.bytes.bytes(), "{ty} {variant}");
        }
    }

    #[test]
    fn kernels_agree_with_plain_rust_at_every_number_of_rows() {
        for (ty, variant) in TensorType::ALL.into_iter().flat_map(|ty| simd().map(move |v| (ty, v)))
        {
            for cols in columns(ty) {
                let bytes = random_bytes(ty, 21, cols);
                let (matrix, scalar) = (
                    load(ty, 21, cols, &bytes, variant),
                    load(ty, 21, cols, &bytes, Variant::Scalar),
                );
                let values: Vec<f32> =
                    (0..8 * cols as u32).map(|i| unit_interval(word(i, 9)) * 6.0 - 3.0).collect();
                let input = Input { cols, values: &values, groups: &[] };
                for panel in 0..2 {
                    let mut wanted = [[0.0; PANEL]; ROWS];
                    scalar.multiply(panel, input, &mut vec![0.0; cols], &mut wanted);
                    for rows in 1..=ROWS {
                        let mut got = [[f32::NAN; PANEL]; ROWS];
                        let values = &values[..rows * cols];
                        let mut groups = vec![Group::default(); rows * (cols / GROUP)];
                        if matrix.takes_groups() {
                            kernels::round_activations(variant, values, cols, &mut groups);
                        }
                        let input = Input { cols, values, groups: &groups };
                        matrix.multiply(panel, input, &mut [], &mut got);
                        check(&matrix, &bytes, panel, &got[..rows], &wanted, input);
                    }
                }
            }
        }

        fn check(
            matrix: &Matrix,
            bytes: &[u8],
            panel: usize,
            got: &[[f32; PANEL]],
            wanted: &Products,
            input: Input<'_>,
        ) {
            let (ty, cols, got_rows) = (matrix.ty, matrix.cols, got.len());
            for (r, got) in got.iter().enumerate() {
                for lane in 0..PANEL {
                    let row = panel * PANEL + lane;
                    if row >= matrix.rows {
                        assert_eq!(got[lane], 0.0);
                        continue;
                    }
                    let case = format!("{ty} {} row {row} x {r}, {cols} columns", matrix.variant);
                    if matrix.takes_groups() {
                        let offset = match matrix.variant {
                            Variant::Avx512Vnni | Variant::AvxVnni => Offset::AsMinimum,
                            _ => Offset::SignedQ8,
                        };
                        let row_bytes = ty.row_bytes(cols).unwrap();
                        let x: Vec<Group> =
                            input.groups.iter().skip(r).step_by(got_rows).copied().collect();
                        let exact =
                            int_dot::dot(ty, &bytes[row * row_bytes..][..row_bytes], &x, offset);
                        assert_eq!(got[lane], exact, "{case}");
                    }
                    // Rounding moves each product by at most half a step of 1/127 of the largest activation.
                    let mut weights = vec![0.0; cols];
                    matrix.gather(row, &mut weights);
                    let size: f32 = weights.iter().map(|w| w.abs()).sum();
                    let step = if matrix.takes_groups() { 3.0 / 127.0 / 2.0 } else { 1e-5 };
                    let error = (got[lane] - wanted[r][lane]).abs();
                    assert!(error <= size * step * 1.01 + 1e-6, "{case}: {error} of {size}");
                }
            }
        }
    }
}
