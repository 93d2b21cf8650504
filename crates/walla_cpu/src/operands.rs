//! Operands and results of the kernels.

use crate::quantize::{GROUP, Group};

/// Weight rows that a kernel multiplies at once.
pub(crate) const PANEL: usize = 16;
/// Activation rows that a kernel multiplies at once.
pub(crate) const ROWS: usize = 8;

/// Products of one panel with up to [`ROWS`] activation rows.
pub(crate) type Products = [[f32; PANEL]; ROWS];

/// Activations to multiply with, `[rows, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub cols: usize,
    pub values: &'a [f32],
    /// The same activations rounded, for quantised matrices of variants that round: blocks of
    /// [`ROWS`] rows (the last one smaller), each `[cols / 32, rows of the block]`.
    pub groups: &'a [Group],
}

impl Input<'_> {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.values.len() / self.cols
    }

    /// Rows `first..first + count`, which must be exactly one block.
    pub(crate) fn part(self, first: usize, count: usize) -> Self {
        let groups = if self.groups.is_empty() { 0 } else { self.cols / GROUP };
        Self {
            values: &self.values[first * self.cols..][..count * self.cols],
            groups: &self.groups[first * groups..][..count * groups],
            ..self
        }
    }
}

/// Scores of several queries (`[queries, dim]`) with the cells of an f16 page.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "no kernels")
)]
pub(crate) struct Scores<'a> {
    pub queries: &'a [f32],
    pub dim: usize,
    /// `[dim, stride]`
    pub keys: &'a [u16],
    pub stride: usize,
    /// Keys of the next page, to be prefetched; for the last page, the first page of values.
    pub next: &'a [u16],
    /// A multiple of 16.
    pub cells: usize,
    /// Row stride of the result.
    pub width: usize,
}

/// Weights of several queries (row stride `width`) for the cells of an f16 page.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "no kernels")
)]
pub(crate) struct Values<'a> {
    pub weights: &'a [f32],
    pub width: usize,
    pub cells: usize,
    /// `[cells, dim]`
    pub values: &'a [u16],
    /// Values of the next page, to be prefetched; for the last page, the next head's first keys.
    pub next: &'a [u16],
    /// A multiple of 16.
    pub dim: usize,
}
