use walla_device::{Linear, Norm, Slot};
use walla_types::Activation;

use super::Frame;
use super::linear::{Joined, Tools, first};
use crate::workspace::Workspace;
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// `x[r] = scale * (x[r] + post(W y[r]))`.
    pub(super) fn project(
        &mut self,
        y: Slot,
        linear: &Linear,
        post_norm: Option<&Norm>,
        scale: f32,
        x: Slot,
    ) {
        let matrix = &self.matrices[linear.matrix.0 as usize];
        let bias = linear.bias.map(|bias| self.vectors[bias.0 as usize].as_slice());
        let post =
            post_norm.map(|norm| (self.vectors[norm.weight.0 as usize].as_slice(), norm.eps));
        let joined = Joined::new([matrix]);
        let (rows, width, padded) = (self.rows.len(), matrix.rows, joined.width());
        let Workspace { slots, groups, product, workers, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * padded];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let y = first(&slots[y.0 as usize], rows * matrix.cols);
        joined.multiply(tools, y, groups, product, padded);
        let x = &mut slots[x.0 as usize].as_mut_slice()[..rows * width];
        // Products are read in place. A norm needs the whole row, in scratch memory.
        let nanos = work::elements(x.len());
        self.pool.grid(x, width, (1, width), nanos, &|worker, tile| {
            for r in 0..tile.rows {
                let products = &product[(tile.row + r) * padded..][..width];
                if bias.is_none() && post.is_none() {
                    scalar::add(tile.row_mut(r), products);
                } else {
                    Workspace::with_scratch(workers, worker, |scratch| {
                        let row = &mut scratch.row.as_mut_slice()[..width];
                        row.copy_from_slice(products);
                        if let Some(bias) = bias {
                            scalar::add(row, bias);
                        }
                        if let Some((weight, eps)) = post {
                            scalar::rms_norm_in_place(row, weight, eps);
                        }
                        scalar::add(tile.row_mut(r), row);
                    });
                }
                if scale != 1.0 {
                    tile.row_mut(r).iter_mut().for_each(|x| *x *= scale);
                }
            }
        });
    }

    /// `n = norm(x); h = activation(G n) * (U n)`.
    pub(super) fn gate_up(
        &mut self,
        x: Slot,
        norm: &Norm,
        linears: [&Linear; 2],
        activation: Activation,
        h: Slot,
    ) {
        let rows = self.rows.len();
        self.normalize(x, norm, rows, &|row| row);
        let joined = Joined::new(linears.map(|linear| &self.matrices[linear.matrix.0 as usize]));
        let biases = linears.map(|l| l.bias.map(|bias| self.vectors[bias.0 as usize].as_slice()));
        let (starts, padded) = (joined.starts(), joined.width());
        let matrix = &self.matrices[linears[0].matrix.0 as usize];
        let (hidden, cols) = (matrix.rows, matrix.cols);
        let Workspace { slots, normed, groups, product, workers, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * padded];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        joined.multiply(tools, first(normed, rows * cols), groups, product, padded);
        for products in product.chunks_mut(padded) {
            for (start, bias) in starts.into_iter().zip(biases) {
                if let Some(bias) = bias {
                    scalar::add(&mut products[start..][..hidden], bias);
                }
            }
        }
        let (product, h) = (&*product, &mut slots[h.0 as usize].as_mut_slice()[..rows * hidden]);
        let nanos = work::elements(4 * h.len());
        self.pool.grid(h, hidden, (1, hidden), nanos, &|_, tile| {
            for r in 0..tile.rows {
                let products = &product[(tile.row + r) * padded..][..padded];
                let [gate, up] = starts.map(|start| &products[start..][..hidden]);
                kernels::gate(self.variant, activation, gate, up, tile.row_mut(r));
            }
        });
    }

    /// `y[r] *= activation(W norm(x[r]))`.
    pub(super) fn gate(
        &mut self,
        x: Slot,
        norm: &Norm,
        linear: &Linear,
        activation: Activation,
        y: Slot,
    ) {
        let rows = self.rows.len();
        self.normalize(x, norm, rows, &|row| row);
        let matrix = &self.matrices[linear.matrix.0 as usize];
        let bias = linear.bias.map(|bias| self.vectors[bias.0 as usize].as_slice());
        let joined = Joined::new([matrix]);
        let padded = joined.width();
        let Workspace { slots, normed, groups, product, workers, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * padded];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        joined.multiply(tools, first(normed, rows * matrix.cols), groups, product, padded);
        if let Some(bias) = bias {
            product.chunks_mut(padded).for_each(|row| scalar::add(&mut row[..matrix.rows], bias));
        }
        let width = self.program.slots[y.0 as usize].width as usize;
        let y = &mut slots[y.0 as usize].as_mut_slice()[..rows * width];
        let nanos = work::elements(4 * y.len());
        self.pool.grid(y, width, (1, width), nanos, &|_, tile| {
            for r in 0..tile.rows {
                let products = &product[(tile.row + r) * padded..][..matrix.rows];
                let y = tile.row_mut(r);
                if let [product] = products {
                    let factor = scalar::activate(activation, *product);
                    y.iter_mut().for_each(|y| *y *= factor);
                    continue;
                }
                // Copies of a few factors at a time, because the kernel writes to another place.
                let mut factors = [0.0; 64];
                for (y, products) in y.chunks_mut(64).zip(products.chunks(64)) {
                    let factors = &mut factors[..y.len()];
                    factors.copy_from_slice(y);
                    kernels::gate(self.variant, activation, products, factors, y);
                }
            }
        });
    }
}
