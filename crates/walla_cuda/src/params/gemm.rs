//! Parameter structs of the GEMM kernels (kernels/gemm), one per family.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::{Address, MatrixPart, PackedRef, StepRef};

kernel_structs! {
    /// How skinny kernels number a warp's pipeline stages (kernels/gemm/gemm_skinny_scheduler.cuh).
    struct Stages, 32 bytes {
        /// Stages of a task.
        of_task: u32,
        /// Tasks of a team in a pass.
        tasks: u32,
        /// Passes of a wave.
        passes: u32,
        /// All stages of a warp.
        all: u32,
        /// 2^31 divided by each of the first three, and by the splits of a pass, rounded up.
        reciprocals: [u32; 4],
    }
}

impl Stages {
    /// Reciprocal for kernels, which multiply instead of divide: 2^31 / n, rounded up.
    pub(crate) fn reciprocal(n: u32) -> u32 {
        (1_u32 << 31).div_ceil(n)
    }
}

kernel_structs! {
    /// A product, its epilogue and the order of its sums: common to all GEMM kernels.
    struct GemmParams, 336 bytes {
        step: StepRef,
        x: PackedRef,
        packed: PackedRef,
        squares: Address,
        pack_factors: Address,
        factors: Address,
        next_norm: Address,
        next_pack_factors: Address,
        next_squares: Address,
        squares_count: u32,
        next_squares_count: u32,
        inverse_width: f32,
        eps: f32,
        unscale: f32,
        mode: u32,
        max_rows: u32,
        tiles: u32,
        splits: u32,
        split_segments: u32,
        runs: u32,
        run_segments: u32,
        part: [MatrixPart; 3],
        /// First tile of each part. Beyond all tiles if there is no further part, or if a tile
        /// combines two parts.
        part_from: [u32; 4],
    }

    /// Parameters of kernels/gemm/gemm_skinny.cuh.
    struct GemmSkinnyParams, 464 bytes {
        gemm: GemmParams,
        by_output: u32,
        rows_last: u32,
        teams: u32,
        wave_tiles: u32,
        x_splits: u32,
        depth: u32,
        stage_segments: u32,
        /// Stages that a warp prefetches before its predecessor has ended; at least 1.
        early_stages: u32,
        stages: Stages,
        /// The first stage of each warp of a block: tile of the wave, number of segments, and first
        /// segment (8, 8 and 16 bits).
        first_stage: [u32; 16],
    }

    /// Parameters of kernels/gemm/gemm_sm80.cuh.
    struct GemmSm80Params, 376 bytes {
        gemm: GemmParams,
        partials: Address,
        arrivals: Address,
        by_output: u32,
        rows_last: u32,
        teams: u32,
        depth: u32,
        stage_segments: u32,
        reserved: u32,
    }

    /// Parameters of kernels/gemm/gemm_sm90.cuh.
    struct GemmSm90Params, 400 bytes {
        gemm: GemmParams,
        next_pages: PagesRef,
        /// Split-K workspace.
        workspace: Address,
        /// Stride from the results of a split to the next split's, in numbers, for deferred
        /// split-K.
        deferred_stride: u32,
        full_wave_tiles: u32,
        weight_depth: u32,
        x_depth: u32,
        /// Reciprocal of the splits ([`Stages::reciprocal`]).
        splits_reciprocal: u32,
        by_output: u32,
    }

    /// Parameters of kernels/gemm/splitk_reduce.cu.
    struct SplitkReduceParams, 88 bytes {
        /// Split-K workspace.
        sums: Address,
        out: Address,
        packed: PackedRef,
        next_norm: Address,
        next_pack_factors: Address,
        next_squares: Address,
        next_squares_count: u32,
        out_stride: u32,
        /// 1 / scale of x, times the scale of the matrix.
        unscale: f32,
        max_rows: u32,
        tiles: u32,
        splits: u32,
    }

    /// KV pages that the next attention will read.
    struct PagesRef, 32 bytes {
        keys: Address,
        values: Address,
        /// Bytes of a page of keys, or of values.
        page_bytes: u32,
        page_magic: u32,
        /// Maximum number of pages that L2 retains until then.
        pages_most: u32,
        /// 0: no window.
        window: u32,
    }

    /// Two products with the same activation rows, for the skinny kernels.
    struct GemmSkinnyPairParams, 936 bytes {
        first: GemmSkinnyParams,
        second: GemmSkinnyParams,
        first_ctas: u32,
        reserved: u32,
    }

    /// Two products with the same activation rows, for the WGMMA kernels.
    struct GemmSm90PairParams, 808 bytes {
        first: GemmSm90Params,
        second: GemmSm90Params,
        first_ctas: u32,
        reserved: u32,
    }
}

const _: () = assert!(
    offset_of!(GemmParams, squares) == 80
        && offset_of!(GemmParams, squares_count) == 128
        && offset_of!(GemmParams, part) == 176
);
const _: () = assert!(
    offset_of!(GemmSkinnyParams, stages) == 368 && offset_of!(GemmSkinnyParams, first_stage) == 400
);
const _: () = assert!(offset_of!(GemmSm80Params, by_output) == 352);
const _: () = assert!(
    offset_of!(GemmSm90Params, workspace) == 368
        && offset_of!(GemmSm90Params, splits_reciprocal) == 392
);
const _: () = assert!(offset_of!(SplitkReduceParams, unscale) == 72);
