use walla_device::{DeviceError, GpuFacts, Linear, Op, Program};

use super::deferred_splits::DeferredProducts;
use super::delta_net::{DeltaProducts, gate_of};
use super::gate_rows::aligned_numbers;
use super::{Lowering, attention, experts, packed_rows, sample};
use crate::params::LinearMode;
use crate::resources::Resources;

/// An area of the workspace, in the order of their offsets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Area {
    /// Products that a later kernel of the same op reads.
    Products,
    /// Packed rows for tensor cores that no producing kernel packs itself.
    Packed,
    /// Packed rows, as a norm's input.
    PackedNormed,
    /// Sums of squares of `PackedNormed`: `[rows, squares_count]` f32.
    Squares,
    /// Packed rows that outputs refer to, with their squares and the factors used for packing.
    Gathered,
    GatheredSquares,
    GatheredPackFactors,
    /// The factors of two norms: `[2, rows]` f32.
    Factors,
    /// Split-K workspace.
    SplitSums,
    /// Arrival counters of the split-K workspace: zero between launches.
    SplitArrivals,
    /// Packed rows that attention writes. Separate areas keep padding zero, since widths differ.
    PackedAttention,
    /// Packed rows that gates write.
    PackedHidden,
    /// Packed rows that `mixer_gate` writes.
    PackedMixed,
    /// Partial results of attention.
    Partials,
    /// Arrival counters of attention: zero between launches.
    Arrivals,
    /// Number of items, and arrived blocks of `experts_route`: zero between launches.
    ExpertsCounts,
    ExpertsItems,
    ExpertsList,
    ExpertsChosen,
    ExpertsWeights,
    /// Factors of rows of x.
    ExpertsFactors,
    /// Packed rows, one per choice.
    ExpertsHidden,
    /// Products, one row per choice.
    ExpertsResults,
    SampleScores,
    SampleStats,
    SampleGroups,
    SampleLikely,
    /// Counter of completed outputs: zero between steps.
    SampleArrivals,
}

const AREAS: usize = Area::SampleArrivals as usize + 1;

/// Offsets of the workspace's areas. Programs that are prepared together share it. It is
/// initialised with zeros.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// `[rows, width]` f32 each.
    pub(super) slots: Vec<usize>,
    areas: [usize; AREAS],
    pub(super) factors_bytes: usize,
    end: usize,
}

impl Workspace {
    /// Lays out a workspace for all of the programs.
    pub(crate) fn of(
        resources: &Resources,
        gpu: &GpuFacts,
        warpgroups: bool,
        programs: &[Program],
    ) -> Result<Self, DeviceError> {
        let mut workspace = Self::default();
        let slots = programs.iter().map(|p| p.slots.len()).max().unwrap_or_default();
        for slot in 0..slots {
            let bytes = |p: &Program| {
                let width = p.slots.get(slot).map_or(0, |s| s.width as usize);
                4 * width * p.max_rows as usize
            };
            let bytes = programs.iter().map(bytes).max().unwrap_or_default();
            let offset = workspace.take(bytes);
            workspace.slots.push(offset);
        }
        let mut needs = Needs { resources, gpu, warpgroups, bytes: [0; AREAS] };
        for program in programs {
            needs.add(Area::GatheredPackFactors, 4 * program.max_outputs as usize);
            needs.add(Area::Factors, 2 * 4 * program.max_rows as usize);
            for (i, op) in program.ops.iter().enumerate() {
                needs.add_op(program, op, program.ops.get(i + 1..).unwrap_or_default())?;
            }
        }
        workspace.factors_bytes = needs.bytes[Area::Factors as usize];
        workspace.areas = needs.bytes.map(|bytes| workspace.take(bytes));
        Ok(workspace)
    }

    /// Bytes of all areas.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    /// Offset of an area.
    pub(super) fn offset(&self, area: Area) -> usize {
        self.areas[area as usize]
    }

