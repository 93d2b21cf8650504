use std::ops::Range;

use walla_device::step::StepRow;
use walla_device::{KvType, op};
use walla_types::PositionScale;

use super::Frame;
use crate::cache::{KvLayer, Layer};
use crate::kernels;
use crate::operands::{Scores, Values};
use crate::options::Variant;
use crate::scalar;
use crate::tile::Tile;
use crate::work;
use crate::workspace::{Scratch, Workspace};

/// Inputs of one layer's attention that do not depend on the row and the head.
struct Attention<'a> {
    variant: Variant,
    kv: &'a KvLayer,
    /// Query heads of one KV head.
    group: usize,
    scale: f32,
    position_scale: Option<PositionScale>,
    window: u32,
    tables: &'a [u32],
    pages_per_sequence: usize,
}

impl Frame<'_> {
    pub(super) fn attention(&mut self, op: &op::Attention) {
        let op::Attention { q, shape, layer, scale, position_scale, window, out } = *op;
        let Layer::Kv(kv) = &self.cache.layers[layer as usize] else { return };
        let group = (shape.heads / shape.kv_heads) as usize;
        let attention = Attention {
            variant: self.variant,
            kv,
            group,
            scale,
            position_scale,
            window: window.unwrap_or(u32::MAX),
            tables: self.tables,
            pages_per_sequence: self.program.layout.pages_per_sequence as usize,
        };
        let (rows, part) = (self.rows, group * kv.head_dim);
        let width = kv.kv_heads * part;
        let tile_rows = attention.tile_rows(rows);
        let Workspace { slots, workers, .. } = &mut *self.workspace;
        let Ok([q, out]) = slots.get_disjoint_mut([q.0 as usize, out.0 as usize]) else { return };
        let q: &[f32] = q.as_slice();
        let out = &mut out.as_mut_slice()[..rows.len() * width];
        let nanos = work::attention(attention.vectors(), shape, cells(rows, window));
        self.pool.tiles(out, width, (tile_rows, part), nanos, &|worker, tile| {
            Workspace::with_scratch(workers, worker, |scratch| {
                attention.tile(rows, q, width, tile, scratch);
            });
        });
    }
}

/// Maximum number of query heads per KV head; checked when a program is prepared.
pub(crate) const MAX_GROUP: usize = 64;
/// Maximum number of queries whose scores one tile holds.
pub(crate) const QUERIES: usize = 8;

/// Whether the SIMD kernels apply: f16, and whole registers.
pub(super) fn has_vectors(variant: Variant, kv: &KvLayer) -> bool {
    variant.has_vectors()
        && kv.kv_type == KvType::F16
        && kv.head_dim.is_multiple_of(16)
        && kv.page_tokens.is_multiple_of(16)
}

/// Number of positions to which all rows attend.
pub(super) fn cells(rows: &[StepRow], window: Option<u32>) -> u64 {
    let window = window.unwrap_or(u32::MAX);
    rows.iter().map(|row| cells_of(row, window).len() as u64).sum()
}

/// Positions that a row attends to.
fn cells_of(row: &StepRow, window: u32) -> Range<usize> {
    let end = row.position as usize + 1;
    end.saturating_sub(window as usize)..end
}

