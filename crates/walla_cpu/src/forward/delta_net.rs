use std::sync::PoisonError;

use walla_device::op;
use walla_types::Activation;

use super::Frame;
use super::convolution::Inputs;
use crate::cache::{DeltaLayer, Layer, STRIP};
use crate::options::Variant;
use crate::tile::Tile;
use crate::workspace::Workspace;
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// Convolution, then the delta rule for every row in the order of positions.
    ///
    /// The state's columns are independent, so a tile has some columns of all heads and passes all
    /// rows of a sequence over them, while they are in the L1 cache. The chunked form of the
    /// literature needs as many operations here, and its rounding would depend on how a prompt is
    /// divided into steps.
    pub(super) fn delta_net(&mut self, op: &op::DeltaNet) {
        let (shape, head_norm) = (op.shape, &op.head_norm);
        let rows = self.rows;
        if rows.is_empty() {
            return;
        }
        let (starts, padded) =
            self.products(op.x, Some(&op.norm), [&op.input, &op.alpha, &op.beta]);
        let Layer::Delta(delta) = &mut self.cache.layers[op.layer as usize] else { return };
        let Workspace { slots, product, convolved, .. } = &mut *self.workspace;
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows.len() * padded];
        // Decay and strength of the correction overwrite the products from which they are computed.
        let [decay, step_bias] = [op.decay, op.step_bias].map(|id| &self.vectors[id.0 as usize]);
        for products in product.chunks_mut(padded) {
            let steps = products[starts[1]..].iter_mut().zip(decay).zip(step_bias);
            steps.for_each(|((step, decay), bias)| {
                *step = libm::expf(decay * softplus(*step + bias));
            });
            let strengths = &mut products[starts[2]..][..decay.len()];
            strengths
                .iter_mut()
                .for_each(|strength| *strength = scalar::activate(Activation::Sigmoid, *strength));
        }

        let dim = shape.head_dim as usize;
        // Whole rows, or heads of the only row.
        let heads_of = |width| if rows.len() > 1 { (1, width) } else { (1, dim) };
        let channels = delta.conv.width;
        let inputs = Inputs { product, padded, rows };
        let convolved: &mut [f32] = &mut convolved.as_mut_slice()[..rows.len() * channels];
        let kernel = &self.vectors[op.kernel.0 as usize];
        let nanos = work::elements(12 * convolved.len());
        let (conv, variant) = (&delta.conv, self.variant);
        // Queries, keys, values.
        let scales = [1.0 / (dim as f32).sqrt(), 1.0];
        self.pool.grid(convolved, channels, heads_of(channels), nanos, &|_, tile| {
            for r in 0..tile.rows {
                let (row, first) = (tile.row + r, tile.col);
                let heads = tile.row_mut(r);
                inputs.convolve(conv, kernel, row, first, heads);
                kernels::silu(variant, heads);
                for (head, numbers) in heads.chunks_mut(dim).enumerate() {
                    let part = (first / dim + head) / shape.key_heads as usize;
                    if let Some(scale) = scales.get(part) {
                        normalize(numbers, op.eps, *scale);
                    }
                }
            }
        });
        inputs.leave_states(&mut delta.conv);

        let rule = Rule { variant, delta, convolved, inputs, gates: [starts[1], starts[2]] };
        let width = shape.values() as usize;
        let out: &mut [f32] = &mut slots[op.out.0 as usize].as_mut_slice()[..rows.len() * width];
        let nanos = work::delta_rule(variant, shape, rows.len());
        self.pool.grid(out, width, (rows.len(), STRIP), nanos, &|_, tile| rule.tile(tile));
        let weight = &self.vectors[head_norm.weight.0 as usize];
        let nanos = work::elements(2 * out.len());
        self.pool.grid(out, width, heads_of(width), nanos, &|_, tile| {
            for r in 0..tile.rows {
                for head in tile.row_mut(r).chunks_mut(dim) {
                    scalar::rms_norm_in_place(head, weight, head_norm.eps);
                }
            }
        });
    }
}

/// The delta rule of one layer and step.
struct Rule<'a> {
    variant: Variant,
    delta: &'a DeltaLayer,
    /// Queries, keys and values of each row.
    convolved: &'a [f32],
    inputs: Inputs<'a>,
    /// First columns of decays and of strengths among the products.
    gates: [usize; 2],
}

impl Rule<'_> {
    /// Strips of columns of some heads, for all rows.
    fn tile(&self, tile: &mut Tile<'_, f32>) {
        for col in (0..tile.cols).step_by(STRIP) {
            let strip = &self.delta.strips[(tile.col + col) / STRIP];
            let mut states = strip.lock().unwrap_or_else(PoisonError::into_inner);
            let states: &mut [f32] = states.as_mut_slice();
            self.strip(states, col, tile);
        }
    }

    fn strip(&self, states: &mut [f32], col: usize, tile: &mut Tile<'_, f32>) {
        let shape = self.delta.shape;
        let [dim, keys] = [shape.head_dim, shape.key_heads].map(|number| number as usize);
        let column = tile.col + col;
        let head = column / dim;
        let numbers = dim * STRIP;
        let rows = &self.inputs.rows[tile.row..tile.row + tile.rows];
        let mut first = 0;
        for run in rows.chunk_by(|a, b| a.sequence == b.sequence) {
            let state = &mut states[run[0].sequence as usize * numbers..][..numbers];
            for (r, row) in run.iter().enumerate() {
                let r = first + r;
                // The contract: a state is zero before position 0. It may have another text's.
                if row.position == 0 {
                    state.fill(0.0);
                }
                let products = self.inputs.row(tile.row + r);
                let [decay, strength] = self.gates.map(|start| products[start + head]);
                let row = &self.convolved[(tile.row + r) * self.delta.conv.width..];
                let [query, key] =
                    [0, keys].map(|heads| &row[(heads + head % keys) * dim..][..dim]);
                let values = &row[2 * keys * dim + column..][..STRIP];
                let out = &mut tile.row_mut(r)[col..][..STRIP];
                kernels::delta_rule(
                    self.variant,
                    state,
                    &kernels::DeltaInput { query, key, values, decay, strength },
                    out,
                );
            }
            first += run.len();
        }
    }
}

/// `x * scale / sqrt(sum(x^2) + eps)`.
fn normalize(x: &mut [f32], eps: f32, scale: f32) {
    let factor = scale / (scalar::dot(x, x) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    // Beyond 20 the difference to `x` is below one unit in the last place.
    if x > 20.0 { x } else { libm::log1pf(libm::expf(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_smooth_and_never_negative() {
        for i in -2000..2000 {
            let x = i as f32 / 20.0;
            let exact = f64::from(x).exp().ln_1p();
            let got = f64::from(softplus(x));
            assert!((got - exact).abs() <= 1e-6 * exact.max(1e-6), "{x}: {got} {exact}");
        }
    }

    #[test]
    fn normalized_heads_have_the_scale_as_length_and_zeros_stay_zeros() {
        let mut x = [3.0, 4.0];
        normalize(&mut x, 0.0, 0.5);
        assert_eq!(x, [0.3, 0.4]);
        let mut zeros = [0.0; 4];
        normalize(&mut zeros, 1e-6, 1.0);
        assert_eq!(zeros, [0.0; 4]);
    }
}
