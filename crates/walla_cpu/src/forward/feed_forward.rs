use walla_device::op;

use super::Frame;
use super::linear::first;
use crate::workspace::Workspace;
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// `x[r] = scale * (x[r] + post(W y[r]))`.
    pub(super) fn project(&mut self, op: &op::Project) {
        let op::Project { y, linear, post_norm, scale, x } = *op;
        let (_, padded) = self.products(y, None, [&linear]);
        let post =
            post_norm.map(|norm| (self.vectors[norm.weight.0 as usize].as_slice(), norm.eps));
        let (rows, width) = (self.rows.len(), self.matrices[linear.matrix.0 as usize].rows);
        let Workspace { slots, product, workers, .. } = &mut *self.workspace;
        let product = first(product, rows * padded);
        let x = &mut slots[x.0 as usize].as_mut_slice()[..rows * width];
        // Products are read in place. A norm needs the whole row, in scratch memory.
        let nanos = work::elements(x.len());
        self.pool.grid(x, width, (1, width), nanos, &|worker, tile| {
            for r in 0..tile.rows {
                let products = &product[(tile.row + r) * padded..][..width];
                if let Some((weight, eps)) = post {
                    Workspace::with_scratch(workers, worker, |scratch| {
                        let row = &mut scratch.row.as_mut_slice()[..width];
                        row.copy_from_slice(products);
                        scalar::rms_norm_in_place(row, weight, eps);
                        scalar::add(tile.row_mut(r), row);
                    });
                } else {
                    scalar::add(tile.row_mut(r), products);
                }
                if scale != 1.0 {
                    tile.row_mut(r).iter_mut().for_each(|x| *x *= scale);
                }
            }
        });
    }

    /// `n = norm(x); h = activation(G n) * (U n)`.
    pub(super) fn gate_up(&mut self, op: &op::GateUp) {
        let op::GateUp { x, norm, gate, up, activation, h } = *op;
        let (starts, padded) = self.products(x, Some(&norm), [&gate, &up]);
        let (rows, hidden) = (self.rows.len(), self.matrices[gate.matrix.0 as usize].rows);
        let Workspace { slots, product, .. } = &mut *self.workspace;
        let product = first(product, rows * padded);
        let h = &mut slots[h.0 as usize].as_mut_slice()[..rows * hidden];
        let nanos = work::elements(4 * h.len());
        self.pool.rows(h, hidden, nanos, |row, h| {
            let products = &product[row * padded..][..padded];
            let [gate, up] = starts.map(|start| &products[start..][..hidden]);
            kernels::gate(self.variant, activation, gate, up, h);
        });
    }

    /// `y[r] *= activation(W norm(x[r]))`.
    pub(super) fn gate(&mut self, op: &op::Gate) {
        let op::Gate { x, norm, linear, activation, y } = *op;
        let (_, padded) = self.products(x, Some(&norm), [&linear]);
        let (rows, gated) = (self.rows.len(), self.matrices[linear.matrix.0 as usize].rows);
        let Workspace { slots, product, .. } = &mut *self.workspace;
        let product = first(product, rows * padded);
        let width = self.program.slots[y.0 as usize].width as usize;
        let y = &mut slots[y.0 as usize].as_mut_slice()[..rows * width];
        let nanos = work::elements(4 * y.len());
        self.pool.rows(y, width, nanos, |row, y| {
            let products = &product[row * padded..][..gated];
            if let [product] = products {
                let factor = scalar::activate(activation, *product);
                y.iter_mut().for_each(|y| *y *= factor);
                return;
            }
            // Copies of a few factors at a time, because the kernel writes to another place.
            let mut factors = [0.0; 64];
            for (y, products) in y.chunks_mut(64).zip(products.chunks(64)) {
                let factors = &mut factors[..y.len()];
                factors.copy_from_slice(y);
                kernels::gate(self.variant, activation, products, factors, y);
            }
        });
    }
}
