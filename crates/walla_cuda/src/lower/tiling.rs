//! How a product on tensor cores is cut for a device (kernels/few.cuh, kernels/matmul.cuh): who takes which columns, tiles and rows of x.

use walla_device::GpuFacts;

/// Rows of x that one multiplication of tensor cores takes.
pub(super) const GROUP_ROWS: u32 = 8;
/// Most segments of a split: the rows of x of a split lie in shared memory, 2 KiB of each group a segment, and so does a tile of the weights.
const SPLIT_SEGMENTS_MAX: u32 = 16;
/// The same on chips whose blocks have less shared memory than this.
const SPLIT_SEGMENTS_SMALL: u32 = 8;
const SHARED_SMALL: u64 = 128 << 10;
/// Most runs that a split is cut into (`RUNS_MAX`).
const RUNS_MAX: u32 = 8;
/// Most teams of a block (`TEAMS_MAX`).
const TEAMS_MAX: u32 = 4;
/// Warps of a block for more than a group of rows (`MATMUL_WARPS_MAX`).
const WARPS_MAX: u32 = 16;
/// The same for one group (the launch bounds of kernels/few.cuh): two such blocks share a multiprocessor.
const FEW_WARPS: u32 = 8;
/// Most tiles that such a block makes in one turn: their sums meet in shared memory.
const TURN_TILES_MAX: u32 = 8;
/// Most stages of a ring (`DEPTH_MAX`).
const DEPTH_MAX: u32 = 8;
/// Tiles from which on four warps share one: there are enough tiles for all warps then, and fewer sums to add.
const TILES_MANY: u32 = 512;
/// Numbers of a row of sums (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Shared memory that a kernel has besides what a launch asks for, at most.
pub(super) const SHARED_STATIC: u32 = 4_096;
/// Shared memory of a multiprocessor that the driver keeps for each block: one block's share is not in what a block may ask for.
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

