use walla_device::{Linear, Op, Slot};
use walla_types::Activation;

use super::linear::{Joined, Tools, first as first_numbers};
use super::{Frame, token_of};
use crate::workspace::Workspace;
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// The inputs of each layer, see [`Op::LayerInputs`].
    pub(super) fn layer_inputs(&mut self, op: &Op) {
        let Op::LayerInputs { x, table, table_scale, projection, norm, e } = op else { return };
        self.products_of(*x, projection);
        let table = &self.matrices[table.0 as usize];
        let weight = self.vectors[norm.weight.0 as usize].as_slice();
        let padded = Joined::new([&self.matrices[projection.matrix.0 as usize]]).width();
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
    pub(super) fn gate_input(
        &mut self,
        x: Slot,
        linear: &Linear,
        activation: Activation,
        (e, first): (Slot, usize),
        h: Slot,
    ) {
        self.products_of(x, linear);
        let matrix = &self.matrices[linear.matrix.0 as usize];
        let padded = Joined::new([matrix]).width();
        let stride = self.program.slots[e.0 as usize].width as usize;
        let (rows, gated) = (self.rows.len(), matrix.rows);
        let Workspace { slots, product, .. } = &mut *self.workspace;
        let product = first_numbers(product, rows * padded);
        let Ok([e, h]) = slots.get_disjoint_mut([e.0 as usize, h.0 as usize]) else { return };
        let e = first_numbers(e, rows * stride);
        let h = &mut h.as_mut_slice()[..rows * gated];
        let nanos = work::elements(4 * h.len());
        self.pool.grid(h, gated, (1, gated), nanos, &|_, tile| {
            for r in 0..tile.rows {
                let products = &product[(tile.row + r) * padded..][..gated];
                let inputs = &e[(tile.row + r) * stride + first..][..gated];
                kernels::gate(self.variant, activation, products, inputs, tile.row_mut(r));
            }
        });
    }

    /// `product[r] = W x[r] (+ bias)` of all rows, which are not normalised.
    fn products_of(&mut self, x: Slot, linear: &Linear) {
        let matrix = &self.matrices[linear.matrix.0 as usize];
        let joined = Joined::new([matrix]);
        let (rows, padded) = (self.rows.len(), joined.width());
        let Workspace { slots, groups, product, workers, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * padded];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let x = first_numbers(&slots[x.0 as usize], rows * matrix.cols);
        joined.multiply(tools, x, groups, product, padded);
        if let Some(bias) = linear.bias {
            let bias = &self.vectors[bias.0 as usize];
            product.chunks_mut(padded).for_each(|row| scalar::add(&mut row[..matrix.rows], bias));
        }
    }
}
