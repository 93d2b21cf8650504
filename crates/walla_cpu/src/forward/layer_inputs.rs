use walla_device::op;

use super::linear::first as first_numbers;
use super::{Frame, token_of};
use crate::workspace::Workspace;
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// The inputs of each layer, see [`op::LayerInputs`].
    pub(super) fn layer_inputs(&mut self, op: &op::LayerInputs) {
        let op::LayerInputs { x, table, table_scale, projection, norm, e } = op;
        let (_, padded) = self.products(*x, None, [projection]);
        let table = &self.matrices[table.0 as usize];
        let weight = self.vectors[norm.weight.0 as usize].as_slice();
        let (rows, last, variant) = (self.rows, &self.cache.last, self.variant);
        let Workspace { slots, product, workers, .. } = &mut *self.workspace;
        let (width, part) = (table.cols, weight.len());
        let product = first_numbers(product, rows.len() * padded);
        let e = &mut slots[e.0 as usize].as_mut_slice()[..rows.len() * width];
        let nanos = work::elements(4 * e.len());
        self.pool.grid(e, width, (1, width), nanos, &|worker, tile| {
            Workspace::with_scratch(workers, worker, |scratch| {
                let normed = &mut scratch.row.as_mut_slice()[..part];
                for r in 0..tile.rows {
                    let products = &product[(tile.row + r) * padded..][..width];
                    let token = token_of(&rows[tile.row + r], last) as usize;
                    let row = tile.row_mut(r);
                    table.gather(token.min(table.rows - 1), row);
                    for (e, products) in row.chunks_mut(part).zip(products.chunks(part)) {
                        kernels::rms_norm(variant, products, weight, norm.eps, normed);
                        e.iter_mut().for_each(|e| *e *= table_scale);
                        scalar::add(e, normed);
                    }
                }
            });
        });
    }

    /// `h[r] = activation(W x[r]) * e[r][first..]`.
    pub(super) fn gate_input(&mut self, op: &op::GateInput) {
        let op::GateInput { x, linear, activation, e, first, h } = *op;
        let (_, padded) = self.products(x, None, [&linear]);
        let stride = self.program.slots[e.0 as usize].width as usize;
        let (rows, gated) = (self.rows.len(), self.matrices[linear.matrix.0 as usize].rows);
        let Workspace { slots, product, .. } = &mut *self.workspace;
        let product = first_numbers(product, rows * padded);
        let Ok([e, h]) = slots.get_disjoint_mut([e.0 as usize, h.0 as usize]) else { return };
        let e = first_numbers(e, rows * stride);
        let h = &mut h.as_mut_slice()[..rows * gated];
        let nanos = work::elements(4 * h.len());
        self.pool.rows(h, gated, nanos, |row, h| {
            let products = &product[row * padded..][..gated];
            let inputs = &e[row * stride + first as usize..][..gated];
            kernels::gate(self.variant, activation, products, inputs, h);
        });
    }
}
