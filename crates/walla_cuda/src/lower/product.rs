//! Products on tensor cores (kernels/gemm/gemm_common.cuh).

use walla_device::{DeviceError, GpuFacts};
use walla_types::TensorType;

use super::gemm_sm90::{Sm90Tiling, SplitKReducer, Splits};
use super::kernel::{Kernel, Params};
use super::operands::{Input, Normed, Part};
use super::order::{Order, TILES_MANY};
use super::packed_rows::group_rows;
use super::tiling::{Product, Tiling};
use super::{Area, Lowering};
use crate::driver::Launch;
use crate::params::{
    GemmParams, GemmSkinnyParams, GemmSm80Params, GemmSm90Params, LinearMode, PackedRef,
    SplitkReduceParams, Stages,
};
use crate::repack::{self, Layout};
use crate::resources::Matrix;

/// Whether matrices of a type are multiplied on tensor cores. These round rows of x to f16, which
/// is too coarse for F32.
pub(super) fn on_tensor_cores(ty: TensorType) -> bool {
    ty != TensorType::F32
}

/// Record sizes in bytes of matrices on tensor cores.
#[cfg(test)]
pub(super) fn records() -> Vec<u32> {
    let multiplied = TensorType::ALL.into_iter().filter(|ty| on_tensor_cores(*ty));
    let layouts = multiplied.filter_map(|ty| Layout::of(ty, ty.block_elements().max(128)));
    let mut records: Vec<u32> = layouts.map(|its| its.record_bytes() as u32).collect();
    records.sort_unstable();
    records.dedup();
    records
}

/// A launch of a product, and its parts for a launch together with another product.
pub(super) struct ProductLaunch {
    kernel: Kernel,
    params: Params,
    pub(super) launch: Launch,
}

/// Epilogue of a product.
pub(super) enum Epilogue {
    /// Store the product.
    Store,
    /// Store the splits for deferred split-K, at this stride in numbers. Only for products that
    /// `DeferredProducts` (deferred_splits.rs) allows.
    Defer(u32),
    /// Add to the existing values; optionally also write the sum packed for the next norm.
    Add(Option<Normed>),
    /// Multiply an activation of the first half by the second half; optionally write the result
    /// packed.
    Gate(LinearMode, Option<PackedRef>),
}

impl Epilogue {
    pub(super) fn mode(&self) -> LinearMode {
        match self {
            Self::Store | Self::Defer(_) => LinearMode::Store,
            Self::Add(_) => LinearMode::Add,
            Self::Gate(mode, _) => *mode,
        }
    }
}

