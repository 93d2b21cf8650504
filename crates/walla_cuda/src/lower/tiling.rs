//! How a product on tensor cores is cut for a device (kernels/few.cuh, kernels/matmul.cuh): who takes which columns, tiles and rows of x.

use walla_device::GpuFacts;

use super::order::{Order, TILES_MANY};
use crate::params::Stages;

/// Rows of x that one multiplication of tensor cores takes.
pub(super) const GROUP_ROWS: u32 = 8;
/// Warps of a block for more than a group of rows (`MATMUL_WARPS_MAX`).
const WARPS_MAX: u32 = 16;
/// The same for one group (`FEW_WARPS`): two such blocks share a multiprocessor. Smaller ones would leave shared work to fewer warps.
const FEW_WARPS: u32 = 8;
/// The same where a block has a multiprocessor for itself (`FEW_WARPS_LARGE`).
const FEW_WARPS_LARGE: u32 = 16;
/// Most tiles that such a block makes in one turn: their sums meet in shared memory.
const TURN_TILES_MAX: u32 = 8;
/// Most stages of a ring (`DEPTH_MAX`).
const DEPTH_MAX: u32 = 8;
/// Bytes of half a stage for one group of rows, at most: longer copies bring nothing.
const FEW_COPY_BYTES: u32 = 2_560;
/// Segments of a warp that are on their way at least where two blocks share a multiprocessor, if it has as many to do.
const FEW_SEGMENTS_AHEAD: u32 = 2;
/// What it takes a warp to unpack a tile's segment, in multiplications with a group of rows.
const UNPACKING: u32 = 4;
/// Numbers of a row of sums (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Shared memory that a kernel has besides what a launch asks for, at most.
pub(super) const SHARED_STATIC: u32 = 4_352;
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

/// How blocks for one group of rows go through the tiles.
#[derive(Clone, Copy, Debug)]
struct Turns {
    /// Tiles of a turn.
    tiles: u32,
    /// Blocks, and the turns that each makes.
    blocks: u32,
    rounds: u32,
    /// Runs that the busiest warp makes in a turn.
    units: u32,
}

