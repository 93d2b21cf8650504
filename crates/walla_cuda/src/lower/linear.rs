//! Matrix products: embed, project, gate and up, head. On tensor cores over packed rows (`pack`, then `matmul`), or in f32
//! (`linear`) for types that tensor cores would round too coarsely.

use walla_device::{DeviceError, GpuFacts, Linear, Norm, Program, Slot};
use walla_types::{Activation, TensorType};

use super::tiling::{GROUP_ROWS, Product, Tiling};
use super::{Lowering, same};
use crate::driver::Launch;
use crate::params::{
    AddNormParams, Address, EmbedParams, GateParams, LinearMode, LinearParams, MatmulParams,
    PackParams, PackedRef, Segment,
};
use crate::repack::{self, Layout};
use crate::resources::Matrix;

/// Warps of a block of the linear kernels (`LINEAR_WARPS` in linear.cuh).
const LINEAR_WARPS: u32 = 8;
/// Bytes that one row of x takes in shared memory: `padded(LINEAR_COLS)` floats.
const LINEAR_STAGED_BYTES: u32 = 4 * (2048 + 2048 / 32 * 4);

/// Shared memory that a kernel has besides what a launch asks for, at most.
const SHARED_STATIC: u32 = 2_048;
/// Rows that are no norm's result are scaled by this before they are rounded to f16, so that activations up to 4 million
/// stay finite.
const PROJECT_SCALE: f32 = 1.0 / 64.0;

/// How rows are packed for tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// As f16.
    Half,
}

/// Bytes that packed rows take at most.
pub(super) fn packed_bytes(rows: u32, cols: u32) -> usize {
    let rows = rows.next_multiple_of(GROUP_ROWS) as usize;
    2 * rows * (cols as usize).next_multiple_of(repack::SEGMENT)
}

/// What a linear kernel reads.
pub(super) struct Input {
    slot: Slot,
    x: Address,
    width: u32,
    norm: Option<(Address, f32)>,
    rows: u32,
    by_output: bool,
    /// Where a kernel before has packed it already.
    packed: Option<PackedRef>,
}

/// The rows of a slot as a norm's input, packed: times the norm's weights and a factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normed {
    slot: Slot,
    /// The norm's weights.
    norm: Address,
    rows: PackedRef,
    /// The factor that they are packed with, of each row: the norm's own, or one near to it.
    used: Address,
    /// Sums of squares of which the norm's own follows, and how many of each row; none if the factor is the norm's own.
    squares: Option<(Address, u32)>,
}

/// Rows that a group has room for. Where rows are padded it is the same for all programs, so that none writes where another's
/// padding lies: that is zeros for ever.
fn group_rows(rows: u32, width: u32) -> u32 {
    if width.is_multiple_of(repack::SEGMENT as u32) {
        rows.clamp(1, GROUP_ROWS)
    } else {
        GROUP_ROWS
    }
}

/// Sums of squares of a row: one for each tile that makes it, and zeros up to a multiple of four.
pub(super) fn squares_count(width: u32) -> u32 {
    width.div_ceil(repack::TILE_ROWS as u32).next_multiple_of(4)
}

/// Describes packed rows at an address.
pub(super) fn packed(
    rows: Address,
    _packing: Packing,
    (rows_max, width): (u32, u32),
    is_normed: bool,
) -> PackedRef {
    PackedRef {
        rows,
        segments: width.div_ceil(repack::SEGMENT as u32),
        scale: if is_normed { 1.0 } else { PROJECT_SCALE },
        group_rows: group_rows(rows_max, width),
        reserved: 0,
    }
}

impl Input {
    /// Whether these are the rows, packed for the same norm.
    fn is(&self, normed: &Normed) -> bool {
        normed.slot == self.slot && self.norm.is_some_and(|(norm, _)| norm == normed.norm)
    }
}

/// What becomes of a product.
pub(super) enum Then {
    /// It is stored.
    Store,
    /// It is added to what is there; the sum may be left packed for the next norm.
    Add(Option<Normed>),
    /// An activation of the first half times the second; may be left packed instead.
    Gate(LinearMode, Option<PackedRef>),
}

impl Then {
    fn mode(&self) -> LinearMode {
        match self {
            Self::Store => LinearMode::Store,
            Self::Add(_) => LinearMode::Add,
            Self::Gate(mode, _) => *mode,
        }
    }
}

