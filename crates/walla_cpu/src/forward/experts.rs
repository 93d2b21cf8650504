use std::ops::Range;

use walla_device::{Linear, op};
use walla_types::{Activation, ExpertScore};

use super::Frame;
use super::linear::{Tools, first};
use crate::experts::{Block, Choice, choose, group};
use crate::kernels;
use crate::matrix::Matrix;
use crate::memory::Bytes;
use crate::operands::{Input, PANEL, Products, ROWS};
use crate::options::Variant;
use crate::pool::Pool;
use crate::quantize::{GROUP, Group};
use crate::scalar;
use crate::tile::Tile;
use crate::work;
use crate::workspace::{ExpertSpace, Workspace};

impl Frame<'_> {
    /// `x[r] += sum_e weight[e] * D_e (activation(G_e n) * (U_e n))`.
    ///
    /// Rows are grouped by expert into blocks, so each panel of a used expert is read once. A tile
    /// has some panels of every expert: threads have equal work, whichever experts are chosen.
    pub(super) fn experts(&mut self, op: &op::Experts) {
        let (rows, used) = (self.rows.len(), op.used as usize);
        if rows == 0 {
            return;
        }
        let router_linear = Linear { matrix: op.router, bias: None };
        let (_, padded) = self.products(op.x, Some(&op.norm), [&router_linear]);
        let [router, gate, up, down] =
            [op.router, op.gate, op.up, op.down].map(|id| &self.matrices[id.0 as usize]);
        let bias = op.selection_bias.map(|bias| self.vectors[bias.0 as usize].as_slice());
        let Workspace { slots, normed, groups, product, workers, experts, .. } =
            &mut *self.workspace;
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let normed = first(normed, rows * router.cols);
        let logits = first(product, rows * padded);
        let logits = Logits { numbers: logits, padded, count: router.rows };
        let (blocks, experts_used) = route(tools.pool, &logits, op.score, bias, used, experts);

        let sizes = (router.rows, experts_used, rows * used);
        let mixture = Mixture { tools, blocks: &experts.blocks.as_slice()[..blocks], sizes };
        let inputs = mixture.gather(normed, router.cols, &mut experts.inputs);
        let input = mixture.input(inputs, router.cols, [gate, up], groups);
        let hidden = mixture.gate_up(input, [gate, up], op.activation, &mut experts.hidden);
        let input = mixture.input(hidden, down.cols, [down], groups);
        let x = &mut slots[op.x.0 as usize].as_mut_slice()[..rows * router.cols];
        mixture.down(input, down, x);
    }
}

/// Products of the router, `[rows, padded]`; the first `count` of a row belong to experts.
struct Logits<'a> {
    numbers: &'a [f32],
    padded: usize,
    count: usize,
}

/// Chooses the experts of all rows, and groups rows by expert. Returns the number of blocks and of
/// experts in use.
fn route(
    pool: &Pool,
    logits: &Logits<'_>,
    score: ExpertScore,
    bias: Option<&[f32]>,
    used: usize,
    space: &mut ExpertSpace,
) -> (usize, usize) {
    let rows = logits.numbers.len() / logits.padded;
    let choices: &mut [Choice] = &mut space.choices.as_mut_slice()[..rows * used];
    let nanos = work::elements(4 * rows * logits.count);
    pool.rows(choices, used, nanos, |row, choices| {
        let logits = &logits.numbers[row * logits.padded..][..logits.count];
        choose(score, logits, bias, choices);
    });
    let counts: &mut [u32] = &mut space.counts.as_mut_slice()[..logits.count];
    group(choices, used, counts, space.blocks.as_mut_slice())
}

/// The rows of a step, grouped by expert.
#[derive(Clone, Copy)]
struct Mixture<'a> {
    tools: Tools<'a>,
    blocks: &'a [Block],
    /// Experts, experts in use, rows of all experts together.
    sizes: (usize, usize, usize),
}

