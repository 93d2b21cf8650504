use walla_device::op;
use walla_device::step::{BiasRow, OutputRow, ResultHeader, ResultRow, ResultViewMut, mask_words};
use walla_types::MAX_CANDIDATES;

use super::Frame;
use super::linear::{Joined, Tools, first};
use crate::operands::PANEL;
use crate::sample::{self, Draw, Mask};
use crate::workspace::Workspace;
use crate::{kernels, scalar, work};

impl Frame<'_> {
    /// `logits[o] = W norm(x[row(o)])`, capped and without suppressed tokens.
    pub(super) fn head(&mut self, op: &op::Head) {
        let op::Head { x, norm, linear, soft_cap, suppressed } = op;
        let outputs = self.outputs;
        self.normalize(*x, norm, outputs.len(), &|o| outputs[o].row as usize);
        let matrix = &self.matrices[linear.matrix.0 as usize];
        let Workspace { normed, groups, workers, .. } = &mut *self.workspace;
        let logits = &mut self.logits[..outputs.len() * matrix.rows];
        let tools = Tools { variant: self.variant, pool: self.pool, workers };
        let normed = first(normed, outputs.len() * matrix.cols);
        Joined::new([matrix]).multiply(tools, normed, groups, logits, matrix.rows);
        if let Some(bias) = linear.bias {
            let bias = &self.vectors[bias.0 as usize];
            logits.chunks_mut(matrix.rows).for_each(|logits| scalar::add(logits, bias));
        }
        if let Some(cap) = *soft_cap {
            let (tile, nanos) = ((outputs.len().max(1), PANEL), work::elements(8 * logits.len()));
            self.pool.grid(logits, matrix.rows, tile, nanos, &|_, tile| {
                for r in 0..tile.rows {
                    kernels::soft_cap(self.variant, tile.row_mut(r), cap);
                }
            });
        }
        for logits in logits.chunks_mut(matrix.rows) {
            suppressed.iter().for_each(|token| logits[*token as usize] = f32::NEG_INFINITY);
        }
    }

    /// `h[o] = norm(x[row(o)])`.
    pub(super) fn hidden(&mut self, op: &op::Hidden) {
        let outputs = self.outputs;
        self.normalize(op.x, &op.norm, outputs.len(), &|o| outputs[o].row as usize);
        let width = self.vectors[op.norm.weight.0 as usize].len();
        let normed = first(&self.workspace.normed, outputs.len() * width);
        self.logits[..normed.len()].copy_from_slice(normed);
    }

    /// Samples the tokens of all outputs with the `SAMPLE` flag, and writes the result block.
    pub(super) fn sample(&mut self) {
        let (outputs, biases, masks) = (self.outputs, self.biases, self.masks);
        let vocab = self.program.vocab as usize;
        let Some(result) = ResultViewMut::new(self.result, &self.program.layout) else { return };
        *result.header = ResultHeader {
            step: self.header.step,
            outputs: self.header.outputs,
            ..ResultHeader::default()
        };
        let (cache, logits, workers) = (&*self.cache, &*self.logits, &self.workspace.workers);
        let variant = self.variant;
        let candidates_width = MAX_CANDIDATES as usize;
        let candidates = &mut result.candidates[..outputs.len() * candidates_width];
        let rows = &mut result.rows[..outputs.len()];
        // Candidates and result rows are separate arrays. Candidates are written first; rows count
        // them.
        let wanted = outputs.iter().filter(|output| samples(output) && output.candidates > 0);
        let nanos = work::sample(wanted.count(), self.program.vocab);
        let tile = (1, candidates_width);
        self.pool.tiles(candidates, candidates_width, tile, nanos, &|_, tile| {
            let output = &outputs[tile.row];
            let logits = &logits[tile.row * vocab..][..vocab];
            let wanted = if samples(output) { output.candidates as usize } else { 0 };
            let mask = own_mask(output, masks, self.program.vocab);
            sample::candidates(variant, logits, mask, &mut tile.row_mut(0)[..wanted]);
        });
        let nanos = work::sample(rows.len(), self.program.vocab);
        self.pool.tiles(rows, 1, (1, 1), nanos, &|worker, tile| {
            let output = &outputs[tile.row];
            tile.row_mut(0)[0] = if samples(output) {
                Workspace::with_scratch(workers, worker, |scratch| {
                    let draw = Draw {
                        variant,
                        logits: &logits[tile.row * vocab..][..vocab],
                        output,
                        biases: own_biases(output, biases),
                        mask: own_mask(output, masks, self.program.vocab),
                        recent: cache.recent(output.sequence as usize),
                    };
                    draw.draw(scratch.logits.as_mut_slice(), &mut scratch.ids)
                })
            } else {
                ResultRow::default()
            };
        });
        for (output, row) in outputs.iter().zip(rows).filter(|(output, _)| samples(output)) {
            self.cache.last[output.sequence as usize] = row.token;
        }
        // The end time last: sampling is part of the step.
        let header = &mut *result.header;
        (header.begin_nanos, header.end_nanos, header.preempted_micros) = self.clock.end();
    }
}

fn samples(output: &OutputRow) -> bool {
    output.flags & OutputRow::SAMPLE != 0
}

/// The output's mask, if it has one.
fn own_mask<'a>(output: &OutputRow, masks: &'a [u32], vocab: u32) -> Mask<'a> {
    let words = mask_words(vocab);
    let place = output.mask.checked_sub(1)? as usize;
    Some(&masks[place * words..][..words])
}

fn own_biases<'a>(output: &OutputRow, biases: &'a [BiasRow]) -> &'a [BiasRow] {
    &biases[output.bias_first as usize..][..output.bias_count as usize]
}
