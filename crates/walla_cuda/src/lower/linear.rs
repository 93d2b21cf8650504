//! Matrix products: embed, project, gate and up, head. They run on tensor cores over packed rows
//! (`pack`, then `matmul`), or in f32 (`linear`) for types that tensor cores would round too
//! coarsely.

use walla_device::{DeviceError, Norm, Op, Slot, op};
use walla_types::Activation;

use super::gate_rows::aligned_numbers;
use super::operands::{Input, Normed, Part};
use super::product::{Epilogue, ProductLaunch, on_tensor_cores};
use super::{Area, Lowering, next_norm, same};
use crate::params::{
    AddNormParams, EmbedParams, GateRowsParams, LinearMode, LinearParams, MatrixPart, PagesRef,
};
use crate::repack;
use crate::resources::Matrix;

/// Warps of a block of the linear kernels (`LINEAR_WARPS` in linear.cuh).
const LINEAR_WARPS: u32 = 8;
/// Maximum rows of x per block of these kernels: a power of two.
const MAX_LINEAR_ROWS: u64 = 8;
/// Bytes of one row of x in shared memory: `padded(LINEAR_COLS)` floats.
const LINEAR_STAGED_BYTES: u32 = 4 * (2048 + 2048 / 32 * 4);
/// Maximum threads of a block of add_norm.cu (`MAX_ADD_NORM_THREADS`).
const MAX_ADD_NORM_THREADS: u32 = 1024;

/// Static shared memory of the linear kernels, in bytes (`scratch`).
const LINEAR_STATIC_BYTES: u64 = 4 * LINEAR_WARPS as u64;

/// Rows of x that share one pass over W: a power of two that fits in shared memory.
fn group(rows: u32, shared_bytes: u64) -> u32 {
    let room = shared_bytes.saturating_sub(LINEAR_STATIC_BYTES) / u64::from(LINEAR_STAGED_BYTES);
    let most = 1 << room.clamp(1, MAX_LINEAR_ROWS).ilog2();
    rows.max(1).next_power_of_two().min(most)
}

