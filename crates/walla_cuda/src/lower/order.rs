//! Summation order of a row (kernels/gemm/gemm_common.cuh). It depends only on the matrices of an
//! op and the GPU, so it is the same for every kernel.

use walla_device::GpuFacts;

/// Minimum number of tiles that occupy all multiprocessors: their columns are not split over
/// blocks.
pub(super) const TILES_MANY: u32 = 512;
/// Tiles that a block of kernels/gemm/gemm_sm90.cuh computes at once (`CTA_TILES`).
pub(super) const CTA_TILES: u32 = 8;
/// Maximum splits of few tiles: a cluster size that every GPU with clusters supports
/// (`MAX_SPLITS`, `MAX_DEFERRED_SPLITS`).
pub(super) const MAX_SPLITS: u32 = 8;
/// Shared memory per block from which many tiles have one split for all columns, up to this number
/// of segments.
const SHARED_LARGE: u64 = 200 << 10;
const SPLIT_SEGMENTS_LARGE: u32 = 32;
/// Maximum segments of a split on other GPUs, and on GPUs with less than [`SHARED_SMALL`] bytes of
/// shared memory.
const MAX_SPLIT_SEGMENTS: u32 = 16;
const SPLIT_SEGMENTS_SMALL: u32 = 8;
const SHARED_SMALL: u64 = 128 << 10;
/// Segments of a split of few tiles from which it has two runs: warps with one run each then have
/// about the same work for every matrix.
const SPLIT_SEGMENTS_LONG: u32 = 8;

/// Columns are divided into splits, and a split into runs: chains of consecutive segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) splits: u32,
    /// Segments of a split; the last may have fewer.
    pub(super) split_segments: u32,
    /// Runs of a split.
    pub(super) runs: u32,
    /// Segments of a run; the last may have fewer, or none.
    pub(super) run: u32,
}

impl Order {
    /// Order for matrices that together have `tiles` tiles of `segments` segments.
    pub(super) fn of(tiles: u32, segments: u32, gpu: &GpuFacts) -> Self {
        let segments = segments.max(1);
        let shared = gpu.shared_bytes_per_block_optin;
        let most = match shared {
            SHARED_LARGE.. => SPLIT_SEGMENTS_LARGE,
            SHARED_SMALL.. => MAX_SPLIT_SEGMENTS,
            _ => SPLIT_SEGMENTS_SMALL,
        };
        let least = segments.div_ceil(most);
        if tiles >= TILES_MANY {
            return Self::cut(segments, least, 2);
        }
        // As many splits as fill the GPU with two blocks per multiprocessor.
        let groups = tiles.div_ceil(CTA_TILES).max(1);
        let splits = (2 * gpu.multiprocessors / groups).clamp(1, MAX_SPLITS).max(least);
        let is_long = segments.div_ceil(splits) >= SPLIT_SEGMENTS_LONG;
        Self::cut(segments, splits, if is_long { 2 } else { 1 })
    }

    fn cut(segments: u32, splits: u32, runs: u32) -> Self {
        let split_segments = segments.div_ceil(splits);
        let splits = segments.div_ceil(split_segments);
        let run = split_segments.div_ceil(runs);
        Self { splits, split_segments, runs: split_segments.div_ceil(run), run }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(tiles: u32, segments: u32, multiprocessors: u32, shared: u64) -> [u32; 4] {
        let facts = GpuFacts {
            multiprocessors,
            shared_bytes_per_block_optin: shared,
            ..GpuFacts::default()
        };
        let Order { splits, split_segments, runs, run } = Order::of(tiles, segments, &facts);
        [splits, split_segments, runs, run]
    }

    #[test]
    fn splits_fill_a_large_chip_and_long_splits_have_two_runs() {
        let large = |tiles, segments| order(tiles, segments, 132, 232_448);
        // Llama 3.2 1B: query, key and value; output; down; gate and up; head.
        assert_eq!(large(192, 16), [8, 2, 1, 2]);
        assert_eq!(large(128, 16), [8, 2, 1, 2]);
        assert_eq!(large(128, 64), [8, 8, 2, 4]);
        assert_eq!(large(1024, 16), [1, 16, 2, 8]);
        assert_eq!(large(8016, 16), [1, 16, 2, 8]);
        // Qwen 3 0.6B: gate and up; down.
        assert_eq!(large(384, 8), [4, 2, 1, 2]);
        assert_eq!(large(64, 24), [8, 3, 1, 3]);
        // Many tiles with more columns than fit in a block.
        assert_eq!(large(1024, 64), [2, 32, 2, 16]);
    }

    #[test]
    fn columns_are_covered_once_and_splits_fit_the_chip() {
        for (multiprocessors, shared, most) in [(132, 232_448, 32), (40, 65_536, 8)] {
            for segments in 1..=256 {
                for tiles in [1, 4, 33, 64, 128, 192, 384, 511, 512, 1024, 8016] {
                    let [splits, split, runs, run] =
                        order(tiles, segments, multiprocessors, shared);
                    assert!(split <= most && (1..=2).contains(&runs));
                    // No split and no run is empty, except possibly the second run of the last
                    // split.
                    assert!((splits - 1) * split < segments && segments <= splits * split);
                    assert!((runs - 1) * run < split && split <= runs * run);
                }
            }
        }
    }
}
