//! Tiling of matrix products with more than eight rows of x, or with five and more long ones, for
//! the WGMMA kernels (kernels/gemm/gemm_sm90.cuh).

mod schedule;
mod sequential;

#[cfg(test)]
mod tests;

use walla_device::GpuFacts;

use self::schedule::{CTA_TILES_SMALL, TileSchedule};
use super::kernel::{Kernel, WARPGROUP_KERNELS, fits};
use super::order::{CTA_TILES, MAX_SPLITS, Order, TILES_MANY};
use super::tiling::{GROUP_ROWS, Product};
use crate::repack::TILE_ROWS;

/// Minimum rows of x for the WGMMA kernels, and the size of eight rows of x above which these
/// kernels also take eight rows and fewer. Two blocks of kernels/gemm/gemm_skinny.cuh would not
/// have enough shared memory for such rows and for enough weights.
pub(super) const ROWS_MIN: u32 = 5;
const LONG_BYTES: u32 = 48 << 10;
/// Maximum stages of a ring (`MAX_DEPTH`).
const MAX_DEPTH: u32 = 8;
/// Maximum weight stages if a block has one split, and if that split has two runs and is written to
/// the split-K workspace. More stages would delay the rows of x.
const MAX_SPLIT_DEPTH: u32 = 2;
const WORKSPACE_DEPTH: u32 = 1;
/// The same for a block that computes all splits sequentially. Rows of x need the memory.
const MAX_SEQUENTIAL_DEPTH: u32 = 3;
/// Bytes of eight rows of x in a segment (`GROUP_BYTES`).
const GROUP_BYTES: u32 = 2_048;
/// Longest record, in bytes, for which the weights of a block's 8 tiles are no more bytes than 64
/// rows of x (in `producer_warps`).
const RECORD_SHORT: u32 = 1_024;
/// Longest record, in bytes, of quantised weights; records of f16 are longer (in
/// `weights_stage_segments`).
const RECORD_QUANTIZED: u32 = 1_200;
/// Stride of a row of sums, in numbers (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Minimum rows of x for the split-K workspace, with records up to [`RECORD_SHORT`] and with longer
/// ones. With fewer rows, the additional launch costs as much as it gains.
const WORKSPACE_ROWS_MIN: u32 = 32;
const WORKSPACE_ROWS_MIN_LONG: u32 = 64;
/// Warps of a block of kernels/gemm/splitk_reduce.cu (`REDUCE_WARPS`).
const REDUCE_WARPS: u32 = 4;

/// Split-K reducer of a product, besides the product's own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitKReducer {
    None,
    /// A launch of kernels/gemm/splitk_reduce.cu.
    Kernel,
    /// The kernel that reads the product next (deferred split-K).
    Reader,
}

/// Where the splits of a tile are reduced (split-K modes in kernels/gemm/gemm_sm90_config.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    /// A single split; blocks iterate over tiles.
    One,
    /// In a cluster with this number of blocks, each with one split.
    InCluster(u32),
    /// Split-K workspace: each block stores one split, and `splitk_reduce` reduces them.
    Workspace,
    /// Deferred: each block stores one split, and the consumer of the product reduces them.
    Deferred,
    /// A block computes all splits of its tiles sequentially.
    Sequential,
}

impl Splits {
    /// Runs of a tile that a block computes concurrently, each with its own warps and rows of x
    /// (`SplitK::RUNS`). Blocks of a cluster, and with many rows of x, compute runs sequentially;
    /// deferred splits have only one run.
    fn runs_at_once(self) -> u32 {
        if matches!(self, Self::InCluster(_) | Self::Deferred | Self::Sequential) { 1 } else { 2 }
    }
}

/// Tiling for blocks that iterate over tiles, or that have one split each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sm90Tiling {
    /// Rows of x per block: 16, 32, 64 or 128.
    pub(super) rows: u32,
    pub(super) splits: Splits,
    /// Tiles per block.
    pub(super) tiles: u32,
    /// Number of tiles in full waves, if the last wave is a half wave.
    pub(super) full_wave_tiles: Option<u32>,
    /// Pipeline stages of each warp's weights.
    pub(super) depth: u32,
    /// Pipeline stages of each run's rows of x.
    pub(super) x_depth: u32,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    /// Dynamic shared memory per block, in bytes.
    pub(super) shared_bytes: u32,
}

/// Producer warps for the rows of x (`producer_warps`): one per run if the rows are more bytes than
/// the weights.
fn producer_warps(splits: Splits, rows: u32, record_bytes: u32) -> u32 {
    if rows > 32 && record_bytes <= RECORD_SHORT { splits.runs_at_once() } else { 1 }
}

