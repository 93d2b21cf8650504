//! Runs the layers of an encoder.

use walla_device::Linear;

use super::attention::{Attention, Texts};
use super::prepare::{ATTENDED, HIDDEN, Prepared, STATE};
use super::{EncoderLayer, EncoderProgram, LayerNorm};
use crate::forward::linear::{Joined, Tools, add_biases, first};
use crate::kernels::{self, Normed};
use crate::matrix::Matrix;
use crate::options::Variant;
use crate::pool::Pool;
use crate::scalar;
use crate::work::{self, StepWork};
use crate::workspace::Workspace;

/// The parts of an encoder that a call does not change.
pub(super) struct Forward<'a> {
    pub variant: Variant,
    pub pool: &'a Pool,
    pub matrices: &'a [Matrix],
    pub vectors: &'a [Vec<f32>],
}

impl Forward<'_> {
    /// The hidden states of checked texts.
    pub(super) fn run<'p>(&self, prepared: &'p mut Prepared, texts: &[&[u32]]) -> &'p [f32] {
        let Prepared { program, workspace, heads } = prepared;
        let width = self.matrix(program.tokens).cols;
        let texts = Texts::new(texts);
        let attention = Attention {
            variant: self.variant,
            spaces: heads,
            heads: program.heads as usize,
            width,
            texts: &texts,
        };
        let work = self.work(program, &attention);
        self.pool.wake(self.pool.costs().of_step(work, self.pool.workers()), work.nanos);
        self.embed(program, &texts, workspace);
        for layer in &program.layers {
            self.attend(layer, &attention, workspace);
            self.add(&layer.output, ATTENDED, &layer.attention_norm, (&texts, width), workspace);
            self.up(&layer.up, &texts, workspace);
            self.add(&layer.down, HIDDEN, &layer.output_norm, (&texts, width), workspace);
        }
        self.pool.rest();
        first(&workspace.slots[STATE], texts.rows() * width)
    }

    fn matrix(&self, id: walla_device::MatrixId) -> &Matrix {
        &self.matrices[id.0 as usize]
    }

    fn vector(&self, id: walla_device::VectorId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }

    fn bias(&self, linear: &Linear) -> Option<&[f32]> {
        linear.bias.map(|bias| self.vector(bias))
    }

    fn normed(&self, norm: &LayerNorm) -> Normed<'_> {
        let (weight, bias) = (self.vector(norm.weight), self.vector(norm.bias));
        Normed { weight, bias, eps: norm.eps }
    }

    /// Estimated work: of the products and of the attention.
    fn work(&self, program: &EncoderProgram, attention: &Attention<'_>) -> StepWork {
        let mut step = StepWork::default();
        let rows = attention.texts.rows();
        for layer in &program.layers {
            let nanos = |linear: &Linear| self.matrix(linear.matrix).nanos(rows);
            step.add(layer.attention.iter().map(nanos).sum());
            step.add(attention.nanos());
            [&layer.output, &layer.up, &layer.down].iter().for_each(|l| step.add(nanos(l)));
        }
        step
    }

    /// `x = norm(tokens[token] + types[0] + positions[position])`.
    fn embed(&self, program: &EncoderProgram, texts: &Texts<'_>, workspace: &mut Workspace) {
        let tokens = self.matrix(program.tokens);
        let (positions, types) =
            (self.matrix(program.positions), program.types.map(|types| self.matrix(types)));
        let (variant, width, norm) = (self.variant, tokens.cols, self.normed(&program.norm));
        let Workspace { slots, workers, .. } = workspace;
        let x = &mut slots[STATE].as_mut_slice()[..texts.rows() * width];
        let nanos = work::elements(4 * x.len());
        self.pool.grid(x, width, (1, width), nanos, &|worker, tile| {
            Workspace::with_scratch(workers, worker, |scratch| {
                let part = &mut scratch.row.as_mut_slice()[..width];
                for r in 0..tile.rows {
                    let (token, position) = texts.token(tile.row + r);
                    let x = tile.row_mut(r);
                    tokens.gather(token as usize, x);
                    if let Some(types) = types {
                        types.gather(0, part);
                        scalar::add(x, part);
                    }
                    positions.gather(position, part);
                    scalar::add(x, part);
                    kernels::layer_norm(variant, x, norm);
                }
            });
        });
    }

    /// Attention of all texts, into its slot.
    fn attend(&self, layer: &EncoderLayer, attention: &Attention<'_>, workspace: &mut Workspace) {
        let joined = Joined::new(layer.attention.map(|part| self.matrix(part.matrix)));
        let (starts, stride) = (joined.starts(), joined.width());
        let (rows, width) = (attention.texts.rows(), attention.width);
        let Workspace { slots, groups, product, workers, .. } = workspace;
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * stride];
        joined.multiply(tools, first(&slots[STATE], rows * width), groups, product, stride);
        let biases = [0, 1, 2].map(|part| self.bias(&layer.attention[part]));
        add_biases(self.pool, product, stride, starts, biases);
        let out: &mut [f32] = &mut slots[ATTENDED].as_mut_slice()[..rows * width];
        attention.run(self.pool, product, (starts, stride), out);
    }

    /// `h = gelu(U x)`.
    fn up(&self, up: &Linear, texts: &Texts<'_>, workspace: &mut Workspace) {
        let matrix = self.matrix(up.matrix);
        let (variant, rows, hidden) = (self.variant, texts.rows(), matrix.rows);
        let bias = self.bias(up);
        let Workspace { slots, groups, workers, .. } = workspace;
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let Ok([x, h]) = slots.get_disjoint_mut([STATE, HIDDEN]) else { return };
        let h: &mut [f32] = &mut h.as_mut_slice()[..rows * hidden];
        Joined::new([matrix]).multiply(tools, first(x, rows * matrix.cols), groups, h, hidden);
        let nanos = work::elements(8 * h.len());
        self.pool.rows(h, hidden, nanos, |_, row| {
            scalar::add(row, bias.unwrap_or_default());
            kernels::gelu(variant, row);
        });
    }

    /// `x = norm(x + W y)`.
    fn add(
        &self,
        linear: &Linear,
        y: usize,
        norm: &LayerNorm,
        (texts, width): (&Texts<'_>, usize),
        workspace: &mut Workspace,
    ) {
        let matrix = self.matrix(linear.matrix);
        let (variant, rows) = (self.variant, texts.rows());
        let (bias, norm) = (self.bias(linear), self.normed(norm));
        let Workspace { slots, groups, product, workers, .. } = workspace;
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let product: &mut [f32] = &mut product.as_mut_slice()[..rows * width];
        let y = first(&slots[y], rows * matrix.cols);
        Joined::new([matrix]).multiply(tools, y, groups, product, width);
        let product = &*product;
        let x: &mut [f32] = &mut slots[STATE].as_mut_slice()[..rows * width];
        let nanos = work::elements(4 * x.len());
        self.pool.rows(x, width, nanos, |row, x| {
            let products = &product[row * width..][..width];
            scalar::add(x, products);
            scalar::add(x, bias.unwrap_or_default());
            kernels::layer_norm(variant, x, norm);
        });
    }
}
