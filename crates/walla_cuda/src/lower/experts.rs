//! Mixtures of experts (kernels/experts): router, choice, products of the experts in use, sum.

use walla_device::{DeviceError, GpuFacts, MatrixId, Norm, Op, Slot, op};
use walla_types::{Activation, ExpertScore};

use super::kernel::{SHARED_OF_DRIVER, max_shared_bytes};
use super::operands::{Input, Normed};
use super::packed_rows::{packed_bytes, padded};
use super::product::on_tensor_cores;
use super::tiling::GROUP_ROWS;
use super::{Area, Lowering, next_norm, same};
use crate::params::{
    Address, ChoicesRef, ExpertItem, ExpertsAddParams, ExpertsGemmParams, ExpertsRouteParams,
    ExpertsRouterParams, LinearMode,
};
use crate::repack::{self, Layout};
use crate::resources::Matrix;

/// Maximum rows of an item (`MAX_ITEM_ROWS`).
const MAX_ITEM_ROWS: u32 = 32;
/// Maximum number of experts (`MAX_EXPERTS`), and of experts per row: the lanes of a warp.
const MAX_EXPERTS: u32 = 512;
const MAX_USED: u32 = 32;
/// Warps of a block of experts_router.cu (`ROUTER_WARPS`), its experts (`ROUTER_EXPERTS`), and its
/// maximum rows.
const ROUTER_WARPS: u32 = 8;
const ROUTER_EXPERTS: u32 = 8;
const MAX_ROUTER_ROWS: u32 = 8;
/// Warps of a block of experts_route.cu (`ROUTE_WARPS`), with a row each.
const ROUTE_WARPS: u32 = 16;
/// Maximum threads of a block of experts_add.cu (`MAX_EXPERTS_ADD_THREADS`).
const MAX_ADD_THREADS: u32 = 1024;
/// Warps of a block of experts_gemm.cuh (`EXPERTS_WARPS`), and maximum runs (`MAX_EXPERTS_RUNS`).
const WARPS: u32 = 8;
const MAX_RUNS: u32 = 4;
/// Minimum segments of a run: every run has some latency.
const RUN_SEGMENTS_MIN: u32 = 3;
/// Maximum stages of a ring (`MAX_DEPTH`).
const MAX_DEPTH: u32 = 8;
/// Static shared memory of experts_gemm.cuh (`ExpertsShared`).
const SHARED_STATIC: u32 = 768;
/// Stride of a row of sums, in numbers (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Maximum tiles per block: with few rows, blocks of equal duration fill the chip; with many, rows
/// of x are gathered less often.
const MAX_BLOCK_TILES: u32 = 8;
const MAX_BLOCK_TILES_MANY: u32 = 32;
/// Rows of a pass from which there are many.
const PASS_ROWS_MANY: u32 = 32;

/// Maximum rows of an item, for programs of `rows` rows: twice the rows of an expert, if all are
/// used equally often. Rows of an expert beyond that belong to other items: blocks that run at the
/// same time, so that all but one read the weights from L2.
fn item_rows(rows: u32, used: u32, experts: u32) -> u32 {
    let most = match rows.saturating_mul(used) / experts.max(1) {
        0..=2 => GROUP_ROWS,
        3..=8 => 2 * GROUP_ROWS,
        _ => MAX_ITEM_ROWS,
    };
    let rows = rows.max(1);
    most.min(if rows > GROUP_ROWS { rows.next_power_of_two() } else { rows })
}

/// Maximum number of items of `rows` rows: every used expert has at most one item that is not full.
fn max_items(rows: u32, used: u32, experts: u32) -> u32 {
    let (choices, item_rows) = (rows.saturating_mul(used), item_rows(rows, used, experts));
    let full = if rows > item_rows { choices / item_rows } else { 0 };
    choices.min(experts) + full
}

/// Order of the sums of a matrix: runs, and segments of a run.
fn runs(segments: u32) -> (u32, u32) {
    let runs = (segments / RUN_SEGMENTS_MIN).clamp(1, MAX_RUNS);
    let runs = 1 << runs.ilog2();
    (runs, segments.div_ceil(runs))
}