impl Turns {
    /// What the busiest warp has to do: a turn costs about half a unit by itself.
    fn cost(&self) -> u32 {
        self.rounds * (2 * self.units + 1)
    }
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
        // A whole group of rows that leaves less than three eighths of a block's shared memory to weights goes the way of more rows.
        let x_bytes = u64::from(product.segments * GROUP_ROWS * 256);
        let is_long = 8 * x_bytes > 5 * gpu.shared_bytes_per_block_optin;
        let is_many = product.rows > GROUP_ROWS || (product.group_rows == GROUP_ROWS && is_long);
        let many = || whole.many(product, gpu);
        is_many.then(many).flatten().or_else(|| whole.few(product, gpu))
    }

    /// Cuts a product for one group of rows a block (kernels/few.cuh).
    fn few(self, product: &Product, gpu: &GpuFacts) -> Option<Self> {
        // A large block where tiles do not suffice for two blocks a multiprocessor and a warp would make several runs, or where two do not fit. Rows of x that do not fit come
        // in parts.
        let blocks = product.tiles * self.row_blocks(product);
        let is_large =
            blocks <= gpu.multiprocessors && self.order.splits * self.order.runs > FEW_WARPS;
        let (two, large, one) = ((FEW_WARPS, 2), (FEW_WARPS_LARGE, 1), (FEW_WARPS, 1));
        let sizes = if is_large { [large, two, one] } else { [two, large, one] };
        let parts = (1..=self.order.splits).rev().map(|x_splits| Self { x_splits, ..self });
        let mut shapes = parts.flat_map(|shape| {
            let with_teams = move |warps| Self { teams: warps / self.order.runs, ..shape };
            sizes.iter().map(move |(warps, resident)| (with_teams(*warps), *resident))
        });
        shapes.find_map(|(shape, resident)| shape.few_turns(product, gpu, resident))
    }

    /// The same with so many blocks a multiprocessor; `None` if they do not fit, or bring less than half of what one block would.
    fn few_turns(self, product: &Product, gpu: &GpuFacts, resident: u32) -> Option<Self> {
        let row_blocks = self.row_blocks(product);
        let places = (gpu.multiprocessors.max(1) * resident).div_ceil(row_blocks);
        let is_in_parts = self.x_splits < self.order.splits;
        let most = if is_in_parts { 1 } else { TURN_TILES_MAX };
        let cut = |tiles: u32| {
            let blocks = product.tiles.div_ceil(tiles).max(1);
            let rounds = blocks.div_ceil(places);
            let units = (tiles * self.order.splits).div_ceil(self.teams);
            Turns { tiles, blocks: blocks.div_ceil(rounds), rounds, units }
        };
        let mut cuts: Vec<_> = (1..=most).map(cut).collect();
        cuts.sort_by_key(Turns::cost);
        let best = cuts.first().map(Turns::cost)?;
        let is_worth = |turns: &Turns| resident == 1 || 2 * turns.cost() <= 3 * best;
        cuts.into_iter().filter(is_worth).find_map(|turns| {
            let grid = [turns.blocks, row_blocks, 1];
            let whole = Self { turn_tiles: turns.tiles, grid, ..self };
            whole.with_rings(product, gpu, resident, turns)
        })
    }

    /// Gives each warp the ring that has most segments ahead, of those that it should have at most.
    fn with_rings(
        self,
        product: &Product,
        gpu: &GpuFacts,
        resident: u32,
        Turns { rounds, units, .. }: Turns,
    ) -> Option<Self> {
        let all = self.order.run * units * rounds;
        let copy_most = (FEW_COPY_BYTES / product.record_bytes).clamp(1, self.order.run);
        let is_shared = resident > 1 && product.tiles >= TILES_MANY;
        let ahead_most = if is_shared { few_segments_ahead(all, copy_most) } else { u32::MAX };
        let chunk_most = copy_most.min(ahead_most / 2);
        let with_ring = |chunk: u32| {
            let stages = self.order.run.div_ceil(chunk) * units * rounds;
            let stages = stages.min(ahead_most / chunk).clamp(1, DEPTH_MAX);
            let depths = (1..=stages).rev().map(move |depth| Self { chunk, depth, ..self });
            depths.map(|cut| cut.few_sized(product, rounds)).find(|cut| cut.fits(resident, gpu))
        };
        let ahead = |cut: &Self| (cut.chunk * cut.depth).min(all);
        // Of equals the longest copies. Segments that come one by one are unpacked one by one, too: only where pairs do not fit.
        let pairs =
            (2..=chunk_most).filter(|chunk| chunk.is_multiple_of(2) || *chunk == self.order.run);
        let best = pairs.filter_map(with_ring).max_by_key(ahead).or_else(|| with_ring(1))?;
        (resident == 1 || ahead(&best) >= FEW_SEGMENTS_AHEAD.min(all)).then_some(best)
    }

    /// Warps of a block.
    fn warps(&self) -> u32 {
        self.teams * self.order.runs
    }

    /// What the kernel's name begins with.
    pub(super) fn form(&self) -> &'static str {
        if self.groups == 1 && self.warps() == FEW_WARPS_LARGE { "matmul_large" } else { "matmul" }
    }

    /// How a warp's stages are numbered, of a product for one group of rows.
    pub(super) fn stages(&self, tiles: u32) -> Stages {
        let of_task = self.order.run.div_ceil(self.chunk);
        let tasks = (self.turn_tiles * self.x_splits).div_ceil(self.teams);
        let passes = self.order.splits.div_ceil(self.x_splits);
        let turns = tiles.div_ceil(self.turn_tiles * self.grid[0]);
        let by = [of_task, tasks, passes, self.x_splits].map(Stages::divisor);
        Stages { of_task, tasks, passes, all: turns * passes * tasks * of_task, by }
    }

    /// The first stage of each warp, of a product for one group of rows (`MatmulParams::first`): what a warp asks for before it has found out anything else.
    pub(super) fn first_stages(&self, segments: u32) -> [u32; WARPS_MAX as usize] {
        let Order { split_segments, runs, run, .. } = self.order;
        std::array::from_fn(|warp| {
            let (team, its_run) = (warp as u32 / runs, warp as u32 % runs);
            let (tile, split) = (team / self.x_splits, team % self.x_splits);
            let begin = split * split_segments + its_run * run;
            let end = (begin + run).min((split + 1) * split_segments).min(segments);
            let is_there = team < self.teams && tile < self.turn_tiles;
            let count = if is_there { end.saturating_sub(begin).min(self.chunk) } else { 0 };
            if count > 0 { tile | count << 8 | begin << 16 } else { 0 }
        })
    }

    /// Counts the memory of a block for one group of rows: rings, rows of x, sums of runs (of two turns at once if there are more than one), and those of earlier splits.
    fn few_sized(self, product: &Product, rounds: u32) -> Self {
        let rings = self.warps() * self.depth * self.chunk * 2 * product.record_bytes;
        let segments = product.segments.min(self.x_splits * self.order.split_segments);
        let x = segments * product.group_rows * 256;
        let is_in_parts = self.x_splits < self.order.splits;
        let turns = if rounds > 1 || is_in_parts { 2 } else { 1 };
        let runs = turns * self.turn_tiles * self.x_splits * self.order.runs;
        let sums = runs * product.group_rows * SUM_STRIDE * 4;
        let totals = if is_in_parts { GROUP_ROWS * 16 * 8 } else { 0 };
        Self { shared_bytes: rings + x + sums + totals, ..self }
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

    /// Cuts a product for four or two groups of rows a block (kernels/matmul.cuh).
    fn many(self, product: &Product, gpu: &GpuFacts) -> Option<Self> {
        let few = self.order.run.min(2);
        let rings = [(few, 3), (few, 2), (few, 1), (1, 2), (1, 1)];
        let of_groups = |groups: u32| {
            // More teams share the rows of x, as long as there is work for each.
            let row_blocks = Self { groups, ..self }.row_blocks(product);
            let tasks = product.tiles * row_blocks * self.order.splits;
            let is_worth = |teams: &u32| *teams == 1 || tasks >= gpu.multiprocessors * teams;
            let teams = (1..=WARPS_MAX / self.order.runs).filter(is_worth);
            let cuts = teams.flat_map(|teams| {
                rings.map(|(chunk, depth)| Self { groups, teams, chunk, depth, ..self })
            });
            let sized = cuts.filter_map(|cut| cut.fit(product, gpu));
            // As many warps on a multiprocessor as there can be, of which each has a stage on its way while it multiplies.
            sized.max_by_key(|(cut, warps)| {
                (warps * cut.depth.min(2), cut.depth * cut.chunk, cut.teams)
            })
        };
        // Fewer groups leave room for more warps, and have weights unpacked more often. Where a split is one run, blocks end as soon as they have begun: small ones.
        let cost = |(cut, warps): &(Self, u32)| {
            let [blocks, ..] = cut.grid;
            let turns = product.tiles.div_ceil(blocks * cut.teams);
            turns * (UNPACKING + cut.groups) * (WARPS_MAX + warps)
        };
        let groups: &[u32] = if self.order.runs == 1 { &[2] } else { &[4, 2] };
        groups.iter().filter_map(|groups| of_groups(*groups)).min_by_key(cost).map(|(cut, _)| cut)
    }

    /// Lays the grid out and counts the memory, for more than one group of rows a block; says how many warps a multiprocessor holds. `None` if it does not fit.
    fn fit(mut self, product: &Product, gpu: &GpuFacts) -> Option<(Self, u32)> {
        let x = self.groups * product.segments.min(self.order.split_segments) * GROUP_ROWS * 256;
        let ring =
            self.order.runs * self.teams * self.depth * self.chunk * 2 * product.record_bytes;
        let sums = self.order.runs * self.teams * self.groups * GROUP_ROWS * SUM_STRIDE * 4;
        self.shared_bytes = x + ring + sums;
        // Small blocks share a multiprocessor.
        let resident = (1..=WARPS_MAX / self.warps()).rev().find(|n| self.fits(*n, gpu))?;
        let places = gpu.multiprocessors.max(1) * resident;
        let row_blocks = self.row_blocks(product);
        let turns = product.tiles.div_ceil(self.teams);
        let rounds = turns.div_ceil((places / (row_blocks * self.order.splits)).max(1));
        self.grid = [turns.div_ceil(rounds), row_blocks, self.order.splits];
        Some((self, resident * self.warps()))
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

/// Segments of a warp that are on their way at most, of `all` that it makes, where two blocks share a multiprocessor and many tiles out: rows of x, which every block waits for,
/// come later the more weights are asked for before. Found by measuring, for copies of one segment and of more.
fn few_segments_ahead(all: u32, copy_most: u32) -> u32 {
    match (copy_most, all) {
        (1, _) => FEW_SEGMENTS_AHEAD,
        (_, ..16) => (3 * all / 4).max(FEW_SEGMENTS_AHEAD),
        (_, 16..) => 2 * FEW_SEGMENTS_AHEAD,
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
                            let order = Order::of(tiles, segments, &gpu);
                            let tiling = Tiling::of(&product, &order, &gpu);
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
            let warps = tiling.warps();
            // Blocks for one group of rows are never smaller.
            let is_few = tiling.groups == 1;
            let is_right = if is_few {
                warps == FEW_WARPS || warps == FEW_WARPS_LARGE
            } else {
                warps <= WARPS_MAX
            };
            assert!(is_right, "{tiling:?}");
            assert!((1..=2).contains(&tiling.order.runs));
            assert!((1..=DEPTH_MAX).contains(&tiling.depth));
            assert!((1..=tiling.order.run).contains(&tiling.chunk));
        });
    }

    #[test]
    fn columns_rows_and_tiles_are_covered_once() {
        all(|product, tiling, _| {
            let Order { splits, split_segments, runs, run } = tiling.order;
            let covered = splits * split_segments;
            assert!((product.segments..product.segments + split_segments).contains(&covered));
            assert!((split_segments..split_segments + run).contains(&(runs * run)));
            let rows = tiling.grid[1] * 8 * tiling.groups;
            assert!(rows >= product.rows && rows < product.rows + 8 * tiling.groups);
            assert!(tiling.grid[2] == 1 || tiling.grid[2] == splits);
            // Blocks of more than one group make one split.
            assert!(tiling.groups == 1 || tiling.grid[2] == splits);
        });
    }

    #[test]
    fn turns_of_few_rows_fill_the_chip() {
        let gpu = gpu(132, 232_448);
        let cut = |tiles, segments, rows, record_bytes| {
            let product = Product { record_bytes, segments, tiles, rows, group_rows: rows.min(8) };
            let order = Order::of(tiles, segments, &gpu);
            let cut = Tiling::of(&product, &order, &gpu).unwrap();
            (cut.grid[0], cut.turn_tiles, cut.teams, cut.chunk * cut.depth)
        };
        // Llama 3.2 1B: query, key and value; output; down; gate and up; head. What a warp multiplies in a turn is on its way before x is, three quarters of it where two
        // blocks share a multiprocessor.
        assert_eq!(cut(192, 16, 1, 608), (192, 1, 8, 2));
        assert_eq!(cut(128, 16, 1, 608), (128, 1, 8, 2));
        assert_eq!(cut(128, 64, 1, 608), (128, 1, 8, 4));
        assert_eq!(cut(1_024, 16, 1, 608), (256, 4, 4, 6));
        let (blocks, turn_tiles, teams, _) = cut(8_016, 16, 1, 848);
        assert_eq!((blocks, turn_tiles, teams), (251, 8, 4));
        // Qwen 3 0.6B: gate and up, two tiles of four splits for eight teams.
        assert_eq!(cut(384, 8, 1, 1_088), (192, 2, 8, 2));
    }

    #[test]
    fn more_rows_fill_the_chip() {
        // On an RTX 4090 and an H100, Llama 3.2 1B: query, key and value; output; gate and up; down; head.
        for gpu in [gpu(128, 101_376), gpu(132, 232_448)] {
            for (tiles, segments) in [(192, 16), (128, 16), (1_024, 16), (128, 64), (8_016, 16)] {
                for rows in [9, 16, 32, 48, 64, 128, 512] {
                    let product =
                        Product { record_bytes: 608, segments, tiles, rows, group_rows: 8 };
                    let order = Order::of(tiles, segments, &gpu);
                    let tiling = Tiling::of(&product, &order, &gpu).unwrap();
                    let warps = tiling.grid.iter().product::<u32>() * tiling.warps();
                    assert!(warps >= 4 * gpu.multiprocessors, "{product:?}: {tiling:?}");
                    assert!(tiling.groups > 1, "{tiling:?}");
                }
            }
        }
    }

    #[test]
    fn stages_of_few_rows_are_every_segment_once() {
        // As kernels/few.cuh finds what comes next to a warp.
        let divided = |n: u32, by: u32| ((2 * u64::from(n) * u64::from(by)) >> 32) as u32;
        all(|product, tiling, _| {
            if tiling.groups > 1 || product.tiles > 200 {
                return;
            }
            let Order { splits, split_segments, runs, run } = tiling.order;
            let of = tiling.stages(product.tiles);
            let [by_stages, by_tasks, by_passes, by_splits] = of.by;
            let mut seen = vec![0_u8; (product.tiles * product.segments) as usize];
            for (block, warp) in
                (0..tiling.grid[0]).flat_map(|b| (0..tiling.warps()).map(move |w| (b, w)))
            {
                let (team, its_run) = (warp >> (runs - 1), warp & (runs - 1));
                let first = tiling.first_stages(product.segments)[warp as usize];
                let tile = block * tiling.turn_tiles + (first & 0xff);
                for segment in (first >> 16)..(first >> 16) + (first >> 8 & 0xff) {
                    if tile < product.tiles {
                        seen[(tile * product.segments + segment) as usize] += 1;
                    }
                }
                for stage in 1..of.all {
                    let task = divided(stage, by_stages);
                    let pass = divided(task, by_tasks);
                    let turn = divided(pass, by_passes);
                    let index = team + (task - pass * of.tasks) * tiling.teams;
                    let at = divided(index, by_splits);
                    let split =
                        (pass - turn * of.passes) * tiling.x_splits + index - at * tiling.x_splits;
                    let tile = (block + turn * tiling.grid[0]) * tiling.turn_tiles + at;
                    if at >= tiling.turn_tiles || tile >= product.tiles {
                        continue;
                    }
                    let run_begin = split * split_segments + its_run * run;
                    let end = (run_begin + run).min((split + 1) * split_segments);
                    let begin = run_begin + (stage - task * of.of_task) * tiling.chunk;
                    for segment in begin..(begin + tiling.chunk).min(end).min(product.segments) {
                        seen[(tile * product.segments + segment) as usize] += 1;
                    }
                }
            }
            // Blocks with more rows of x make the same.
            assert!(seen.iter().all(|n| *n == 1), "{product:?}: {tiling:?}, {splits} splits");
        });
    }

    #[test]
    fn rows_of_x_in_parts_go_with_one_tile() {
        all(|_, tiling, _| {
            if tiling.groups == 1 {
                let splits = tiling.order.splits;
                assert!((1..=splits).contains(&tiling.x_splits));
                let is_in_parts = tiling.x_splits < splits;
                assert!(!is_in_parts || tiling.turn_tiles == 1);
            }
        });
    }

    #[test]
    fn the_order_of_sums_follows_from_the_matrix_alone() {
        // Neither rows nor the size of records change it.
        all(|product, tiling, gpu| {
            assert_eq!(tiling.order, Order::of(product.tiles, product.segments, gpu));
        });
    }
}
