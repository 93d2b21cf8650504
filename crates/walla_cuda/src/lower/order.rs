//! The order of a row's sums (kernels/product.cuh) that suits warpgroups (kernels/wide.cuh): decided by the matrices of a launch and the chip
//! alone. Kernels for fewer rows have their own ([`super::tiling`]) until they are as fast in this one.

use walla_device::GpuFacts;

/// Tiles from which on there are enough for all multiprocessors: their columns are not cut into splits that blocks share out.
pub(super) const TILES_MANY: u32 = 512;
/// Tiles that a block of kernels/wide.cuh makes at once (`WIDE_TILES`).
pub(super) const WIDE_TILES: u32 = 8;
/// Most splits of few tiles: blocks of a cluster that every chip can have (`WIDE_SPLITS_MAX`).
pub(super) const SPLITS_MAX: u32 = 8;
/// Shared memory of a block from which on all columns of many tiles are one split, to as many segments.
const SHARED_LARGE: u64 = 200 << 10;
const SPLIT_SEGMENTS_LARGE: u32 = 32;
/// Most segments of a split on other chips, and on those with less shared memory than the second number.
const SPLIT_SEGMENTS_MAX: u32 = 16;
const SPLIT_SEGMENTS_SMALL: u32 = 8;
const SHARED_SMALL: u64 = 128 << 10;

/// Columns are cut into splits, a split into runs: chains of segments that follow each other.
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
    /// Of a launch whose matrices have `tiles` tiles of `segments` segments.
    pub(super) fn of(tiles: u32, segments: u32, gpu: &GpuFacts) -> Self {
        let segments = segments.max(1);
        let shared = gpu.shared_bytes_per_block_optin;
        let most = match shared {
            SHARED_LARGE.. => SPLIT_SEGMENTS_LARGE,
            SHARED_SMALL.. => SPLIT_SEGMENTS_MAX,
            _ => SPLIT_SEGMENTS_SMALL,
        };
        let least = segments.div_ceil(most);
        if tiles >= TILES_MANY {
            return Self::cut(segments, least, 2);
        }
        // As many splits as fill the chip with two blocks a multiprocessor.
        let groups = tiles.div_ceil(WIDE_TILES).max(1);
        let splits = (2 * gpu.multiprocessors / groups).clamp(1, SPLITS_MAX);
        Self::cut(segments, splits.max(least), 1)
    }

    fn cut(segments: u32, splits: u32, runs: u32) -> Self {
        let split_segments = segments.div_ceil(splits);
        let splits = segments.div_ceil(split_segments);
        let run = split_segments.div_ceil(runs);
        Self { splits, split_segments, runs: split_segments.div_ceil(run), run }
    }
}
