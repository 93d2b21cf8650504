use walla_device::step::StepRow;
use walla_device::{HeadShape, Slot};

use super::Frame;
use crate::cache::{KvLayer, Layer};
use crate::scalar;
use crate::workspace::{Scratch, Workspace};

/// What one layer's attention needs to know besides the row and the head.
struct Attention<'a> {
    kv: &'a KvLayer,
    /// Query heads of one KV head.
    group: usize,
    scale: f32,
    window: u32,
    tables: &'a [u32],
    pages_per_sequence: usize,
}

impl Frame<'_> {
    pub(super) fn attention(
        &mut self,
        q: Slot,
        shape: HeadShape,
        layer: usize,
        scale: f32,
        window: Option<u32>,
        out: Slot,
    ) {
        let Layer::Kv(kv) = &self.cache.layers[layer] else { return };
        let group = (shape.heads / shape.kv_heads) as usize;
        let attention = Attention {
            kv,
            group,
            scale,
            window: window.unwrap_or(u32::MAX),
            tables: self.tables,
            pages_per_sequence: self.program.layout.pages_per_sequence as usize,
        };
        let (rows, width, part) =
            (self.rows, kv.kv_heads * group * kv.head_dim, group * kv.head_dim);
        let Workspace { slots, workers, .. } = &mut *self.workspace;
        let Ok([q, out]) = slots.get_disjoint_mut([q.0 as usize, out.0 as usize]) else { return };
        let q: &[f32] = q.as_slice();
        let out = &mut out.as_mut_slice()[..rows.len() * width];
        self.pool.grid(out, width, (1, part), &|worker, tile| {
            let q = &q[tile.row * width + tile.col..][..part];
            let (row, head) = (&rows[tile.row], tile.col / part);
            Workspace::with_scratch(workers, worker, |scratch| {
                attention.heads(row, head, q, tile.row_mut(0), scratch);
            });
        });
    }
}

impl Attention<'_> {
    /// All query heads of one KV head: `q` and `out` are `[group, head_dim]`.
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
                keys.read(d * self.kv.stride + cell, &mut numbers[..count]);
                for (q, scores) in q.chunks(dim).zip(scores.chunks_mut(cells)) {
                    scalar::add_scaled(&mut scores[at..at + count], q[d], &numbers[..count]);
                }
            }
        });
        out.fill(0.0);
        for (scores, out) in scores.chunks_mut(cells).zip(out.chunks_mut(dim)) {
            scores.iter_mut().for_each(|score| *score *= self.scale);
            let sum = scalar::softmax_weights(scores);
            self.each_page(row, first, end, |page, cell, count, at| {
                let values = self.kv.values(head, page);
                for (i, weight) in scores[at..at + count].iter().enumerate() {
                    values.read((cell + i) * dim, &mut numbers[..dim]);
                    scalar::add_scaled(out, *weight, &numbers[..dim]);
                }
            });
            out.iter_mut().for_each(|out| *out /= sum);
        }
    }

    /// Calls `visit(page, first cell, cells, cells before)` for the pages that hold positions `first..end`, in order.
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
