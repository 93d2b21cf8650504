use walla_device::{Norm, Slot};

use super::Frame;
use crate::matrix::{Input, Matrix, PANEL, Products, ROWS};
use crate::memory::Bytes;
use crate::pool::{Pool, rows_per_tile};
use crate::scalar;
use crate::workspace::{Scratch, Workspace};

/// Weight bytes that are worth a claim of their own: some microseconds of reading memory.
const CLAIM_BYTES: usize = 64 * 1024;

impl Frame<'_> {
    /// Normalises the rows of `x` (`pick(i)` of `count`) into the workspace's `normed`.
    pub(super) fn normalise(
        &mut self,
        x: Slot,
        norm: &Norm,
        count: usize,
        pick: &(dyn Fn(usize) -> usize + Sync),
    ) {
        let weight = &self.vectors[norm.weight.0 as usize];
        let width = weight.len();
        let Workspace { slots, normed, .. } = &mut *self.workspace;
        let x: &[f32] = slots[x.0 as usize].as_slice();
        let normed = &mut normed.as_mut_slice()[..count * width];
        self.pool.grid(normed, width, (rows_per_tile(width), width), &|_, tile| {
            for r in 0..tile.rows {
                let x = &x[pick(tile.row + r) * width..][..width];
                scalar::rms_norm(x, weight, norm.eps, tile.row_mut(r));
            }
        });
    }
}

/// Matrices whose products lie side by side, each from a multiple of [`PANEL`] columns on.
pub(super) struct Joined<'a, const N: usize> {
    parts: [&'a Matrix; N],
}

impl<'a, const N: usize> Joined<'a, N> {
    pub(super) fn new(parts: [&'a Matrix; N]) -> Self {
        Self { parts }
    }

    /// First column of each part.
    pub(super) fn starts(&self) -> [usize; N] {
        let mut next = 0;
        self.parts.map(|part| {
            let start = next;
            next += part.panels() * PANEL;
            start
        })
    }

    /// Columns of all parts together, with padding.
    pub(super) fn width(&self) -> usize {
        self.parts.iter().map(|part| part.panels() * PANEL).sum()
    }

    /// `out[r] = [W0 input[r], W1 input[r], ...]`.
    ///
    /// `width` is the distance of rows in `out`: [`width`](Self::width), or the rows of a single part, whose padding then falls
    /// away.
    pub(super) fn multiply(
        &self,
        pool: &Pool,
        workers: &[std::sync::Mutex<Scratch>],
        input: Input<'_>,
        out: &mut [f32],
        width: usize,
    ) {
        let rows = input.rows();
        let panels = self.width() / PANEL;
        let panel_bytes = self.parts.iter().map(|p| p.held_bytes()).sum::<usize>() / panels;
        let work = panel_bytes * rows.div_ceil(ROWS).max(1);
        let claim = CLAIM_BYTES.div_ceil(work.max(1)).max(1);
        pool.grid(
            &mut out[..rows * width],
            width,
            (rows.max(1), claim * PANEL),
            &|worker, tile| {
                Workspace::with_scratch(workers, worker, |scratch| {
                    let mut products: Products = [[0.0; PANEL]; ROWS];
                    for col in (0..tile.cols).step_by(PANEL) {
                        let (part, panel) = self.part((tile.col + col) / PANEL);
                        let cols = PANEL.min(tile.cols - col);
                        for first in (0..tile.rows).step_by(ROWS) {
                            let count = ROWS.min(tile.rows - first);
                            let values = &input.values[first * input.cols..][..count * input.cols];
                            let block = Input { values, ..input };
                            part.multiply(panel, block, scratch.row.as_mut_slice(), &mut products);
                            for (r, products) in products[..count].iter().enumerate() {
                                tile.row_mut(first + r)[col..col + cols]
                                    .copy_from_slice(&products[..cols]);
                            }
                        }
                    }
                });
            },
        );
    }

    fn part(&self, mut panel: usize) -> (&'a Matrix, usize) {
        for part in self.parts {
            if panel < part.panels() {
                return (part, panel);
            }
            panel -= part.panels();
        }
        unreachable!("a tile lies within the array")
    }
}

/// The part of a workspace buffer that `rows` rows of `cols` numbers take, as input of a product.
pub(super) fn input(bytes: &Bytes, rows: usize, cols: usize) -> Input<'_> {
    Input { cols, values: &bytes.as_slice()[..rows * cols] }
}
