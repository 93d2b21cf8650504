//! Parameter structs of the kernels: the host side of `kernels/*/*.cuh`. Both sides assert the
//! sizes.

mod experts;
mod gemm;
mod layer;

use bytemuck::{Pod, Zeroable};

pub(crate) use self::experts::{
    ChoicesRef, ExpertItem, ExpertsAddParams, ExpertsGemmParams, ExpertsRouteParams,
    ExpertsRouterParams,
};
pub(crate) use self::gemm::{
    GemmParams, GemmSkinnyPairParams, GemmSkinnyParams, GemmSm80Params, GemmSm90PairParams,
    GemmSm90Params, PagesRef, SplitkReduceParams, Stages,
};
pub(crate) use self::layer::{BoundLogitsParams, DeltaParams, GateRowsParams, LayerInputsParams};

/// A device address; 0 is null.
pub(crate) type Address = u64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StepRef {
    pub block: Address,
    pub rows_offset: u32,
    pub outputs_offset: u32,
    pub biases_offset: u32,
    pub tables_offset: u32,
    pub pages_per_sequence: u32,
    pub reserved: u32,
}

/// Addresses of a step ring and of the step block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StepRingRef {
    pub ring: Address,
    pub taken: Address,
    pub ahead: Address,
    pub block: Address,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ResultRef {
    pub ring: Address,
    pub block_bytes: u32,
    pub rows_offset: u32,
    pub candidates_offset: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WeightRef {
    pub records: Address,
    pub rows: u32,
    pub cols: u32,
    pub kind: u32,
    pub scale: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct EmbedParams {
    pub step: StepRef,
    pub results: ResultRef,
    pub table: WeightRef,
    pub x: Address,
    pub last_sampled: Address,
    pub recent: Address,
    pub width: u32,
    pub scale: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MatrixPart {
    pub weight: WeightRef,
    pub bias: Address,
    pub out: Address,
    pub out_stride: u32,
    pub first_pair: u32,
}

/// Epilogue of a linear kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LinearMode {
    Store = 0,
    Add = 1,
    GateSilu = 2,
    GateGelu = 3,
}

impl LinearMode {
    /// Whether two matrix products are combined into one result.
    pub(crate) fn is_gate(self) -> bool {
        matches!(self, Self::GateSilu | Self::GateGelu)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LinearParams {
    pub step: StepRef,
    pub x: Address,
    pub norm: Address,
    pub x_stride: u32,
    pub width: u32,
    pub eps: f32,
    pub mode: u32,
    pub by_output: u32,
    pub parts: u32,
    pub part: [MatrixPart; 3],
}

/// Gathers the rows that outputs refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GatherParams {
    pub step: StepRef,
    pub from: PackedRef,
    pub to: PackedRef,
    pub squares: Address,
    pub squares_to: Address,
    pub pack_factors: Address,
    pub pack_factors_to: Address,
    pub squares_count: u32,
    pub rows_last: u32,
}

/// Rows in the packed f16 layout that the tensor cores read; `rows` 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PackedRef {
    pub rows: Address,
    pub segments: u32,
    pub scale: f32,
    pub group_rows: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PackParams {
    pub x: Address,
    pub norm: Address,
    pub packed: PackedRef,
    pub factors: Address,
    pub width: u32,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct KvRef {
    pub keys: Address,
    pub values: Address,
    /// Scales of 8-bit pages.
    pub key_scales: Address,
    pub value_scales: Address,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub page_tokens: u32,
    pub page_magic: u32,
}

/// Processing of a head's product: norm and rotary embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct HeadRef {
    pub query_norm: Address,
    pub key_norm: Address,
    pub frequencies: Address,
    pub pairs: u32,
    pub interleaved: u32,
    pub sincos_scale: f32,
    pub query_eps: f32,
    pub key_eps: f32,
    pub heads: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AppendParams {
    pub step: StepRef,
    pub kv: KvRef,
    pub products: Address,
    pub q: Address,
    pub head: HeadRef,
    /// Growth of scores with the position; 0: none.
    pub position_slope: f32,
    pub position_period: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AttendParams {
    pub step: StepRef,
    pub kv: KvRef,
    /// Products if the kernel appends them to the cache, else queries.
    pub input: Address,
    pub out: Address,
    pub packed: PackedRef,
    pub head: HeadRef,
    pub partials: Address,
    pub arrivals: Address,
    pub window: u32,
    pub scale: f32,
    pub max_slots: u32,
    pub max_rows: u32,
    pub deferred: DeferredSplits,
}

/// Deferred split-K: query, key and value as per-split sums, and their factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DeferredSplits {
    /// The norm's factors of rows; null if they were packed with these.
    pub norm_factors: Address,
    /// The factors that rows were packed with, near to those; null likewise.
    pub pack_factors: Address,
    /// Number of splits; 0: products are already reduced.
    pub count: u32,
    /// Stride from a split to the next, in numbers.
    pub stride: u32,
    /// Scale of each matrix.
    pub scales: [f32; 3],
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AttentionParams {
    pub step: StepRef,
    pub kv: KvRef,
    pub q: Address,
    pub out: Address,
    pub packed: PackedRef,
    pub partials: Address,
    pub arrivals: Address,
    pub heads: u32,
    pub window: u32,
    pub scale: f32,
    pub max_chunks: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AddNormParams {
    pub step: StepRef,
    pub y: Address,
    /// 0: no norm.
    pub weight: Address,
    pub x: Address,
    /// Weights of the next norm, whose input is written packed; 0: none.
    pub next_norm: Address,
    pub packed: PackedRef,
    pub factors: Address,
    pub width: u32,
    pub eps: f32,
    pub next_eps: f32,
    /// Factor of the sum.
    pub scale: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ShortConvParams {
    pub step: StepRef,
    pub products: Address,
    pub kernel: Address,
    pub state: Address,
    pub out: Address,
    pub width: u32,
    pub taps: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SampleParams {
    pub step: StepRef,
    pub results: ResultRef,
    pub logits: Address,
    pub last_sampled: Address,
    pub recent: Address,
    pub scores: Address,
    pub stats: Address,
    pub groups: Address,
    pub likely: Address,
    /// The mask block.
    pub masks: Address,
    pub arrivals: Address,
    pub step_ring: StepRingRef,
    pub vocab: u32,
    pub group_bits: u32,
}

/// Cache memory of one layer: KV pages (`state` is 0) or states of sequences (`keys` is 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LayerRef {
    pub keys: Address,
    pub values: Address,
    /// Scales of 8-bit pages.
    pub key_scales: Address,
    pub value_scales: Address,
    pub state: Address,
    pub frequencies: Address,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub pairs: u32,
    pub interleaved: u32,
    pub state_numbers: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CacheParams {
    pub layers: Address,
    pub last_sampled: Address,
    pub recent: Address,
    pub layer_count: u32,
    pub page_tokens: u32,
    pub number_bytes: u32,
    pub from: u32,
    pub from_cell: u32,
    pub to: u32,
    pub to_cell: u32,
    pub cells: u32,
    pub position_shift: i32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<StepRef>() == 32);
const _: () = assert!(size_of::<ResultRef>() == 24);
const _: () = assert!(size_of::<WeightRef>() == 24);
const _: () = assert!(size_of::<EmbedParams>() == 112);
const _: () = assert!(size_of::<MatrixPart>() == 48);
const _: () = assert!(size_of::<LinearParams>() == 216);
const _: () = assert!(size_of::<PackedRef>() == 24);
const _: () = assert!(size_of::<PackParams>() == 56);
const _: () = assert!(size_of::<GatherParams>() == 120);
const _: () = assert!(size_of::<KvRef>() == 48);
const _: () = assert!(size_of::<HeadRef>() == 48);
const _: () = assert!(size_of::<AppendParams>() == 152);
const _: () = assert!(size_of::<AttendParams>() == 216 + size_of::<PackedRef>());
const _: () = assert!(size_of::<AttentionParams>() == 128 + size_of::<PackedRef>());
const _: () = assert!(size_of::<AddNormParams>() == 112);
const _: () = assert!(size_of::<ShortConvParams>() == 72);
const _: () = assert!(size_of::<SampleParams>() == 168);
const _: () = assert!(size_of::<LayerRef>() == 72);
const _: () = assert!(size_of::<CacheParams>() == 64);
