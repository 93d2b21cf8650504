//! Tiling of tensor-core products for a device (kernels/gemm/gemm_skinny.cuh,
//! kernels/gemm/gemm_sm80.cuh): assigns columns, tiles and rows of x to blocks.

mod gemm_skinny;
mod gemm_sm80;

#[cfg(test)]
mod tests;

use walla_device::GpuFacts;

use super::kernel::{Kernel, fits};
use super::order::Order;

/// Rows of x per tensor-core instruction.
pub(super) const GROUP_ROWS: u32 = 8;
/// Maximum warps of a block for more than one group of rows (`MAX_SM80_WARPS`).
const MAX_WARPS: u32 = 16;
/// Warps of a block for one group (`SKINNY_WARPS`): two such blocks share a multiprocessor. In
/// smaller blocks, fewer warps would do the work that a block shares.
const SKINNY_WARPS: u32 = 8;
/// The same if a block has a multiprocessor to itself (`SKINNY_WARPS_LARGE`).
const SKINNY_WARPS_LARGE: u32 = 16;
/// Stride of a row of sums, in numbers (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;

/// Size of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Bytes of a record of the weights.
    pub(super) record_bytes: u32,
    /// Segments of a row.
    pub(super) segments: u32,
    /// Tiles of all matrices together.
    pub(super) tiles: u32,
    /// Tiles of all matrices of the op.
    pub(super) tiles_of_op: u32,
    /// Rows of x.
    pub(super) rows: u32,
    /// Row capacity of a group.
    pub(super) group_rows: u32,
}

/// Tiling of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Splits and their runs: each warp of a team takes one run.
    order: Order,
    /// Groups of rows of x per block: 1, 2 or 4.
    pub(super) groups: u32,
    /// Teams per block.
    pub(super) teams: u32,
    /// Segments in a stage of a warp's ring.
    pub(super) stage_segments: u32,
    /// Stages of a warp's ring.
    pub(super) depth: u32,
    /// For one group of rows: tiles that a block computes in one wave.
    pub(super) wave_tiles: u32,
    /// For one group of rows: splits whose rows of x a block holds at once.
    pub(super) x_splits: u32,
    /// Blocks for tiles, groups of rows, and splits.
    pub(super) grid: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub(super) shared_bytes: u32,
}

impl Tiling {
    /// Computes the tiling; `None` if even the smallest blocks do not fit the device.
    pub(super) fn of(product: &Product, order: &Order, gpu: &GpuFacts) -> Option<Self> {
        let whole = Self {
            order: *order,
            groups: 1,
            teams: 1,
            stage_segments: order.run,
            depth: 2,
            wave_tiles: 1,
            x_splits: order.splits,
            grid: [1; 3],
            shared_bytes: 0,
        };
        // If a full group of rows leaves less than three eighths of a block's shared memory for
        // weights, use the kernel for more rows.
        let x_bytes = u64::from(product.segments * GROUP_ROWS * 256);
        let is_long = 8 * x_bytes > 5 * gpu.shared_bytes_per_block_optin;
        let is_many = product.rows > GROUP_ROWS || (product.group_rows == GROUP_ROWS && is_long);
        let many = || whole.sm80(product, gpu);
        is_many.then(many).flatten().or_else(|| whole.skinny(product, gpu))
    }

    /// The kernel for weights of a type.
    pub(super) fn kernel(&self, ty: String) -> Kernel {
        let family = if self.groups == 1 { "gemm_skinny" } else { "gemm_sm80" };
        Kernel { family, form: family, ty, rows: GROUP_ROWS * self.groups }
    }

    /// Warps per block.
    fn warps(&self) -> u32 {
        self.teams * self.order.runs
    }

    /// Blocks for all rows of x.
    fn row_blocks(&self, product: &Product) -> u32 {
        product.rows.div_ceil(GROUP_ROWS * self.groups).max(1)
    }

    /// Whether `resident` blocks fit on a multiprocessor.
    fn fits(&self, resident: u32, gpu: &GpuFacts) -> bool {
        fits(self.shared_bytes, resident, gpu)
    }

    /// Bytes of the split-K workspace, if splits are in separate blocks, and of its arrival
    /// counters.
    pub(super) fn partials(&self, tiles: u32) -> (usize, usize) {
        let [x, y, splits] = self.grid.map(|n| n as usize);
        if splits == 1 {
            return (0, 0);
        }
        let tile = 16 * 8 * self.groups as usize;
        (4 * splits * tiles as usize * y * tile, 4 * x * y)
    }
}
