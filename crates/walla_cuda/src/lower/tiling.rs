//! How a product on tensor cores is cut for a device (kernels/matmul.cuh): who takes which columns, tiles and rows of x.

use walla_device::GpuFacts;

/// Rows of x that one multiplication of tensor cores takes.
pub(super) const GROUP_ROWS: u32 = 8;
/// Most segments of a split: the rows of x of a split lie in shared memory, 2 KiB of each group a segment.
const SPLIT_SEGMENTS_MAX: u32 = 16;
/// The same on chips whose blocks have less shared memory than this.
const SPLIT_SEGMENTS_SMALL: u32 = 8;
const SHARED_SMALL: u64 = 96 << 10;
/// Most warps that share out a tile's columns (`MATMUL_TEAM_MAX`).
const TEAM_MAX: u32 = 8;
/// Most teams of a block (`TEAMS_MAX`).
const TEAMS_MAX: u32 = 4;
/// Warps of a block for one group of rows, of which two blocks share a multiprocessor, and for more.
const WARPS_MAX: [u32; 2] = [8, 16];
/// Tiles from which on four warps share one: there are enough tiles for all warps then, and fewer sums to add.
const TILES_MANY: u32 = 512;
/// Numbers of a row of sums (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Shared memory that a kernel has besides what a launch asks for, at most.
pub(super) const SHARED_STATIC: u32 = 2_048;
/// Shared memory of a multiprocessor that the driver keeps for each block: one block's share is not in what a block may ask for.
const SHARED_OF_DRIVER: u32 = 1_024;

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
    /// Warps of a team, which share out the segments of a split.
    pub(super) warps: u32,
    /// Segments of a warp.
    pub(super) run: u32,
    /// Groups of rows of x that a block takes: 1, 2 or 4.
    pub(super) groups: u32,
    /// Teams of a block.
    pub(super) teams: u32,
    /// Segments of a stage of a warp's ring.
    pub(super) chunk: u32,
    /// Stages of it.
    pub(super) depth: u32,
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
        let team = if product.tiles >= TILES_MANY { TEAM_MAX / 2 } else { TEAM_MAX };
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
            grid: [1; 3],
            shared_bytes: 0,
        };
        let groups = product.rows.div_ceil(GROUP_ROWS).max(1);
        let mut candidates = whole.candidates(groups, product, gpu.multiprocessors);
        candidates.find_map(|(tiling, resident)| tiling.fit(product, resident, gpu))
    }

    /// Ways to run it, the best first, with the blocks that a multiprocessor is to hold.
    fn candidates(
        self,
        groups: u32,
        product: &Product,
        multiprocessors: u32,
    ) -> impl Iterator<Item = (Self, u32)> {
        let few = self.run.min(2);
        let (wide, rings): (&[u32], _) = match groups {
            // Depth before whole runs: bytes under way matter more than the number of copies.
            1 => (&[1], vec![(self.run, 4), (self.run, 2), (few, 4), (few, 2), (1, 2), (1, 1)]),
            // The rows of x fill the memory; a copy fewer is worth more than a stage more.
            2 => (&[2, 1], vec![(few, 3), (few, 2), (few, 1), (1, 2), (1, 1)]),
            _ => (&[4, 2, 1], vec![(few, 3), (few, 2), (few, 1), (1, 2), (1, 1)]),
        };
        let shapes = wide.iter().flat_map(move |&groups| {
            let warps_max = WARPS_MAX[usize::from(groups > 1)];
            let teams_max = (warps_max / self.warps).clamp(1, TEAMS_MAX);
            // More teams share the rows of x, as long as there is a tile for each.
            let blocks = product.tiles * product.rows.div_ceil(GROUP_ROWS * groups);
            let is_worth = move |teams: &u32| {
                groups == 1 || *teams == 1 || blocks >= multiprocessors * 9 / 10 * teams
            };
            let teams = (1..=teams_max).rev().filter(is_worth);
            teams.map(move |teams| Self { groups, teams, ..self })
        });
        // One group of rows may leave room for two blocks.
        let residents: &[u32] = if groups == 1 { &[2, 1] } else { &[1] };
        let shapes: Vec<Self> = shapes.collect();
        residents.iter().flat_map(move |&resident| {
            let rings = rings.clone();
            shapes.clone().into_iter().flat_map(move |shape| {
                let with = move |(chunk, depth)| (Self { chunk, depth, ..shape }, resident);
                rings.clone().into_iter().map(with)
            })
        })
    }

    /// Lays the grid out and counts the memory; `None` if it does not fit.
    fn fit(mut self, product: &Product, resident: u32, gpu: &GpuFacts) -> Option<Self> {
        let row_blocks = product.rows.div_ceil(GROUP_ROWS * self.groups).max(1);
        // With one group a block makes all splits itself if their rows of x fit; else every split has blocks of its own.
        let ways = [self.splits, 1];
        let ways = if self.groups == 1 { &ways[..] } else { &ways[1..] };
        for &here in ways {
            let split_blocks = if here == self.splits { 1 } else { self.splits };
            let most = gpu.multiprocessors.max(1) * resident / (row_blocks * split_blocks);
            let turns = product.tiles.div_ceil(self.teams);
            let rounds = turns.div_ceil(turns.min(most.max(1)));
            self.grid = [turns.div_ceil(rounds), row_blocks, split_blocks];
            let x = self.groups
                * product.segments.min(here * self.split_segments)
                * product.group_rows
                * 256;
            let ring = self.warps * self.teams * self.depth * self.chunk * 2 * product.record_bytes;
            let sums = match self.groups {
                1 => here * if rounds > 1 { 2 } else { 1 },
                _ => 1,
            };
            let sums = sums * self.warps * self.teams * self.groups * GROUP_ROWS * SUM_STRIDE * 4;
            self.shared_bytes = x + ring + sums;
            let each = u64::from(self.shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
            let all = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
            if each * u64::from(resident) <= all {
                return Some(self);
            }
        }
        None
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
            assert!(warps <= WARPS_MAX[usize::from(tiling.groups > 1)], "{product:?}: {tiling:?}");
            assert!(tiling.warps <= TEAM_MAX && tiling.teams <= TEAMS_MAX);
            assert!((1..=8).contains(&tiling.depth) && (1..=tiling.run).contains(&tiling.chunk));
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
