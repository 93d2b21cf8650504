//! Matrix products: embed, project, gate and up, head. On tensor cores over packed rows (`pack`, then `matmul`), or in f32
//! (`linear`) for types that tensor cores would round too coarsely.

use walla_device::{DeviceError, Linear, Norm, Program, Slot};
use walla_types::{Activation, TensorType};

use super::{Lowering, same};
use crate::driver::Launch;
use crate::params::{
    AddNormParams, Address, EmbedParams, GateParams, LinearMode, LinearParams, MatmulParams,
    PackParams, PackedRef, Segment,
};
use crate::repack;
use crate::resources::Matrix;

/// Warps of a block of the linear kernels (`LINEAR_WARPS` in linear.cuh).
const LINEAR_WARPS: u32 = 8;
/// Bytes that one row of x takes in shared memory: `padded(LINEAR_COLS)` floats.
const LINEAR_STAGED_BYTES: u32 = 4 * (2048 + 2048 / 32 * 4);

/// Most warps that share out the columns of a matrix (`MATMUL_WARPS_MAX` in matmul.cuh).
const MATMUL_WARPS_MAX: u32 = 8;
/// Rows of x that one multiplication of tensor cores takes.
const GROUP_ROWS: u32 = 8;
/// Rows that are no norm's result are scaled by this before they are rounded to f16, so that activations up to 4 million
/// stay finite.
const PROJECT_SCALE: f32 = 1.0 / 64.0;

/// How rows are packed for tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// As f16.
    Half,
    /// As two bf16 that add up.
    Brain,
}

/// Bytes that packed rows take at most.
pub(super) fn packed_bytes(rows: u32, cols: u32) -> usize {
    let rows = rows.next_multiple_of(GROUP_ROWS) as usize;
    2 * 2 * rows * (cols as usize).next_multiple_of(repack::SEGMENT)
}

/// What a linear kernel reads.
pub(super) struct Input {
    x: Address,
    width: u32,
    norm: Option<(Address, f32)>,
    rows: u32,
    by_output: bool,
    /// Where a kernel before has packed it already, and how.
    packed: Option<(PackedRef, Packing)>,
}

/// Describes packed rows at an address.
pub(super) fn packed(
    rows: Address,
    packing: Packing,
    (rows_max, width): (u32, u32),
    is_normed: bool,
) -> PackedRef {
    PackedRef {
        rows,
        segments: width.div_ceil(repack::SEGMENT as u32),
        lower_offset: match packing {
            Packing::Half => 0,
            Packing::Brain => (packed_bytes(rows_max, width) / 2) as u32,
        },
        scale: match (packing, is_normed) {
            (Packing::Half, false) => PROJECT_SCALE,
            _ => 1.0,
        },
        reserved: 0,
    }
}