/// Dynamic shared memory without rings: rows of x (`experts_x_bytes`), and sums
/// (`experts_sums_bytes`).
fn rows_bytes(segments: u32, rows: u32) -> u32 {
    let groups = rows.next_multiple_of(GROUP_ROWS);
    256 * segments * rows + 2 * WARPS * groups * SUM_STRIDE * 4
}

/// Bytes of a stage of all rings (`experts_stage_bytes`).
fn stage_bytes(segments: u32, record_bytes: u32) -> u32 {
    WARPS * segments * 2 * record_bytes
}

/// A product of all experts.
#[derive(Clone, Copy, Debug)]
struct Product {
    record_bytes: u32,
    segments: u32,
    /// Tiles of an expert.
    tiles: u32,
    max_rows: u32,
    used: u32,
    experts: u32,
}

/// Blocks of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    pass_rows: u32,
    stage_segments: u32,
    block_tiles: u32,
    shared_bytes: u32,
    grid: [u32; 3],
}

impl Tiling {
    /// Computes the tiling; `None` if not even one row of x fits in shared memory.
    fn of(product: &Product, gpu: &GpuFacts) -> Option<Self> {
        let depths_and_rows = [2, 1].into_iter().flat_map(|depth| {
            let all = std::iter::successors(Some(product.item_rows()), |rows| match rows {
                0 | 1 => None,
                _ => Some(rows / 2),
            });
            all.map(move |rows| (depth, rows))
        });
        let mut shapes = depths_and_rows.flat_map(|(depth, rows)| {
            // With few rows three blocks have enough registers, otherwise two.
            let residents = if rows < GROUP_ROWS { 1..4 } else { 1..3 };
            residents.rev().map(move |resident| (depth, rows, resident))
        });
        shapes.find_map(|(depth, rows, resident)| product.tiling(depth, rows, resident, gpu))
    }
}

impl Product {
    fn item_rows(&self) -> u32 {
        item_rows(self.max_rows, self.used, self.experts)
    }

    /// The tiling with `resident` blocks per multiprocessor, if they have rings of `depth` stages.
    fn tiling(&self, depth: u32, rows: u32, resident: u32, gpu: &GpuFacts) -> Option<Tiling> {
        let all = gpu.shared_bytes_per_block_optin as u32 + SHARED_OF_DRIVER;
        let room = (all / resident).checked_sub(SHARED_OF_DRIVER + SHARED_STATIC)?;
        let ring = room.checked_sub(rows_bytes(self.segments, rows))?;
        let (runs, run_segments) = runs(self.segments);
        let fits = |segments: u32, depth| depth * stage_bytes(segments, self.record_bytes) <= ring;
        if !fits(1, depth) {
            return None;
        }
        let stage_segments = if run_segments > 1 && fits(2, 2) { 2 } else { 1 };
        let rings = ring.min(MAX_DEPTH * stage_bytes(stage_segments, self.record_bytes));
        let items = max_items(self.max_rows, self.used, self.experts);
        let most = if rows < PASS_ROWS_MANY { MAX_BLOCK_TILES } else { MAX_BLOCK_TILES_MANY };
        let teams = WARPS / runs;
        let multiprocessors = gpu.multiprocessors.max(1);
        // Work of the busiest multiprocessor, in tiles. A block starts, and reads its rows of x.
        let started = 1 + rows * 128 / self.record_bytes;
        let work = |tiles: &u32| {
            let blocks = self.tiles.div_ceil(*tiles) * items;
            let is_one_wave = blocks <= multiprocessors * resident;
            // As many warps as possible, if all run at once.
            let started = if is_one_wave { 0 } else { started };
            (!is_one_wave, blocks.div_ceil(multiprocessors) * (tiles + started))
        };
        let block_tiles = (1..=most / teams).map(|waves| waves * teams).min_by_key(work)?;
        Some(Tiling {
            pass_rows: rows,
            stage_segments,
            block_tiles,
            shared_bytes: rows_bytes(self.segments, rows) + rings,
            grid: [self.tiles.div_ceil(block_tiles), items, 1],
        })
    }
}

