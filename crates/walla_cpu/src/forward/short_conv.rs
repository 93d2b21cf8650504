use walla_device::step::StepRow;
use walla_device::{Linear, Norm, Slot, VectorId};

use super::Frame;
use super::linear::{Joined, Tools, first};
use crate::cache::{ConvLayer, Layer};
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
        self.normalise(x, norm, rows.len(), &|row| row);
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
                products.convolve(conv, kernel, row, out);
                let c = &products.row(row)[starts[1]..][..width];
                out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
            }
        });
        let ends = rows.iter().enumerate();
        for (r, row) in ends.filter(|(_, row)| row.flags & StepRow::LAST_OF_SEQUENCE != 0) {
            products.leave_state(conv, r, row.sequence as usize);
        }
    }
}

/// Location of an earlier input of a convolution.
enum Earlier {
    /// In this row of the step.
    Row(usize),
    /// In this entry of the sequence's state.
    State(usize),
    /// Before the first token.
    Zero,
}

struct Inputs<'a> {
    /// Joined products; `u` is the first part.
    product: &'a [f32],
    padded: usize,
    rows: &'a [StepRow],
}

impl<'a> Inputs<'a> {
    fn row(&self, row: usize) -> &'a [f32] {
        &self.product[row * self.padded..][..self.padded]
    }

    /// Location of the input `back` tokens before row `row`. The state's latest entry precedes the
    /// sequence's first row of the step.
    fn earlier(&self, taps: usize, row: usize, back: usize) -> Earlier {
        if (self.rows[row].position as usize) < back {
            return Earlier::Zero;
        }
        let mut at = row;
        for walked in 0..back {
            match usize::try_from(self.rows[at].previous) {
                Ok(previous) => at = previous,
                Err(_) => return Earlier::State(taps - 1 - (back - walked)),
            }
        }
        Earlier::Row(at)
    }

    /// `out = sum_t kernel[:, t] * u(p - (taps - 1) + t)`, oldest first.
    fn convolve(&self, conv: &ConvLayer, kernel: &[f32], row: usize, out: &mut [f32]) {
        let (taps, width) = (conv.taps, conv.width);
        let state = conv.state(self.rows[row].sequence as usize);
        out.fill(0.0);
        for tap in 0..taps {
            let u = match self.earlier(taps, row, taps - 1 - tap) {
                Earlier::Zero => continue,
                Earlier::Row(row) => &self.row(row)[..width],
                Earlier::State(entry) => &state[entry * width..][..width],
            };
            for (i, (out, u)) in out.iter_mut().zip(u).enumerate() {
                *out += kernel[i * taps + tap] * u;
            }
        }
    }

    /// Stores the inputs of the `taps - 1` tokens that end with `row`.
    ///
    /// Entries move only towards the start, so a pass from the oldest on reads each entry before it
    /// is overwritten.
    fn leave_state(&self, conv: &mut ConvLayer, row: usize, sequence: usize) {
        let (taps, width) = (conv.taps, conv.width);
        let state = conv.state_mut(sequence);
        for entry in 0..taps - 1 {
            let to = entry * width;
            match self.earlier(taps, row, taps - 2 - entry) {
                Earlier::Zero => state[to..to + width].fill(0.0),
                Earlier::Row(row) => state[to..to + width].copy_from_slice(&self.row(row)[..width]),
                Earlier::State(from) => state.copy_within(from * width..(from + 1) * width, to),
            }
        }
    }
}
