// Parameters and shared memory of gemm_skinny.cuh.
#pragma once

#include "gemm/gemm_common.cuh"

constexpr uint32_t SKINNY_WARPS = 8;        // per block; two blocks share a multiprocessor
constexpr uint32_t SKINNY_WARPS_LARGE = 16; // per block that has a multiprocessor alone
constexpr uint32_t FIRST_OUTPUTS = 64;      // outputs located before x is read
constexpr uint32_t AHEAD = 2;               // segments unpacked before x is read
constexpr uint32_t SPLITS_AT_ONCE = 4;      // splits of an output that are loaded at once
static_assert(FIRST_OUTPUTS <= SKINNY_WARPS * WARP, "a thread each");
static_assert(SKINNY_WARPS >= 8, "a norm factor each");

// A warp's weights arrive in stages, numbered through all waves: the tasks of a wave's pass, then
// the stages of a task. Reciprocals are for `fast_divide`.
struct GemmSkinnyParams {
    GemmParams gemm;
    uint32_t by_output;      // row r of x is the one that output r names (the head)
    uint32_t rows_last;      // index of the last row of x
    uint32_t teams;          // per CTA
    uint32_t wave_tiles;     // tiles per CTA and wave
    uint32_t x_splits;       // splits of x that are in shared memory at once
    uint32_t depth;          // stages of a warp's ring, up to DEPTH_MAX
    uint32_t stage_segments; // segments per stage
    uint32_t early_stages;   // loaded before the grid dependency; at least 1
    // stages per task, tasks per team and pass, passes per wave, stages per warp
    uint32_t stages, tasks, passes, all_stages;
    uint32_t stages_reciprocal, tasks_reciprocal, passes_reciprocal, x_splits_reciprocal;
    // A warp's first stage: tile of the wave, number of segments, first segment (8, 8 and 16 bits).
    uint32_t first_stage[SKINNY_WARPS_LARGE];
};
static_assert(sizeof(GemmSkinnyParams) == 464 && offsetof(GemmSkinnyParams, stages) == 368 &&
                  offsetof(GemmSkinnyParams, first_stage) == 400,
              "as in params.rs");

// Products of two types (dispatch_pair).
struct GemmSkinnyPairParams {
    GemmSkinnyParams first, second;
    uint32_t first_ctas;
    uint32_t reserved;
};
static_assert(sizeof(GemmSkinnyPairParams) == 936, "as in params.rs");

// Dynamic shared memory, in this order: the warps' rings; rows of x; sums of runs of one wave, or
// of two if there are several waves or passes; sums of earlier passes, two floats per output. Tests
// of crates/walla_cuda evaluate these functions and compare the results with the host's.
__host__ __device__ constexpr uint32_t skinny_ring_bytes(uint32_t depth, uint32_t stage_segments,
                                                         uint32_t record) {
    return depth * stage_segments * 2 * record;
}
__host__ __device__ constexpr uint32_t skinny_x_bytes(uint32_t segments, uint32_t rows) {
    return segments * rows * SEGMENT * 2;
}
__host__ __device__ constexpr uint32_t skinny_sums(uint32_t tiles, uint32_t splits, uint32_t runs,
                                                   uint32_t rows) {
    return tiles * splits * runs * rows * SUM_STRIDE;
}

// An output of a wave: its address, and its inputs that are known before x is read.
struct Output {
    uint8_t tile, n, m; // index in the wave, in the group, in the tile
    bool is_valid;
    float* out;
    uint8_t* packed;
    float scale[2], bias[2];
    float norm;
};

// Static shared memory of a CTA.
struct SkinnyShared {
    __align__(8) uint64_t full[SKINNY_WARPS_LARGE * DEPTH_MAX];
    float factor[8];
    Output first_outputs[FIRST_OUTPUTS];
};
