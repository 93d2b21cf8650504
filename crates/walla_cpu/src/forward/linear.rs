use walla_device::{Linear, Norm, Slot};

use super::Frame;
use crate::matrix::Matrix;
use crate::memory::Bytes;
use crate::operands::{Input, PANEL, Products, ROWS};
use crate::options::Variant;
use crate::pool::Pool;
use crate::quantize::{GROUP, Group};
use crate::sync::Mutex;
use crate::tile::Tile;
use crate::workspace::{Scratch, Workspace};
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// Normalises `count` rows of `x` (row `pick(i)` for each `i`) into the workspace's `normed`.
    pub(super) fn normalize(
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
        let nanos = work::elements(normed.len());
        self.pool.rows(normed, width, nanos, |row, normed| {
            let x = &x[pick(row) * width..][..width];
            kernels::rms_norm(self.variant, x, weight, norm.eps, normed);
        });
    }

    /// Multiplies all rows of a slot, normalised or as they are, by matrices and adds the biases.
    ///
    /// Returns the places of the products in a row of the workspace's `product`, and the length of
    /// such a row.
    pub(super) fn products<const N: usize>(
        &mut self,
        x: Slot,
        norm: Option<&Norm>,
        linears: [&Linear; N],
    ) -> ([usize; N], usize) {
        let rows = self.rows.len();
        if let Some(norm) = norm {
            self.normalize(x, norm, rows, &|row| row);
        }
        let joined = Joined::new(linears.map(|linear| &self.matrices[linear.matrix.0 as usize]));
        let biases = linears.map(|l| l.bias.map(|bias| self.vectors[bias.0 as usize].as_slice()));
        let (starts, width) = (joined.starts(), joined.width());
        let Workspace { slots, normed, groups, product, workers, .. } = &mut *self.workspace;
        let x = if norm.is_some() { normed } else { &slots[x.0 as usize] };
        let x = first(x, rows * joined.parts[0].cols);
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * width];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        joined.multiply(tools, x, groups, product, width);
        add_biases(self.pool, product, width, starts, biases);
        (starts, width)
    }
}

/// Adds biases to the products that begin at `starts` in rows of `width` numbers.
pub(crate) fn add_biases<const N: usize>(
    pool: &Pool,
    product: &mut [f32],
    width: usize,
    starts: [usize; N],
    biases: [Option<&[f32]>; N],
) {
    if biases.iter().all(Option::is_none) {
        return;
    }
    let nanos = work::elements(product.len());
    pool.rows(product, width, nanos, |_, row| {
        for (start, bias) in starts.into_iter().zip(biases) {
            scalar::add(&mut row[start..], bias.unwrap_or_default());
        }
    });
}

/// Matrices whose products are stored next to each other, each from a multiple of [`PANEL`] columns
/// on.
pub(crate) struct Joined<'a, const N: usize> {
    parts: [&'a Matrix; N],
}

/// Resources for the matrix products of a device.
#[derive(Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub variant: Variant,
    pub pool: &'a Pool,
    pub workers: &'a [Mutex<Scratch>],
}

impl<'a, const N: usize> Joined<'a, N> {
    pub(crate) fn new(parts: [&'a Matrix; N]) -> Self {
        Self { parts }
    }

    /// Estimated nanoseconds of the products of `rows` rows.
    pub(super) fn nanos(&self, rows: usize) -> u64 {
        self.parts.iter().map(|part| part.nanos(rows)).sum()
    }

    /// First column of each part.
    pub(crate) fn starts(&self) -> [usize; N] {
        let mut next = 0;
        self.parts.map(|part| {
            let start = next;
            next += part.panels() * PANEL;
            start
        })
    }

    /// Columns of all parts, including padding.
    pub(crate) fn width(&self) -> usize {
        self.parts.iter().map(|part| part.panels() * PANEL).sum()
    }

    /// `out[r] = [W0 x[r], W1 x[r], ...]` for the rows of `x`, `[rows, cols]`; `groups` is scratch
    /// for the rounded activations.
    ///
    /// `width` is the row stride of `out`: [`width`](Self::width), or the number of rows of a
    /// single part, whose padding is then dropped.
    pub(crate) fn multiply(
        &self,
        tools: Tools<'_>,
        x: &[f32],
        groups: &mut Bytes,
        out: &mut [f32],
        width: usize,
    ) {
        let cols = self.parts[0].cols;
        let rows = x.len() / cols;
        let groups: &[Group] = if self.parts.iter().any(|part| part.takes_groups()) {
            round(tools, x, cols, groups)
        } else {
            &[]
        };
        let input = Input { cols, values: x, groups };
        let (tile, nanos) = ((rows.max(1), PANEL), self.nanos(rows));
        tools.pool.grid(&mut out[..rows * width], width, tile, nanos, &|worker, tile| {
            Workspace::with_scratch(tools.workers, worker, |scratch| {
                self.tile(input, scratch.row.as_mut_slice(), tile);
            });
        });
    }

    /// Products of all rows with the panels of one tile.
    fn tile(&self, input: Input<'_>, scratch: &mut [f32], tile: &mut Tile<'_, f32>) {
        let mut products: Products = [[0.0; PANEL]; ROWS];
        for col in (0..tile.cols).step_by(PANEL) {
            let (part, panel) = self.part((tile.col + col) / PANEL);
            let cols = PANEL.min(tile.cols - col);
            for first in (0..tile.rows).step_by(ROWS) {
                let count = ROWS.min(tile.rows - first);
                part.multiply(panel, input.part(first, count), scratch, &mut products);
                for (r, products) in products[..count].iter().enumerate() {
                    let out = &mut tile.row_mut(first + r)[col..col + cols];
                    // A whole panel is copied without a call.
                    match out.as_mut_array::<PANEL>() {
                        Some(out) => *out = *products,
                        None => out.copy_from_slice(&products[..cols]),
                    }
                }
            }
        }
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

/// Rounds all rows, in blocks of [`ROWS`].
fn round<'a>(tools: Tools<'_>, x: &[f32], cols: usize, groups: &'a mut Bytes) -> &'a [Group] {
    let block = ROWS * cols / GROUP;
    let groups = &mut groups.as_mut_slice()[..x.len() / GROUP];
    let (full, rest) = groups.split_at_mut(groups.len() / block * block);
    let (x_full, x_rest) = x.split_at(full.len() * GROUP);
    let nanos = work::elements(x_full.len());
    tools.pool.tiles(full, block, (1, block), nanos, &|_, tile| {
        let x = &x_full[tile.row * ROWS * cols..][..ROWS * cols];
        kernels::round_activations(tools.variant, x, cols, tile.row_mut(0));
    });
    kernels::round_activations(tools.variant, x_rest, cols, rest);
    groups
}

/// The first `numbers` numbers of a buffer.
pub(crate) fn first(bytes: &Bytes, numbers: usize) -> &[f32] {
    &bytes.as_slice()[..numbers]
}