/// Groups of rows of x and tiles of W that one block takes. Neither changes a sum: more of either saves reading, fewer give the
/// device more blocks.
fn tiling(groups: u32, tiles: u32, gated: bool) -> (u32, u32) {
    (groups.min(4), if gated || tiles >= 512 { 2 } else { 1 })
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
            scale,
        };
        self.launch(("embed", "embed"), [program.rows_max, 1, 1], 128, &params)
    }

    pub(super) fn project(
        &mut self,
        program: &Program,
        y: Slot,
        linear: &Linear,
        post_norm: Option<&Norm>,
        x: Slot,
    ) -> Result<Vec<Launch>, DeviceError> {
        let (x, width) = self.slot(program, x)?;
        same("projected width", self.resources.matrix(linear.matrix)?.rows, width)?;
        let mut input = self.input(program, y, None)?;
        input.packed = self.packed.take().filter(|(slot, ..)| *slot == y).map(|(_, r, p)| (r, p));
        let Some(norm) = post_norm else {
            let part = Part { linear, out: x, stride: width };
            return self.linears(program, &input, &[part], LinearMode::Add);
        };
        let y = self.base + self.workspace.products as u64;
        let part = Part { linear, out: y, stride: width };
        let mut launches = self.linears(program, &input, &[part], LinearMode::Store)?;
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
            if let (Some(_), Some(packing)) = (self.packing(matrices[0].ty), consumer) {
                let at = self.base + self.workspace.packed_hidden as u64;
                let rows = packed(at, packing, (program.rows_max, hidden), false);
                self.packed = Some((h_slot, rows, packing));
            }
            return self.linears(program, input, &parts, mode);
        }
        // Different types need different kernels: products first, then the gate.
        let products = self.base + self.workspace.products as u64;
        let stride = 2 * hidden;
        let parts = [
            Part { linear: gate, out: products, stride },
            Part { linear: up, out: products + 4 * u64::from(hidden), stride },
        ];
        let mut launches = self.linears(program, input, &parts, LinearMode::Store)?;
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
        self.linears(program, &input, &[part], LinearMode::Store)
    }

    pub(super) fn input(
        &self,
        program: &Program,
        x: Slot,
        norm: Option<&Norm>,
    ) -> Result<Input, DeviceError> {
        let (x, width) = self.slot(program, x)?;
        let norm = match norm {
            Some(norm) => {
                let weight = self.resources.vector(norm.weight)?;
                same("norm width", weight.len, width)?;
                Some((weight.memory.address(), norm.eps))
            }
            None => None,
        };
        Ok(Input { x, width, norm, rows: program.rows_max, by_output: false, packed: None })
    }

    /// Products of at most three matrices of one input, a launch for each run of one type.
    pub(super) fn linears(
        &mut self,
        program: &Program,
        input: &Input,
        parts: &[Part<'_>],
        mode: LinearMode,
    ) -> Result<Vec<Launch>, DeviceError> {
        let mut types = Vec::with_capacity(parts.len());
        for part in parts {
            types.push(self.resources.matrix(part.linear.matrix)?.ty);
        }
        let mut launches = Vec::new();
        let mut ready = input.packed;
        let mut rest = parts;
        for run in types.chunk_by(|a, b| a == b) {
            let (now, later) = rest.split_at(run.len());
            let packing = run.first().and_then(|ty| self.packing(*ty));
            if let Some(packing) = packing {
                let rows = match ready {
                    Some((rows, found)) if found == packing => rows,
                    _ => {
                        let (launch, rows) = self.pack(program, input, packing)?;
                        launches.push(launch);
                        ready = Some((rows, packing));
                        rows
                    }
                };
                launches.push(self.matmul(input, rows, now, mode)?);
            } else {
                launches.push(self.linear(program, input, now, mode)?);
            }
            rest = later;
        }
        Ok(launches)
    }

    /// How tensor cores want the rows for a type; `None` if they are not for it.
    pub(super) fn packing(&self, ty: TensorType) -> Option<Packing> {
        let capability = self.context.gpu().facts.compute_capability;
        match ty {
            TensorType::F32 => None,
            TensorType::BF16 => (capability >= (8, 0)).then_some(Packing::Brain),
            _ => Some(Packing::Half),
        }
    }

    fn pack(
        &mut self,
        program: &Program,
        input: &Input,
        packing: Packing,
    ) -> Result<(Launch, PackedRef), DeviceError> {
        let (norm, eps) = input.norm.unwrap_or((0, 0.0));
        let at = self.base + self.workspace.packed as u64;
        let rows = packed(at, packing, (input.rows, input.width), input.norm.is_some());
        let params = PackParams {
            step: self.step(program)?,
            x: input.x,
            norm,
            packed: rows,
            width: input.width,
            eps,
            by_output: u32::from(input.by_output),
            rows_last: program.rows_max - 1,
        };
        let grid = [input.rows.max(1), 1, 1];
        Ok((self.launch(("pack", "pack"), grid, 256, &params)?, rows))
    }

    fn matmul(
        &mut self,
        input: &Input,
        x: PackedRef,
        parts: &[Part<'_>],
        mode: LinearMode,
    ) -> Result<Launch, DeviceError> {
        let gated = matches!(mode, LinearMode::GateSilu | LinearMode::GateGelu);
        let mut params = MatmulParams {
            x,
            h: self.packed.filter(|_| gated).map(|(_, rows, _)| rows).unwrap_or_default(),
            mode: mode as u32,
            segments: parts.len() as u32,
            rows_max: input.rows,
            ..MatmulParams::default()
        };
        let mut tiles = 0;
        let mut name = String::new();
        for (segment, part) in params.segment.iter_mut().zip(parts) {
            let matrix = self.resources.matrix(part.linear.matrix)?;
            *segment = self.segment(input, part, matrix, tiles)?;
            name = repack::kernel_name(matrix.ty);
            tiles += matrix.rows.div_ceil(repack::TILE_ROWS as u32);
        }
        let groups = input.rows.div_ceil(GROUP_ROWS).max(1).next_power_of_two();
        let (groups, tiles_each) = tiling(groups, tiles, gated);
        let warps = x.segments.clamp(1, MATMUL_WARPS_MAX);
        params.turns = tiles.div_ceil(tiles_each);
        let row_blocks = input.rows.div_ceil(GROUP_ROWS * groups).max(1);
        let resident =
            self.context.gpu().facts.multiprocessors * if groups * tiles_each <= 2 { 2 } else { 1 };
        let grid = [params.turns.min((resident / row_blocks).max(1)), row_blocks, 1];
        let kernel = format!("matmul_{name}_{groups}x{tiles_each}");
        self.launch((&format!("matmul_{name}"), &kernel), grid, 32 * warps, &params)
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
