use walla_device::{DeviceError, GpuFacts, Linear, Op, Program};

use super::deferred_splits::DeferredProducts;
use super::delta_net::{DeltaProducts, gate_of};
use super::gate_rows::aligned_numbers;
use super::{Lowering, attention, experts, packed_rows, sample};
use crate::params::LinearMode;
use crate::resources::Resources;

/// Offsets of the workspace's parts. Programs that are prepared together share it. It is
/// initialised with zeros.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// `[rows, width]` f32 each.
    pub(super) slots: Vec<usize>,
    /// Products that a later kernel of the same op reads.
    pub(super) products: usize,
    /// Packed rows for tensor cores that no producing kernel packs itself.
    pub(super) packed: usize,
    /// Packed rows, as a norm's input.
    pub(super) packed_normed: usize,
    /// Sums of squares of `packed_normed`: `[rows, squares_count]` f32.
    pub(super) squares: usize,
    /// Packed rows that outputs refer to, with their squares and the factors used for packing.
    pub(super) gathered: usize,
    pub(super) gathered_squares: usize,
    pub(super) gathered_pack_factors: usize,
    /// The factors of two norms: `[2, rows]` f32.
    pub(super) factors: usize,
    pub(super) factors_bytes: usize,
    /// Split-K workspace.
    pub(super) split_sums: usize,
    /// Arrival counters of the split-K workspace: zero between launches.
    pub(super) split_arrivals: usize,
    /// Packed rows that attention writes. Separate parts keep padding zero, since widths differ.
    pub(super) packed_attention: usize,
    /// Packed rows that gates write.
    pub(super) packed_hidden: usize,
    /// Packed rows that `mixer_gate` writes.
    pub(super) packed_mixed: usize,
    /// Partial results of attention.
    pub(super) partials: usize,
    /// Arrival counters of attention: zero between launches.
    pub(super) arrivals: usize,
    /// Parts of mixtures of experts.
    pub(super) experts: experts::Parts,
    /// Parts of the sampler.
    pub(super) sampler: sample::Parts,
    end: usize,
}

/// Bytes of each part that one program needs.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    products: usize,
    packed: usize,
    packed_normed: usize,
    squares: usize,
    gathered: usize,
    gathered_squares: usize,
    split_sums: usize,
    split_arrivals: usize,
    packed_attention: usize,
    packed_hidden: usize,
    packed_mixed: usize,
    partials: usize,
    arrivals: usize,
    experts: experts::Parts,
}

impl Workspace {
    /// Lays out a workspace for all of the programs.
    pub(crate) fn of(
        resources: &Resources,
        gpu: &GpuFacts,
        warpgroups: bool,
        programs: &[Program],
    ) -> Result<Self, DeviceError> {
        let ground = Ground { resources, gpu, warpgroups };
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
        let mut most = Wanted::default();
        for program in programs {
            for (i, op) in program.ops.iter().enumerate() {
                let later = program.ops.get(i + 1..).unwrap_or_default();
                let wanted = ground.wanted(program, op, later)?;
                most.products = most.products.max(wanted.products);
                most.packed = most.packed.max(wanted.packed);
                most.packed_normed = most.packed_normed.max(wanted.packed_normed);
                most.squares = most.squares.max(wanted.squares);
                most.gathered = most.gathered.max(wanted.gathered);
                most.gathered_squares = most.gathered_squares.max(wanted.gathered_squares);
                most.split_sums = most.split_sums.max(wanted.split_sums);
                most.split_arrivals = most.split_arrivals.max(wanted.split_arrivals);
                most.packed_attention = most.packed_attention.max(wanted.packed_attention);
                most.packed_hidden = most.packed_hidden.max(wanted.packed_hidden);
                most.packed_mixed = most.packed_mixed.max(wanted.packed_mixed);
                most.partials = most.partials.max(wanted.partials);
                most.arrivals = most.arrivals.max(wanted.arrivals);
                most.experts = most.experts.max(&wanted.experts);
            }
        }
        workspace.products = workspace.take(most.products);
        workspace.packed = workspace.take(most.packed);
        workspace.packed_normed = workspace.take(most.packed_normed);
        workspace.squares = workspace.take(most.squares);
        workspace.gathered = workspace.take(most.gathered);
        workspace.gathered_squares = workspace.take(most.gathered_squares);
        let outputs = programs.iter().map(|p| p.max_outputs as usize).max().unwrap_or_default();
        workspace.gathered_pack_factors = workspace.take(4 * outputs);
        let rows = programs.iter().map(|p| p.max_rows as usize).max().unwrap_or_default();
        workspace.factors_bytes = 2 * 4 * rows;
        workspace.factors = workspace.take(workspace.factors_bytes);
        workspace.split_sums = workspace.take(most.split_sums);
        workspace.split_arrivals = workspace.take(most.split_arrivals);
        workspace.packed_attention = workspace.take(most.packed_attention);
        workspace.packed_hidden = workspace.take(most.packed_hidden);
        workspace.packed_mixed = workspace.take(most.packed_mixed);
        workspace.partials = workspace.take(most.partials);
        workspace.arrivals = workspace.take(most.arrivals);
        workspace.experts = most.experts.map(|bytes| workspace.take(bytes));
        workspace.sampler = sample::Parts::of(programs, |bytes| workspace.take(bytes));
        Ok(workspace)
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    fn take(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end += bytes.next_multiple_of(256);
        start
    }
}

/// Properties of the device that programs run on.
struct Ground<'a> {
    resources: &'a Resources,
    gpu: &'a GpuFacts,
    warpgroups: bool,
}

