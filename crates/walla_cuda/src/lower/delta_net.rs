//! Gated DeltaNet (kernels/layer/delta_net.cu).

use walla_device::{CacheLayer, DeltaShape, DeviceError, Linear, Op, op};

use super::gate_rows::{GateProducts, Ungated, aligned_numbers};
use super::operands::Part;
use super::product::Epilogue;
use super::{Area, Lowering, same};
use crate::params::DeltaParams;
use crate::resources::Resources;

/// As in delta_net.cu.
const MAX_TAPS: u32 = 8;
const MAX_DELTA_HEAD_DIM: u32 = 256;
const DELTA_CONV_WARPS: u32 = 4;
const DELTA_THREADS: u32 = 128;
const DELTA_COLUMNS: u32 = 32;
/// Smallest size that heads are rounded up to.
const DELTA_HEAD_DIM_MIN: u32 = 32;

/// Layout of one sequence's state of a layer, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaState {
    pub(crate) numbers: u32,
    /// First input of the convolution, after the matrices.
    inputs_at: u32,
    /// Strips of columns per head.
    strips: u32,
    /// `head_dim` as the kernels round it up.
    head_dim: u32,
}

impl DeltaState {
    /// `None` on overflow, or if there is no kernel for the shape.
    pub(crate) fn of(shape: DeltaShape) -> Option<Self> {
        let DeltaShape { value_heads, head_dim, taps, .. } = shape;
        let fits = head_dim.is_multiple_of(16) && (1..=MAX_DELTA_HEAD_DIM).contains(&head_dim);
        if !fits || !(1..=MAX_TAPS).contains(&taps) {
            return None;
        }
        let strips = head_dim.div_ceil(DELTA_COLUMNS);
        let head_dim = head_dim.next_power_of_two().max(DELTA_HEAD_DIM_MIN);
        let matrices = value_heads.checked_mul(strips * DELTA_COLUMNS * head_dim)?;
        let numbers = matrices.checked_add((taps - 1).checked_mul(shape.channels())?)?;
        Some(Self { numbers, inputs_at: matrices, strips, head_dim })
    }
}

/// Layout of the products of a DeltaNet layer, of convolved rows and of gates, in numbers.
#[derive(Clone, Copy, Debug)]
struct DeltaProducts {
    /// First columns of the convolution's inputs, of the gate, of alpha and of beta.
    at: [u32; 4],
    stride: u32,
}

impl DeltaProducts {
    fn of(shape: DeltaShape) -> Self {
        let widths = [shape.channels(), shape.values(), shape.value_heads, shape.value_heads];
        let mut stride = 0_u32;
        let at = widths.map(|width| {
            let at = stride;
            stride = aligned_numbers(at.saturating_add(width));
            at
        });
        Self { at, stride }
    }

    /// Offsets of the convolved rows, of the gates and of the end, in numbers.
    fn parts(self, shape: DeltaShape, rows: u32) -> [u64; 3] {
        let rows = u64::from(rows);
        let convolved = rows * u64::from(self.stride);
        let gates = convolved + rows * u64::from(shape.channels());
        [convolved, gates, gates + 2 * rows * u64::from(shape.value_heads)]
    }
}

/// The gate's matrix, if the next op is the gate of the result with the same input and a number for
/// each value.
fn gate_of<'a>(resources: &Resources, op: &op::DeltaNet, later: &'a [Op]) -> Option<&'a Linear> {
    let Op::Gate(gate) = later.first()? else { return None };
    let rows = resources.matrix(gate.linear.matrix).ok()?.rows;
    let is_its = (gate.x, gate.norm, gate.y) == (op.x, op.norm, op.out);
    (is_its && rows == op.shape.values()).then_some(&gate.linear)
}

