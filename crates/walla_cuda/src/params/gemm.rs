//! Parameter structs of the GEMM kernels (kernels/gemm), one per family.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::{Address, MatrixPart, PackedRef, StepRef};

/// How skinny kernels number a warp's pipeline stages (kernels/gemm/gemm_skinny_scheduler.cuh).
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
    pub reciprocals: [u32; 4],
}

impl Stages {
    /// Reciprocal for kernels, which multiply instead of divide: 2^31 / n, rounded up.
    pub(crate) fn reciprocal(n: u32) -> u32 {
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
    pub pack_factors: Address,
    pub factors: Address,
    pub next_norm: Address,
    pub next_pack_factors: Address,
    pub next_squares: Address,
    pub squares_count: u32,
    pub next_squares_count: u32,
    pub inverse_width: f32,
    pub eps: f32,
    pub unscale: f32,
    pub mode: u32,
    pub max_rows: u32,
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
    pub stage_segments: u32,
    /// Stages that a warp prefetches before its predecessor has ended; at least 1.
    pub early_stages: u32,
    pub stages: Stages,
    /// The first stage of each warp of a block: tile of the wave, number of segments, and first
    /// segment (8, 8 and 16 bits).
    pub first_stage: [u32; 16],
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
    pub stage_segments: u32,
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
    /// Reciprocal of the splits ([`Stages::reciprocal`]).
    pub splits_reciprocal: u32,
    pub by_output: u32,
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
    pub next_pack_factors: Address,
    pub next_squares: Address,
    pub next_squares_count: u32,
    pub out_stride: u32,
    /// 1 / scale of x, times the scale of the matrix.
    pub unscale: f32,
    pub max_rows: u32,
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
        && offset_of!(GemmSkinnyParams, first_stage) == 400
);
const _: () =
    assert!(size_of::<GemmSm80Params>() == 376 && offset_of!(GemmSm80Params, by_output) == 352);
const _: () = assert!(
    size_of::<GemmSm90Params>() == 400
        && offset_of!(GemmSm90Params, workspace) == 368
        && offset_of!(GemmSm90Params, splits_reciprocal) == 392
);
const _: () =
    assert!(size_of::<SplitkReduceParams>() == 88 && offset_of!(SplitkReduceParams, unscale) == 72);
const _: () = assert!(size_of::<GemmSkinnyPairParams>() == 936);
const _: () = assert!(size_of::<GemmSm90PairParams>() == 808);
