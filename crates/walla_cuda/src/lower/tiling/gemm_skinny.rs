//! Tiling for one group of rows per block (kernels/gemm/gemm_skinny.cuh).

use walla_device::GpuFacts;

use super::{GROUP_ROWS, MAX_WARPS, Product, SKINNY_WARPS, SKINNY_WARPS_LARGE, SUM_STRIDE, Tiling};
use crate::lower::order::{Order, TILES_MANY};
use crate::params::Stages;

/// Maximum tiles per block and wave: their sums are reduced in shared memory.
const MAX_WAVE_TILES: u32 = 8;
/// Maximum stages of a ring (`MAX_DEPTH`).
pub(super) const MAX_DEPTH: u32 = 8;
/// Maximum bytes of half a stage: longer copies gain nothing.
const MAX_COPY_BYTES: u32 = 2_560;
/// Maximum rows of x for which a warp prefetches all stages of many tiles before its predecessor
/// has ended, and the maximum number of such stages with more rows.
const ROWS_OF_EARLY_STAGES: u32 = 4;
const EARLY_STAGES_OF_MANY: u32 = 2;
/// Minimum segments in flight per warp if two blocks share a multiprocessor and the warp has as
/// many segments.
const SEGMENTS_AHEAD_MIN: u32 = 2;

/// How blocks for one group of rows iterate over tiles.
#[derive(Clone, Copy, Debug)]
struct Waves {
    /// Tiles per wave.
    tiles: u32,
    /// Blocks, and waves per block.
    blocks: u32,
    rounds: u32,
    /// Runs of the busiest warp in a wave.
    units: u32,
}

impl Waves {
    /// Work of the busiest warp. A wave has an overhead of about half a unit.
    fn cost(&self) -> u32 {
        self.rounds * (2 * self.units + 1)
    }
}

impl Tiling {
    /// Computes the tiling for one group of rows per block (kernels/gemm/gemm_skinny.cuh).
    pub(super) fn skinny(self, product: &Product, gpu: &GpuFacts) -> Option<Self> {
        // Use a large block if there are too few tiles for two blocks per multiprocessor and a warp
        // would take several runs, or if two blocks do not fit. If the rows of x do not fit, load
        // them in parts.
        let blocks = product.tiles * self.row_blocks(product);
        let is_large =
            blocks <= gpu.multiprocessors && self.order.splits * self.order.runs > SKINNY_WARPS;
        let (two, large, one) = ((SKINNY_WARPS, 2), (SKINNY_WARPS_LARGE, 1), (SKINNY_WARPS, 1));
        let sizes = if is_large { [large, two, one] } else { [two, large, one] };
        let parts = (1..=self.order.splits).rev().map(|x_splits| Self { x_splits, ..self });
        let mut shapes = parts.flat_map(|shape| {
            let with_teams = move |warps| Self { teams: warps / self.order.runs, ..shape };
            sizes.iter().map(move |(warps, resident)| (with_teams(*warps), *resident))
        });
        shapes.find_map(|(shape, resident)| shape.skinny_waves(product, gpu, resident))
    }

    /// The same with `resident` blocks per multiprocessor. With two, cuts that cost more than 1.5
    /// times the cheapest are rejected. `None` if no cut fits with enough segments in flight.
    fn skinny_waves(self, product: &Product, gpu: &GpuFacts, resident: u32) -> Option<Self> {
        let row_blocks = self.row_blocks(product);
        let places = (gpu.multiprocessors.max(1) * resident).div_ceil(row_blocks);
        let is_in_parts = self.x_splits < self.order.splits;
        let most = if is_in_parts { 1 } else { MAX_WAVE_TILES };
        let cut = |tiles: u32| {
            let blocks = product.tiles.div_ceil(tiles).max(1);
            let rounds = blocks.div_ceil(places);
            let units = (tiles * self.order.splits).div_ceil(self.teams);
            Waves { tiles, blocks: blocks.div_ceil(rounds), rounds, units }
        };
        let mut cuts: Vec<_> = (1..=most).map(cut).collect();
        cuts.sort_by_key(Waves::cost);
        let best = cuts.first().map(Waves::cost)?;
        let is_worth = |waves: &Waves| resident == 1 || 2 * waves.cost() <= 3 * best;
        cuts.into_iter().filter(is_worth).find_map(|waves| {
            let grid = [waves.blocks, row_blocks, 1];
            let whole = Self { wave_tiles: waves.tiles, grid, ..self };
            whole.with_rings(product, gpu, resident, waves)
        })
    }

