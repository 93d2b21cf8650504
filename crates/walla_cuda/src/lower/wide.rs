//! Tiling of matrix products with more than eight rows, or with five and more long rows, for the
//! WGMMA kernels (kernels/gemm/gemm_sm90.cuh).

mod turns;

use walla_device::GpuFacts;

use self::turns::{HALF_TILES, Turns};
use super::kernel::{Kernel, WARPGROUP_KERNELS};
use super::order::{Order, SPLITS_MAX, TILES_MANY, WIDE_TILES};
use super::tiling::{GROUP_ROWS, Product, SHARED_OF_DRIVER, SHARED_STATIC};
use crate::params::Stages;
use crate::repack::TILE_ROWS;

/// Minimum rows of x for the WGMMA kernels, and the size of eight rows of x above which these
/// kernels also take eight rows and fewer. Two blocks of kernels/gemm/gemm_skinny.cuh would not
/// have enough shared memory for such rows and for enough weights.
pub(super) const ROWS_MIN: u32 = 5;
const LONG_BYTES: u32 = 48 << 10;
/// Maximum stages of a ring (`DEPTH_MAX`).
const DEPTH_MAX: u32 = 8;
/// Maximum weight stages if a block has one split, and if that split has two runs and is written to
/// the split-K workspace. More stages would delay the rows of x.
const SPLIT_DEPTH_MAX: u32 = 2;
const IN_MEMORY_DEPTH: u32 = 1;
/// Bytes of eight rows of x in a segment (`GROUP_BYTES`).
const GROUP_BYTES: u32 = 2_048;
/// Longest record, in bytes, for which the weights of a block's 8 tiles are no more bytes than 64
/// rows of x (in `x_warps`).
const RECORD_SHORT: u32 = 1_024;
/// Longest record, in bytes, of quantised weights; records of f16 are longer (in `weights_chunk`).
const RECORD_QUANTISED: u32 = 1_200;
/// Stride of a row of sums, in numbers (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Minimum rows of x for the split-K workspace, with records up to [`RECORD_SHORT`] and with longer
/// ones. With fewer rows, the additional launch costs as much as it gains.
const IN_MEMORY_COLUMNS: u32 = 32;
const IN_MEMORY_COLUMNS_LONG: u32 = 64;
/// Warps of a block of kernels/gemm/splitk_reduce.cu (`FOLD_WARPS`).
const FOLD_WARPS: u32 = 4;

/// Split-K reducer of a product, besides the product's own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitKReducer {
    None,
    /// A launch of kernels/gemm/splitk_reduce.cu.
    Fold,
    /// The kernel that reads the product next (deferred split-K).
    Reader,
}

/// Where the splits of a tile are reduced (`Splits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    /// A single split; blocks iterate over tiles.
    One,
    /// In a cluster with this number of blocks, each with one split.
    InCluster(u32),
    /// Split-K workspace: each block stores one split, and `fold` reduces them.
    Workspace,
    /// Deferred: each block stores one split, and the consumer of the product reduces them.
    Deferred,
}

impl Splits {
    /// Runs of a tile that a block computes concurrently, each with its own warps and rows of x
    /// (`RUNS_OF`). Blocks of a cluster compute runs sequentially; deferred splits have only one
    /// run.
    fn runs_at_once(self) -> u32 {
        if matches!(self, Self::InCluster(_) | Self::Deferred) { 1 } else { 2 }
    }
}

/// Tiling for blocks that iterate over tiles, or that have one split each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    /// Rows of x per block: 16, 32 or 64.
    pub(super) columns: u32,
    pub(super) splits: Splits,
    /// Tiles per block.
    pub(super) tiles: u32,
    /// Number of tiles in full waves, if the last wave is a half wave.
    pub(super) turn_tiles: Option<u32>,
    /// Pipeline stages of each warp's weights.
    pub(super) depth: u32,
    /// Pipeline stages of each run's rows of x.
    pub(super) x_depth: u32,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    /// Dynamic shared memory per block, in bytes.
    pub(super) shared_bytes: u32,
}

/// Producer warps for the rows of x (`x_warps`): one per run if the rows are more bytes than the
/// weights.
fn x_warps(splits: Splits, columns: u32, record_bytes: u32) -> u32 {
    if columns > 32 && record_bytes <= RECORD_SHORT { splits.runs_at_once() } else { 1 }
}

/// Minimum rows of x for the split-K workspace.
fn in_memory_columns(record_bytes: u32) -> u32 {
    if record_bytes <= RECORD_SHORT { IN_MEMORY_COLUMNS } else { IN_MEMORY_COLUMNS_LONG }
}

