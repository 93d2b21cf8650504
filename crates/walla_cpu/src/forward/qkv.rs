use walla_device::{Norm, op};

use super::Frame;
use crate::cache::Layer;
use crate::scalar;
use crate::work;
use crate::workspace::{Rope, Workspace};

/// One of the products: queries, keys or values.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// First column.
    start: usize,
    width: usize,
    /// Weights and epsilon of the norm of each head.
    norm: Option<(&'a [f32], f32)>,
    rotates: bool,
}

impl Frame<'_> {
    /// Projects, normalises and rotates heads. Queries go to their slot, keys and values to the
    /// cache.
    pub(super) fn qkv(&mut self, op: &op::Qkv) {
        let op::Qkv { x, norm, query, query_norm, keys, rope, shape, layer, q } = op;
        let (starts, width) = match keys {
            Some(own) => self.products(*x, Some(norm), [query, &own.key, &own.value]),
            None => {
                let ([start], width) = self.products(*x, Some(norm), [query]);
                ([start; 3], width)
            }
        };
        let head_dim = shape.head_dim as usize;
        let [q_width, kv_width] =
            [shape.heads, shape.kv_heads].map(|heads| heads as usize * head_dim);
        let part = |nth: usize, width: usize, norm: Option<&Norm>| Part {
            start: starts[nth],
            width,
            norm: norm.map(|norm| (self.vectors[norm.weight.0 as usize].as_slice(), norm.eps)),
            rotates: nth < 2,
        };
        let [key_norm, value_norm] =
            keys.as_ref().map_or([None; 2], |own| [own.key_norm.as_ref(), own.value_norm.as_ref()]);
        let parts = [
            part(0, q_width, query_norm.as_ref()),
            part(1, kv_width, key_norm),
            part(2, kv_width, value_norm),
        ];
        let parts = if keys.is_some() { &parts[..] } else { &parts[..1] };
        let Workspace { slots, product, rotations, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..self.rows.len() * width];

        let rope = rope.map(|id| {
            let rope = &self.ropes[id.0 as usize];
            Rotations { rope, rotations: rotations[id.0 as usize].as_slice() }
        });
        let finish = |row: usize, part: &Part<'_>, heads: &mut [f32]| {
            for head in heads.chunks_mut(head_dim) {
                if let Some((weight, eps)) = part.norm {
                    scalar::rms_norm_in_place(head, weight, eps);
                }
                if let (Some(rope), true) = (&rope, part.rotates) {
                    rope.rotate(row, head);
                }
            }
        };
        let nanos = work::elements(2 * product.len());
        self.pool.rows(product, width, nanos, |row, numbers| {
            for part in parts {
                finish(row, part, &mut numbers[part.start..][..part.width]);
            }
        });
        // Attention reads queries without the stride of the joined products.
        let q: &mut [f32] = slots[q.0 as usize].as_mut_slice();
        for (q, numbers) in q.chunks_mut(q_width).zip(product.chunks(width)) {
            q.copy_from_slice(&numbers[..q_width]);
        }
        let [_, keys, values] = parts else { return };
        let Layer::Kv(kv) = &mut self.cache.layers[*layer as usize] else { return };
        for (row, numbers) in self.rows.iter().zip(product.chunks(width)) {
            let position = row.position as usize;
            let table = row.table as usize * self.program.layout.pages_per_sequence as usize;
            let page = self.tables[table + position / kv.page_tokens] as usize;
            for head in 0..kv.kv_heads {
                let key = &numbers[keys.start + head * head_dim..][..head_dim];
                let value = &numbers[values.start + head * head_dim..][..head_dim];
                kv.append(head, page, position % kv.page_tokens, key, value);
            }
        }
    }
}

struct Rotations<'a> {
    rope: &'a Rope,
    /// `[rows, pairs]` of cosine and sine.
    rotations: &'a [[f32; 2]],
}

impl Rotations<'_> {
    fn rotate(&self, row: usize, head: &mut [f32]) {
        let pairs = self.rope.frequencies.len();
        let rotated = &mut head[..2 * pairs];
        scalar::rotate(rotated, &self.rotations[row * pairs..][..pairs], self.rope.pairs);
    }
}
