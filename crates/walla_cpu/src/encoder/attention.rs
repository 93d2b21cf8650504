//! Attention of each text to itself.

use std::ops::Range;
use std::sync::PoisonError;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use walla_device::HeadShape;

use super::prepare::HeadSpace;
use crate::forward::attention::QUERIES;
use crate::kernels;
use crate::operands::{Scores, Values};
use crate::options::Variant;
use crate::pool::Pool;
use crate::scalar;
use crate::sync::Mutex;
use crate::work;

/// The texts of a call.
pub(super) struct Texts<'a> {
    texts: &'a [&'a [u32]],
    /// First row of each text, and the number of rows.
    starts: Vec<usize>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(texts: &'a [&'a [u32]]) -> Self {
        let mut starts = vec![0];
        for text in texts {
            starts.push(starts[starts.len() - 1] + text.len());
        }
        Self { texts, starts }
    }

    /// Rows of all texts.
    pub(super) fn rows(&self) -> usize {
        self.starts[self.texts.len()]
    }

    /// Pairs of tokens that attend to each other.
    pub(super) fn cells(&self) -> u64 {
        self.texts.iter().map(|text| text.len() as u64 * text.len() as u64).sum()
    }

    /// The token of a row, and its position in its text.
    pub(super) fn token(&self, row: usize) -> (u32, usize) {
        let text = self.starts.partition_point(|start| *start <= row) - 1;
        let position = row - self.starts[text];
        (self.texts[text][position], position)
    }

    fn range(&self, text: usize) -> Range<usize> {
        self.starts[text]..self.starts[text + 1]
    }
}

/// Inputs that do not depend on the layer.
pub(super) struct Attention<'a> {
    pub variant: Variant,
    pub spaces: &'a [Mutex<HeadSpace>],
    pub heads: usize,
    pub width: usize,
    pub texts: &'a Texts<'a>,
}

/// Queries, keys and values of one head of one text: rows that are `stride` apart.
struct Head<'a> {
    parts: [&'a [f32]; 3],
    stride: usize,
    dim: usize,
    rows: usize,
}

impl<'a> Head<'a> {
    fn row(&self, part: usize, row: usize) -> &'a [f32] {
        &self.parts[part][row * self.stride..][..self.dim]
    }
}