/// Segments in a stage of weights (`weights_chunk`).
fn weights_chunk(record_bytes: u32) -> u32 {
    if record_bytes > RECORD_QUANTISED { 1 } else { 2 }
}

impl Wide {
    /// Computes the tiling; `None` if these kernels do not apply.
    pub(super) fn of(
        product: &Product,
        order: &Order,
        gpu: &GpuFacts,
        adder: SplitKReducer,
    ) -> Option<Self> {
        let is_long = product.segments * GROUP_BYTES > LONG_BYTES
            && product.tiles > gpu.multiprocessors
            && product.rows >= ROWS_MIN;
        if product.rows <= GROUP_ROWS && !is_long || product.group_rows != GROUP_ROWS {
            return None;
        }
        let in_turns = product.tiles >= TILES_MANY && order.runs == 2;
        if order.splits > if in_turns { 1 } else { SPLITS_MAX } {
            return None;
        }
        let columns = [16, 32].into_iter().find(|n| product.rows <= *n).unwrap_or(64);
        let row_blocks = product.rows.div_ceil(columns);
        let turns = match in_turns {
            true => Turns::of(product.tiles, columns, gpu.multiprocessors / row_blocks),
            false => Turns::single(product.tiles, order.splits),
        };
        let Turns { tiles, blocks, rounds, turn_tiles } = turns;
        // Requires one multiprocessor per block with all blocks resident at once, and enough work
        // for the warps of both runs.
        let in_memory = adder == SplitKReducer::Fold
            && order.runs == 2
            && order.splits > 1
            && columns >= in_memory_columns(product.record_bytes)
            && blocks * row_blocks <= gpu.multiprocessors;
        // With 16 rows of x and f16 weights, clusters are faster if contexts are long.
        let is_left = adder == SplitKReducer::Reader
            && order.runs == 1
            && order.splits > 1
            && (columns > 16 || product.record_bytes <= RECORD_QUANTISED);
        let splits = if in_turns {
            Splits::One
        } else if in_memory {
            Splits::Workspace
        } else if is_left {
            Splits::Deferred
        } else {
            Splits::InCluster(order.splits)
        };
        let multiply = tiles * splits.runs_at_once();
        let bring = x_warps(splits, columns, product.record_bytes);
        let cut = Self {
            columns,
            splits,
            tiles,
            turn_tiles,
            depth: 1,
            x_depth: 1,
            grid: [blocks, row_blocks, 1],
            threads: 32 * (multiply + bring),
            shared_bytes: 0,
        };
        // Two blocks share a multiprocessor, if they fit.
        let is_alone = in_turns && tiles == WIDE_TILES || splits == Splits::Workspace;
        let residents: &[u64] = if is_alone { &[1] } else { &[2, 1] };
        residents.iter().find_map(|resident| {
            cut.with_rings(product, order, rounds, |cut| cut.fits(*resident, gpu))
        })
    }

    /// The kernel for weights of a type.
    pub(super) fn kernel(&self, ty: String) -> Kernel {
        Kernel { family: WARPGROUP_KERNELS, form: self.form(), ty, columns: self.columns }
    }