impl Attention<'_> {
    fn vectors(&self) -> bool {
        has_vectors(self.variant, self.kv)
    }

    /// Rows of a tile. For long runs of one sequence: several rows that share the reads of keys;
    /// else 1.
    fn tile_rows(&self, rows: &[StepRow]) -> usize {
        if !self.vectors() {
            return 1;
        }
        let runs = rows.chunk_by(|a, b| a.table == b.table).count();
        (rows.len() / runs.max(1)).clamp(1, (QUERIES / self.group).max(1))
    }

    /// Computes all query heads of one KV head, for neighbouring rows.
    fn tile(
        &self,
        rows: &[StepRow],
        q: &[f32],
        width: usize,
        tile: &mut Tile<'_, f32>,
        scratch: &mut Scratch,
    ) {
        let part = self.group * self.kv.head_dim;
        let head = tile.col / part;
        if !self.vectors() {
            for r in 0..tile.rows {
                let row = tile.row + r;
                let query = &q[row * width + tile.col..][..part];
                self.heads(&rows[row], head, query, tile.row_mut(r), scratch);
            }
            return;
        }
        // Rows of one sequence share the reads of its pages.
        let mut first = 0;
        for run in rows[tile.row..tile.row + tile.rows].chunk_by(|a, b| a.table == b.table) {
            let next = rows.get(tile.row + first + run.len());
            self.run((run, next), first, head, q, width, tile, scratch);
            first += run.len();
        }
    }

    /// Factor on the scores of a row.
    fn scale(&self, row: &StepRow) -> f32 {
        self.position_scale.map_or(self.scale, |scale| self.scale * scale.at(row.position))
    }

    /// Positions that a row attends to.
    fn cells(&self, row: &StepRow) -> Range<usize> {
        cells_of(row, self.window)
    }

    /// The keys that are probably read next, after `row` and `head`: the first page of the next
    /// head, or of the first head of the next row.
    fn keys_after(&self, row: &StepRow, next: Option<&StepRow>, head: usize) -> &[u16] {
        let (row, head) = match next {
            Some(next) if head + 1 == self.kv.kv_heads => (next, 0),
            _ => (row, (head + 1) % self.kv.kv_heads),
        };
        let page = self.cells(row).start / self.kv.page_tokens;
        let page = self.tables[row.table as usize * self.pages_per_sequence + page];
        self.kv.keys(head, page as usize).halves()
    }

    /// Computes rows `first..` of a tile, which all use the same page table. `next` is the row
    /// after them.
    #[expect(clippy::too_many_arguments, reason = "the coordinates of a tile")]
    fn run(
        &self,
        (run, next): (&[StepRow], Option<&StepRow>),
        first: usize,
        head: usize,
        q: &[f32],
        width: usize,
        tile: &mut Tile<'_, f32>,
        scratch: &mut Scratch,
    ) {
        let (dim, tokens) = (self.kv.head_dim, self.kv.page_tokens);
        let part = self.group * dim;
        let queries = &mut scratch.row.as_mut_slice()[..run.len() * part];
        for (r, query) in queries.chunks_mut(part).enumerate() {
            query.copy_from_slice(&q[(tile.row + first + r) * width + tile.col..][..part]);
        }
        let start =
            run.iter().map(|row| self.cells(row).start).min().unwrap_or(0) / tokens * tokens;
        let end = run.iter().map(|row| self.cells(row).end).max().unwrap_or(0);
        let pages = start / tokens..end.div_ceil(tokens);
        let table = &self.tables[run[0].table as usize * self.pages_per_sequence..];
        let scores_width = pages.len() * tokens;
        let scores: &mut [f32] =
            &mut scratch.scores.as_mut_slice()[..run.len() * self.group * scores_width];
        let keys = |page: usize| self.kv.keys(head, table[page] as usize).halves();
        let values = |page: usize| self.kv.values(head, table[page] as usize).halves();
        let after = self.keys_after(&run[0], next, head);
        for (i, page) in pages.clone().enumerate() {
            let more = page + 1 < pages.end;
            let next = if more { keys(page + 1) } else { values(pages.start) };
            let keys = keys(page);
            let cells = (end - page * tokens).min(tokens).next_multiple_of(16);
            let stride = self.kv.stride;
            let product = Scores { queries, dim, keys, stride, next, cells, width: scores_width };
            product.compute(self.variant, &mut scores[i * tokens..]);
        }
        for (r, row) in run.iter().enumerate() {
            let own = self.cells(row);
            let scores = &mut scores[r * self.group * scores_width..][..self.group * scores_width];
            let (scale, mut sums) = (self.scale(row), [0.0; MAX_GROUP]);
            for (scores, sum) in scores.chunks_mut(scores_width).zip(&mut sums) {
                let own = &mut scores[own.start - start..own.end - start];
                *sum = kernels::softmax_weights(self.variant, own, scale);
            }
            let out = tile.row_mut(first + r);
            out.fill(0.0);
            for page in own.start / tokens..own.end.div_ceil(tokens) {
                let more = page + 1 < pages.end;
                let next = if more { values(page + 1) } else { after };
                let values = values(page);
                let from = own.start.max(page * tokens);
                let cells = own.end.min((page + 1) * tokens) - from;
                let values = &values[(from - page * tokens) * dim..];
                let weights = &scores[from - start..];
                let page = Values { weights, width: scores_width, cells, values, next, dim };
                page.add(self.variant, out);
            }
            for (out, sum) in out.chunks_mut(dim).zip(sums) {
                out.iter_mut().for_each(|out| *out /= sum);
            }
        }
    }

    /// Computes all query heads of one KV head: `q` and `out` are `[group, head_dim]`.
    fn heads(&self, row: &StepRow, head: usize, q: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        let dim = self.kv.head_dim;
        let end = row.position as usize + 1;
        let first = end.saturating_sub(self.window as usize);
        let cells = end - first;
        let scores: &mut [f32] = &mut scratch.scores.as_mut_slice()[..self.group * cells];
        let numbers: &mut [f32] = scratch.row.as_mut_slice();
        scores.fill(0.0);
        self.each_page(row, first, end, |page, cell, count, at| {
            let keys = self.kv.keys(head, page);
            for d in 0..dim {
                keys.units(d * self.kv.stride + cell, &mut numbers[..count]);
                for (q, scores) in q.chunks(dim).zip(scores.chunks_mut(cells)) {
                    scalar::add_scaled(&mut scores[at..at + count], q[d], &numbers[..count]);
                }
            }
            for i in 0..count {
                let scale = keys.scale(cell + i);
                scores.chunks_mut(cells).for_each(|scores| scores[at + i] *= scale);
            }
        });
        let (scale, mut sums) = (self.scale(row), [0.0; MAX_GROUP]);
        for (scores, sum) in scores.chunks_mut(cells).zip(&mut sums) {
            *sum = kernels::softmax_weights(self.variant, scores, scale);
        }
        out.fill(0.0);
        self.each_page(row, first, end, |page, cell, count, at| {
            let values = self.kv.values(head, page);
            for i in 0..count {
                values.units((cell + i) * dim, &mut numbers[..dim]);
                let scale = values.scale(cell + i);
                for (scores, out) in scores.chunks(cells).zip(out.chunks_mut(dim)) {
                    scalar::add_scaled(out, scores[at + i] * scale, &numbers[..dim]);
                }
            }
        });
        for (out, sum) in out.chunks_mut(dim).zip(sums) {
            out.iter_mut().for_each(|out| *out /= sum);
        }
    }

    /// Calls `visit(page, first cell, cells, cells before)` for the pages that hold positions
    /// `first..end`, in order.
    fn each_page(
        &self,
        row: &StepRow,
        first: usize,
        end: usize,
        mut visit: impl FnMut(usize, usize, usize, usize),
    ) {
        let table = &self.tables[row.table as usize * self.pages_per_sequence..];
        let mut at = first;
        while at < end {
            let cell = at % self.kv.page_tokens;
            let count = (self.kv.page_tokens - cell).min(end - at);
            visit(table[at / self.kv.page_tokens] as usize, cell, count, at - first);
            at += count;
        }
    }
}