    fn take(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end += bytes.next_multiple_of(256);
        start
    }
}

/// Bytes of each area: the maximum of all ops of all programs.
struct Needs<'a> {
    resources: &'a Resources,
    gpu: &'a GpuFacts,
    warpgroups: bool,
    bytes: [usize; AREAS],
}

impl Needs<'_> {
    fn add(&mut self, area: Area, bytes: usize) {
        let most = &mut self.bytes[area as usize];
        *most = bytes.max(*most);
    }

    fn add_op(&mut self, program: &Program, op: &Op, later: &[Op]) -> Result<(), DeviceError> {
        let resources = self.resources;
        let rows = program.max_rows as usize;
        let rows_packed = program.max_rows.max(program.max_outputs);
        let packed_bytes = |cols| packed_rows::packed_bytes(rows_packed, cols);
        let matrix = |linear: &Linear| resources.matrix(linear.matrix);
        let products = |numbers: usize| 4 * rows * numbers;
        let all_rows = (program.max_rows, program.max_rows);
        match op {
            Op::Qkv { shape, query, keys: None, .. } => {
                self.add(Area::Products, products((shape.heads * shape.head_dim) as usize));
                self.norms(matrix(query)?.cols, rows_packed);
                self.splits(&[query], all_rows, LinearMode::Store)?;
            }
            Op::Qkv { shape, query, keys: Some(keys), .. } => {
                let heads = (shape.heads + 2 * shape.kv_heads) as usize;
                let gpu = (self.gpu, self.warpgroups);
                let linears = [query, &keys.key, &keys.value];
                let deferred = DeferredProducts::of(gpu, self.resources, program, *shape, linears)?;
                let splits = deferred.map_or(1, |products| products.splits);
                self.add(
                    Area::Products,
                    products(splits as usize * heads * shape.head_dim as usize),
                );
                self.norms(matrix(query)?.cols, rows_packed);
                self.splits(&linears, all_rows, LinearMode::Store)?;
            }
            Op::Attention { shape, window, .. } => {
                let cache = &self.resources.cache(program.cache)?.desc;
                self.add(
                    Area::Partials,
                    attention::partials_bytes(self.gpu, cache, program, *shape, *window),
                );
                self.add(Area::Arrivals, products(shape.heads as usize));
                self.add(Area::PackedAttention, packed_bytes(shape.heads * shape.head_dim));
            }
            Op::Project { linear, post_norm, scale, .. } => {
                if post_norm.is_some() || *scale != 1.0 {
                    self.add(Area::Products, products(matrix(linear)?.rows as usize));
                }
                self.add(Area::Packed, packed_bytes(matrix(linear)?.cols));
                self.splits(&[linear], all_rows, LinearMode::Add)?;
            }
            Op::GateUp { gate, up, .. } => {
                let (g, u) = (matrix(gate)?, matrix(up)?);
                let is_gate = g.ty == u.ty;
                self.add(
                    Area::Products,
                    products(if is_gate { 0 } else { 2 * aligned_numbers(g.rows) as usize }),
                );
                self.norms(g.cols, rows_packed);
                self.add(Area::PackedHidden, packed_bytes(g.rows));
                let mode = if is_gate { LinearMode::GateSilu } else { LinearMode::Store };
                self.splits(&[gate, up], all_rows, mode)?;
            }
            Op::ShortConv { input, .. } => {
                self.add(Area::Products, products(3 * matrix(&input[0])?.rows as usize));
                self.norms(matrix(&input[0])?.cols, rows_packed);
                let [b, c, v] = input;
                self.splits(&[b, c, v], all_rows, LinearMode::Store)?;
            }
            Op::DeltaNet { x, norm, shape, input, alpha, beta, out, .. } => {
                let numbers = DeltaProducts::of(*shape).numbers(*shape, program.max_rows);
                self.add(Area::Products, usize::try_from(numbers).unwrap_or(usize::MAX / 8) * 4);
                self.norms(matrix(input)?.cols, rows_packed);
                self.add(Area::PackedMixed, packed_bytes(shape.values()));
                let gate = gate_of(self.resources, later, (*x, norm, *out), *shape);
                let wide: Vec<_> = std::iter::once(input).chain(gate).collect();
                self.splits(&wide, all_rows, LinearMode::Store)?;
                self.splits(&[alpha, beta], all_rows, LinearMode::Store)?;
            }
            Op::Gate { linear, y, .. } => {
                let matrix = matrix(linear)?;
                self.add(Area::Products, products(aligned_numbers(matrix.rows) as usize));
                self.norms(matrix.cols, rows_packed);
                let width = program.slots.get(y.0 as usize).map_or(0, |slot| slot.width);
                self.add(Area::PackedMixed, packed_bytes(width));
                self.splits(&[linear], all_rows, LinearMode::Store)?;
            }
            Op::Experts { router, used, gate, .. } => {
                let (router, gate) =
                    (self.resources.matrix(*router)?, self.resources.matrix(*gate)?);
                self.add(Area::Products, products(router.rows as usize));
                self.norms(router.cols, rows_packed);
                let areas = experts::areas(program.max_rows, *used, router, gate);
                for (area, bytes) in areas {
                    self.add(area, bytes);
                }
            }
            Op::Head { linear, .. } => {
                let [packed, squares] = self.norms(matrix(linear)?.cols, rows_packed);
                self.add(Area::Gathered, packed);
                self.add(Area::GatheredSquares, squares);
                self.splits(&[linear], (program.max_outputs, program.max_rows), LinearMode::Store)?;
            }
            Op::LayerInputs { projection, .. } => {
                let matrix = matrix(projection)?;
                self.add(Area::Products, products(matrix.rows as usize));
                self.add(Area::Packed, packed_bytes(matrix.cols));
                self.splits(&[projection], all_rows, LinearMode::Store)?;
            }
            Op::GateInput { linear, .. } => {
                let matrix = matrix(linear)?;
                self.add(Area::Products, products(aligned_numbers(matrix.rows) as usize));
                self.add(Area::Packed, packed_bytes(matrix.cols));
                self.add(Area::PackedMixed, packed_bytes(matrix.rows));
                self.splits(&[linear], all_rows, LinearMode::Store)?;
            }
            Op::Sample => {
                for (area, bytes) in sample::areas(program) {
                    self.add(area, bytes);
                }
            }
            Op::Embed { .. } | Op::Hidden { .. } => {}
        }
        Ok(())
    }

    /// Split-K workspace for an op's launches, one launch per run of equal types. `rows`: the rows
    /// multiplied and the rows packed.
    fn splits(
        &mut self,
        linears: &[&Linear],
        rows: (u32, u32),
        mode: LinearMode,
    ) -> Result<(), DeviceError> {
        let matrices: Result<Vec<_>, _> =
            linears.iter().map(|linear| self.resources.matrix(linear.matrix)).collect();
        let matrices = matrices?;
        for run in matrices.chunk_by(|a, b| a.ty == b.ty) {
            let gpu = (self.gpu, self.warpgroups);
            let (sums, arrivals) = Lowering::split_bytes(gpu, (run, &matrices), rows, mode);
            self.add(Area::SplitSums, sums);
            self.add(Area::SplitArrivals, arrivals);
        }
        Ok(())
    }

    /// Rows packed as a norm's input, and the sums of squares that their producer writes.
    fn norms(&mut self, width: u32, rows: u32) -> [usize; 2] {
        let packed = packed_rows::packed_bytes(rows, width);
        let squares = 4 * rows as usize * packed_rows::squares_count(width) as usize;
        self.add(Area::PackedNormed, packed);
        self.add(Area::Squares, squares);
        [packed, squares]
    }
}
