//! Gates and norms of heads (kernels/layer/gate_rows.cu).

use walla_device::{DeviceError, Linear, Norm, Op, Slot, op};
use walla_types::Activation;

use super::operands::{Input, Part};
use super::product::Epilogue;
use super::{Area, Lowering, same};
use crate::params::{Address, GateRowsParams, LinearMode};
use crate::repack;

/// As in gate_rows.cu.
const GATE_ROWS_WARPS: u32 = 8;
const GATE_SIGMOID: u32 = 4;

/// A number of columns, rounded up so that the next product begins at an aligned address.
pub(super) fn aligned_numbers(numbers: u32) -> u32 {
    numbers.next_multiple_of(repack::TILE_ROWS as u32)
}

/// A result of a mixer that the next gate finishes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ungated {
    pub(super) slot: Slot,
    /// Norm of each head, and the heads' size.
    pub(super) head_norm: Option<(Norm, u32)>,
    /// The gate's products, if they exist already.
    pub(super) products: Option<GateProducts>,
}

/// Products of a gate's matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateProducts {
    pub(super) at: Address,
    pub(super) stride: u32,
    /// One product per row.
    pub(super) is_scalar: bool,
}

/// The mode of a gate in the kernel.
fn gate_mode(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => LinearMode::GateSilu as u32,
        Activation::GeluTanh => LinearMode::GateGelu as u32,
        Activation::Sigmoid => GATE_SIGMOID,
    }
}

impl Lowering<'_> {
    /// The gate of a mixer's result.
    pub(super) fn gate(&mut self, op: &op::Gate, later: &[Op]) -> Result<(), DeviceError> {
        let op::Gate { x, ref norm, ref linear, activation, y } = *op;
        let (_, width) = self.slot(y)?;
        let ungated = self.ungated.take().filter(|ungated| ungated.slot == y);
        let mut ungated = ungated.unwrap_or(Ungated { slot: y, head_norm: None, products: None });
        if ungated.products.is_none() {
            let rows = self.resources.matrix(linear.matrix)?.rows;
            let is_scalar = rows == 1 && width > 1;
            if !is_scalar {
                same("gate", rows, width)?;
            }
            let input = self.input(x, Some(norm))?;
            let products = self.gate_products(&input, linear)?;
            ungated.products = Some(GateProducts { is_scalar, ..products });
        }
        self.finish_mixer(&ungated, gate_mode(activation), later)
    }

    /// `h = activation(W x) * e`, with `e` from column `first` of a slot on.
    pub(super) fn gate_input(
        &mut self,
        op: &op::GateInput,
        later: &[Op],
    ) -> Result<(), DeviceError> {
        let op::GateInput { x, ref linear, activation, e, first, h } = *op;
        let (_, width) = self.slot(h)?;
        let (e, stride) = self.slot(e)?;
        if first.checked_add(width).is_none_or(|end| end > stride) {
            let why = format!("columns {first} to {first} + {width} of {stride}");
            return Err(DeviceError::Invalid(why));
        }
        if !first.is_multiple_of(4) {
            return Err(self.unsupported(format!("layer inputs from column {first} on")));
        }
        same("gate", self.resources.matrix(linear.matrix)?.rows, width)?;
        let input = self.input(x, None)?;
        let products = self.gate_products(&input, linear)?;
        let params = GateRowsParams {
            y: e + 4 * u64::from(first),
            y_stride: stride,
            products: products.at,
            products_stride: products.stride,
            mode: gate_mode(activation),
            ..GateRowsParams::default()
        };
        self.gate_rows(params, h, later)
    }

    /// Products with a gate's matrix.
    fn gate_products(
        &mut self,
        input: &Input,
        linear: &Linear,
    ) -> Result<GateProducts, DeviceError> {
        let stride = aligned_numbers(self.resources.matrix(linear.matrix)?.rows);
        let at = self.products(stride);
        let part = Part { linear, out: at, stride };
        self.linears(input, &[part], Epilogue::Store)?;
        Ok(GateProducts { at, stride, is_scalar: false })
    }

    /// Norm and gate of a mixer's result.
    pub(super) fn finish_mixer(
        &mut self,
        ungated: &Ungated,
        mode: u32,
        later: &[Op],
    ) -> Result<(), DeviceError> {
        let (y, y_stride) = self.slot(ungated.slot)?;
        let mut params = GateRowsParams { y, y_stride, mode, ..GateRowsParams::default() };
        if let Some(GateProducts { at, stride, is_scalar }) = ungated.products {
            (params.products, params.products_stride) = (at, stride);
            params.is_scalar = u32::from(is_scalar);
        }
        if let Some((norm, head_dim)) = ungated.head_norm {
            params.head_norm = self.resources.vector(norm.weight)?.memory.address();
            (params.head_dim, params.eps) = (head_dim, norm.eps);
        }
        self.gate_rows(params, ungated.slot, later)
    }

    /// Launches `gate_rows` with a slot as the result, packed if the next op projects it.
    fn gate_rows(
        &mut self,
        mut params: GateRowsParams,
        out_slot: Slot,
        later: &[Op],
    ) -> Result<(), DeviceError> {
        let (out, width) = self.slot(out_slot)?;
        (params.out, params.out_stride, params.width) = (out, width, width);
        self.packed = None;
        if self.is_packed(later, out_slot)? {
            params.packed = self.packed_rows(Area::PackedMixed, width, false);
            self.packed = Some((out_slot, params.packed));
        }
        self.launch_gate_rows(params)
    }

    /// Norm of each head, in place.
    pub(super) fn norm_heads(
        &mut self,
        (at, stride): (Address, u32),
        (heads, head_dim): (u32, u32),
        norm: &Norm,
    ) -> Result<(), DeviceError> {
        let params = GateRowsParams {
            y: at,
            y_stride: stride,
            out: at,
            out_stride: stride,
            head_norm: self.vector("head norm", norm.weight, head_dim)?,
            width: heads * head_dim,
            head_dim,
            eps: norm.eps,
            ..GateRowsParams::default()
        };
        self.launch_gate_rows(params)
    }

    /// Launches `gate_rows` with the step and the size of its grid.
    pub(super) fn launch_gate_rows(
        &mut self,
        mut params: GateRowsParams,
    ) -> Result<(), DeviceError> {
        params.step = self.step()?;
        let segment = repack::SEGMENT as u32;
        if params.head_dim == 0 {
            params.head_dim = segment;
        }
        let padded = params.packed.segments * segment;
        let heads = params.width.max(padded).div_ceil(params.head_dim);
        let grid = [heads.div_ceil(GATE_ROWS_WARPS), self.program.max_rows, 1];
        self.launch(("gate_rows", "gate_rows"), grid, 32 * GATE_ROWS_WARPS, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::{GATE_ROWS_WARPS, GATE_SIGMOID};
    use crate::kernel_source::KernelSource;

    #[test]
    fn constants_match_the_kernel() {
        let gates = KernelSource::read(&["layer/gate_rows.cu"]);
        assert_eq!(gates.constant("GATE_ROWS_WARPS"), GATE_ROWS_WARPS);
        assert_eq!(gates.constant("GATE_SIGMOID"), GATE_SIGMOID);
    }
}