/// Minimum rows of x for the split-K workspace.
fn workspace_rows_min(record_bytes: u32) -> u32 {
    if record_bytes <= RECORD_SHORT { WORKSPACE_ROWS_MIN } else { WORKSPACE_ROWS_MIN_LONG }
}

/// Segments in a stage of weights (`weights_stage_segments`).
fn weights_stage_segments(record_bytes: u32) -> u32 {
    if record_bytes > RECORD_QUANTIZED { 1 } else { 2 }
}

impl Sm90Tiling {
    /// Computes the tiling; `None` if these kernels do not apply.
    pub(super) fn of(
        product: &Product,
        order: &Order,
        gpu: &GpuFacts,
        reducer: SplitKReducer,
    ) -> Option<Self> {
        let is_long = product.segments * GROUP_BYTES > LONG_BYTES
            && product.tiles > gpu.multiprocessors
            && product.rows >= ROWS_MIN;
        if product.rows <= GROUP_ROWS && !is_long || product.group_rows != GROUP_ROWS {
            return None;
        }
        if let Some(tiling) = sequential::tiling(product, order, gpu) {
            return tiling
                .with_rings(product, order, 1, |tiling| fits(tiling.shared_bytes, 1, gpu));
        }
        let is_persistent = product.tiles >= TILES_MANY && order.runs == 2;
        if order.splits > if is_persistent { 1 } else { MAX_SPLITS } {
            return None;
        }
        let rows = [16, 32].into_iter().find(|n| product.rows <= *n).unwrap_or(64);
        let row_blocks = product.rows.div_ceil(rows);
        let schedule = match is_persistent {
            true => TileSchedule::of(product.tiles, rows, gpu.multiprocessors / row_blocks),
            false => TileSchedule::single(product.tiles, order.splits),
        };
        let TileSchedule { tiles, blocks, rounds, full_wave_tiles } = schedule;
        // Requires one multiprocessor per block with all blocks resident at once, and enough work
        // for the warps of both runs.
        let to_workspace = reducer == SplitKReducer::Kernel
            && order.runs == 2
            && order.splits > 1
            && rows >= workspace_rows_min(product.record_bytes)
            && blocks * row_blocks <= gpu.multiprocessors;
        // With 16 rows of x and f16 weights, clusters are faster if contexts are long.
        let is_deferred = reducer == SplitKReducer::Reader
            && order.runs == 1
            && order.splits > 1
            && (rows > 16 || product.record_bytes <= RECORD_QUANTIZED);
        let splits = if is_persistent {
            Splits::One
        } else if to_workspace {
            Splits::Workspace
        } else if is_deferred {
            Splits::Deferred
        } else {
            Splits::InCluster(order.splits)
        };
        let consume = tiles * splits.runs_at_once();
        let produce = producer_warps(splits, rows, product.record_bytes);
        let tiling = Self {
            rows,
            splits,
            tiles,
            full_wave_tiles,
            depth: 1,
            x_depth: 1,
            grid: [blocks, row_blocks, 1],
            threads: 32 * (consume + produce),
            shared_bytes: 0,
        };
        // Two blocks share a multiprocessor, if they fit.
        let is_alone = is_persistent && tiles == CTA_TILES || splits == Splits::Workspace;
        let residents: &[u32] = if is_alone { &[1] } else { &[2, 1] };
        residents.iter().find_map(|resident| {
            tiling.with_rings(product, order, rounds, |tiling| {
                fits(tiling.shared_bytes, *resident, gpu)
            })
        })
    }

    /// The kernel for weights of a type.
    pub(super) fn kernel(&self, ty: String) -> Kernel {
        Kernel { family: WARPGROUP_KERNELS, form: self.form(), ty, rows: self.rows }
    }

