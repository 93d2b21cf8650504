//! How a product on tensor cores is cut for a device (kernels/few.cuh, kernels/matmul.cuh): who
//! takes which columns, tiles and rows of x.

mod few;
mod many;

#[cfg(test)]
mod tests;

use walla_device::GpuFacts;

use super::order::Order;

/// Rows of x that one multiplication of tensor cores takes.
pub(super) const GROUP_ROWS: u32 = 8;
/// Warps of a block for more than a group of rows (`MATMUL_WARPS_MAX`).
const WARPS_MAX: u32 = 16;
/// The same for one group (`FEW_WARPS`): two such blocks share a multiprocessor. Smaller ones would
/// leave shared work to fewer warps.
const FEW_WARPS: u32 = 8;
/// The same where a block has a multiprocessor for itself (`FEW_WARPS_LARGE`).
const FEW_WARPS_LARGE: u32 = 16;
/// Numbers of a row of sums (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Shared memory that a kernel has besides what a launch asks for, at most.
pub(super) const SHARED_STATIC: u32 = 4_352;
/// Shared memory of a multiprocessor that the driver keeps for each block: one block's share is not
/// in what a block may ask for.
pub(super) const SHARED_OF_DRIVER: u32 = 1_024;

/// What there is to multiply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Bytes of a record of the weights.
    pub(super) record_bytes: u32,
    /// Segments of a row.
    pub(super) segments: u32,
    /// Tiles of all matrices together.
    pub(super) tiles: u32,
    /// Rows of x.
    pub(super) rows: u32,
    /// Rows that a group has room for.
    pub(super) group_rows: u32,
}

/// How it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Splits and their runs: a warp of a team takes a run.
    order: Order,
    /// Groups of rows of x that a block takes: 1, 2 or 4.
    pub(super) groups: u32,
    /// Teams of a block.
    pub(super) teams: u32,
    /// Segments of a stage of a warp's ring.
    pub(super) chunk: u32,
    /// Stages of it.
    pub(super) depth: u32,
    /// For one group of rows: tiles that a block makes in one turn.
    pub(super) turn_tiles: u32,
    /// The same: splits whose rows of x a block has at once.
    pub(super) x_splits: u32,
    /// Blocks for tiles, groups of rows and splits.
    pub(super) grid: [u32; 3],
    /// Dynamic shared memory of a block.
    pub(super) shared_bytes: u32,
}

impl Tiling {
    /// Cuts a product; `None` if not even the smallest blocks fit the device.
    pub(super) fn of(product: &Product, order: &Order, gpu: &GpuFacts) -> Option<Self> {
        let whole = Self {
            order: *order,
            groups: 1,
            teams: 1,
            chunk: order.run,
            depth: 2,
            turn_tiles: 1,
            x_splits: order.splits,
            grid: [1; 3],
            shared_bytes: 0,
        };
        // A whole group of rows that leaves less than three eighths of a block's shared memory to
        // weights goes the way of more rows.
        let x_bytes = u64::from(product.segments * GROUP_ROWS * 256);
        let is_long = 8 * x_bytes > 5 * gpu.shared_bytes_per_block_optin;
        let is_many = product.rows > GROUP_ROWS || (product.group_rows == GROUP_ROWS && is_long);
        let many = || whole.many(product, gpu);
        is_many.then(many).flatten().or_else(|| whole.few(product, gpu))
    }

    /// Warps of a block.
    fn warps(&self) -> u32 {
        self.teams * self.order.runs
    }

    /// Blocks for all rows of x.
    fn row_blocks(&self, product: &Product) -> u32 {
        product.rows.div_ceil(GROUP_ROWS * self.groups).max(1)
    }

    /// Whether a multiprocessor holds so many blocks.
    fn fits(&self, resident: u32, gpu: &GpuFacts) -> bool {
        let each = u64::from(self.shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
        let all = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
        each * u64::from(resident) <= all
    }

    /// Bytes that the sums of splits in blocks of their own take, and blocks that wait for each
    /// other.
    pub(super) fn partials(&self, tiles: u32) -> (usize, usize) {
        let [x, y, splits] = self.grid.map(|n| n as usize);
        if splits == 1 {
            return (0, 0);
        }
        let tile = 16 * 8 * self.groups as usize;
        (4 * splits * tiles as usize * y * tile, 4 * x * y)
    }
}