/// How it is cut. What decides the order of sums (splits, warps and runs) follows from the matrix alone, on a given chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Parts that the columns are cut into.
    pub(super) splits: u32,
    /// Segments of a split.
    pub(super) split_segments: u32,
    /// Runs of a split: a warp of a team takes one.
    pub(super) warps: u32,
    /// Segments of a run.
    pub(super) run: u32,
    /// Groups of rows of x that a block takes: 1, 2 or 4.
    pub(super) groups: u32,
    /// Teams of a block.
    pub(super) teams: u32,
    /// Segments of a stage of a ring: a warp's, or the block's for one group of rows.
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
    pub(super) fn of(product: &Product, gpu: &GpuFacts) -> Option<Self> {
        let segments = product.segments.max(1);
        let is_small = gpu.shared_bytes_per_block_optin < SHARED_SMALL;
        let most = if is_small { SPLIT_SEGMENTS_SMALL } else { SPLIT_SEGMENTS_MAX };
        let split_segments = segments.div_ceil(segments.div_ceil(most));
        let team = if product.tiles >= TILES_MANY { RUNS_MAX / 2 } else { RUNS_MAX };
        let run = split_segments.div_ceil(team);
        let whole = Self {
            splits: segments.div_ceil(split_segments),
            split_segments,
            warps: split_segments.div_ceil(run),
            run,
            groups: 1,
            teams: 1,
            chunk: run,
            depth: 2,
            turn_tiles: 1,
            x_splits: 1,
            grid: [1; 3],
            shared_bytes: 0,
        };
        let groups = product.rows.div_ceil(GROUP_ROWS).max(1);
        let many = || whole.candidates(groups, product, gpu.multiprocessors);
        let many = (groups > 1).then(many).into_iter().flatten();
        many.into_iter()
            .find_map(|tiling| tiling.fit(product, gpu))
            .or_else(|| whole.few(product, gpu))
    }

    /// Cuts a product for one group of rows a block (kernels/few.cuh).
    fn few(self, product: &Product, gpu: &GpuFacts) -> Option<Self> {
        let row_blocks = product.rows.div_ceil(GROUP_ROWS).max(1);
        let multiprocessors = gpu.multiprocessors.max(1);
        let teams = (FEW_WARPS / self.warps).max(1);
        // Two blocks a multiprocessor, where there is work for them.
        let turn_tiles = (product.tiles.div_ceil(2 * multiprocessors)).min(TURN_TILES_MAX);
        let turn_tiles = if teams == 1 { 1 } else { turn_tiles.next_multiple_of(teams) };
        let whole = Self { teams, turn_tiles, x_splits: self.splits, ..self };
        // Rows of x that do not fit come in parts, to blocks that make one tile.
        let parts = (1..=self.splits).rev().map(|x_splits| Self {
            teams: 1,
            turn_tiles: 1,
            x_splits,
            ..self
        });
        let shapes = std::iter::once(whole).chain(parts);
        let mut cuts = shapes.flat_map(|shape| [(shape, 2), (shape, 1)]);
        cuts.find_map(|(shape, resident)| {
            // Half a ring at least before a block goes without a second one.
            let stages = shape.turn_tiles * shape.splits;
            let most = stages.min(DEPTH_MAX) / shape.teams;
            let least = if resident == 1 { 1 } else { most.div_ceil(2) };
            (least..=most.max(1)).rev().find_map(|depth| {
                let blocks = product.tiles.div_ceil(shape.turn_tiles);
                let rounds = blocks.div_ceil(blocks.min(multiprocessors * resident));
                let tiling = Self {
                    depth: depth * shape.teams,
                    chunk: shape.split_segments,
                    grid: [blocks.div_ceil(rounds), row_blocks, 1],
                    ..shape
                };
                let shared_bytes = tiling.few_bytes(product, rounds);
                let tiling = Self { shared_bytes, ..tiling };
                tiling.fits(resident, gpu).then_some(tiling)
            })
        })
    }

    /// Shared memory of a block for one group of rows: the ring, rows of x, sums of runs (of two turns at once if there are more than one), and those of earlier splits.
    fn few_bytes(&self, product: &Product, rounds: u32) -> u32 {
        let ring = self.depth * 2 * self.split_segments * product.record_bytes;
        let segments = product.segments.min(self.x_splits * self.split_segments);
        let x = segments * product.group_rows * 256;
        let is_in_parts = self.x_splits < self.splits;
        let turns = if rounds > 1 || is_in_parts { 2 } else { 1 };
        let runs = turns * self.turn_tiles * self.x_splits * self.warps;
        let sums = runs * product.group_rows * SUM_STRIDE * 4;
        let totals = if is_in_parts { GROUP_ROWS * 16 * 8 } else { 0 };
        ring + x + sums + totals
    }

    /// Whether a multiprocessor holds so many blocks.
    fn fits(&self, resident: u32, gpu: &GpuFacts) -> bool {
        let each = u64::from(self.shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
        let all = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
        each * u64::from(resident) <= all
    }

    /// Ways to run it for more than one group of rows a block (kernels/matmul.cuh), the best first.
    fn candidates(
        self,
        groups: u32,
        product: &Product,
        multiprocessors: u32,
    ) -> impl Iterator<Item = Self> {
        let few = self.run.min(2);
        let wide: &[u32] = if groups == 2 { &[2] } else { &[4, 2] };
        // The rows of x fill the memory; a copy fewer is worth more than a stage more.
        let rings = [(few, 3), (few, 2), (few, 1), (1, 2), (1, 1)];
        wide.iter().flat_map(move |&groups| {
            let teams_max = (WARPS_MAX / self.warps).clamp(1, TEAMS_MAX);
            // More teams share the rows of x, as long as there is a tile for each.
            let blocks = product.tiles * product.rows.div_ceil(GROUP_ROWS * groups);
            let is_worth =
                move |teams: &u32| *teams == 1 || blocks >= multiprocessors * 9 / 10 * teams;
            let teams = (1..=teams_max).rev().filter(is_worth);
            teams.flat_map(move |teams| {
                rings.map(|(chunk, depth)| Self { groups, teams, chunk, depth, ..self })
            })
        })
    }

    /// Lays the grid out and counts the memory, for more than one group of rows a block; `None` if it does not fit.
    fn fit(mut self, product: &Product, gpu: &GpuFacts) -> Option<Self> {
        let row_blocks = product.rows.div_ceil(GROUP_ROWS * self.groups).max(1);
        let most = gpu.multiprocessors.max(1) / (row_blocks * self.splits);
        let turns = product.tiles.div_ceil(self.teams);
        let rounds = turns.div_ceil(turns.min(most.max(1)));
        self.grid = [turns.div_ceil(rounds), row_blocks, self.splits];
        let x = self.groups * product.segments.min(self.split_segments) * GROUP_ROWS * 256;
        let ring = self.warps * self.teams * self.depth * self.chunk * 2 * product.record_bytes;
        let sums = self.warps * self.teams * self.groups * GROUP_ROWS * SUM_STRIDE * 4;
        self.shared_bytes = x + ring + sums;
        self.fits(1, gpu).then_some(self)
    }

    /// Bytes that the sums of splits in blocks of their own take, and blocks that wait for each other.
    pub(super) fn partials(&self, tiles: u32) -> (usize, usize) {
        let [x, y, splits] = self.grid.map(|n| n as usize);
        if splits == 1 {
            return (0, 0);
        }
        let tile = 16 * 8 * self.groups as usize;
        (4 * splits * tiles as usize * y * tile, 4 * x * y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(multiprocessors: u32, shared_bytes_per_block_optin: u64) -> GpuFacts {
        GpuFacts { multiprocessors, shared_bytes_per_block_optin, ..GpuFacts::default() }
    }

    const RECORDS: [u32; 6] = [576, 608, 848, 1088, 768, 2048];
    const SEGMENTS: [u32; 10] = [1, 5, 8, 12, 16, 20, 24, 64, 76, 112];

    /// Every product that models have, on a large and on a small chip.
    fn all(mut check: impl FnMut(&Product, &Tiling, &GpuFacts)) {
        for gpu in [gpu(132, 232_448), gpu(24, 101_376), gpu(40, 65_536)] {
            for record_bytes in RECORDS {
                for segments in SEGMENTS {
                    for tiles in [1, 4, 33, 192, 1024, 8016] {
                        for rows in [1, 2, 3, 6, 8, 12, 16, 24, 48, 128, 512] {
                            let group_rows = rows.min(8);
                            let product =
                                Product { record_bytes, segments, tiles, rows, group_rows };
                            let tiling = Tiling::of(&product, &gpu);
                            let tiling = tiling.unwrap_or_else(|| panic!("{product:?}, {gpu:?}"));
                            check(&product, &tiling, &gpu);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_product_fits_every_chip() {
        all(|product, tiling, gpu| {
            let bytes = u64::from(tiling.shared_bytes + SHARED_STATIC);
            assert!(bytes <= gpu.shared_bytes_per_block_optin, "{product:?}: {tiling:?}");
            let warps = tiling.warps * tiling.teams;
            let warps_max = if tiling.groups == 1 { FEW_WARPS } else { WARPS_MAX };
            assert!(warps <= warps_max, "{product:?}: {tiling:?}");
            assert!(tiling.warps <= RUNS_MAX);
            assert!((1..=DEPTH_MAX).contains(&tiling.depth));
            if tiling.groups > 1 {
                assert!(tiling.teams <= TEAMS_MAX && (1..=tiling.run).contains(&tiling.chunk));
            }
        });
    }

    #[test]
    fn columns_rows_and_tiles_are_covered_once() {
        all(|product, tiling, _| {
            let covered = tiling.splits * tiling.split_segments;
            assert!(
                (product.segments..product.segments + tiling.split_segments).contains(&covered)
            );
            let team = tiling.warps * tiling.run;
            assert!((tiling.split_segments..tiling.split_segments + tiling.run).contains(&team));
            let rows = tiling.grid[1] * 8 * tiling.groups;
            assert!(rows >= product.rows && rows < product.rows + 8 * tiling.groups);
            assert!(tiling.grid[2] == 1 || tiling.grid[2] == tiling.splits);
            // Blocks of more than one group make one split.
            assert!(tiling.groups == 1 || tiling.grid[2] == tiling.splits);
        });
    }

    #[test]
    fn teams_of_few_rows_have_stages_and_slots_of_their_own() {
        all(|product, tiling, _| {
            if tiling.groups > 1 {
                return;
            }
            let stages = tiling.turn_tiles * tiling.splits;
            assert!(tiling.depth % tiling.teams == 0, "{product:?}: {tiling:?}");
            assert!(stages % tiling.teams == 0, "{product:?}: {tiling:?}");
            assert!((1..=tiling.splits).contains(&tiling.x_splits));
            // Where x comes in parts, a block makes one tile with one team.
            let is_in_parts = tiling.x_splits < tiling.splits;
            assert!(!is_in_parts || (tiling.teams, tiling.turn_tiles) == (1, 1));
        });
    }

    #[test]
    fn the_order_of_sums_follows_from_the_matrix_alone() {
        for segments in SEGMENTS {
            for tiles in [33, 1024] {
                let order = |rows: u32, record_bytes| {
                    let gpu = &gpu(132, 232_448);
                    let group_rows = rows.min(8);
                    let product = Product { record_bytes, segments, tiles, rows, group_rows };
                    let t = Tiling::of(&product, gpu).unwrap();
                    (t.splits, t.split_segments, t.warps, t.run)
                };
                let first = order(1, 608);
                for rows in [2, 8, 9, 16, 64, 128] {
                    assert_eq!(order(rows, 608), first);
                    assert_eq!(order(rows, 2048), first);
                }
            }
        }
    }
}
