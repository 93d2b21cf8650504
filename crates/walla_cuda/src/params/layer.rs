//! Parameters of the kernels of gated DeltaNet, of gates, and of the layers of Gemma 4.

use bytemuck::{Pod, Zeroable};

use super::{Address, PackedRef, StepRef, WeightRef};

kernel_structs! {
    struct DeltaParams, 144 bytes {
        step: StepRef,
        products: Address,
        kernel: Address,
        decay: Address,
        step_bias: Address,
        state: Address,
        convolved: Address,
        gates: Address,
        out: Address,
        stride: u32,
        alpha_at: u32,
        beta_at: u32,
        key_heads: u32,
        value_heads: u32,
        head_dim: u32,
        taps: u32,
        state_numbers: u32,
        inputs_at: u32,
        eps: f32,
        query_scale: f32,
        reserved: u32,
    }

    struct GateRowsParams, 120 bytes {
        step: StepRef,
        y: Address,
        /// 0: no gate.
        products: Address,
        /// 0: no norm.
        head_norm: Address,
        out: Address,
        packed: PackedRef,
        width: u32,
        head_dim: u32,
        y_stride: u32,
        products_stride: u32,
        out_stride: u32,
        is_scalar: u32,
        mode: u32,
        eps: f32,
    }

    /// The inputs of each layer.
    struct LayerInputsParams, 104 bytes {
        step: StepRef,
        table: WeightRef,
        products: Address,
        norm: Address,
        last_sampled: Address,
        e: Address,
        width: u32,
        part: u32,
        table_scale: f32,
        eps: f32,
    }

    struct BoundLogitsParams, 312 bytes {
        step: StepRef,
        logits: Address,
        vocab: u32,
        /// 0: no bound.
        cap: f32,
        count: u32,
        reserved: u32,
        suppressed: [u32; 64],
    }
}