    /// Prefix of the kernel's name.
    fn form(&self) -> &'static str {
        match (self.splits, self.tiles) {
            (Splits::InCluster(_), _) => "gemm_sm90_cluster",
            (Splits::Workspace, _) => "gemm_sm90_workspace",
            (Splits::Deferred, _) => "gemm_sm90_deferred",
            (Splits::Sequential, _) => "gemm_sm90_wide",
            (Splits::One, CTA_TILES_SMALL) => "gemm_sm90_small",
            (Splits::One, _) if self.full_wave_tiles.is_some() => "gemm_sm90_half_wave",
            (Splits::One, _) => "gemm_sm90_persistent",
        }
    }

    /// Blocks per cluster; 0 without clusters.
    pub(super) fn cluster(&self) -> u32 {
        if let Splits::InCluster(blocks) = self.splits { blocks } else { 0 }
    }

    /// Bytes of the split-K workspace that `splitk_reduce` reduces (`split_sums`).
    pub(super) fn sums_bytes(&self, product: &Product, order: &Order) -> usize {
        let groups = product.rows.div_ceil(GROUP_ROWS) as usize;
        let of_group = 4 * TILE_ROWS * GROUP_ROWS as usize;
        let uses_workspace = self.splits == Splits::Workspace;
        if uses_workspace {
            order.splits as usize * groups * product.tiles as usize * of_group
        } else {
            0
        }
    }

    /// Grid and block size of `splitk_reduce`.
    pub(super) fn reduction(product: &Product) -> ([u32; 3], u32) {
        let grid = [product.tiles.div_ceil(REDUCE_WARPS), product.rows.div_ceil(GROUP_ROWS), 1];
        (grid, 32 * REDUCE_WARPS)
    }

    /// Segments in a stage of weights (`W_STAGE_SEGMENTS`).
    fn weights_stage_segments(&self, record_bytes: u32) -> u32 {
        if self.splits == Splits::Sequential { 1 } else { weights_stage_segments(record_bytes) }
    }

    /// Segments in a stage of x (`X_STAGE_SEGMENTS`).
    fn x_stage_segments(&self) -> u32 {
        if self.rows > 32 { 1 } else { 2 }
    }

    /// Gives both rings as many stages as they can use and as fit.
    fn with_rings(
        self,
        product: &Product,
        order: &Order,
        rounds: u32,
        fits: impl Fn(&Self) -> bool,
    ) -> Option<Self> {
        let (each, deepest) = match self.splits {
            Splits::One => (order.run, MAX_DEPTH),
            Splits::InCluster(_) | Splits::Deferred => (order.split_segments, MAX_SPLIT_DEPTH),
            Splits::Workspace => (order.run, WORKSPACE_DEPTH),
            Splits::Sequential => (product.segments, MAX_SEQUENTIAL_DEPTH),
        };
        let depth_most = (each.div_ceil(self.weights_stage_segments(product.record_bytes))
            * rounds)
            .min(deepest);
        let x_most = (each.div_ceil(self.x_stage_segments()) * rounds).min(MAX_DEPTH);
        // The producer reuses a stage of x when the next one has been read, so one stage would
        // deadlock.
        let mut tiling = Self { x_depth: x_most.min(2), ..self }.sized(product, order);
        if !fits(&tiling) {
            return None;
        }
        loop {
            let deeper = Self { depth: tiling.depth + 1, ..tiling }.sized(product, order);
            let is_deeper = tiling.depth < depth_most && fits(&deeper);
            tiling = if is_deeper { deeper } else { tiling };
            let longer = Self { x_depth: tiling.x_depth + 1, ..tiling }.sized(product, order);
            let is_longer = tiling.x_depth < x_most && fits(&longer);
            tiling = if is_longer { longer } else { tiling };
            if !is_deeper && !is_longer {
                return Some(tiling);
            }
        }
    }

    /// Computes the shared memory, with the kernel's layout.
    fn sized(mut self, product: &Product, order: &Order) -> Self {
        let n = self.rows;
        let runs = self.splits.runs_at_once();
        let x = runs * self.x_depth * self.x_stage_segments() * (n / GROUP_ROWS) * GROUP_BYTES;
        let weights = self.tiles
            * runs
            * self.depth
            * 2
            * self.weights_stage_segments(product.record_bytes)
            * product.record_bytes;
        self.shared_bytes = match self.splits {
            Splits::One | Splits::Workspace => {
                // Buffer with which a warp exchanges or transposes sums (`exchange_floats`).
                let transposed = (n / 2).min(16) * SUM_STRIDE;
                let exchange = 4 * (n / 4 * 32).max(transposed);
                x + weights + self.tiles * runs * exchange
            }
            Splits::Deferred => x + weights,
            // All sums of a warp's first run, then half of its result (`sequential_floats`).
            Splits::Sequential => x + weights + self.tiles * 4 * (n / 2 * 32),
            Splits::InCluster(splits) => {
                let received = CTA_TILES.next_multiple_of(splits) * 64 * n;
                if n > 32 {
                    // Sums reuse the memory of the rings (`SUMS_REUSE_RINGS`), followed by the
                    // transposition buffer. The sums of a finished run are kept next to the rings
                    // (`KEPT`).
                    let kept = if order.runs > 1 { CTA_TILES * 4 * (n / 2 * 32) } else { 0 };
                    let transposed = CTA_TILES * 4 * GROUP_ROWS * SUM_STRIDE;
                    (x + weights + kept).max(received + transposed)
                } else {
                    received + x + weights
                }
            }
        };
        self
    }
}
