//! Parameter structs of the kernels: the host side of `kernels/*.cuh`. Both sides assert the sizes.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

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
    pub used: Address,
    pub used_to: Address,
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

/// How kernels for few rows number a warp's pipeline stages (kernels/gemm/gemm_skinny.cuh).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Stages {
    /// Stages of a task.
    pub of_task: u32,
    /// Tasks of a team in a pass.
    pub tasks: u32,
    /// Passes of a wave.
    pub passes: u32,
    /// All stages of a warp.
    pub all: u32,
    /// 2^31 divided by each of the first three, and by the splits of a pass, rounded up.
    pub by: [u32; 4],
}

impl Stages {
    /// Reciprocal for kernels, which multiply instead of divide: 2^31 / n, rounded up.
    pub(crate) fn divisor(n: u32) -> u32 {
        (1_u32 << 31).div_ceil(n)
    }
}

/// A product, its epilogue and the order of its sums: common to all GEMM kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GemmParams {
    pub step: StepRef,
    pub x: PackedRef,
    pub packed: PackedRef,
    pub squares: Address,
    pub used: Address,
    pub factors: Address,
    pub next_norm: Address,
    pub next_factors: Address,
    pub next_squares: Address,
    pub squares_count: u32,
    pub next_squares_count: u32,
    pub inverse_width: f32,
    pub eps: f32,
    pub unscale: f32,
    pub mode: u32,
    pub rows_max: u32,
    pub tiles: u32,
    pub splits: u32,
    pub split_segments: u32,
    pub runs: u32,
    pub run_segments: u32,
    pub part: [MatrixPart; 3],
    /// First tile of each part. Beyond all tiles if there is no further part, or if a tile combines
    /// two parts.
    pub part_from: [u32; 4],
}

/// Parameters of kernels/gemm/gemm_skinny.cuh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GemmSkinnyParams {
    pub gemm: GemmParams,
    pub by_output: u32,
    pub rows_last: u32,
    pub teams: u32,
    pub wave_tiles: u32,
    pub x_splits: u32,
    pub depth: u32,
    pub chunk: u32,
    /// Stages that a warp prefetches before its predecessor has ended; at least 1.
    pub early_stages: u32,
    pub stages: Stages,
    /// The first stage of each warp of a block: tile of the wave, number of segments, and first
    /// segment (8, 8 and 16 bits).
    pub first: [u32; 16],
}

/// Parameters of kernels/gemm/gemm_sm80.cuh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GemmSm80Params {
    pub gemm: GemmParams,
    pub partials: Address,
    pub arrivals: Address,
    pub by_output: u32,
    pub rows_last: u32,
    pub teams: u32,
    pub depth: u32,
    pub chunk: u32,
    pub reserved: u32,
}

/// Parameters of kernels/gemm/gemm_sm90.cuh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GemmSm90Params {
    pub gemm: GemmParams,
    pub next_pages: PagesRef,
    /// Split-K workspace.
    pub workspace: Address,
    /// Stride from the results of a split to the next split's, in numbers, for deferred split-K.
    pub deferred_stride: u32,
    pub full_wave_tiles: u32,
    pub weight_depth: u32,
    pub x_depth: u32,
    /// Reciprocal of the splits ([`Stages::divisor`]).
    pub by_splits: u32,
    pub reserved: u32,
}

/// Parameters of kernels/gemm/splitk_reduce.cu.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SplitkReduceParams {
    /// Split-K workspace.
    pub sums: Address,
    pub out: Address,
    pub packed: PackedRef,
    pub next_norm: Address,
    pub next_factors: Address,
    pub next_squares: Address,
    pub next_squares_count: u32,
    pub out_stride: u32,
    /// 1 / scale of x, times the scale of the matrix.
    pub unscale: f32,
    pub rows_max: u32,
    pub tiles: u32,
    pub splits: u32,
}

/// KV pages that the next attention will read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PagesRef {
    pub keys: Address,
    pub values: Address,
    /// Bytes of a page of keys, or of values.
    pub page_bytes: u32,
    pub page_magic: u32,
    /// Maximum number of pages that L2 retains until then.
    pub pages_most: u32,
    /// 0: no window.
    pub window: u32,
}

/// Two products with the same activation rows, for the skinny kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GemmSkinnyPairParams {
    pub first: GemmSkinnyParams,
    pub second: GemmSkinnyParams,
    pub first_ctas: u32,
    pub reserved: u32,
}

/// Two products with the same activation rows, for the WGMMA kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GemmSm90PairParams {
    pub first: GemmSm90Params,
    pub second: GemmSm90Params,
    pub first_ctas: u32,
    pub reserved: u32,
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
    pub neighbours: u32,
    pub magnitude: f32,
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
    pub slots_max: u32,
    pub rows_max: u32,
    pub deferred: DeferredSplits,
}

/// Deferred split-K: query, key and value as per-split sums, and their factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DeferredSplits {
    /// The norm's factors of rows; null if they were packed with these.
    pub exact: Address,
    /// The factors that rows were packed with, near to those; null likewise.
    pub used: Address,
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
    pub chunks_max: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AddNormParams {
    pub step: StepRef,
    pub y: Address,
    pub weight: Address,
    pub x: Address,
    pub width: u32,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GateParams {
    pub step: StepRef,
    pub products: Address,
    pub h: Address,
    pub hidden: u32,
    pub mode: u32,
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

/// Cache memory of one layer: KV pages (`state` is 0) or convolution states (`keys` is 0).
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
    pub neighbours: u32,
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
    pub turn: i32,
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
const _: () = assert!(size_of::<PagesRef>() == 32);
const _: () = assert!(
    size_of::<GemmParams>() == 336
        && offset_of!(GemmParams, squares) == 80
        && offset_of!(GemmParams, squares_count) == 128
        && offset_of!(GemmParams, part) == 176
);
const _: () = assert!(
    size_of::<GemmSkinnyParams>() == 464
        && offset_of!(GemmSkinnyParams, stages) == 368
        && offset_of!(GemmSkinnyParams, first) == 400
);
const _: () =
    assert!(size_of::<GemmSm80Params>() == 376 && offset_of!(GemmSm80Params, by_output) == 352);
const _: () = assert!(
    size_of::<GemmSm90Params>() == 400
        && offset_of!(GemmSm90Params, workspace) == 368
        && offset_of!(GemmSm90Params, by_splits) == 392
);
const _: () =
    assert!(size_of::<SplitkReduceParams>() == 88 && offset_of!(SplitkReduceParams, unscale) == 72);
const _: () = assert!(size_of::<GemmSkinnyPairParams>() == 936);
const _: () = assert!(size_of::<GemmSm90PairParams>() == 808);
const _: () = assert!(size_of::<KvRef>() == 48);
const _: () = assert!(size_of::<HeadRef>() == 48);
const _: () = assert!(size_of::<AppendParams>() == 144);
const _: () = assert!(size_of::<AttendParams>() == 216 + size_of::<PackedRef>());
const _: () = assert!(size_of::<AttentionParams>() == 128 + size_of::<PackedRef>());
const _: () = assert!(size_of::<AddNormParams>() == 64);
const _: () = assert!(size_of::<GateParams>() == 56);
const _: () = assert!(size_of::<ShortConvParams>() == 72);
const _: () = assert!(size_of::<SampleParams>() == 168);
const _: () = assert!(size_of::<LayerRef>() == 72);
const _: () = assert!(size_of::<CacheParams>() == 64);