impl Lowering<'_> {
    pub(super) fn delta_net(&mut self, op: &op::DeltaNet, later: &[Op]) -> Result<(), DeviceError> {
        let op::DeltaNet { shape, ref input, ref alpha, ref beta, head_norm, .. } = *op;
        let DeltaShape { key_heads, value_heads, head_dim, taps } = shape;
        let Some(state) = DeltaState::of(shape) else {
            return Err(self.unsupported(format!("gated DeltaNet with {shape:?}")));
        };
        let states = self.states(op.layer, CacheLayer::DeltaNet(shape))?;
        let (out_at, width) = self.slot(op.out)?;
        same("DeltaNet slot", width, shape.values())?;
        let gate = gate_of(self.resources, op, later);
        let linears = [(input, shape.channels()), (alpha, value_heads), (beta, value_heads)];
        for (linear, rows) in linears {
            same("DeltaNet matrix", self.resources.matrix(linear.matrix)?.rows, rows)?;
        }
        let vectors = [
            (op.kernel, shape.channels() * taps),
            (op.decay, value_heads),
            (op.step_bias, value_heads),
            (head_norm.weight, head_dim),
        ];
        let mut addresses = [0; 4];
        for (address, (vector, len)) in addresses.iter_mut().zip(vectors) {
            *address = self.vector("DeltaNet vector", vector, len)?;
        }
        let [kernel, decay, step_bias, _] = addresses;

        let layout = DeltaProducts::of(shape);
        let rows = self.program.max_rows;
        let [convolved, gates, end] = layout.parts(shape, rows);
        let numbers = usize::try_from(end).unwrap_or(usize::MAX / 8);
        let base = self.workspace.at(Area::Products, 4 * numbers);
        let at = |numbers: u64| base + 4 * numbers;
        let part = |linear, column: usize| Part {
            linear,
            out: at(u64::from(layout.at[column])),
            stride: layout.stride,
        };
        let x = self.input(op.x, Some(&op.norm))?;
        let mut wide = vec![part(input, 0)];
        wide.extend(gate.map(|gate| part(gate, 1)));
        self.linears(&x, &wide, Epilogue::Store)?;
        let narrow = [part(alpha, 2), part(beta, 3)];
        self.linears(&x, &narrow, Epilogue::Store)?;

        let params = DeltaParams {
            step: self.step()?,
            products: base,
            kernel,
            decay,
            step_bias,
            state: states,
            convolved: at(convolved),
            gates: at(gates),
            out: out_at,
            stride: layout.stride,
            alpha_at: layout.at[2],
            beta_at: layout.at[3],
            key_heads,
            value_heads,
            head_dim,
            taps,
            state_numbers: state.numbers,
            inputs_at: state.inputs_at,
            eps: op.eps,
            query_scale: 1.0 / (head_dim as f32).sqrt(),
            reserved: 0,
        };
        let heads = 2 * key_heads + value_heads;
        let grid = [heads.div_ceil(DELTA_CONV_WARPS), rows, 1];
        self.launch(("delta_net", "delta_conv"), grid, 32 * DELTA_CONV_WARPS, &params)?;
        let sequences = rows.min(self.resources.cache(self.program.cache)?.desc.max_sequences);
        let grid = [value_heads * state.strips, sequences, 1];
        let name = format!("delta_rule_{}", state.head_dim);
        self.launch(("delta_net", &name), grid, DELTA_THREADS, &params)?;
        let ungated = Ungated {
            slot: op.out,
            head_norm: Some((head_norm, head_dim)),
            products: gate.map(|_| GateProducts {
                at: at(u64::from(layout.at[1])),
                stride: layout.stride,
                is_scalar: false,
            }),
        };
        if matches!(later.first(), Some(Op::Gate(gate)) if gate.y == op.out) {
            self.ungated = Some(ungated);
            return Ok(());
        }
        self.finish_mixer(&ungated, 0, later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_source::KernelSource;

    #[test]
    fn constants_match_the_kernels() {
        let delta = KernelSource::read(&["common/walla.cuh", "layer/delta_net.cu"]);
        let expected = [
            ("TAPS_MAX", MAX_TAPS),
            ("DELTA_HEAD_DIM_MAX", MAX_DELTA_HEAD_DIM),
            ("DELTA_CONV_WARPS", DELTA_CONV_WARPS),
            ("DELTA_THREADS", DELTA_THREADS),
            ("DELTA_COLUMNS", DELTA_COLUMNS),
        ];
        for (name, value) in expected {
            assert_eq!(delta.constant(name), value, "{name}");
        }
    }

    #[test]
    fn a_state_has_its_matrices_and_inputs() {
        let shape = DeltaShape { key_heads: 16, value_heads: 32, head_dim: 128, taps: 4 };
        let state = DeltaState::of(shape).unwrap();
        assert_eq!(state.inputs_at, 32 * 128 * 128);
        assert_eq!(state.numbers, state.inputs_at + 3 * 8192);
        // Heads of 48 have two strips of 32 columns, each of 64 rows.
        let small = DeltaState::of(DeltaShape { head_dim: 48, ..shape }).unwrap();
        assert_eq!((small.strips, small.head_dim, small.inputs_at), (2, 64, 32 * 64 * 64));
        for refused in [0, 8, 24, 272] {
            assert_eq!(DeltaState::of(DeltaShape { head_dim: refused, ..shape }), None);
        }
        assert_eq!(DeltaState::of(DeltaShape { taps: 9, ..shape }), None);
        let huge = DeltaShape { value_heads: u32::MAX, ..shape };
        assert_eq!(DeltaState::of(huge), None, "more numbers than 32 bits count");
    }

    #[test]
    fn products_are_aligned_and_apart() {
        let shape = DeltaShape { key_heads: 1, value_heads: 3, head_dim: 16, taps: 2 };
        let DeltaProducts { at, stride } = DeltaProducts::of(shape);
        assert_eq!((at, stride), ([0, 80, 128, 144], 160));
        let [convolved, gates, end] = DeltaProducts::of(shape).parts(shape, 5);
        assert_eq!([convolved, gates, end], [800, 800 + 400, 1_200 + 30]);
    }
}