impl Lowering<'_> {
    pub(super) fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        let table = self.resources.matrix(op.table)?;
        if !table.usage.gather {
            return Err(DeviceError::Invalid(format!("{} is not to look up", table.name)));
        }
        let (x, width) = self.slot(op.x)?;
        same("embedding width", table.cols, width)?;
        let cache = self.resources.cache(self.program.cache)?;
        let params = EmbedParams {
            step: self.step()?,
            results: self.results()?,
            table: table.weight,
            x,
            last_sampled: cache.last_sampled.address(),
            recent: cache.recent.address(),
            width,
            scale: op.scale * table.weight.scale,
        };
        self.launch(("embed", "embed"), [self.program.max_rows, 1, 1], 128, &params)
    }

    pub(super) fn project(&mut self, op: &op::Project, later: &[Op]) -> Result<(), DeviceError> {
        let op::Project { y, ref linear, post_norm, scale, x: x_slot } = *op;
        let next_norm = next_norm(later, x_slot);
        let (x, width) = self.slot(x_slot)?;
        same("projected width", self.resources.matrix(linear.matrix)?.rows, width)?;
        let mut input = self.input(y, None)?;
        input.packed = self.packed.take().filter(|(slot, _)| *slot == y).map(|(_, rows)| rows);
        // The rows change, so their packed form is stale, but the factors of their last norm
        // approximate the next norm's.
        let normed = self.normed.take().filter(|normed| normed.slot == x_slot);
        if post_norm.is_none() && scale == 1.0 {
            let part = Part { linear, out: x, stride: width };
            let next = match (normed, next_norm) {
                (Some(_), Some(norm)) => Some(self.next_normed(x_slot, &norm)?),
                _ => None,
            };
            self.linears(&input, &[part], Epilogue::Add(next))?;
            // Only tensor-core kernels write the sum packed for the next norm.
            let is_left = on_tensor_cores(self.resources.matrix(linear.matrix)?.ty);
            self.normed = next.filter(|_| is_left);
            return Ok(());
        }
        let y = self.products(width);
        let part = Part { linear, out: y, stride: width };
        self.linears(&input, &[part], Epilogue::Store)?;
        let mut params =
            AddNormParams { step: self.step()?, y, x, width, scale, ..Default::default() };
        if let Some(norm) = post_norm {
            params.weight = self.vector("post norm", norm.weight, width)?;
            params.eps = norm.eps;
        }
        let is_on_tensor_cores = on_tensor_cores(self.resources.matrix(linear.matrix)?.ty);
        if let Some(norm) = next_norm.filter(|_| is_on_tensor_cores) {
            let next = self.exactly_normed(x_slot, &norm)?;
            params.next_norm = next.norm;
            params.packed = next.rows;
            params.factors = next.pack_factors;
            params.next_eps = norm.eps;
            self.normed = Some(next);
        }
        // A thread for each four numbers of a row.
        let quads = width.next_multiple_of(repack::SEGMENT as u32) / 4;
        let threads = quads.min(MAX_ADD_NORM_THREADS);
        let grid = [self.program.max_rows, 1, 1];
        self.launch(("add_norm", "add_norm"), grid, threads, &params)
    }

    pub(super) fn gate_up(&mut self, op: &op::GateUp, later: &[Op]) -> Result<(), DeviceError> {
        let op::GateUp { x, norm, gate, up, activation, h: h_slot } = op;
        let mut input = self.input(*x, Some(norm))?;
        input.next_pages = self.next_pages(later)?;
        let (h_slot, is_packed) = (*h_slot, self.is_packed(later, *h_slot)?);
        let (h, hidden) = self.slot(h_slot)?;
        let matrices = [self.resources.matrix(gate.matrix)?, self.resources.matrix(up.matrix)?];
        for matrix in matrices {
            same("hidden width", matrix.rows, hidden)?;
        }
        let mode = match *activation {
            Activation::Silu => LinearMode::GateSilu,
            Activation::GeluTanh => LinearMode::GateGelu,
            Activation::Sigmoid => {
                return Err(self.unsupported("a sigmoid in a feed-forward network".to_owned()));
            }
        };
        if matrices[0].ty == matrices[1].ty {
            let parts = [gate, up].map(|linear| Part { linear, out: h, stride: hidden });
            let mut rows = None;
            if is_packed && on_tensor_cores(matrices[0].ty) {
                rows = Some(self.packed_rows(Area::PackedHidden, hidden, false));
                self.packed = rows.map(|rows| (h_slot, rows));
            }
            return self.linears(&input, &parts, Epilogue::Gate(mode, rows));
        }
        // Different types need different kernels: compute the products first, then the gate.
        let aligned = aligned_numbers(hidden);
        let stride = 2 * aligned;
        let products = self.products(stride);
        let ups = products + 4 * u64::from(aligned);
        let parts =
            [Part { linear: gate, out: products, stride }, Part { linear: up, out: ups, stride }];
        self.linears(&input, &parts, Epilogue::Store)?;
        let gates = GateRowsParams {
            y: ups,
            y_stride: stride,
            products,
            products_stride: stride,
            out: h,
            out_stride: hidden,
            width: hidden,
            mode: mode as u32,
            ..GateRowsParams::default()
        };
        self.launch_gate_rows(gates)
    }

    pub(super) fn head(&mut self, op: &op::Head) -> Result<(), DeviceError> {
        let op::Head { x, norm, linear, soft_cap, suppressed } = op;
        same("vocabulary", self.resources.matrix(linear.matrix)?.rows, self.program.vocab)?;
        let out = self.resources.buffer(self.program.logits)?;
        let wanted = 4 * self.program.max_outputs as usize * self.program.vocab as usize;
        if out.bytes() < wanted {
            return Err(DeviceError::Invalid(format!("logits buffer below {wanted} bytes")));
        }
        let input = self.input(*x, Some(norm))?;
        let input = Input { rows: self.program.max_outputs, by_output: true, ..input };
        let part = Part { linear, out: out.address(), stride: self.program.vocab };
        self.linears(&input, &[part], Epilogue::Store)?;
        self.bound_logits(*soft_cap, suppressed)
    }

    pub(super) fn input(&self, slot: Slot, norm: Option<&Norm>) -> Result<Input, DeviceError> {
        let (x, width) = self.slot(slot)?;
        let norm = match norm {
            Some(norm) => Some((self.vector("norm width", norm.weight, width)?, norm.eps)),
            None => None,
        };
        Ok(Input {
            slot,
            x,
            width,
            norm,
            rows: self.program.max_rows,
            by_output: false,
            packed: None,
            next_pages: PagesRef::default(),
        })
    }

    /// Products of at most three matrices with one input: one launch per run of one type, or one
    /// for two types.
    pub(super) fn linears(
        &mut self,
        input: &Input,
        parts: &[Part<'_>],
        epilogue: Epilogue,
    ) -> Result<(), DeviceError> {
        let mut types = Vec::with_capacity(parts.len());
        for part in parts {
            types.push(self.resources.matrix(part.linear.matrix)?.ty);
        }
        // The previous product, which may share a launch with the next.
        let mut before: Option<ProductLaunch> = None;
        let mut rest = parts;
        for run in types.chunk_by(|a, b| a == b) {
            let (now, later) = rest.split_at(run.len());
            if run.first().is_some_and(|ty| on_tensor_cores(*ty)) {
                let x = self.operand(input)?;
                let product = self.matmul(input, &x, (now, parts), &epilogue)?;
                let pair = before.as_ref().map(|first| self.pair(first, &product)).transpose()?;
                if let Some(pair) = pair.flatten() {
                    self.launches.push(pair);
                    before = None;
                } else {
                    self.launches.extend(before.replace(product).map(|first| first.launch));
                }
            } else {
                self.launches.extend(before.take().map(|product| product.launch));
                self.linear(input, now, epilogue.mode())?;
            }
            rest = later;
        }
        self.launches.extend(before.map(|product| product.launch));
        // The tensor-core kernels wrote the norm factors of these rows, which approximate the
        // factors of the next norm.
        let is_left = types.iter().any(|ty| on_tensor_cores(*ty));
        let is_new = |n: &Normed| input.is(n) && n.squares.is_some() && !n.has_factors;
        let normed = self.normed.as_mut().filter(|n| is_new(n));
        if let Some(normed) = normed.filter(|_| is_left) {
            self.factors = !self.factors;
            normed.has_factors = true;
        }
        Ok(())
    }

    /// One launch over at most three matrices of one type.
    fn linear(
        &mut self,
        input: &Input,
        parts: &[Part<'_>],
        mode: LinearMode,
    ) -> Result<(), DeviceError> {
        let Some(first) = parts.first() else {
            return Err(DeviceError::Invalid("a linear without a matrix".to_owned()));
        };
        let ty = self.resources.matrix(first.linear.matrix)?.ty;
        let (norm, eps) = input.norm.unwrap_or((0, 0.0));
        let mut params = LinearParams {
            step: self.step()?,
            x: input.x,
            norm,
            x_stride: input.width,
            width: input.width,
            eps,
            mode: mode as u32,
            by_output: u32::from(input.by_output),
            parts: parts.len() as u32,
            ..LinearParams::default()
        };
        let gated = mode.is_gate();
        let mut pairs = 0;
        for (to, part) in params.part.iter_mut().zip(parts) {
            let matrix = self.resources.matrix(part.linear.matrix)?;
            *to = self.matrix_part(input, part, matrix, pairs)?;
            // A warp computes two rows of W: adjacent ones, or the same row of gate and up.
            pairs = if gated { matrix.rows } else { pairs + matrix.rows.div_ceil(2) };
        }
        let group = group(input.rows, self.context.gpu().facts.shared_bytes_per_block_optin);
        let name = repack::kernel_name(ty);
        let grid = [pairs.div_ceil(LINEAR_WARPS), input.rows.div_ceil(group).max(1), 1];
        let (file, kernel) = (format!("linear_{name}"), format!("linear_{name}_{group}"));
        let shared_bytes = group * LINEAR_STAGED_BYTES;
        let shared = (shared_bytes, shared_bytes);
        self.launch_shared((&file, &kernel), grid, 32 * LINEAR_WARPS, shared, &params)
    }

    pub(super) fn matrix_part(
        &self,
        input: &Input,
        part: &Part<'_>,
        matrix: &Matrix,
        first_pair: u32,
    ) -> Result<MatrixPart, DeviceError> {
        if !matrix.usage.multiply {
            return Err(DeviceError::Invalid(format!("{} is not to multiply with", matrix.name)));
        }
        same("input width", matrix.cols, input.width)?;
        let bias = match part.linear.bias {
            Some(bias) => self.vector("bias", bias, matrix.rows)?,
            None => 0,
        };
        let (out, out_stride) = (part.out, part.stride);
        Ok(MatrixPart { weight: matrix.weight, bias, out, out_stride, first_pair })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_source::KernelSource;

    #[test]
    fn constants_match_the_kernels() {
        let kernels = KernelSource::read(&["common/walla.cuh", "gemm/linear.cuh"]);
        assert_eq!(kernels.constant("LINEAR_WARPS"), LINEAR_WARPS);
        let staged = kernels.call("padded", &[kernels.constant("LINEAR_COLS")])[0];
        assert_eq!(4 * staged, LINEAR_STAGED_BYTES);
        let add_norm = KernelSource::read(&["common/walla.cuh", "layer/add_norm.cu"]);
        assert_eq!(add_norm.constant("ADD_NORM_THREADS_MAX"), MAX_ADD_NORM_THREADS);
    }

    #[test]
    fn modes_match_the_kernels() {
        let modes =
            [LinearMode::Store, LinearMode::Add, LinearMode::GateSilu, LinearMode::GateGelu];
        assert_eq!(modes.map(|mode| mode as u32), [0, 1, 2, 3]);
        let header = include_str!("../../../../kernels/gemm/linear.cuh");
        assert!(
            header.contains("enum LinearMode : uint32_t { STORE, ADD, GATE_SILU, GATE_GELU };")
        );
    }

    #[test]
    fn row_groups_are_limited_by_shared_memory() {
        let groups = |shared| [0, 1, 2, 3, 4, 5, 128].map(|rows| group(rows, shared));
        assert_eq!(groups(232_448), [1, 1, 2, 4, 4, 8, 8]);
        assert_eq!(groups(65_536), [1, 1, 2, 4, 4, 4, 4], "as before compute capability 8.0");
    }
}