/// Sizes of a mixture.
#[derive(Clone, Copy)]
struct Sizes {
    experts: u32,
    width: u32,
    hidden: u32,
}

/// One product of the experts.
struct ExpertsProduct<'a> {
    matrices: [&'a Matrix; 2],
    params: ExpertsGemmParams,
}

impl Lowering<'_> {
    /// `x[r] += sum_e weight[e] * D_e (activation(G_e n) * (U_e n))`.
    pub(super) fn experts(&mut self, op: &op::Experts, later: &[Op]) -> Result<(), DeviceError> {
        let sizes = self.check_experts(op)?;
        let Sizes { experts, width, hidden } = sizes;
        let mode = match op.activation {
            Activation::Silu => LinearMode::GateSilu,
            Activation::GeluTanh => LinearMode::GateGelu,
            Activation::Sigmoid => {
                return Err(self.unsupported("a sigmoid in a mixture of experts".to_owned()));
            }
        };
        let resources = self.resources;
        let [gate, up, down] = [op.gate, op.up, op.down].map(|id| resources.matrix(id));
        let (gate, up, down) = (gate?, up?, down?);
        let (rows, used) = (self.program.max_rows, op.used);
        let choices_count = rows.saturating_mul(used);
        let words = 4 * choices_count as usize;
        let items = max_items(rows, used, experts) as usize * size_of::<ExpertItem>();
        let choices = ChoicesRef {
            counts: self.workspace.at(Area::ExpertsCounts, 2 * 4),
            items: self.workspace.at(Area::ExpertsItems, items),
            list: self.workspace.at(Area::ExpertsList, words),
            chosen: self.workspace.at(Area::ExpertsChosen, words),
            weights: self.workspace.at(Area::ExpertsWeights, words),
            experts,
            used,
        };
        let factors = self.workspace.at(Area::ExpertsFactors, 4 * rows as usize);
        let y = self.workspace.at(Area::ExpertsResults, words * width as usize);
        let h = self.workspace.at(Area::ExpertsHidden, packed_bytes(choices_count, hidden));
        let h = padded(h, hidden);

        let input = self.input(op.x, Some(&op.norm))?;
        let x = self.operand(&input)?;
        let products = self.products(experts);
        self.experts_router(op.router, &input, products)?;
        self.experts_route(op, &x, (choices, products, factors))?;
        let gemm = ExpertsGemmParams { choices, ..ExpertsGemmParams::default() };
        let gate_up = ExpertsProduct {
            matrices: [gate, up],
            params: ExpertsGemmParams {
                x: x.rows,
                h,
                factors: if x.squares.is_some() { factors } else { 0 },
                height: hidden,
                mode: mode as u32,
                tiles: hidden / 8,
                ..gemm
            },
        };
        self.experts_gemm(gate_up)?;
        let down = ExpertsProduct {
            matrices: [down, down],
            params: ExpertsGemmParams {
                x: h,
                y,
                height: width,
                mode: LinearMode::Store as u32,
                tiles: width / 16,
                ..gemm
            },
        };
        self.experts_gemm(down)?;
        self.experts_add(op.x, next_norm(later, op.x), (choices, y, input.x, width))
    }

    /// Checks shapes and types.
    fn check_experts(&self, op: &op::Experts) -> Result<Sizes, DeviceError> {
        let router = self.resources.matrix(op.router)?;
        let (_, width) = self.slot(op.x)?;
        let experts = router.rows;
        if router.ty.is_quantized() {
            return Err(DeviceError::Invalid("the router is quantised".to_owned()));
        }
        if op.used == 0 || op.used > experts {
            let why = format!("{} of {experts} experts are chosen", op.used);
            return Err(DeviceError::Invalid(why));
        }
        if experts > MAX_EXPERTS || op.used > MAX_USED {
            return Err(self.unsupported(format!(
                "{} of {experts} experts per token; at most {MAX_USED} of {MAX_EXPERTS}",
                op.used
            )));
        }
        let [gate, up, down] = [op.gate, op.up, op.down].map(|id| self.resources.matrix(id));
        let (gate, up, down) = (gate?, up?, down?);
        let hidden = gate.rows / experts;
        same("router width", router.cols, width)?;
        for (matrix, rows, cols) in
            [(gate, hidden, width), (up, hidden, width), (down, width, hidden)]
        {
            same("rows of experts", matrix.rows, experts * rows)?;
            same("columns of experts", matrix.cols, cols)?;
            if !matrix.usage.multiply {
                let why = format!("{} is not to multiply with", matrix.name);
                return Err(DeviceError::Invalid(why));
            }
            if !on_tensor_cores(matrix.ty) {
                return Err(self.unsupported(format!("experts of type {}", matrix.ty)));
            }
            if rows == 0 || !rows.is_multiple_of(repack::TILE_ROWS as u32) {
                let what = format!("experts of {rows} rows, which is no multiple of 16");
                return Err(self.unsupported(what));
            }
        }
        if repack::kind(gate.ty) != repack::kind(up.ty) {
            let what = format!("experts with gates of type {} and ups of {}", gate.ty, up.ty);
            return Err(self.unsupported(what));
        }
        Ok(Sizes { experts, width, hidden })
    }

    /// Computes the router's products.
    fn experts_router(
        &mut self,
        router: MatrixId,
        input: &Input,
        products: Address,
    ) -> Result<(), DeviceError> {
        let router = self.resources.matrix(router)?;
        let (norm, eps) = input.norm.unwrap_or_default();
        let params = ExpertsRouterParams {
            step: self.step()?,
            x: input.x,
            norm,
            products,
            weight: router.weight,
            width: input.width,
            eps,
        };
        let rows = self.program.max_rows.next_power_of_two().min(MAX_ROUTER_ROWS);
        let grid = [router.rows.div_ceil(ROUTER_EXPERTS), self.program.max_rows.div_ceil(rows), 1];
        let name = format!("experts_router_{}_{rows}", repack::kernel_name(router.ty));
        self.launch(("experts_router", &name), grid, 32 * ROUTER_WARPS, &params)
    }

    /// Chooses experts and groups rows by expert.
    fn experts_route(
        &mut self,
        op: &op::Experts,
        x: &Normed,
        (choices, products, factors): (ChoicesRef, Address, Address),
    ) -> Result<(), DeviceError> {
        let router = self.resources.matrix(op.router)?;
        let bias = match op.selection_bias {
            Some(bias) => self.vector("selection bias", bias, choices.experts)?,
            None => 0,
        };
        let (squares, squares_count) = x.squares.unwrap_or_default();
        let row_words = self.program.max_rows.div_ceil(32);
        let params = ExpertsRouteParams {
            step: self.step()?,
            choices,
            products,
            bias,
            squares,
            pack_factors: x.pack_factors,
            factors,
            squares_count,
            inverse_width: 1.0 / router.cols as f32,
            eps: op.norm.eps,
            is_sigmoid: u32::from(op.score == ExpertScore::Sigmoid),
            row_words,
            item_rows: item_rows(self.program.max_rows, op.used, choices.experts),
        };
        let bitmap_bytes = 4 * choices.experts * row_words;
        let most = max_shared_bytes(&self.context.gpu().facts);
        if bitmap_bytes > most {
            let (rows, experts) = (self.program.max_rows, choices.experts);
            let what = format!("steps of {rows} rows with {experts} experts");
            return Err(self.unsupported(what));
        }
        let grid = [self.program.max_rows.div_ceil(ROUTE_WARPS), 1, 1];
        let names = ("experts_route", "experts_route");
        self.launch_shared(names, grid, 32 * ROUTE_WARPS, (bitmap_bytes, most), &params)
    }

    fn experts_gemm(
        &mut self,
        ExpertsProduct { matrices, params }: ExpertsProduct<'_>,
    ) -> Result<(), DeviceError> {
        let [first, second] = matrices;
        let facts = self.context.gpu().facts.clone();
        let columns = || format!("experts of {} columns", first.cols);
        let layout = Layout::of(first.ty, first.cols as usize);
        let layout = layout.ok_or_else(|| self.unsupported(columns()))?;
        let product = Product {
            record_bytes: layout.record_bytes() as u32,
            segments: layout.segments as u32,
            tiles: params.tiles,
            max_rows: self.program.max_rows,
            used: params.choices.used,
            experts: params.choices.experts,
        };
        let tiling = Tiling::of(&product, &facts).ok_or_else(|| self.unsupported(columns()))?;
        let (runs, run_segments) = runs(product.segments);
        let params = ExpertsGemmParams {
            weight: [first.weight, second.weight],
            unscale: 1.0 / params.x.scale,
            block_tiles: tiling.block_tiles,
            runs,
            run_segments,
            stage_segments: tiling.stage_segments,
            pass_rows: tiling.pass_rows,
            shared_bytes: tiling.shared_bytes,
            ..params
        };
        let rows = match tiling.pass_rows {
            0..=8 => 8,
            9..=16 => 16,
            _ => MAX_ITEM_ROWS,
        };
        let file = format!("experts_gemm_{}", repack::kernel_name(first.ty));
        let names = (&*file, &*format!("{file}_{rows}"));
        let most = facts.shared_bytes_per_block_optin as u32 - SHARED_STATIC;
        let shared = (tiling.shared_bytes, most);
        self.launch_shared(names, tiling.grid, 32 * WARPS, shared, &params)
    }

    /// Adds the experts' results to x, and packs x for the next norm.
    fn experts_add(
        &mut self,
        slot: Slot,
        next_norm: Option<Norm>,
        (choices, y, x, width): (ChoicesRef, Address, Address, u32),
    ) -> Result<(), DeviceError> {
        let mut params = ExpertsAddParams {
            step: self.step()?,
            y,
            weights: choices.weights,
            x,
            width,
            used: choices.used,
            ..ExpertsAddParams::default()
        };
        // The rows change, so their packed form is stale.
        self.normed = None;
        if let Some(norm) = next_norm {
            let next = self.exactly_normed(slot, &norm)?;
            params.next_norm = next.norm;
            params.packed = next.rows;
            params.factors = next.pack_factors;
            params.next_eps = norm.eps;
            self.normed = Some(next);
        }
        // A thread for each four numbers of a row.
        let quads = width.next_multiple_of(repack::SEGMENT as u32) / 4;
        let grid = [self.program.max_rows, 1, 1];
        let threads = quads.min(MAX_ADD_THREADS);
        self.launch(("experts_add", "experts_add"), grid, threads, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_source::KernelSource;
    use crate::lower::product::records;

    fn gpu(multiprocessors: u32, shared_bytes_per_block_optin: u64) -> GpuFacts {
        GpuFacts { multiprocessors, shared_bytes_per_block_optin, ..GpuFacts::default() }
    }

    fn products() -> impl Iterator<Item = Product> {
        records().into_iter().flat_map(|record_bytes| {
            [1, 6, 14, 16, 32, 56].into_iter().flat_map(move |segments| {
                [1, 2, 7, 8, 16, 64, 72, 512].into_iter().flat_map(move |max_rows| {
                    [(128, 8), (32, 4), (8, 3), (512, 10)].map(|(experts, used)| Product {
                        record_bytes,
                        segments,
                        tiles: 96,
                        max_rows,
                        used,
                        experts,
                    })
                })
            })
        })
    }

    #[test]
    fn constants_match_the_kernels() {
        let paths = [
            "common/walla.cuh",
            "gemm/weight.cuh",
            "gemm/gemm_common.cuh",
            "experts/experts.cuh",
            "experts/experts_gemm.cuh",
            "experts/experts_router.cu",
            "experts/experts_route.cu",
            "experts/experts_add.cu",
        ];
        let kernels = KernelSource::read(&paths);
        let constants = [
            ("ITEM_ROWS_MAX", MAX_ITEM_ROWS),
            ("EXPERTS_MAX", MAX_EXPERTS),
            ("WARP", MAX_USED),
            ("ROUTER_WARPS", ROUTER_WARPS),
            ("ROUTER_EXPERTS", ROUTER_EXPERTS),
            ("ROUTE_WARPS", ROUTE_WARPS),
            ("EXPERTS_ADD_THREADS_MAX", MAX_ADD_THREADS),
            ("EXPERTS_WARPS", WARPS),
            ("EXPERTS_RUNS_MAX", MAX_RUNS),
            ("DEPTH_MAX", MAX_DEPTH),
            ("SUM_STRIDE", SUM_STRIDE),
        ];
        for (name, wanted) in constants {
            assert_eq!(kernels.constant(name), wanted, "{name}");
        }
        let shared = WARPS * MAX_DEPTH * 8 + 2 * MAX_ITEM_ROWS * 4;
        assert_eq!(shared, SHARED_STATIC);
        for (segments, rows) in [(1, 1), (16, 3), (16, 8), (6, 8), (14, 16), (16, 32)] {
            let x = kernels.call("experts_x_bytes", &[segments, rows])[0];
            let sums = kernels.call("experts_sums_bytes", &[rows])[0];
            assert_eq!(x + sums, rows_bytes(segments, rows), "{segments} {rows}");
            let stage = kernels.call("experts_stage_bytes", &[segments, 640])[0];
            assert_eq!(stage, stage_bytes(segments, 640));
        }
    }

    #[test]
    fn runs_depend_on_the_columns_alone_and_cover_them() {
        assert_eq!([16, 14, 6, 32].map(runs), [(4, 4), (4, 4), (2, 3), (4, 8)]);
        for segments in 1..=256 {
            let (runs, run) = runs(segments);
            assert!(runs.is_power_of_two() && runs <= MAX_RUNS);
            assert!((runs - 1) * run < segments && segments <= runs * run, "{segments}");
        }
    }

    #[test]
    fn every_product_fits_every_chip() {
        for gpu in [gpu(132, 232_448), gpu(24, 101_376), gpu(40, 65_536)] {
            for product in products() {
                let tiling = Tiling::of(&product, &gpu);
                let tiling = tiling.unwrap_or_else(|| panic!("{product:?} {gpu:?}"));
                let Tiling { pass_rows, stage_segments, block_tiles, shared_bytes, grid } = tiling;
                let all = u64::from(shared_bytes + SHARED_STATIC);
                assert!(all <= gpu.shared_bytes_per_block_optin, "{product:?}: {tiling:?}");
                assert!((1..=MAX_ITEM_ROWS).contains(&pass_rows), "{tiling:?}");
                assert!(pass_rows <= GROUP_ROWS || pass_rows.is_power_of_two());
                let ring = shared_bytes - rows_bytes(product.segments, pass_rows);
                assert!(ring >= stage_bytes(stage_segments, product.record_bytes), "{tiling:?}");
                assert!((grid[0] - 1) * block_tiles < product.tiles);
                assert!(product.tiles <= grid[0] * block_tiles);
                assert!(block_tiles.is_multiple_of(WARPS / runs(product.segments).0));
            }
        }
    }

    #[test]
    fn items_hold_all_choices_of_any_distribution() {
        // All rows use the same experts.
        for rows in [1_u32, 31, 32, 33, 64, 100, 512] {
            for (experts, used) in [(1, 1), (8, 3), (128, 8), (16, 16)] {
                let item_rows = item_rows(rows, used, experts);
                let same = used * rows.div_ceil(item_rows);
                assert!(same <= max_items(rows, used, experts), "{rows} {experts} {used}");
                // As equal as possible.
                let each = (rows * used).div_ceil(experts).min(rows);
                let spread = experts.min(rows * used) * each.div_ceil(item_rows);
                let spread = spread.min(rows * used);
                assert!(spread <= max_items(rows, used, experts), "{rows} {experts} {used}");
            }
        }
    }
}