impl Lowering<'_> {
    /// The matrices of a launch.
    fn matrices(&self, parts: &[Part<'_>]) -> Result<Vec<&Matrix>, DeviceError> {
        parts.iter().map(|part| self.resources.matrix(part.linear.matrix)).collect()
    }

    /// Parameters of a launch, except the parameters that depend on the tiling.
    fn gemm_params(
        &mut self,
        input: &Input,
        x: &Normed,
        parts: &[Part<'_>],
        epilogue: &Epilogue,
        (tiles, order): (u32, &Order),
    ) -> Result<GemmParams, DeviceError> {
        let &Order { splits, split_segments, runs, run } = order;
        let (squares, squares_count) = x.squares.unwrap_or_default();
        let mut params = GemmParams {
            step: self.step()?,
            x: x.rows,
            squares,
            squares_count,
            pack_factors: x.pack_factors,
            // Every launch of an op writes the same values. Later products of the same rows must
            // not: the other buffer holds the factors that the rows were packed with.
            factors: if squares == 0 || input.by_output || x.has_factors {
                0
            } else {
                self.factors(!self.factors)
            },
            inverse_width: 1.0 / input.width as f32,
            eps: input.norm.map_or(0.0, |(_, eps)| eps),
            mode: epilogue.mode() as u32,
            max_rows: input.rows,
            unscale: 1.0 / x.rows.scale,
            tiles,
            splits,
            split_segments,
            runs,
            run_segments: run,
            ..GemmParams::default()
        };
        match epilogue {
            Epilogue::Store
            | Epilogue::Defer(_)
            | Epilogue::Add(None)
            | Epilogue::Gate(_, None) => {}
            Epilogue::Gate(_, Some(rows)) => params.packed = *rows,
            Epilogue::Add(Some(next)) => {
                params.packed = next.rows;
                params.next_norm = next.norm;
                params.next_pack_factors = next.pack_factors;
                (params.next_squares, params.next_squares_count) = next.squares.unwrap_or_default();
            }
        }
        let mut first = 0;
        let is_gate = matches!(epilogue, Epilogue::Gate(..));
        params.part_from = [0, u32::MAX, u32::MAX, u32::MAX];
        for (i, part) in parts.iter().enumerate() {
            let matrix = self.resources.matrix(part.linear.matrix)?;
            params.part[i] = self.matrix_part(input, part, matrix, 0)?;
            if !is_gate {
                params.part_from[i] = first;
            }
            first += matrix.rows.div_ceil(repack::TILE_ROWS as u32);
        }
        Ok(params)
    }

    /// Launches a product of matrices of one type. Uses a WGMMA kernel if one applies and the image
    /// in use has it. Prerequisite launches are appended to `launches`.
    pub(super) fn matmul(
        &mut self,
        input: &Input,
        x: &Normed,
        (parts, of_op): (&[Part<'_>], &[Part<'_>]),
        epilogue: &Epilogue,
    ) -> Result<ProductLaunch, DeviceError> {
        let (context, device) = (self.context, self.device);
        let facts = &context.gpu().facts;
        let unsupported = || {
            let what = format!("products of {} columns", input.width);
            DeviceError::Unsupported { device: device.to_owned(), what }
        };
        let is_gate = matches!(epilogue, Epilogue::Gate(..));
        let matrices = (&*self.matrices(parts)?, &*self.matrices(of_op)?);
        let rows = (input.rows, self.program.max_rows);
        let ordered = OrderedProduct::of(facts, matrices, rows, is_gate).ok_or_else(unsupported)?;
        let launch = self.with_wgmma(input, x, (parts, epilogue), &ordered)?;
        if let Some(launch) = launch {
            return Ok(launch);
        }
        let OrderedProduct { product, order, ty } = ordered;
        let tiling = Tiling::of(&product, &order, facts).ok_or_else(unsupported)?;
        let kernel = tiling.kernel(ty);
        let found = self.get(&kernel)?;
        let gemm = self.gemm_params(input, x, parts, epilogue, (product.tiles, &order))?;
        let by_output = u32::from(input.by_output);
        let rows_last = self.program.max_rows - 1;
        let params = if tiling.groups == 1 {
            Params::Skinny(GemmSkinnyParams {
                gemm,
                by_output,
                rows_last,
                teams: tiling.teams,
                wave_tiles: tiling.wave_tiles,
                x_splits: tiling.x_splits,
                depth: tiling.depth,
                stage_segments: tiling.stage_segments,
                early_stages: tiling.early_stages(&product),
                stages: tiling.stages(product.tiles),
                first_stage: tiling.first_stages(product.segments),
            })
        } else {
            let (partials_bytes, arrivals_bytes) = tiling.partials(product.tiles);
            Params::Sm80(GemmSm80Params {
                gemm,
                partials: self.workspace.at(Area::SplitSums, partials_bytes),
                arrivals: self.workspace.at(Area::SplitArrivals, arrivals_bytes),
                by_output,
                rows_last,
                teams: tiling.teams,
                depth: tiling.depth,
                stage_segments: tiling.stage_segments,
                reserved: 0,
            })
        };
        let launch = Launch {
            overlap: facts.programmatic_launch,
            shared_bytes: tiling.shared_bytes,
            ..found.launch(tiling.grid, 32 * order.runs * tiling.teams, &params)
        };
        Ok(ProductLaunch { kernel, params, launch })
    }

    /// The same with a WGMMA kernel (kernels/gemm/gemm_sm90.cuh), if one applies.
    fn with_wgmma(
        &mut self,
        input: &Input,
        x: &Normed,
        (parts, epilogue): (&[Part<'_>], &Epilogue),
        OrderedProduct { product, order, ty }: &OrderedProduct,
    ) -> Result<Option<ProductLaunch>, DeviceError> {
        let facts = &self.context.gpu().facts;
        // `splitk_reduce` supports one matrix of whole tiles, without factors and biases.
        let is_plain = |part: &Part<'_>| {
            part.linear.bias.is_none() && part.stride.is_multiple_of(repack::TILE_ROWS as u32)
        };
        let reducer = match (epilogue, parts) {
            (Epilogue::Defer(_), _) => SplitKReducer::Reader,
            (Epilogue::Add(_), [part]) if x.squares.is_none() && is_plain(part) => {
                SplitKReducer::Kernel
            }
            _ => SplitKReducer::None,
        };
        let cut = || Sm90Tiling::of(product, order, facts, reducer);
        let Some(cut) = self.warpgroups.then(cut).flatten() else { return Ok(None) };
        let kernel = cut.kernel(ty.clone());
        let Some(found) = self.find(&kernel)? else { return Ok(None) };
        let x = match input.by_output {
            true => self.gather(input, x)?,
            false => *x,
        };
        let params = GemmSm90Params {
            gemm: self.gemm_params(input, &x, parts, epilogue, (product.tiles, order))?,
            next_pages: input.next_pages,
            workspace: self.workspace.at(Area::SplitSums, cut.sums_bytes(product, order)),
            deferred_stride: if let Epilogue::Defer(stride) = epilogue { *stride } else { 0 },
            full_wave_tiles: cut.full_wave_tiles.unwrap_or_default(),
            weight_depth: cut.depth,
            x_depth: cut.x_depth,
            splits_reciprocal: Stages::reciprocal(order.splits),
            by_output: u32::from(input.by_output),
        };
        let launch = Launch {
            overlap: facts.programmatic_launch,
            shared_bytes: cut.shared_bytes,
            cluster: cut.cluster(),
            ..found.launch(cut.grid, cut.threads, &Params::Sm90(params))
        };
        // The product itself cannot share a launch then: its reduction follows it.
        let launch = if cut.splits == Splits::Workspace {
            self.launches.push(launch);
            self.splitk_reduce(product, &params)?
        } else {
            launch
        };
        Ok(Some(ProductLaunch { kernel, params: Params::Sm90(params), launch }))
    }

    /// The reduction of a product's split-K workspace.
    fn splitk_reduce(
        &mut self,
        product: &Product,
        params: &GemmSm90Params,
    ) -> Result<Launch, DeviceError> {
        let GemmParams { part: [part, ..], unscale, max_rows, tiles, splits, .. } = params.gemm;
        let reduction = SplitkReduceParams {
            sums: params.workspace,
            out: part.out,
            packed: params.gemm.packed,
            next_norm: params.gemm.next_norm,
            next_pack_factors: params.gemm.next_pack_factors,
            next_squares: params.gemm.next_squares,
            next_squares_count: params.gemm.next_squares_count,
            out_stride: part.out_stride,
            unscale: unscale * part.weight.scale,
            max_rows,
            tiles,
            splits,
        };
        let (grid, threads) = Sm90Tiling::reduction(product);
        self.lowered(("splitk_reduce", "splitk_reduce"), grid, threads, (0, 0), &reduction)
    }

    /// Two products with the same rows of x in one launch, if a kernel for both types exists.
    pub(super) fn pair(
        &mut self,
        first: &ProductLaunch,
        second: &ProductLaunch,
    ) -> Result<Option<Launch>, DeviceError> {
        let (a, b) = (&first.launch, &second.launch);
        let ty = format!("{}_{}", first.kernel.ty, second.kernel.ty);
        let kernel = Kernel { ty, ..first.kernel };
        let is_alike = (second.kernel.form, second.kernel.rows) == (kernel.form, kernel.rows)
            && (&a.grid[1..], a.threads, a.cluster) == (&b.grid[1..], b.threads, b.cluster);
        if !kernel.is_for_pairs() || !is_alike {
            return Ok(None);
        }
        let function = self.find_function(&kernel)?;
        let [blocks, y, z] = a.grid;
        let grid = [blocks + b.grid[0], y, z];
        let pair = |function| first.params.pair(&second.params, function, grid, a.threads, blocks);
        let launch = |launch| Launch {
            overlap: a.overlap,
            shared_bytes: a.shared_bytes.max(b.shared_bytes),
            cluster: a.cluster,
            ..launch
        };
        Ok(function.and_then(pair).map(launch))
    }
}

/// Tiles of matrices. A gate's tile combines eight rows of each of two matrices.
fn tiles(matrices: &[&Matrix], is_gate: bool) -> u32 {
    let height = repack::TILE_ROWS as u32;
    match matrices {
        [first, ..] if is_gate => first.rows.div_ceil(height / 2),
        _ => matrices.iter().map(|matrix| matrix.rows.div_ceil(height)).sum(),
    }
}

/// A product before tiling: its size, the order of its sums, and the name of the weights' type.
pub(super) struct OrderedProduct {
    pub(super) product: Product,
    pub(super) order: Order,
    pub(super) ty: String,
}

impl OrderedProduct {
    /// The product of a launch's matrices, which have one type, among all matrices of their op. The
    /// launch multiplies `rows` rows of x, out of `max_rows` packed rows. `None` without matrices,
    /// or without a kernel for the type.
    ///
    /// All matrices of an op have the same splits, even of different types, if together they have
    /// few tiles: one launch can then compute them, and one consumer can reduce their splits.
    pub(super) fn of(
        gpu: &GpuFacts,
        (matrices, of_op): (&[&Matrix], &[&Matrix]),
        (rows, max_rows): (u32, u32),
        is_gate: bool,
    ) -> Option<Self> {
        let first = matrices.first()?;
        let layout = Layout::of(first.ty, first.cols as usize)?;
        let multiplied: Vec<_> =
            of_op.iter().copied().filter(|its| on_tensor_cores(its.ty)).collect();
        let together = tiles(&multiplied, is_gate);
        let product = Product {
            record_bytes: layout.record_bytes() as u32,
            segments: layout.segments as u32,
            tiles: tiles(matrices, is_gate),
            tiles_of_op: together,
            rows,
            group_rows: group_rows(max_rows, first.cols),
        };
        let cut_as = if together < TILES_MANY { together } else { product.tiles };
        let order = Order::of(cut_as, product.segments, gpu);
        Some(Self { product, order, ty: repack::kernel_name(first.ty) })
    }
}
