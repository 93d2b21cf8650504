// Parameters, shared memory and scheduler of gemm_sm80.cuh.
#pragma once

#include "gemm/gemm_common.cuh"

constexpr uint32_t SM80_WARPS_MAX = 16;

// Dynamic shared memory, in this order: the warps' rings; rows of x; sums of the warps. Tests of
// crates/walla_cuda evaluate these functions and compare the results with the host's.
__host__ __device__ constexpr uint32_t sm80_ring_bytes(uint32_t depth, uint32_t stage_segments,
                                                       uint32_t record) {
    return depth * 2 * stage_segments * record;
}
__host__ __device__ constexpr uint32_t sm80_group_bytes(uint32_t segments) {
    return segments * 8 * SEGMENT * 2;
}
__host__ __device__ constexpr uint32_t sm80_sums(uint32_t groups) {
    return 8 * groups * SUM_STRIDE;
}

struct GemmSm80Params {
    GemmParams gemm;
    float* partials;         // [splits, tiles, grid.y, 8 * GROUPS, 16]
    uint32_t* arrivals;      // [grid.y, grid.x], zero between launches
    uint32_t by_output;      // row r of x is the one that output r names (the head)
    uint32_t rows_last;      // index of the last row of x
    uint32_t teams;          // per CTA; a warp of a team takes one run
    uint32_t depth;          // stages of a warp's ring, up to DEPTH_MAX
    uint32_t stage_segments; // segments per stage
    uint32_t reserved;
};
static_assert(sizeof(GemmSm80Params) == 376 && offsetof(GemmSm80Params, by_output) == 352,
              "as in params.rs");

// Static shared memory of a CTA. Barriers: of the warps' rings, then of the rows of x.
template <uint32_t GROUPS>
struct Sm80Shared {
    __align__(8) uint64_t barriers[SM80_WARPS_MAX * DEPTH_MAX + 1];
    float factor[8 * GROUPS];
    bool is_last;
};

// Tiles of a team, and the run of a warp in the CTA's split.
template <uint32_t GROUPS>
struct Sm80Scheduler {
    static constexpr uint32_t N = 8 * GROUPS; // rows of x per CTA
    const GemmSm80Params& p;
    uint32_t lane, warps, threads; // of a team: warps, threads
    uint32_t team, thread, warp;   // the team; thread and warp in it
    uint32_t tile0, tile_step;
    uint32_t split, first_segment, segments; // the CTA's split and its segments
    uint32_t run_begin, run_end;             // the warp's run; the last of a split may be empty
    uint32_t row0;                           // first row of x

    // Teams compute separate tiles; only the rows of x are common to the CTA.
    __device__ __forceinline__ explicit Sm80Scheduler(const GemmSm80Params& p) : p(p) {
        const GemmParams& g = p.gemm;
        lane = threadIdx.x % WARP, warps = g.runs, threads = warps * WARP;
        team = threadIdx.x / WARP >> (warps - 1); // of one or two warps
        thread = threadIdx.x - team * threads, warp = thread / WARP;
        tile0 = blockIdx.x * p.teams + team, tile_step = gridDim.x * p.teams;
        split = blockIdx.z, first_segment = split * g.split_segments;
        segments = min(g.x.segments - first_segment, g.split_segments);
        run_begin = warp * g.run_segments;
        run_end = min(run_begin + g.run_segments, segments);
        row0 = blockIdx.y * N;
    }
    // Row of x for row `n` of the CTA.
    __device__ __forceinline__ uint32_t row_of(uint32_t n) const {
        return p.by_output ? min(p.gemm.step.output(row0 + n).row, p.rows_last) : row0 + n;
    }
    __device__ __forceinline__ void sync_team() const {
        if (warps == 1)
            __syncwarp();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
    }
};

// Dynamic shared memory.
template <uint32_t TYPE, uint32_t GROUPS>
struct Sm80Layout {
    const uint8_t* ring; // of the warp
    uint32_t ring_at;    // shared-memory address
    uint32_t stage_bytes;
    uint32_t x, group_bytes; // shared-memory address; of 8 rows
    float* sums;             // of the team

    __device__ __forceinline__ Sm80Layout(const Sm80Scheduler<GROUPS>& scheduler, uint8_t* shared) {
        constexpr uint32_t RECORD = Record<TYPE>::BYTES;
        const GemmSm80Params& p = scheduler.p;
        group_bytes = sm80_group_bytes(scheduler.segments);
        stage_bytes = 2 * p.stage_segments * RECORD;
        const uint32_t offset = threadIdx.x / WARP * p.depth * stage_bytes;
        const uint32_t rings =
            blockDim.x / WARP * sm80_ring_bytes(p.depth, p.stage_segments, RECORD);
        const uint32_t shared_at = shared_address(shared);
        ring = shared + offset, ring_at = shared_at + offset;
        x = shared_at + rings;
        sums = reinterpret_cast<float*>(shared + rings + GROUPS * group_bytes) +
               scheduler.team * (scheduler.warps * sm80_sums(GROUPS));
    }
};