    /// Gives each warp the ring with the most segments in flight, limited by [`segments_ahead`] if
    /// two blocks share a multiprocessor.
    fn with_rings(
        self,
        product: &Product,
        gpu: &GpuFacts,
        resident: u32,
        Waves { rounds, units, .. }: Waves,
    ) -> Option<Self> {
        let all = self.order.run * units * rounds;
        let copy_most = (MAX_COPY_BYTES / product.record_bytes).clamp(1, self.order.run);
        let is_shared = resident > 1 && product.tiles >= TILES_MANY;
        let ahead_most = if is_shared { segments_ahead(all, copy_most) } else { u32::MAX };
        let max_stage_segments = copy_most.min((ahead_most / 2).max(2));
        let with_ring = |stage_segments: u32| {
            let stages = self.order.run.div_ceil(stage_segments) * units * rounds;
            let stages = stages.min(ahead_most / stage_segments).clamp(1, MAX_DEPTH);
            let depths =
                (1..=stages).rev().map(move |depth| Self { stage_segments, depth, ..self });
            depths.map(|cut| cut.skinny_sized(product, rounds)).find(|cut| cut.fits(resident, gpu))
        };
        let ahead = |cut: &Self| (cut.stage_segments * cut.depth).min(all);
        // Among equal rings, use the longest copies. Segments that arrive one by one are also
        // unpacked one by one: only if pairs do not fit.
        let pairs =
            (2..=max_stage_segments).filter(|n| n.is_multiple_of(2) || *n == self.order.run);
        let best = pairs.filter_map(with_ring).max_by_key(ahead).or_else(|| with_ring(1))?;
        (resident == 1 || ahead(&best) >= SEGMENTS_AHEAD_MIN.min(all)).then_some(best)
    }

    /// Numbering of a warp's stages, for one group of rows.
    pub(in crate::lower) fn stages(&self, tiles: u32) -> Stages {
        let of_task = self.order.run.div_ceil(self.stage_segments);
        let tasks = (self.wave_tiles * self.x_splits).div_ceil(self.teams);
        let passes = self.order.splits.div_ceil(self.x_splits);
        let waves = tiles.div_ceil(self.wave_tiles * self.grid[0]);
        let reciprocals = [of_task, tasks, passes, self.x_splits].map(Stages::reciprocal);
        Stages { of_task, tasks, passes, all: waves * passes * tasks * of_task, reciprocals }
    }

    /// Stages that a warp prefetches before its predecessor has ended. The others are fetched with
    /// the rows of x, where an earlier prefetch would slow the predecessor. That holds for half of
    /// the stages of few tiles with long splits, such as down: it follows the product that needs
    /// the memory bandwidth to its end. That product itself (many tiles) prefetches only two stages
    /// if it has more rows.
    pub(in crate::lower) fn early_stages(&self, product: &Product) -> u32 {
        match product.tiles {
            ..TILES_MANY if self.order.runs > 1 => self.depth.div_ceil(2),
            TILES_MANY.. if product.rows > ROWS_OF_EARLY_STAGES => {
                self.depth.min(EARLY_STAGES_OF_MANY)
            }
            _ => self.depth,
        }
    }

    /// The first stage of each warp, for one group of rows (`GemmSkinnyParams::first`): a warp
    /// prefetches it before it has computed anything else.
    pub(in crate::lower) fn first_stages(&self, segments: u32) -> [u32; MAX_WARPS as usize] {
        let Order { split_segments, runs, run, .. } = self.order;
        std::array::from_fn(|warp| {
            let (team, its_run) = (warp as u32 / runs, warp as u32 % runs);
            let (tile, split) = (team / self.x_splits, team % self.x_splits);
            let begin = split * split_segments + its_run * run;
            let end = (begin + run).min((split + 1) * split_segments).min(segments);
            let is_there = team < self.teams && tile < self.wave_tiles;
            let count =
                if is_there { end.saturating_sub(begin).min(self.stage_segments) } else { 0 };
            if count > 0 { tile | count << 8 | begin << 16 } else { 0 }
        })
    }

    /// Computes the shared memory of a block for one group of rows: rings, rows of x, sums of runs
    /// (of two waves at once if there is more than one wave), and sums of earlier splits.
    fn skinny_sized(self, product: &Product, rounds: u32) -> Self {
        let rings = self.warps() * self.depth * self.stage_segments * 2 * product.record_bytes;
        let segments = product.segments.min(self.x_splits * self.order.split_segments);
        let x = segments * product.group_rows * 256;
        let is_in_parts = self.x_splits < self.order.splits;
        let waves = if rounds > 1 || is_in_parts { 2 } else { 1 };
        let runs = waves * self.wave_tiles * self.x_splits * self.order.runs;
        let sums = runs * product.group_rows * SUM_STRIDE * 4;
        let totals = if is_in_parts { GROUP_ROWS * 16 * 8 } else { 0 };
        Self { shared_bytes: rings + x + sums + totals, ..self }
    }
}

/// Maximum segments in flight per warp, out of `all`, if two blocks share a multiprocessor and
/// there are many tiles. Every block waits for the rows of x, which arrive later the more weights
/// are requested before them. Measured, for copies of one segment and of more.
fn segments_ahead(all: u32, copy_most: u32) -> u32 {
    match (copy_most, all) {
        (1, _) => SEGMENTS_AHEAD_MIN,
        (_, ..16) => (3 * all / 4).max(SEGMENTS_AHEAD_MIN),
        _ => 4,
    }
}