/// One matrix of a launch: the product's address and the numbers from one row of it to the next.
pub(super) struct Part<'a> {
    pub(super) linear: &'a Linear,
    pub(super) out: Address,
    pub(super) stride: u32,
}

impl Lowering<'_> {
    pub(super) fn embed(
        &mut self,
        program: &Program,
        table: &Matrix,
        scale: f32,
        x: Slot,
    ) -> Result<Launch, DeviceError> {
        let (x, width) = self.slot(program, x)?;
        same("embedding width", table.cols, width)?;
        let cache = self.resources.cache(program.cache)?;
        let params = EmbedParams {
            step: self.step(program)?,
            results: self.results(program)?,
            table: table.weight,
            x,
            last_sampled: cache.last_sampled.address(),
            recent: cache.recent.address(),
            width,
            scale: scale * table.weight.scale,
        };
        self.launch(("embed", "embed"), [program.rows_max, 1, 1], 128, &params)
    }

    pub(super) fn project(
        &mut self,
        program: &Program,
        y: Slot,
        linear: &Linear,
        post_norm: Option<&Norm>,
        x_slot: Slot,
        next_norm: Option<Norm>,
    ) -> Result<Vec<Launch>, DeviceError> {
        let (x, width) = self.slot(program, x_slot)?;
        same("projected width", self.resources.matrix(linear.matrix)?.rows, width)?;
        let mut input = self.input(program, y, None)?;
        input.packed = self.packed.take().filter(|(slot, ..)| *slot == y).map(|(_, r, _)| r);
        // The rows change: what was packed of them is old, but the factors of their last norm are near to those of the next.
        let near = self.normed.take().filter(|normed| normed.slot == x_slot);
        let Some(norm) = post_norm else {
            let part = Part { linear, out: x, stride: width };
            let next = match (near, next_norm) {
                (Some(_), Some(norm)) => Some(self.next_normed(program, x_slot, &norm)?),
                _ => None,
            };
            let launches = self.linears(program, &input, &[part], Then::Add(next))?;
            let on_tensor_cores = self.packing(self.resources.matrix(linear.matrix)?.ty).is_some();
            self.normed = next.filter(|_| on_tensor_cores);
            return Ok(launches);
        };
        let y = self.base + self.workspace.products as u64;
        let part = Part { linear, out: y, stride: width };
        let mut launches = self.linears(program, &input, &[part], Then::Store)?;
        let weight = self.resources.vector(norm.weight)?;
        same("post norm", weight.len, width)?;
        let step = self.step(program)?;
        let params =
            AddNormParams { step, y, weight: weight.memory.address(), x, width, eps: norm.eps };
        let grid = [program.rows_max, 1, 1];
        launches.push(self.launch(("add_norm", "add_norm"), grid, 256, &params)?);
        Ok(launches)
    }

    pub(super) fn gate_up(
        &mut self,
        program: &Program,
        input: &Input,
        (gate, up): (&Linear, &Linear),
        activation: Activation,
        (h_slot, consumer): (Slot, Option<Packing>),
    ) -> Result<Vec<Launch>, DeviceError> {
        let (h, hidden) = self.slot(program, h_slot)?;
        let matrices = [self.resources.matrix(gate.matrix)?, self.resources.matrix(up.matrix)?];
        for matrix in matrices {
            same("hidden width", matrix.rows, hidden)?;
        }
        let mode = match activation {
            Activation::Silu => LinearMode::GateSilu,
            Activation::GeluTanh => LinearMode::GateGelu,
        };
        if matrices[0].ty == matrices[1].ty {
            let parts = [gate, up].map(|linear| Part { linear, out: h, stride: hidden });
            let mut rows = None;
            if let (Some(_), Some(packing)) = (self.packing(matrices[0].ty), consumer) {
                let at = self.base + self.workspace.packed_hidden as u64;
                rows = Some(packed(at, packing, (program.rows_max, hidden), false));
                self.packed = rows.map(|rows| (h_slot, rows, packing));
            }
            return self.linears(program, input, &parts, Then::Gate(mode, rows));
        }
        // Different types need different kernels: products first, then the gate.
        let products = self.base + self.workspace.products as u64;
        let stride = 2 * hidden;
        let parts = [
            Part { linear: gate, out: products, stride },
            Part { linear: up, out: products + 4 * u64::from(hidden), stride },
        ];
        let mut launches = self.linears(program, input, &parts, Then::Store)?;
        let params =
            GateParams { step: self.step(program)?, products, h, hidden, mode: mode as u32 };
        let grid = [hidden.div_ceil(256), program.rows_max, 1];
        launches.push(self.launch(("gate", "gate"), grid, 256, &params)?);
        Ok(launches)
    }

    pub(super) fn head(
        &mut self,
        program: &Program,
        x: Slot,
        norm: &Norm,
        linear: &Linear,
    ) -> Result<Vec<Launch>, DeviceError> {
        same("vocabulary", self.resources.matrix(linear.matrix)?.rows, program.vocab)?;
        let out = self.resources.buffer(program.logits)?;
        let wanted = 4 * program.outputs_max as usize * program.vocab as usize;
        if out.bytes() < wanted {
            return Err(DeviceError::Invalid(format!("logits buffer below {wanted} bytes")));
        }
        let input = self.input(program, x, Some(norm))?;
        let input = Input { rows: program.outputs_max, by_output: true, ..input };
        let part = Part { linear, out: out.address(), stride: program.vocab };
        self.linears(program, &input, &[part], Then::Store)
    }

    pub(super) fn input(
        &self,
        program: &Program,
        slot: Slot,
        norm: Option<&Norm>,
    ) -> Result<Input, DeviceError> {
        let (x, width) = self.slot(program, slot)?;
        let norm = match norm {
            Some(norm) => {
                let weight = self.resources.vector(norm.weight)?;
                same("norm width", weight.len, width)?;
                Some((weight.memory.address(), norm.eps))
            }
            None => None,
        };
        Ok(Input { slot, x, width, norm, rows: program.rows_max, by_output: false, packed: None })
    }

    /// Products of at most three matrices of one input, a launch for each run of one type.
    pub(super) fn linears(
        &mut self,
        program: &Program,
        input: &Input,
        parts: &[Part<'_>],
        then: Then,
    ) -> Result<Vec<Launch>, DeviceError> {
        let mut types = Vec::with_capacity(parts.len());
        for part in parts {
            types.push(self.resources.matrix(part.linear.matrix)?.ty);
        }
        let mut launches = Vec::new();
        let mut rest = parts;
        for run in types.chunk_by(|a, b| a == b) {
            let (now, later) = rest.split_at(run.len());
            if run.first().is_some_and(|ty| self.packing(*ty).is_some()) {
                let x = self.operand(program, input, &mut launches)?;
                launches.push(self.matmul(program, input, &x, now, &then)?);
            } else {
                launches.push(self.linear(program, input, now, then.mode())?);
            }
            rest = later;
        }
        // Whoever normed the rows left their factor: it is near to that of the next norm.
        if let Some(normed) = self.normed.as_mut().filter(|n| input.is(n) && n.squares.is_some()) {
            self.factors = !self.factors;
            normed.squares = None;
        }
        Ok(launches)
    }

    /// The rows that tensor cores are to multiply with: packed by a kernel before, or by one that is launched now.
    fn operand(
        &mut self,
        program: &Program,
        input: &Input,
        launches: &mut Vec<Launch>,
    ) -> Result<Normed, DeviceError> {
        if let Some(normed) = self.normed.filter(|normed| input.is(normed)) {
            return Ok(normed);
        }
        let (norm, eps) = input.norm.unwrap_or_default();
        let operand = |rows| Normed { slot: input.slot, norm, rows, used: 0, squares: None };
        if let Some(rows) = input.packed {
            return Ok(operand(rows));
        }
        let is_normed = input.norm.is_some();
        let at = if is_normed { self.workspace.packed_normed } else { self.workspace.packed };
        let at = self.base + at as u64;
        let shape = (program.rows_max, input.width);
        let rows = packed(at, Packing::Half, shape, is_normed);
        let used = if is_normed { self.factors(self.factors) } else { 0 };
        let params = PackParams {
            step: self.step(program)?,
            x: input.x,
            norm,
            packed: rows,
            factors: used,
            width: input.width,
            eps,
            by_output: 0,
            rows_last: program.rows_max - 1,
        };
        let grid = [program.rows_max, 1, 1];
        launches.push(self.launch(("pack", "pack"), grid, 256, &params)?);
        let operand = Normed { used, ..operand(rows) };
        if is_normed {
            self.normed = Some(operand);
        }
        Ok(operand)
    }

    /// What a projection leaves of its sums for the next norm.
    fn next_normed(
        &self,
        program: &Program,
        slot: Slot,
        norm: &Norm,
    ) -> Result<Normed, DeviceError> {
        let (_, width) = self.slot(program, slot)?;
        let at = self.base + self.workspace.packed_normed as u64;
        let squares = self.base + self.workspace.squares as u64;
        Ok(Normed {
            slot,
            norm: self.resources.vector(norm.weight)?.memory.address(),
            rows: packed(at, Packing::Half, (program.rows_max, width), true),
            used: self.factors(self.factors),
            squares: Some((squares, squares_count(width))),
        })
    }

    /// Where norms leave the factors of rows: in turn in two places, since one is read while the other is written.
    fn factors(&self, second: bool) -> Address {
        let half = if second { self.workspace.factors_bytes as u64 / 2 } else { 0 };
        self.base + self.workspace.factors as u64 + half
    }

    /// How tensor cores want the rows for a type; `None` if they are not for it.
    #[expect(clippy::unused_self, reason = "an answer that may come to depend on the chip")]
    pub(super) fn packing(&self, ty: TensorType) -> Option<Packing> {
        (ty != TensorType::F32).then_some(Packing::Half)
    }

    fn matmul(
        &mut self,
        program: &Program,
        input: &Input,
        x: &Normed,
        parts: &[Part<'_>],
        then: &Then,
    ) -> Result<Launch, DeviceError> {
        let gpu = &self.context.gpu().facts;
        let (product, name) = self.product(input, x, parts, then)?;
        let unsupported = || self.unsupported(format!("{} columns of {name}", input.width));
        let tiling = Tiling::of(&product, gpu).ok_or_else(unsupported)?;
        let shared_bytes_max = gpu.shared_bytes_per_block_optin as u32 - SHARED_STATIC;
        let (squares, squares_count) = x.squares.unwrap_or_default();
        let mut params = MatmulParams {
            step: self.step(program)?,
            x: x.rows,
            squares,
            squares_count,
            used: x.used,
            // Every launch of an op leaves the same.
            factors: if squares == 0 || input.by_output { 0 } else { self.factors(!self.factors) },
            inverse_width: 1.0 / input.width as f32,
            eps: input.norm.map_or(0.0, |(_, eps)| eps),
            mode: then.mode() as u32,
            parts: parts.len() as u32,
            rows_max: input.rows,
            rows_last: program.rows_max - 1,
            tiles: product.tiles,
            splits: tiling.splits,
            split_segments: tiling.split_segments,
            run: tiling.run,
            warps: tiling.warps,
            teams: tiling.teams,
            chunk: tiling.chunk,
            depth: tiling.depth,
            by_output: u32::from(input.by_output),
            unscale: 1.0 / x.rows.scale,
            partials: self.base + self.workspace.split_sums as u64,
            arrivals: self.base + self.workspace.split_arrivals as u64,
            ..MatmulParams::default()
        };
        match then {
            Then::Store | Then::Add(None) | Then::Gate(_, None) => {}
            Then::Gate(_, Some(rows)) => params.packed = *rows,
            Then::Add(Some(next)) => {
                params.packed = next.rows;
                params.next_norm = next.norm;
                params.next_factors = next.used;
                (params.next_squares, params.next_squares_count) = next.squares.unwrap_or_default();
            }
        }
        let mut first = 0;
        for (segment, part) in params.part.iter_mut().zip(parts) {
            let matrix = self.resources.matrix(part.linear.matrix)?;
            *segment = self.segment(input, part, matrix, first)?;
            first += matrix.rows.div_ceil(repack::TILE_ROWS as u32);
        }
        let kernel = format!("matmul_{name}_{}", tiling.groups);
        let file = format!("matmul_{name}");
        let function = self.kernels.get(self.context, &file, &kernel, shared_bytes_max)?;
        let threads = 32 * tiling.warps * tiling.teams;
        let overlap = self.context.gpu().facts.programmatic_launch;
        let shared_bytes = tiling.shared_bytes;
        Ok(Launch { overlap, shared_bytes, ..Launch::new(function, tiling.grid, threads, &params) })
    }

    /// What is to be multiplied, and the name of the weights' type.
    fn product(
        &self,
        input: &Input,
        x: &Normed,
        parts: &[Part<'_>],
        then: &Then,
    ) -> Result<(Product, String), DeviceError> {
        let mut tiles = 0;
        let mut ty = TensorType::F16;
        for part in parts {
            let matrix = self.resources.matrix(part.linear.matrix)?;
            tiles += matrix.rows.div_ceil(repack::TILE_ROWS as u32);
            ty = matrix.ty;
            if let Then::Gate(..) = then {
                // Tiles of eight rows of each of two matrices.
                tiles = matrix.rows.div_ceil(repack::TILE_ROWS as u32 / 2);
            }
        }
        let layout = Layout::of(ty, input.width as usize);
        let record_bytes = layout.map_or(0, |layout| layout.record_bytes() as u32);
        let (segments, group_rows) = (x.rows.segments, x.rows.group_rows);
        let product = Product { record_bytes, segments, tiles, rows: input.rows, group_rows };
        Ok((product, repack::kernel_name(ty)))
    }

    /// Bytes that a product's splits take when they have blocks of their own.
    pub(super) fn split_bytes(
        gpu: &GpuFacts,
        matrices: &[&Matrix],
        rows: u32,
        is_gate: bool,
    ) -> (usize, usize) {
        let Some(first) = matrices.first() else { return (0, 0) };
        let Some(layout) = Layout::of(first.ty, first.cols as usize) else { return (0, 0) };
        let of = |rows_each: usize| matrices.iter().map(move |m| m.rows.div_ceil(rows_each as u32));
        let tiles = if is_gate {
            of(repack::TILE_ROWS / 2).next().unwrap_or(0)
        } else {
            of(repack::TILE_ROWS).sum()
        };
        let product = Product {
            record_bytes: layout.record_bytes() as u32,
            segments: layout.segments as u32,
            tiles,
            rows,
            group_rows: group_rows(rows, first.cols),
        };
        Tiling::of(&product, gpu).map_or((0, 0), |tiling| tiling.partials(tiles))
    }

    /// One launch over at most three matrices of one type.
    fn linear(
        &mut self,
        program: &Program,
        input: &Input,
        parts: &[Part<'_>],
        mode: LinearMode,
    ) -> Result<Launch, DeviceError> {
        let Some(first) = parts.first() else {
            return Err(DeviceError::Invalid("a linear without a matrix".to_owned()));
        };
        let ty = self.resources.matrix(first.linear.matrix)?.ty;
        let (norm, eps) = input.norm.unwrap_or((0, 0.0));
        let mut params = LinearParams {
            step: self.step(program)?,
            x: input.x,
            norm,
            x_stride: input.width,
            width: input.width,
            eps,
            mode: mode as u32,
            by_output: u32::from(input.by_output),
            segments: parts.len() as u32,
            ..LinearParams::default()
        };
        let gated = matches!(mode, LinearMode::GateSilu | LinearMode::GateGelu);
        let mut pairs = 0;
        for (segment, part) in params.segment.iter_mut().zip(parts) {
            let matrix = self.resources.matrix(part.linear.matrix)?;
            *segment = self.segment(input, part, matrix, pairs)?;
            // A warp makes two rows of W: neighbours, or one of the gate and the same one of up.
            pairs = if gated { matrix.rows } else { pairs + matrix.rows.div_ceil(2) };
        }
        // Rows of x that share one reading of W.
        let group = match input.rows {
            0 | 1 => 1,
            2 => 2,
            3 | 4 => 4,
            _ => 8,
        };
        let name = repack::kernel_name(ty);
        let grid = [pairs.div_ceil(LINEAR_WARPS), input.rows.div_ceil(group).max(1), 1];
        let (file, kernel) = (format!("linear_{name}"), format!("linear_{name}_{group}"));
        let shared_bytes = group * LINEAR_STAGED_BYTES;
        self.launch_shared((&file, &kernel), grid, 32 * LINEAR_WARPS, shared_bytes, &params)
    }

    fn segment(
        &self,
        input: &Input,
        part: &Part<'_>,
        matrix: &Matrix,
        first_pair: u32,
    ) -> Result<Segment, DeviceError> {
        if !matrix.usage.multiply {
            return Err(DeviceError::Invalid(format!("{} is not to multiply with", matrix.name)));
        }
        same("input width", matrix.cols, input.width)?;
        let bias = match part.linear.bias {
            Some(bias) => {
                let bias = self.resources.vector(bias)?;
                same("bias", bias.len, matrix.rows)?;
                bias.memory.address()
            }
            None => 0,
        };
        let (out, out_stride) = (part.out, part.stride);
        Ok(Segment { weight: matrix.weight, bias, out, out_stride, first_pair })
    }
}
