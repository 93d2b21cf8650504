use walla_device::{Linear, Norm, Slot, VectorId};

use super::Frame;
use super::convolution::Inputs;
use super::linear::{Joined, Tools, first};
use crate::cache::Layer;
use crate::scalar;
use crate::work;
use crate::workspace::Workspace;

impl Frame<'_> {
    /// `[b, c, v] = W norm(x); u = b * v; out = c * conv(u)`.
    pub(super) fn short_conv(
        &mut self,
        x: Slot,
        norm: &Norm,
        linears: &[Linear; 3],
        kernel: VectorId,
        layer: usize,
        out: Slot,
    ) {
        let rows = self.rows;
        self.normalize(x, norm, rows.len(), &|row| row);
        let Layer::Conv(conv) = &mut self.cache.layers[layer] else { return };
        let matrices = linears.map(|linear| &self.matrices[linear.matrix.0 as usize]);
        let biases = linears.map(|l| l.bias.map(|bias| self.vectors[bias.0 as usize].as_slice()));
        let joined = Joined::new(matrices);
        let (starts, padded, width) = (joined.starts(), joined.width(), conv.width);
        let Workspace { slots, normed, groups, product, workers, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows.len() * padded];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let normed = first(normed, rows.len() * width);
        joined.multiply(tools, normed, groups, product, padded);
        // `u` overwrites `b`.
        for products in product.chunks_mut(padded) {
            for (start, bias) in starts.into_iter().zip(biases) {
                if let Some(bias) = bias {
                    scalar::add(&mut products[start..][..width], bias);
                }
            }
            for i in 0..width {
                products[starts[0] + i] *= products[starts[2] + i];
            }
        }
        let products = Inputs { product, padded, rows };
        let kernel = &self.vectors[kernel.0 as usize];
        let out = &mut slots[out.0 as usize].as_mut_slice()[..rows.len() * width];
        let nanos = work::elements(4 * out.len());
        self.pool.grid(out, width, (1, width), nanos, &|_, tile| {
            for r in 0..tile.rows {
                let row = tile.row + r;
                let out = tile.row_mut(r);
                products.convolve(conv, kernel, row, 0, out);
                let c = &products.row(row)[starts[1]..][..width];
                out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
            }
        });
        products.leave_states(conv);
    }
}
