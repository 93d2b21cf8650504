//! Tiling of kernels/gemm/gemm_sm90.cuh for many rows of x: blocks compute all splits and runs of
//! their tiles sequentially (`Sequential` in kernels/gemm/gemm_sm90_config.cuh).

use walla_device::GpuFacts;

use super::{Sm90Tiling, Splits};
use crate::lower::order::{CTA_TILES, Order, TILES_MANY};
use crate::lower::tiling::Product;

/// Minimum rows of x.
pub(super) const ROWS_MIN: u32 = 65;
/// Rows of x per block.
const ROWS: [u32; 2] = [64, 128];
/// Producer warps: a warpgroup (`SEQUENTIAL_PRODUCER_WARPS`).
pub(super) const PRODUCER_WARPS: u32 = 4;

/// Time of a block's tiles: per segment and for the rest (prologue, epilogue), in units of 10 ns.
/// Measured with Q4_K_M on an H200 (benches/results/cuda-kernels.md); only ratios matter.
struct Cost {
    segment: u32,
    rest: u32,
}

const SEQUENTIAL: [Cost; 2] = [Cost { segment: 68, rest: 350 }, Cost { segment: 92, rest: 450 }];
/// One split of a cluster's block, two blocks per multiprocessor; the same once per launch.
const CLUSTER: Cost = Cost { segment: 110, rest: 420 };
const CLUSTER_ONCE: Cost = Cost { segment: 145, rest: 60 };
/// Both runs of 64 rows of x at once.
const PERSISTENT: Cost = Cost { segment: 55, rest: 100 };

impl Cost {
    fn of(&self, segments: u32, rounds: u32) -> u32 {
        (self.segment * segments + self.rest) * rounds
    }
}

/// Blocks for each group of rows of x, and tiles of the busiest block, in groups of [`CTA_TILES`].
fn schedule(tiles: u32, row_blocks: u32, multiprocessors: u32) -> (u32, u32) {
    let groups = tiles.div_ceil(CTA_TILES).max(1);
    let room = (multiprocessors / row_blocks).max(1);
    let rounds = groups.div_ceil(room);
    (groups.div_ceil(rounds), rounds * row_blocks.div_ceil(multiprocessors.max(1)).max(1))
}

/// Time of the other kernels; `None` if they do not apply.
fn cost_of_others(product: &Product, order: &Order, multiprocessors: u32) -> Option<u32> {
    let row_blocks = product.rows.div_ceil(64);
    let groups = product.tiles_of_op.div_ceil(CTA_TILES);
    if product.tiles >= TILES_MANY {
        let (_, rounds) = schedule(product.tiles, row_blocks, multiprocessors);
        return (order.splits == 1 && order.runs == 2)
            .then(|| PERSISTENT.of(product.segments, rounds));
    }
    let rounds = (groups * row_blocks * order.splits).div_ceil(2 * multiprocessors.max(1));
    let segments = order.split_segments;
    (order.splits <= super::MAX_SPLITS)
        .then(|| CLUSTER.of(segments, rounds) + CLUSTER_ONCE.of(segments, 1))
}

/// The tiling; `None` for few rows of x, and if other kernels are faster.
pub(super) fn tiling(product: &Product, order: &Order, gpu: &GpuFacts) -> Option<Sm90Tiling> {
    if product.rows < ROWS_MIN {
        return None;
    }
    // All launches of an op decide alike, so that products of two types can share one.
    let cost = |rows: u32, cost: &Cost| {
        let row_blocks = product.rows.div_ceil(rows);
        let (_, rounds) = schedule(product.tiles_of_op, row_blocks, gpu.multiprocessors);
        cost.of(product.segments, rounds)
    };
    let costs = ROWS.into_iter().zip(&SEQUENTIAL).map(|(rows, its)| (cost(rows, its), rows));
    let (cost, rows) = costs.min()?;
    if cost_of_others(product, order, gpu.multiprocessors).is_some_and(|others| others < cost) {
        return None;
    }
    let row_blocks = product.rows.div_ceil(rows);
    let (blocks, _) = schedule(product.tiles, row_blocks, gpu.multiprocessors);
    Some(Sm90Tiling {
        rows,
        splits: Splits::Sequential,
        tiles: CTA_TILES,
        full_wave_tiles: None,
        depth: 1,
        x_depth: 1,
        grid: [blocks, row_blocks, 1],
        threads: 32 * (CTA_TILES + PRODUCER_WARPS),
        shared_bytes: 0,
    })
}
