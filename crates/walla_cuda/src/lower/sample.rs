//! The sampler.

use walla_device::step::mask_words;
use walla_device::{BufferId, DeviceError};

use super::{Area, Lowering};
use crate::params::{Address, SampleParams};

/// Tokens that one block scans (`CHUNK` in sample.cuh).
const CHUNK: u32 = 4096;
/// Threads of a scanning block.
const SCAN_THREADS: u32 = 256;
/// Threads of a sampling block: each has at most one group of tokens.
const DRAW_THREADS: u32 = 1024;
/// Maximum log2 of the scanning threads per group: a group stays within a warp.
const MAX_GROUP_BITS: u32 = 5;
/// Bytes of `Bins` in sample_cut.cuh.
const BINS_BYTES: u32 = 53_280;
/// Bytes of the statistics of a chunk's warps.
const STATS_BYTES: usize = 8 * SCAN_THREADS as usize / 32;

/// Log2 of the scanning threads per group: the smallest for which a sampling block has at most one
/// group per thread.
fn group_bits(vocab: u32) -> u32 {
    let threads = vocab.div_ceil(CHUNK) * SCAN_THREADS;
    threads.div_ceil(DRAW_THREADS).next_power_of_two().ilog2()
}

impl Lowering<'_> {
    /// Address of the mask block.
    fn masks(&self, masks: BufferId) -> Result<Address, DeviceError> {
        let block = self.resources.buffer(masks)?;
        let wanted = mask_words(self.program.vocab) * size_of::<u32>();
        if block.bytes() < wanted {
            return Err(DeviceError::Invalid(format!("mask block below {wanted} bytes")));
        }
        Ok(block.address())
    }

    pub(super) fn sample(&mut self) -> Result<(), DeviceError> {
        let cache = self.resources.cache(self.program.cache)?;
        let chunks = self.program.vocab.div_ceil(CHUNK);
        let group_bits = group_bits(self.program.vocab);
        if group_bits > MAX_GROUP_BITS {
            return Err(self.unsupported(format!("vocabularies of {} tokens", self.program.vocab)));
        }
        let masks = match self.program.masks {
            Some(masks) => self.masks(masks)?,
            None => 0,
        };
        let outputs = self.program.max_outputs as usize;
        let all_chunks = outputs * chunks as usize;
        let groups_bytes = 4 * all_chunks * (SCAN_THREADS >> group_bits) as usize;
        let scores_bytes = 4 * outputs * self.program.vocab as usize;
        let arrivals = self.workspace.at(Area::SampleArrivals, 4);
        let tells_host = self.resources.is_mapped(self.resources.buffer(self.program.results)?);
        let params = SampleParams {
            step: self.step()?,
            results: self.results()?,
            logits: self.resources.buffer(self.program.logits)?.address(),
            last_sampled: cache.last_sampled.address(),
            recent: cache.recent.address(),
            scores: self.workspace.at(Area::SampleScores, scores_bytes),
            stats: self.workspace.at(Area::SampleStats, STATS_BYTES * all_chunks),
            groups: self.workspace.at(Area::SampleGroups, groups_bytes),
            likely: self.workspace.at(Area::SampleLikely, groups_bytes),
            masks,
            arrivals: if tells_host { arrivals } else { 0 },
            step_ring: self.step_ring()?,
            vocab: self.program.vocab,
            group_bits,
        };
        let outputs = self.program.max_outputs.max(1);
        let (scan, draw) = (("sample", "sample_scan"), ("sample", "sample_draw"));
        self.launch(scan, [chunks, outputs, 1], SCAN_THREADS, &params)?;
        // One more block prefetches the next step's block.
        let shared = (BINS_BYTES, BINS_BYTES);
        self.launch_shared(draw, [outputs + 1, 1, 1], DRAW_THREADS, shared, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::{BINS_BYTES, CHUNK, DRAW_THREADS, MAX_GROUP_BITS, SCAN_THREADS, group_bits};
    use crate::kernel_source::KernelSource;

    #[test]
    fn constants_match_the_kernels() {
        let kernels = KernelSource::read(&["sample/sample.cuh"]);
        assert_eq!(kernels.constant("CHUNK"), CHUNK);
        assert_eq!(kernels.constant("SCAN_THREADS"), SCAN_THREADS);
        assert_eq!(kernels.constant("DRAW_THREADS"), DRAW_THREADS);
        let asserted = format!("static_assert(sizeof(Bins) == {BINS_BYTES},");
        assert!(include_str!("../../../../kernels/sample/sample_cut.cuh").contains(&asserted));
    }

    #[test]
    fn a_draw_thread_has_at_most_one_group() {
        let largest = (DRAW_THREADS * (CHUNK / SCAN_THREADS)) << MAX_GROUP_BITS;
        for vocab in [1, 515, 4096, 16_384, 16_385, 32_001, 128_256, 151_936, 262_208, largest] {
            let bits = group_bits(vocab);
            let groups = |bits: u32| vocab.div_ceil(CHUNK) * (SCAN_THREADS >> bits);
            assert!(groups(bits) <= DRAW_THREADS && bits <= MAX_GROUP_BITS, "{vocab}");
            assert!(bits == 0 || groups(bits - 1) > DRAW_THREADS, "{vocab}: more than it takes");
        }
        assert!(group_bits(largest + 1) > MAX_GROUP_BITS);
    }
}
