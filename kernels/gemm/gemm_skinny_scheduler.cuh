// Scheduler of gemm_skinny.cuh: tiles and rows of a CTA, splits and runs of a warp.
//
// A warp's weights arrive in stages, numbered through all waves: the tasks of a wave's pass, then
// the stages of a task. A task is one split of a tile; the splits whose x is in shared memory are
// ordered tile by tile, and teams take them round-robin. Some stages are empty.
#pragma once

#include "gemm/gemm_skinny_config.cuh"

// One pass of a wave: the splits whose x is in shared memory.
struct SkinnyPass {
    uint32_t base;                // first tile of the CTA's wave
    uint32_t first_split, splits; // splits of the pass
    uint32_t x_segment;           // first segment of x in shared memory
};

// Weights of a stage: segments of a tile; none if `count` is 0.
struct SkinnyStage {
    uint32_t tile, segment, count;
};

struct SkinnyScheduler {
    const GemmSkinnyParams& p;
    uint32_t lane, warp, threads;
    uint32_t wave_step, base0; // tiles: of all CTAs in a wave; the CTA's first
    uint32_t row0, rows;       // rows of x: the CTA's first; how many of its group exist
    uint32_t team, run;        // of the warp

    __device__ __forceinline__ SkinnyScheduler(const GemmSkinnyParams& p, CtaRange ctas) : p(p) {
        // Read once: special registers are slow.
        lane = threadIdx.x % WARP;
        asm volatile("mov.u32 %0, %0;" : "+r"(lane));
        warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
        threads = blockDim.x;
        wave_step = ctas.count * p.wave_tiles, base0 = ctas.index * p.wave_tiles;
        row0 = blockIdx.y * 8;
        rows = min(8, p.gemm.rows_max - row0);
        // A team has one or two warps.
        static_assert(RUNS_MAX == 2);
        team = warp >> (p.gemm.runs - 1), run = warp & (p.gemm.runs - 1);
    }
    // Row of x for row `n` of the group.
    __device__ __forceinline__ uint32_t row_of(uint32_t n) const {
        return p.by_output ? min(p.gemm.step.output(row0 + n).row, p.rows_last) : row0 + n;
    }
    __device__ __forceinline__ SkinnyPass pass(uint32_t base, uint32_t first_split) const {
        return {base, first_split, min(p.x_splits, p.gemm.splits - first_split),
                p.x_splits < p.gemm.splits ? first_split * p.gemm.split_segments : 0};
    }
    // Segments of the warp's run in a split.
    __device__ __forceinline__ uint32_t run_begin(uint32_t split) const {
        return split * p.gemm.split_segments + run * p.gemm.run_segments;
    }
    __device__ __forceinline__ uint32_t run_end(uint32_t split) const {
        return min(min(run_begin(split) + p.gemm.run_segments, (split + 1) * p.gemm.split_segments),
                   p.gemm.x.segments);
    }
    // The warp's first stage, which the host computes: the path to the first copy is short, because
    // nothing arrives before it.
    __device__ __forceinline__ SkinnyStage first_stage() const {
        const uint32_t stage = p.first_stage[warp], tile = base0 + (stage & 0xff);
        return {tile, stage >> 16, tile < p.gemm.tiles ? stage >> 8 & 0xff : 0};
    }
    // The warp's stage of a number.
    __device__ __forceinline__ SkinnyStage stage(uint32_t number) const {
        const uint32_t task = fast_divide(number, p.stages_reciprocal),
                       pass = fast_divide(task, p.tasks_reciprocal),
                       wave = fast_divide(pass, p.passes_reciprocal);
        const uint32_t first_split = (pass - wave * p.passes) * p.x_splits,
                       index = team + (task - pass * p.tasks) * p.teams;
        const uint32_t wave_tile = fast_divide(index, p.x_splits_reciprocal),
                       split = first_split + index - wave_tile * p.x_splits;
        const uint32_t tile = base0 + wave * wave_step + wave_tile,
                       begin = run_begin(split) + (number - task * p.stages) * p.stage_segments,
                       end = run_end(split);
        if (wave_tile >= p.wave_tiles || tile >= p.gemm.tiles || begin >= end)
            return {tile, begin, 0};
        return {tile, begin, min(p.stage_segments, end - begin)};
    }
};

// Dynamic shared memory: the warps' rings of weights; then, at the addresses given here, rows of x
// and sums (gemm_skinny_config.cuh).
struct SkinnyLayout {
    uint32_t x;          // shared-memory address
    uint32_t x_segments; // segments of x in shared memory at once
    uint32_t task_sums;  // floats: of a run
    uint32_t pass_sums;  // floats: of all runs of a pass
    float* sums;
    float2* totals; // sums over the splits of earlier passes

    __device__ __forceinline__ SkinnyLayout(const SkinnyScheduler& scheduler, uint8_t* shared,
                                            uint32_t rings_bytes) {
        const GemmSkinnyParams& p = scheduler.p;
        const uint32_t group_rows = p.gemm.x.group_rows;
        x = shared_address(shared) + rings_bytes;
        x_segments = min(p.gemm.x.segments, p.x_splits * p.gemm.split_segments);
        task_sums = group_rows * SUM_STRIDE;
        pass_sums = skinny_sums(p.wave_tiles, p.x_splits, p.gemm.runs, group_rows);
        sums =
            reinterpret_cast<float*>(shared + rings_bytes + skinny_x_bytes(x_segments, group_rows));
        totals = reinterpret_cast<float2*>(sums + 2 * pass_sums);
    }
    // Offset of the sums of a split's first run.
    __device__ __forceinline__ uint32_t sums_of(const GemmSkinnyParams& p, uint32_t wave_tile,
                                                uint32_t split) const {
        return (wave_tile * p.x_splits + split) * p.gemm.runs * task_sums;
    }
};