    /// Prefix of the kernel's name.
    fn form(&self) -> &'static str {
        match (self.splits, self.tiles) {
            (Splits::InCluster(_), _) => "wide_cluster",
            (Splits::Workspace, _) => "wide_split",
            (Splits::Deferred, _) => "wide_left",
            (Splits::One, HALF_TILES) => "wide_half",
            (Splits::One, _) if self.turn_tiles.is_some() => "wide_uneven",
            (Splits::One, _) => "wide",
        }
    }

    /// Blocks per cluster; 0 without clusters.
    pub(super) fn cluster(&self) -> u32 {
        if let Splits::InCluster(blocks) = self.splits { blocks } else { 0 }
    }

    /// Bytes of the split-K workspace that `fold` reduces (`split_sums`).
    pub(super) fn sums_bytes(&self, product: &Product, order: &Order) -> usize {
        let groups = product.rows.div_ceil(GROUP_ROWS) as usize;
        let of_group = 4 * TILE_ROWS * GROUP_ROWS as usize;
        let is_left = self.splits == Splits::Workspace;
        if is_left { order.splits as usize * groups * product.tiles as usize * of_group } else { 0 }
    }

    /// Grid and block size of `fold`.
    pub(super) fn fold(product: &Product) -> ([u32; 3], u32) {
        let grid = [product.tiles.div_ceil(FOLD_WARPS), product.rows.div_ceil(GROUP_ROWS), 1];
        (grid, 32 * FOLD_WARPS)
    }

    /// Divisors for the kernel: the number of splits.
    pub(super) fn stages(order: &Order) -> Stages {
        Stages { by: [0, 0, 0, Stages::divisor(order.splits)], ..Stages::default() }
    }

    /// Segments in a stage of x (`X_CHUNK`).
    fn x_chunk(&self) -> u32 {
        if self.columns > 32 { 1 } else { 2 }
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
            Splits::One => (order.run, DEPTH_MAX),
            Splits::InCluster(_) | Splits::Deferred => (order.split_segments, SPLIT_DEPTH_MAX),
            Splits::Workspace => (order.run, IN_MEMORY_DEPTH),
        };
        let depth_most = (each.div_ceil(weights_chunk(product.record_bytes)) * rounds).min(deepest);
        let x_most = (each.div_ceil(self.x_chunk()) * rounds).min(DEPTH_MAX);
        // The producer reuses a stage of x when the next one has been read, so one stage would
        // deadlock.
        let mut cut = Self { x_depth: x_most.min(2), ..self }.sized(product, order);
        if !fits(&cut) {
            return None;
        }
        loop {
            let deeper = Self { depth: cut.depth + 1, ..cut }.sized(product, order);
            let is_deeper = cut.depth < depth_most && fits(&deeper);
            cut = if is_deeper { deeper } else { cut };
            let longer = Self { x_depth: cut.x_depth + 1, ..cut }.sized(product, order);
            let is_longer = cut.x_depth < x_most && fits(&longer);
            cut = if is_longer { longer } else { cut };
            if !is_deeper && !is_longer {
                return Some(cut);
            }
        }
    }

    /// Computes the shared memory, with the kernel's layout.
    fn sized(mut self, product: &Product, order: &Order) -> Self {
        let n = self.columns;
        let runs = self.splits.runs_at_once();
        let x = runs * self.x_depth * self.x_chunk() * (n / GROUP_ROWS) * GROUP_BYTES;
        let weights = self.tiles
            * runs
            * self.depth
            * 2
            * weights_chunk(product.record_bytes)
            * product.record_bytes;
        self.shared_bytes = match self.splits {
            Splits::One | Splits::Workspace => {
                // Buffer with which a warp swaps or transposes sums (`SWAP`).
                let turned = (n / 2).min(16) * SUM_STRIDE;
                let swap = 4 * (n / 4 * 32).max(turned);
                x + weights + self.tiles * runs * swap
            }
            Splits::Deferred => x + weights,
            Splits::InCluster(splits) => {
                let received = WIDE_TILES.next_multiple_of(splits) * 64 * n;
                if n > 32 {
                    // Sums reuse the memory of the rings (`SUMS_LIE_LATE`), followed by the
                    // transposition buffer. The sums of a finished run are kept next to the rings
                    // (`KEPT`).
                    let kept = if order.runs > 1 { WIDE_TILES * 4 * (n / 2 * 32) } else { 0 };
                    let turned = WIDE_TILES * 4 * GROUP_ROWS * SUM_STRIDE;
                    (x + weights + kept).max(received + turned)
                } else {
                    received + x + weights
                }
            }
        };
        self
    }

    /// Whether `resident` blocks fit on a multiprocessor.
    fn fits(&self, resident: u64, gpu: &GpuFacts) -> bool {
        let each = u64::from(self.shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
        let all = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
        each * resident <= all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::product::records;

    fn gpu(shared_bytes_per_block_optin: u64) -> GpuFacts {
        GpuFacts { multiprocessors: 132, shared_bytes_per_block_optin, ..GpuFacts::default() }
    }

    fn cut(
        tiles: u32,
        segments: u32,
        rows: u32,
        record_bytes: u32,
        adder: SplitKReducer,
    ) -> (Order, Option<Wide>) {
        let gpu = gpu(232_448);
        let order = Order::of(tiles, segments, &gpu);
        let product = Product { record_bytes, segments, tiles, rows, group_rows: rows.min(8) };
        (order, Wide::of(&product, &order, &gpu, adder))
    }

    #[test]
    fn every_product_of_more_than_eight_rows_fits() {
        for record_bytes in records() {
            for segments in [1, 5, 8, 12, 16, 20, 24, 32, 64, 112, 224, 416] {
                for tiles in [1, 4, 33, 192, 511, 512, 1_024, 1_792, 3_584, 16_388] {
                    for rows in [9, 16, 17, 48, 64, 65, 128, 512] {
                        fits((tiles, segments, rows, record_bytes), SplitKReducer::None);
                        fits((tiles, segments, rows, record_bytes), SplitKReducer::Fold);
                        fits((tiles, segments, rows, record_bytes), SplitKReducer::Reader);
                    }
                }
            }
        }
    }

    fn fits((tiles, segments, rows, record_bytes): (u32, u32, u32, u32), adder: SplitKReducer) {
        let (order, wide) = cut(tiles, segments, rows, record_bytes, adder);
        // These kernels do not take many tiles with several splits, nor more splits than a cluster
        // has blocks.
        let most = if tiles >= TILES_MANY { 1 } else { SPLITS_MAX };
        if order.splits > most {
            assert_eq!(wide, None);
            return;
        }
        let wide = wide.unwrap_or_else(|| panic!("{tiles}, {segments}, {rows}"));
        assert!(wide.shared_bytes + SHARED_STATIC <= 232_448);
        assert!(wide.columns * wide.grid[1] >= rows);
        assert!((1..=DEPTH_MAX).contains(&wide.depth));
        // One stage of x suffices only if there is only one.
        let is_one = order.split_segments <= wide.x_chunk() && wide.splits != Splits::One;
        assert!(wide.x_depth >= 2 || is_one || order.run == 1, "{wide:?}");
        // 64 rows of x are more bytes than weights of 4 to 6 bits.
        let is_short = wide.columns == 64 && record_bytes < 1_088;
        let bring = if is_short { wide.splits.runs_at_once() } else { 1 };
        assert_eq!(wide.threads, 32 * (wide.tiles * wide.splits.runs_at_once() + bring));
        assert_eq!(wide.form() == "wide_half", wide.tiles == HALF_TILES);
        let product = Product { record_bytes, segments, tiles, rows, group_rows: GROUP_ROWS };
        let in_memory = wide.splits == Splits::Workspace;
        assert_eq!(wide.sums_bytes(&product, &order) > 0, in_memory);
        assert!(!in_memory || adder == SplitKReducer::Fold && order.runs == 2);
        let is_left = wide.splits == Splits::Deferred;
        assert!(!is_left || adder == SplitKReducer::Reader && order.runs == 1 && order.splits > 1);
        if let Splits::InCluster(cluster) = wide.splits {
            assert_eq!(cluster, order.splits);
            assert!(wide.grid[0].is_multiple_of(cluster));
        }
    }

    #[test]
    fn blocks_are_halves_where_all_are_there_at_once() {
        // Gate and up of Llama 3.2 1B, and its head.
        let form = |tiles, rows| cut(tiles, 16, rows, 640, SplitKReducer::None).1.unwrap();
        assert_eq!((form(1_024, 16).form(), form(1_024, 16).grid), ("wide_half", [256, 1, 1]));
        assert_eq!(form(1_024, 64).form(), "wide");
        assert_eq!(form(8_016, 16).form(), "wide");
        assert_eq!(form(128, 16).form(), "wide_cluster");
    }

    #[test]
    fn what_is_left_behind_whole_turns_is_made_in_a_half_one() {
        let of = |tiles, rows| {
            let wide = cut(tiles, 20, rows, 640, SplitKReducer::None).1.unwrap();
            (wide.form(), wide.grid[0], wide.turn_tiles)
        };
        // Gate and up of Qwen 3 4B: 132 blocks compute 1,056 of 1,216 tiles, and 40 of them four
        // more each. With few rows, half blocks divide evenly.
        assert_eq!(of(1_216, 64), ("wide_uneven", 132, Some(1_056)));
        assert_eq!(of(1_216, 32), ("wide_uneven", 132, Some(1_056)));
        assert_eq!(of(1_216, 16), ("wide_half", 264, None));
        // Llama 3.1 8B: more than half a wave remains. Llama 3.2 1B: a single wave. Its head. Only
        // full waves.
        assert_eq!(of(1_792, 64), ("wide", 132, None));
        assert_eq!(of(1_792, 16), ("wide", 132, None));
        assert_eq!(of(1_024, 64), ("wide", 128, None));
        assert_eq!(of(8_016, 64), ("wide", 132, None));
        assert_eq!(of(2_112, 64), ("wide", 132, None));
        for tiles in TILES_MANY..3_000 {
            for rows in [16, 32, 64, 128] {
                let wide = cut(tiles, 20, rows, 640, SplitKReducer::None).1.unwrap();
                let Some(whole) = wide.turn_tiles else { continue };
                // All blocks have the same number of full waves and at most one half wave. No such
                // kernel exists for 16 rows.
                assert!(
                    wide.columns > 16
                        && whole > 0
                        && whole.is_multiple_of(WIDE_TILES * wide.grid[0])
                );
                assert!(whole < tiles && tiles - whole <= HALF_TILES * wide.grid[0]);
            }
        }
    }

    #[test]
    fn long_splits_of_many_rows_meet_in_memory_where_all_blocks_are_there_at_once() {
        let of = |tiles, segments, rows, adder| {
            let (order, cut) = cut(tiles, segments, rows, 640, adder);
            (order, cut.unwrap())
        };
        let form = |tiles, segments, rows| of(tiles, segments, rows, SplitKReducer::Fold).1.form();
        // Down of Llama 3.2 1B.
        let (order, down) = of(128, 64, 64, SplitKReducer::Fold);
        assert_eq!((down.form(), down.grid, down.cluster()), ("wide_split", [128, 1, 1], 0));
        let product =
            Product { record_bytes: 640, segments: 64, tiles: 128, rows: 64, group_rows: 8 };
        assert_eq!(down.sums_bytes(&product, &order), 4 * order.splits as usize * 64 * 128 * 16);
        assert_eq!(Wide::fold(&product), ([32, 8, 1], 128));
        assert_eq!(of(128, 64, 64, SplitKReducer::None).1.form(), "wide_cluster");
        // 32 rows if records are short, not fewer, and at most one block per multiprocessor.
        assert_eq!(form(128, 64, 32), "wide_split");
        let long = cut(128, 64, 32, 1_088, SplitKReducer::Fold).1.unwrap();
        assert_eq!(long.form(), "wide_cluster");
        assert_eq!(form(128, 64, 16), "wide_cluster");
        assert_eq!(form(128, 64, 128), "wide_cluster");
        // Output, whose splits are short, and down of Llama 3.1 8B, which has more blocks than the
        // GPU has multiprocessors.
        assert_eq!(form(128, 16, 64), "wide_cluster");
        assert_eq!(form(256, 112, 64), "wide_cluster");
    }

    #[test]
    fn splits_of_one_run_are_left_where_their_reader_adds_them() {
        let of = |tiles, segments, rows, record_bytes| {
            let (order, left) = cut(tiles, segments, rows, record_bytes, SplitKReducer::Reader);
            (order.splits, left.unwrap())
        };
        // Query, key and value of Llama 3.2 1B.
        let (splits, left) = of(192, 16, 16, 640);
        assert_eq!((left.form(), left.grid, left.cluster()), ("wide_left", [24 * splits, 1, 1], 0));
        let (_, whole) = cut(192, 16, 16, 640, SplitKReducer::None);
        assert_eq!(whole.unwrap().form(), "wide_cluster");
        // Llama 3.1 8B; f16 weights; long splits; a single split.
        assert_eq!(of(384, 32, 64, 640).1.form(), "wide_left");
        assert_eq!(
            [16, 32].map(|rows| of(192, 16, rows, 2_048).1.form()),
            ["wide_cluster", "wide_left"]
        );
        assert_eq!(of(128, 64, 32, 640).1.form(), "wide_cluster");
        assert_eq!(of(4, 1, 16, 640).1.form(), "wide_cluster");
    }

    #[test]
    fn few_rows_are_left_to_others_unless_they_are_long() {
        let form = |tiles, segments, rows| {
            let order = Order::of(tiles, segments, &gpu(232_448));
            let product =
                Product { record_bytes: 640, segments, tiles, rows, group_rows: GROUP_ROWS };
            Wide::of(&product, &order, &gpu(232_448), SplitKReducer::None).map(|cut| cut.form())
        };
        for rows in 1..=8 {
            assert_eq!(form(128, 16, rows), None);
            // Llama 3.1 8B: gate and up, down; a product with no more tiles than multiprocessors.
            let is_wide = rows >= ROWS_MIN;
            assert_eq!(form(1_792, 32, rows), is_wide.then_some("wide"));
            assert_eq!(form(256, 112, rows), is_wide.then_some("wide_cluster"));
            assert_eq!(form(128, 64, rows), None);
        }
    }

    #[test]
    fn splits_cover_the_columns_once() {
        for segments in 1..=256 {
            for tiles in [1, 4, 33, 192, 511, 512, 8_016] {
                for shared in [65_536, 101_376, 166_912, 232_448] {
                    let gpu = gpu(shared);
                    let Order { splits, split_segments, runs, run } =
                        Order::of(tiles, segments, &gpu);
                    assert!(
                        (segments..segments + split_segments).contains(&(splits * split_segments))
                    );
                    assert!(
                        runs * run >= split_segments && (runs - 1) * run < split_segments + run
                    );
                }
            }
        }
    }
}
