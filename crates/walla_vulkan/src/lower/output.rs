//! Logits, hidden states, the sampler.

use walla_device::step::mask_words;
use walla_device::{DeviceError, op};
use walla_types::MAX_CANDIDATES;

use super::workspace::Area;
use super::{Lowering, PACK_NUMBERS, Source, Target, same};
use crate::params;

/// Tokens of a chunk of the sampler, and sizes of its structs (sample.slang). Sums of parts of
/// probabilities of more tokens would not fit into 32 bits.
const CHUNK: u32 = 1024;
/// Chunks of a workgroup that reads the bins.
const BIN_CHUNKS: u32 = 2;
const MAX_VOCAB: u32 = 1 << 19;
const CHUNK_STATS_BYTES: usize = 32;
const CANDIDATE_BYTES: usize = 8;
const BINS_BYTES: usize = 4096 + 4 * 4096 + 8 + 2 * 2048 * 8 + 16 + 8;

impl Lowering<'_> {
    pub(super) fn head(&mut self, op: &op::Head) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let vocab = self.program.vocab;
        same("rows of the head", self.rows_of(op.linear.matrix)?, vocab)?;
        let norm = Some(op.norm);
        let source = Source { by_output: true, ..Source::of(x, width, norm) };
        let input = self.pack(&source, &[op.linear.matrix])?;
        let logits = self.resources.buffer(self.program.logits)?.address();
        self.product(&op.linear, &input, &Target { out: logits, stride: vocab, adds: None })?;
        if op.soft_cap.is_none() && op.suppressed.is_empty() {
            return Ok(());
        }
        let cap = op.soft_cap.unwrap_or(0.0);
        if !cap.is_finite() || op.soft_cap.is_some_and(|cap| cap <= 0.0) {
            return Err(DeviceError::Invalid(format!("a cap of {cap}")));
        }
        let push = params::BoundLogits {
            program: self.head,
            logits,
            suppressed: self.constants_of(bytemuck::cast_slice(&op.suppressed)),
            vocab,
            count: op.suppressed.len() as u32,
            cap,
            reserved: 0,
        };
        let groups = [vocab.div_ceil(CHUNK), self.program.max_outputs, 1];
        self.dispatch("bound_logits", groups, &push)
    }

    pub(super) fn hidden(&mut self, op: &op::Hidden) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        same("elements of a result", self.program.vocab, width)?;
        let (norm, eps) = self.norm(Some(op.norm), width)?;
        let plain = self.resources.buffer(self.program.logits)?.address();
        let push = params::Pack {
            program: self.head,
            x,
            norm,
            gate: 0,
            words: 0,
            factors: 0,
            plain,
            width,
            stride: width,
            activation: 0,
            eps,
            by_output: 1,
            multiple: 1,
        };
        self.dispatch("pack", [self.program.max_outputs, width.div_ceil(PACK_NUMBERS), 1], &push)
    }

    pub(super) fn sample(&mut self) -> Result<(), DeviceError> {
        let (layout, vocab) = (&self.program.layout, self.program.vocab);
        let outputs = self.program.max_outputs as usize;
        let chunks = vocab.div_ceil(CHUNK);
        if vocab > MAX_VOCAB {
            return Err(self.unsupported(format!("a vocabulary of {vocab} tokens")));
        }
        let masks = match self.program.masks {
            Some(masks) => self.resources.buffer(masks)?.address(),
            None => 0,
        };
        let of_chunks = outputs * chunks as usize;
        let likely = of_chunks * MAX_CANDIDATES as usize * CANDIDATE_BYTES;
        let params = params::SampleParams {
            logits: self.resources.buffer(self.program.logits)?.address(),
            scores: self.workspace.at(Area::SampleScores, outputs * vocab as usize * 4),
            stats: self.workspace.at(Area::SampleStats, of_chunks * CHUNK_STATS_BYTES),
            likely: self.workspace.at(Area::SampleLikely, likely),
            bins: self.workspace.at(Area::SampleBins, outputs * BINS_BYTES),
            masks,
            results: self.resources.buffer(self.program.results)?.address(),
            block_words: (layout.result_bytes() / 4) as u32,
            rows_words: (layout.result_rows_offset() / 4) as u32,
            candidates_words: (layout.candidates_offset() / 4) as u32,
            vocab,
            chunks,
            mask_words: mask_words(vocab) as u32,
        };
        let sample = self.constant(&params);
        let outputs = self.program.max_outputs;
        let wide = chunks.div_ceil(BIN_CHUNKS);
        for (shader, chunks, cut) in [
            ("sample_scan", chunks, 0),
            ("sample_bins", wide, 0),
            ("sample_list", wide, 0),
            ("sample_limit", 1, 0),
            ("sample_list", wide, 1),
            ("sample_limit", 1, 1),
            ("sample_choose", chunks, 0),
            ("sample_draw", 1, 0),
        ] {
            let push = params::SamplePush { program: self.head, sample, cut, reserved: 0 };
            self.dispatch(shader, [chunks, outputs, 1], &push)?;
        }
        Ok(())
    }
}