impl Ground<'_> {
    fn wanted(&self, program: &Program, op: &Op, later: &[Op]) -> Result<Wanted, DeviceError> {
        let rows = program.max_rows as usize;
        let rows_packed = program.max_rows.max(program.max_outputs);
        let packed_bytes = |cols| packed_rows::packed_bytes(rows_packed, cols);
        let matrix = |linear: &Linear| self.resources.matrix(linear.matrix);
        let products = |numbers: usize| 4 * rows * numbers;
        let all_rows = (program.max_rows, program.max_rows);
        let mut wanted = Wanted::default();
        match op {
            Op::Qkv { shape, query, keys: None, .. } => {
                wanted.products = products((shape.heads * shape.head_dim) as usize);
                wanted.norms(matrix(query)?.cols, rows_packed);
                self.splits(&mut wanted, &[query], all_rows, LinearMode::Store)?;
            }
            Op::Qkv { shape, query, keys: Some(keys), .. } => {
                let heads = (shape.heads + 2 * shape.kv_heads) as usize;
                let gpu = (self.gpu, self.warpgroups);
                let linears = [query, &keys.key, &keys.value];
                let deferred = DeferredProducts::of(gpu, self.resources, program, *shape, linears)?;
                let splits = deferred.map_or(1, |products| products.splits);
                wanted.products = products(splits as usize * heads * shape.head_dim as usize);
                wanted.norms(matrix(query)?.cols, rows_packed);
                self.splits(&mut wanted, &linears, all_rows, LinearMode::Store)?;
            }
            Op::Attention { shape, window, .. } => {
                let cache = &self.resources.cache(program.cache)?.desc;
                wanted.partials =
                    attention::partials_bytes(self.gpu, cache, program, *shape, *window);
                wanted.arrivals = products(shape.heads as usize);
                wanted.packed_attention = packed_bytes(shape.heads * shape.head_dim);
            }
            Op::Project { linear, post_norm, scale, .. } => {
                if post_norm.is_some() || *scale != 1.0 {
                    wanted.products = products(matrix(linear)?.rows as usize);
                }
                wanted.packed = packed_bytes(matrix(linear)?.cols);
                self.splits(&mut wanted, &[linear], all_rows, LinearMode::Add)?;
            }
            Op::GateUp { gate, up, .. } => {
                let (g, u) = (matrix(gate)?, matrix(up)?);
                let is_gate = g.ty == u.ty;
                wanted.products =
                    products(if is_gate { 0 } else { 2 * aligned_numbers(g.rows) as usize });
                wanted.norms(g.cols, rows_packed);
                wanted.packed_hidden = packed_bytes(g.rows);
                let mode = if is_gate { LinearMode::GateSilu } else { LinearMode::Store };
                self.splits(&mut wanted, &[gate, up], all_rows, mode)?;
            }
            Op::ShortConv { input, .. } => {
                wanted.products = products(3 * matrix(&input[0])?.rows as usize);
                wanted.norms(matrix(&input[0])?.cols, rows_packed);
                let [b, c, v] = input;
                self.splits(&mut wanted, &[b, c, v], all_rows, LinearMode::Store)?;
            }
            Op::DeltaNet { x, norm, shape, input, alpha, beta, out, .. } => {
                let numbers = DeltaProducts::of(*shape).numbers(*shape, program.max_rows);
                wanted.products = usize::try_from(numbers).unwrap_or(usize::MAX / 8) * 4;
                wanted.norms(matrix(input)?.cols, rows_packed);
                wanted.packed_mixed = packed_bytes(shape.values());
                let gate = gate_of(self.resources, later, (*x, norm, *out), *shape);
                let wide: Vec<_> = std::iter::once(input).chain(gate).collect();
                self.splits(&mut wanted, &wide, all_rows, LinearMode::Store)?;
                self.splits(&mut wanted, &[alpha, beta], all_rows, LinearMode::Store)?;
            }
            Op::Gate { linear, y, .. } => {
                let matrix = matrix(linear)?;
                wanted.products = products(aligned_numbers(matrix.rows) as usize);
                wanted.norms(matrix.cols, rows_packed);
                let width = program.slots.get(y.0 as usize).map_or(0, |slot| slot.width);
                wanted.packed_mixed = packed_bytes(width);
                self.splits(&mut wanted, &[linear], all_rows, LinearMode::Store)?;
            }
            Op::Experts { router, used, gate, .. } => {
                let (router, gate) =
                    (self.resources.matrix(*router)?, self.resources.matrix(*gate)?);
                wanted.products = products(router.rows as usize);
                wanted.norms(router.cols, rows_packed);
                wanted.experts = experts::Parts::of(program.max_rows, *used, router, gate);
            }
            Op::Head { linear, .. } => {
                wanted.norms(matrix(linear)?.cols, rows_packed);
                wanted.gathered = wanted.packed_normed;
                wanted.gathered_squares = wanted.squares;
                self.splits(
                    &mut wanted,
                    &[linear],
                    (program.max_outputs, program.max_rows),
                    LinearMode::Store,
                )?;
            }
            Op::LayerInputs { projection, .. } => {
                let matrix = matrix(projection)?;
                wanted.products = products(matrix.rows as usize);
                wanted.packed = packed_bytes(matrix.cols);
                self.splits(&mut wanted, &[projection], all_rows, LinearMode::Store)?;
            }
            Op::GateInput { linear, .. } => {
                let matrix = matrix(linear)?;
                wanted.products = products(aligned_numbers(matrix.rows) as usize);
                wanted.packed = packed_bytes(matrix.cols);
                wanted.packed_mixed = packed_bytes(matrix.rows);
                self.splits(&mut wanted, &[linear], all_rows, LinearMode::Store)?;
            }
            Op::Embed { .. } | Op::Hidden { .. } | Op::Sample => {}
        }
        Ok(wanted)
    }

    /// Split-K workspace for an op's launches, one launch per run of equal types. `rows`: the rows
    /// multiplied and the rows packed.
    fn splits(
        &self,
        wanted: &mut Wanted,
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
            wanted.split_sums = wanted.split_sums.max(sums);
            wanted.split_arrivals = wanted.split_arrivals.max(arrivals);
        }
        Ok(())
    }
}

impl Wanted {
    /// Rows packed as a norm's input, and the sums of squares that their producer writes.
    fn norms(&mut self, width: u32, rows: u32) {
        self.packed_normed = packed_rows::packed_bytes(rows, width);
        self.squares = 4 * rows as usize * packed_rows::squares_count(width) as usize;
    }
}
