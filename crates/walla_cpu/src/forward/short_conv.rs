use walla_device::op;

use super::Frame;
use super::convolution::Inputs;
use crate::cache::Layer;
use crate::work;
use crate::workspace::Workspace;

impl Frame<'_> {
    /// `[b, c, v] = W norm(x); u = b * v; out = c * conv(u)`.
    pub(super) fn short_conv(&mut self, op: &op::ShortConv) {
        let op::ShortConv { x, norm, input, kernel, layer, out, .. } = *op;
        let (starts, padded) = self.products(x, Some(&norm), input.each_ref());
        let rows = self.rows;
        let Layer::Conv(conv) = &mut self.cache.layers[layer as usize] else { return };
        let width = conv.width;
        let Workspace { slots, product, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows.len() * padded];
        // `u` overwrites `b`.
        for products in product.chunks_mut(padded) {
            for i in 0..width {
                products[starts[0] + i] *= products[starts[2] + i];
            }
        }
        let products = Inputs { product, padded, rows };
        let kernel = &self.vectors[kernel.0 as usize];
        let out = &mut slots[out.0 as usize].as_mut_slice()[..rows.len() * width];
        let nanos = work::elements(4 * out.len());
        self.pool.rows(out, width, nanos, |row, out| {
            products.convolve(conv, kernel, row, 0, out);
            let c = &products.row(row)[starts[1]..][..width];
            out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
        });
        products.leave_states(conv);
    }
}