impl Attention<'_> {
    fn dim(&self) -> usize {
        self.width / self.heads
    }

    /// Whether the SIMD kernels apply.
    pub(super) fn in_vectors(&self) -> bool {
        self.variant.has_vectors() && self.dim().is_multiple_of(16)
    }

    /// Estimated nanoseconds of one layer.
    pub(super) fn nanos(&self) -> u64 {
        let (heads, head_dim) = (self.heads as u32, self.dim() as u32);
        let shape = HeadShape { heads, kv_heads: heads, head_dim };
        work::attention(self.in_vectors(), shape, self.texts.cells())
    }

    /// `out[r] = softmax(q[r] K^T / sqrt(dim)) V` for all rows, over the rows of the same text.
    /// `product` has the queries, keys and values of a row at the three `starts`.
    ///
    /// Many texts are shared among the threads by text, few by head. The results are the same.
    pub(super) fn run(
        &self,
        pool: &Pool,
        product: &[f32],
        (starts, stride): ([usize; 3], usize),
        out: &mut [f32],
    ) {
        let (dim, width) = (self.dim(), self.width);
        let head = |text: usize, head: usize| {
            let rows = self.texts.range(text);
            let parts = starts.map(|start| &product[rows.start * stride + start + head * dim..]);
            Head { parts, stride, dim, rows: rows.len() }
        };
        let count = self.texts.texts.len();
        let nanos = self.nanos();
        // Whole texts would leave threads without work, or with unequal work.
        if count < 2 * pool.workers() {
            for text in 0..count {
                let rows = self.texts.range(text);
                let (out, tile) = (&mut out[rows.start * width..rows.end * width], rows.len());
                pool.tiles(out, width, (tile, dim), nanos, &|worker, tile| {
                    self.head(worker, &head(text, tile.col / dim), &mut |row, result| {
                        tile.row_mut(row).copy_from_slice(result);
                    });
                });
            }
            return;
        }
        let mut rest = out;
        let mut parts = Vec::with_capacity(count);
        for text in 0..count {
            let (part, behind) = rest.split_at_mut(self.texts.range(text).len() * width);
            parts.push(part);
            rest = behind;
        }
        pool.tiles(&mut parts, 1, (1, 1), nanos, &|worker, tile| {
            let text = tile.row;
            for out in tile.row_mut(0) {
                for nth in 0..self.heads {
                    self.head(worker, &head(text, nth), &mut |row, result| {
                        out[row * width + nth * dim..][..dim].copy_from_slice(result);
                    });
                }
            }
        });
    }

    /// Computes one head of one text; `store` receives the result of each row.
    fn head(&self, worker: usize, head: &Head<'_>, store: &mut dyn FnMut(usize, &[f32])) {
        // The lock is free: a worker runs one tile at a time.
        let space = &mut self.spaces[worker].lock().unwrap_or_else(PoisonError::into_inner);
        let scale = (1.0 / (head.dim as f64).sqrt()) as f32;
        if self.in_vectors() {
            self.in_blocks(head, scale, space, store);
        } else {
            self.by_row(head, scale, space, store);
        }
    }

    /// Several queries at a time, with keys and values in f16: the layout of the device's pages.
    fn in_blocks(
        &self,
        head: &Head<'_>,
        scale: f32,
        space: &mut HeadSpace,
        store: &mut dyn FnMut(usize, &[f32]),
    ) {
        let (dim, rows, stride) = (head.dim, head.rows, head.rows.next_multiple_of(16));
        let keys: &mut [u16] = &mut space.keys.as_mut_slice()[..dim * stride];
        let values: &mut [u16] = &mut space.values.as_mut_slice()[..rows * dim];
        let scores: &mut [f32] = &mut space.scores.as_mut_slice()[..QUERIES * stride];
        keys.fill(0);
        for (row, value) in values.chunks_exact_mut(dim).enumerate() {
            for (part, key) in head.row(1, row).chunks_exact(16).enumerate() {
                let mut rounded = [f16::ZERO; 16];
                rounded.convert_from_f32_slice(key);
                for (d, key) in rounded.into_iter().enumerate() {
                    keys[(part * 16 + d) * stride + row] = key.to_bits();
                }
            }
            let value: &mut [f16] = value.reinterpret_cast_mut();
            value.convert_from_f32_slice(head.row(2, row));
        }
        let (keys, values) = (&*keys, &*values);
        for start in (0..rows).step_by(QUERIES) {
            let count = QUERIES.min(rows - start);
            let queries: &mut [f32] = &mut space.queries.as_mut_slice()[..count * dim];
            for (r, query) in queries.chunks_exact_mut(dim).enumerate() {
                query.copy_from_slice(head.row(0, start + r));
            }
            let page =
                Scores { queries, dim, keys, stride, next: values, cells: stride, width: stride };
            page.compute(self.variant, scores);
            let mut sums = [0.0; QUERIES];
            for (scores, sum) in scores.chunks_exact_mut(stride).zip(&mut sums).take(count) {
                *sum = kernels::softmax_weights(self.variant, &mut scores[..rows], scale);
            }
            let out: &mut [f32] = &mut space.out.as_mut_slice()[..count * dim];
            out.fill(0.0);
            let weights = &*scores;
            let page = Values { weights, width: stride, cells: rows, values, next: keys, dim };
            page.add(self.variant, out);
            for (r, (out, sum)) in out.chunks_exact_mut(dim).zip(sums).enumerate() {
                out.iter_mut().for_each(|out| *out /= sum);
                store(start + r, out);
            }
        }
    }

    /// One query at a time, in f32.
    fn by_row(
        &self,
        head: &Head<'_>,
        scale: f32,
        space: &mut HeadSpace,
        store: &mut dyn FnMut(usize, &[f32]),
    ) {
        let scores: &mut [f32] = &mut space.scores.as_mut_slice()[..head.rows];
        let out: &mut [f32] = &mut space.out.as_mut_slice()[..head.dim];
        for row in 0..head.rows {
            let query = head.row(0, row);
            for (cell, score) in scores.iter_mut().enumerate() {
                *score = scalar::dot(query, head.row(1, cell));
            }
            let sum = kernels::softmax_weights(self.variant, scores, scale);
            out.fill(0.0);
            for (cell, weight) in scores.iter().enumerate() {
                scalar::add_scaled(out, *weight, head.row(2, cell));
            }
            out.iter_mut().for_each(|out| *out /= sum);
            store(row, out);
        }
    }
}
