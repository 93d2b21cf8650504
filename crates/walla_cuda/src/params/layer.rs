//! Parameters of the kernels of gated DeltaNet, of gates, and of the layers of Gemma 4.

use bytemuck::{Pod, Zeroable};

use super::{Address, PackedRef, StepRef, WeightRef};

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DeltaParams {
    pub step: StepRef,
    pub products: Address,
    pub kernel: Address,
    pub decay: Address,
    pub step_bias: Address,
    pub state: Address,
    pub convolved: Address,
    pub gates: Address,
    pub out: Address,
    pub stride: u32,
    pub alpha_at: u32,
    pub beta_at: u32,
    pub key_heads: u32,
    pub value_heads: u32,
    pub head_dim: u32,
    pub taps: u32,
    pub state_numbers: u32,
    pub inputs_at: u32,
    pub eps: f32,
    pub query_scale: f32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GateRowsParams {
    pub step: StepRef,
    pub y: Address,
    /// 0: no gate.
    pub products: Address,
    /// 0: no norm.
    pub head_norm: Address,
    pub out: Address,
    pub packed: PackedRef,
    pub width: u32,
    pub head_dim: u32,
    pub y_stride: u32,
    pub products_stride: u32,
    pub out_stride: u32,
    pub is_scalar: u32,
    pub mode: u32,
    pub eps: f32,
}

/// The inputs of each layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LayerInputsParams {
    pub step: StepRef,
    pub table: WeightRef,
    pub products: Address,
    pub norm: Address,
    pub last_sampled: Address,
    pub e: Address,
    pub width: u32,
    pub part: u32,
    pub table_scale: f32,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BoundLogitsParams {
    pub step: StepRef,
    pub logits: Address,
    pub vocab: u32,
    /// 0: no bound.
    pub cap: f32,
    pub count: u32,
    pub reserved: u32,
    pub suppressed: [u32; 64],
}

const _: () = assert!(size_of::<DeltaParams>() == 144);
const _: () = assert!(size_of::<GateRowsParams>() == 96 + size_of::<PackedRef>());
const _: () = assert!(size_of::<LayerInputsParams>() == 104);
const _: () = assert!(size_of::<BoundLogitsParams>() == 312);
