use walla_device::{Norm, Op};

use super::Frame;
use super::linear::{Joined, Tools, first};
use crate::cache::Layer;
use crate::scalar;
use crate::work;
use crate::workspace::{Rope, Workspace};

impl Frame<'_> {
    /// Projects, normalises and rotates heads. Queries go to their slot, keys and values to the
    /// cache.
    pub(super) fn qkv(&mut self, op: &Op) {
        let Op::Qkv { x, norm, query, key, value, head_norms, rope, shape, layer, q } = op else {
            return;
        };
        self.normalise(*x, norm, self.rows.len(), &|row| row);
        let linears = [query, key, value];
        let joined = Joined::new(linears.map(|linear| &self.matrices[linear.matrix.0 as usize]));
        let (starts, width) = (joined.starts(), joined.width());
        let biases = linears.map(|l| l.bias.map(|bias| self.vectors[bias.0 as usize].as_slice()));
        let vector = |norm: &Norm| (self.vectors[norm.weight.0 as usize].as_slice(), norm.eps);
        let norms = head_norms.as_ref().map(|(q, k)| [vector(q), vector(k)]);
        let Workspace { slots, normed, groups, product, rotations, workers, .. } =
            &mut *self.workspace;
        let cols = self.vectors[norm.weight.0 as usize].len();
        let product: &mut [f32] = &mut product.as_mut_slice()[..self.rows.len() * width];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let normed = first(normed, self.rows.len() * cols);
        joined.multiply(tools, normed, groups, product, width);

        let head_dim = shape.head_dim as usize;
        let (q_width, kv_width) =
            (shape.heads as usize * head_dim, shape.kv_heads as usize * head_dim);
        let rope = rope.map(|id| {
            let rope = &self.ropes[id.0 as usize];
            Rotations { rope, rotations: rotations[id.0 as usize].as_slice() }
        });
        let finish = |row: usize, part: usize, heads: &mut [f32]| {
            if let Some(bias) = biases[part] {
                scalar::add(heads, bias);
            }
            for head in heads.chunks_mut(head_dim) {
                if let Some((weight, eps)) = norms.as_ref().and_then(|norms| norms.get(part)) {
                    scalar::rms_norm_in_place(head, weight, *eps);
                }
                if let (Some(rope), true) = (&rope, part < 2) {
                    rope.rotate(row, head);
                }
            }
        };
        let nanos = work::elements(2 * product.len());
        self.pool.grid(product, width, (1, width), nanos, &|_, tile| {
            for r in 0..tile.rows {
                let (row, numbers) = (tile.row + r, tile.row_mut(r));
                finish(row, 0, &mut numbers[starts[0]..][..q_width]);
                finish(row, 1, &mut numbers[starts[1]..][..kv_width]);
                finish(row, 2, &mut numbers[starts[2]..][..kv_width]);
            }
        });
        let q: &mut [f32] = slots[q.0 as usize].as_mut_slice();
        for (q, numbers) in q.chunks_mut(q_width).zip(product.chunks(width)) {
            q.copy_from_slice(&numbers[..q_width]);
        }
        let Layer::Kv(kv) = &mut self.cache.layers[*layer as usize] else { return };
        for (row, numbers) in self.rows.iter().zip(product.chunks(width)) {
            let position = row.position as usize;
            let table = row.table as usize * self.program.layout.pages_per_sequence as usize;
            let page = self.tables[table + position / kv.page_tokens] as usize;
            for head in 0..kv.kv_heads {
                let key = &numbers[starts[1] + head * head_dim..][..head_dim];
                let value = &numbers[starts[2] + head * head_dim..][..head_dim];
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