impl Mixture<'_> {
    /// Copies the rows of each block next to each other.
    fn gather<'a>(&self, rows: &[f32], cols: usize, inputs: &'a mut Bytes) -> &'a [f32] {
        let width = ROWS * cols;
        let inputs: &mut [f32] = &mut inputs.as_mut_slice()[..self.blocks.len() * width];
        let (nanos, blocks) = (work::elements(inputs.len()), self.blocks);
        self.tools.pool.rows(inputs, width, nanos, |block, out| {
            let block = &blocks[block];
            let out = out.chunks_exact_mut(cols);
            for (out, row) in out.zip(&block.rows[..block.count as usize]) {
                out.copy_from_slice(&rows[*row as usize * cols..][..cols]);
            }
        });
        inputs
    }

    /// The inputs of a product with `parts`: [`ROWS`] rows for each block, which uses the first
    /// ones. They are rounded if one of the parts is multiplied so.
    fn input<'a, const N: usize>(
        &self,
        values: &'a [f32],
        cols: usize,
        parts: [&Matrix; N],
        groups: &'a mut Bytes,
    ) -> Input<'a> {
        if !parts.iter().any(|part| part.takes_groups()) {
            return Input { cols, values, groups: &[] };
        }
        let width = ROWS * cols / GROUP;
        let groups: &mut [Group] = &mut groups.as_mut_slice()[..self.blocks.len() * width];
        let (nanos, blocks) = (work::elements(values.len()), self.blocks);
        let Tools { variant, pool, .. } = self.tools;
        pool.rows(groups, width, nanos, |block, out| {
            let count = blocks[block].count as usize;
            let values = &values[block * ROWS * cols..][..count * cols];
            kernels::round_activations(variant, values, cols, &mut out[..count * cols / GROUP]);
        });
        Input { cols, values, groups }
    }

    /// Estimated nanoseconds of a product with `matrix`.
    fn nanos(&self, matrix: &Matrix) -> u64 {
        let (count, used, rows) = self.sizes;
        matrix.part_nanos(count, used, rows)
    }

    /// `h = activation(G_e n) * (U_e n)` for every row of every block: `[blocks, ROWS, hidden]`.
    fn gate_up<'a>(
        &self,
        input: Input<'_>,
        [gate, up]: [&Matrix; 2],
        activation: Activation,
        h: &'a mut Bytes,
    ) -> &'a [f32] {
        let hidden = gate.rows / self.sizes.0;
        let rows = self.blocks.len() * ROWS;
        let h: &mut [f32] = &mut h.as_mut_slice()[..rows * hidden];
        let nanos = self.nanos(gate) + self.nanos(up);
        let (Tools { variant, pool, workers }, blocks) = (self.tools, self.blocks);
        pool.grid(h, hidden, (rows, PANEL), nanos, &|worker, tile| {
            Workspace::with_scratch(workers, worker, |scratch| {
                let scratch: &mut [f32] = scratch.row.as_mut_slice();
                each(blocks, hidden, tile.col..tile.col + tile.cols, &mut |panel, col, block| {
                    let count = blocks[block].count as usize;
                    let input = input.part(block * ROWS, count);
                    let (mut g, mut u): (Products, Products) =
                        ([[0.0; PANEL]; ROWS], [[0.0; PANEL]; ROWS]);
                    gate.multiply(panel, input, scratch, &mut g);
                    up.multiply(panel, input, scratch, &mut u);
                    let products = g[..count].iter().zip(&u[..count]);
                    put_gated(variant, activation, products, block, col - tile.col, tile);
                });
            });
        });
        h
    }

    /// `x[r] += sum_e weight[e] * D_e h`, in ascending order of experts.
    fn down(&self, input: Input<'_>, down: &Matrix, x: &mut [f32]) {
        let width = down.rows / self.sizes.0;
        let rows = x.len() / width;
        let (Tools { pool, workers, .. }, blocks) = (self.tools, self.blocks);
        pool.grid(x, width, (rows, PANEL), self.nanos(down), &|worker, tile| {
            Workspace::with_scratch(workers, worker, |scratch| {
                let scratch: &mut [f32] = scratch.row.as_mut_slice();
                each(blocks, width, tile.col..tile.col + tile.cols, &mut |panel, col, block| {
                    let Block { count, rows, weights, .. } = &blocks[block];
                    let mut products: Products = [[0.0; PANEL]; ROWS];
                    let input = input.part(block * ROWS, *count as usize);
                    down.multiply(panel, input, scratch, &mut products);
                    let all = products[..*count as usize].iter().zip(rows).zip(weights);
                    let col = col - tile.col;
                    for ((products, row), weight) in all {
                        let x = &mut tile.row_mut(*row as usize)[col..][..PANEL];
                        scalar::add_scaled(x, *weight, products);
                    }
                });
            });
        });
    }
}

/// Calls `visit(panel, column, block)` for the columns `cols` of an output of `width` columns, and
/// for every block. Experts are in ascending order; the blocks of one panel follow each other.
fn each(
    blocks: &[Block],
    width: usize,
    cols: Range<usize>,
    visit: &mut dyn FnMut(usize, usize, usize),
) {
    let mut start = 0;
    for run in blocks.chunk_by(|a, b| a.expert == b.expert) {
        let first_panel = run[0].expert as usize * width / PANEL;
        for col in cols.clone().step_by(PANEL) {
            for block in start..start + run.len() {
                visit(first_panel + col / PANEL, col, block);
            }
        }
        start += run.len();
    }
}

/// Stores `activation(g) * u` for the rows of a block, from column `col` of the tile on.
fn put_gated<'p>(
    variant: Variant,
    activation: Activation,
    products: impl Iterator<Item = (&'p [f32; PANEL], &'p [f32; PANEL])>,
    block: usize,
    col: usize,
    tile: &mut Tile<'_, f32>,
) {
    for (r, (g, u)) in products.enumerate() {
        let h = &mut tile.row_mut(block * ROWS + r)[col..][..PANEL];
        kernels::gate(variant, activation, g, u, h);
    }
}
