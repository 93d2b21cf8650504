//! The sampler.

use walla_device::step::mask_words;
use walla_device::{BufferId, DeviceError, Op, Program};
use walla_types::CANDIDATES_MAX;

use super::Lowering;
use crate::driver::Launch;
use crate::params::{Address, SampleParams};

/// Tokens that one block scans (`CHUNK` in sample.cu).
const CHUNK: u32 = 4096;
/// Keys that a chunk leaves (`TOP_MAX` in sample.cu).
const TOP_MAX: u32 = 64;
/// Most chunks: as many as leave their keys in the shared memory that any chip has.
const CHUNKS_MAX: u32 = 96;
/// Bytes of `Bins` in sample.cu.
const BINS_BYTES: u32 = 49_184;
/// Bytes of a chunk's statistics.
const STATS_BYTES: usize = 16;

/// Where the sampler's parts of the workspace lie.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    scores: usize,
    stats: usize,
    top: usize,
    likely: usize,
    /// Outputs that are drawn: zero between steps.
    arrivals: usize,
}

impl Parts {
    /// Takes what the most demanding of the programs that sample wants.
    pub(super) fn of(programs: &[Program], mut take: impl FnMut(usize) -> usize) -> Self {
        let samples = |p: &&Program| p.ops.contains(&Op::Sample);
        let most = |bytes: &dyn Fn(&Program) -> usize| {
            programs.iter().filter(samples).map(bytes).max().unwrap_or_default()
        };
        let chunks = |p: &Program| p.outputs_max as usize * p.vocab.div_ceil(CHUNK) as usize;
        Self {
            scores: take(most(&|p| 4 * p.outputs_max as usize * p.vocab as usize)),
            stats: take(most(&|p| STATS_BYTES * chunks(p))),
            top: take(most(&|p| 8 * TOP_MAX as usize * chunks(p))),
            likely: take(most(&|p| 8 * CANDIDATES_MAX as usize * chunks(p))),
            arrivals: take(most(&|_| 4)),
        }
    }
}

impl Lowering<'_> {
    /// Where the mask block lies.
    fn masks(&self, program: &Program, masks: BufferId) -> Result<Address, DeviceError> {
        let block = self.resources.buffer(masks)?;
        let wanted = mask_words(program.vocab) * size_of::<u32>();
        if block.bytes() < wanted {
            return Err(DeviceError::Invalid(format!("mask block below {wanted} bytes")));
        }
        Ok(block.address())
    }

    pub(super) fn sample(&mut self, program: &Program) -> Result<[Launch; 2], DeviceError> {
        let cache = self.resources.cache(program.cache)?;
        let chunks = program.vocab.div_ceil(CHUNK);
        if chunks > CHUNKS_MAX {
            return Err(self.unsupported(format!("vocabularies of {} tokens", program.vocab)));
        }
        let parts = self.workspace.sampler;
        let at = |offset: usize| self.base + offset as u64;
        let masks = match program.masks {
            Some(masks) => self.masks(program, masks)?,
            None => 0,
        };
        let tells_host = self.resources.is_mapped(self.resources.buffer(program.results)?);
        let params = SampleParams {
            step: self.step(program)?,
            results: self.results(program)?,
            logits: self.resources.buffer(program.logits)?.address(),
            last_sampled: cache.last_sampled.address(),
            recent: cache.recent.address(),
            scores: at(parts.scores),
            stats: at(parts.stats),
            top: at(parts.top),
            likely: at(parts.likely),
            masks,
            arrivals: if tells_host { at(parts.arrivals) } else { 0 },
            vocab: program.vocab,
            chunks,
        };
        let outputs = program.outputs_max.max(1);
        let shared = BINS_BYTES.max(8 * TOP_MAX * chunks);
        Ok([
            self.launch(("sample", "sample_scan"), [chunks, outputs, 1], 256, &params)?,
            self.launch_shared(("sample", "sample_draw"), [outputs, 1, 1], 1024, shared, &params)?,
        ])
    }
}
