// Main loop of gemm_skinny.cuh: a warp unpacks its weights to f16 in registers, AHEAD segments at a
// time, and multiplies them by the rows of x, which it reads from shared memory.
#pragma once

#include "gemm/dequantise.cuh"
#include "gemm/gemm_skinny_epilogue.cuh"
#include "gemm/gemm_skinny_producer.cuh"

template <uint32_t TYPE>
struct SkinnyMainloop {
    static constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const SkinnyScheduler& scheduler;
    const SkinnyLayout& layout;
    SkinnyWeightRing<TYPE>& weights;
    SkinnyEpilogue& epilogue;
    uint32_t x_lane;    // shared-memory address: row lane % 8 of piece lane / 8
    uint32_t sum_place; // of the lane's first sum in the sums of a split
    bool has_x = false;

    __device__ __forceinline__ SkinnyMainloop(const SkinnyScheduler& scheduler,
                                              const SkinnyLayout& layout,
                                              SkinnyWeightRing<TYPE>& weights,
                                              SkinnyEpilogue& epilogue)
        : scheduler(scheduler), layout(layout), weights(weights), epilogue(epilogue) {
        const uint32_t lane = scheduler.lane, group_rows = scheduler.p.gemm.x.group_rows;
        // Rows that do not exist repeat the last.
        x_lane = layout.x + (lane / 8 * group_rows + min(lane % 8, group_rows - 1)) * 16;
        sum_place = scheduler.run * layout.task_sums + lane % 4 * 2 * SUM_STRIDE + lane / 4;
    }

    // Waits for the preceding kernel, then copies x and starts the remaining copies of weights.
    __device__ __forceinline__ void await_x() {
        grid_dependency_wait();
        fetch_activations(scheduler, layout, 0);
        epilogue.load_inputs();
        weights.fetch(weights.early(), scheduler.p.depth);
        cp_async_wait_group<0>();
        // Warps reach this barrier from different call sites.
        asm volatile("barrier.sync 1, %0;" ::"r"(scheduler.threads) : "memory");
        has_x = true;
    }

    // Computes the warp's runs of all tasks of a pass.
    __device__ __forceinline__ void multiply_pass(const SkinnyPass& pass, float* sums) {
        const GemmSkinnyParams& p = scheduler.p;
        uint32_t wave_tile = 0, split = scheduler.team;
        for (uint32_t task = 0; task < p.tasks; task++, split += p.teams) {
#pragma unroll 1
            while (split >= p.x_splits)
                split -= p.x_splits, wave_tile++;
            const bool is_valid = wave_tile < p.wave_tiles &&
                                  pass.base + wave_tile < p.gemm.tiles && split < pass.splits;
            const uint32_t end = is_valid ? scheduler.run_end(pass.first_split + split) : 0;
            float sum[4] = {};
            uint32_t segment = scheduler.run_begin(pass.first_split + split);
            for (uint32_t i = 0; i < p.stages; i++, segment += p.stage_segments)
                multiply_stage(sum, pass, segment, min(segment + p.stage_segments, end));
            if (is_valid)
                store(sum, sums + layout.sums_of(p, wave_tile, split) + sum_place);
        }
    }

  private:
    using Unpacked = uint32_t[AHEAD][4][2][4];

    // Multiplies the segments `begin` .. `end`, a stage.
    __device__ __forceinline__ void multiply_stage(float (&sum)[4], const SkinnyPass& pass,
                                                   uint32_t begin, uint32_t end) {
        const uint8_t* records = weights.stage();
        weights.await_stage();
        // A warp whose first stage is empty unpacks the slot's undefined contents: loading x needs
        // all warps, and its code shall exist once.
        for (uint32_t s = begin; s < end || !has_x; s += AHEAD, records += AHEAD * RECORD) {
            Unpacked a;
            unpack_segments(a, records, s, end);
            if (__builtin_expect(!has_x, 0)) {
                await_x();
                if (s >= end)
                    break;
            }
            multiply_segments(sum, a, pass, s, end);
        }
        weights.release_stage();
    }
    __device__ __forceinline__ void unpack_segments(Unpacked& a, const uint8_t* records, uint32_t s,
                                                    uint32_t end) const {
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) {
            if (u > 0 && s + u >= end)
                continue;
            HalfTile<TYPE> w[2];
            w[0].load(records + u * RECORD, scheduler.lane);
            w[1].load(records + weights.half_bytes + u * RECORD, scheduler.lane);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                unpack(a[u][j], w, j);
        }
    }
    __device__ __forceinline__ void multiply_segments(float (&sum)[4], const Unpacked& a,
                                                      const SkinnyPass& pass, uint32_t s,
                                                      uint32_t end) const {
        const uint32_t group_rows = scheduler.p.gemm.x.group_rows;
        const uint32_t x = x_lane + (s - pass.x_segment) * group_rows * 256;
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) {
            if (u > 0 && s + u >= end)
                continue;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t b[4];
                ldmatrix_x4(b, x + (u * 4 + j) * group_rows * 64);
                mma_m16n8k16(sum, a[u][j][0], b[0], b[1]);
                mma_m16n8k16(sum, a[u][j][1], b[2], b[3]);
            }
        }
    }
    // Stores a lane's sums of a run. Sum c: row lane / 4 (+ 8 from the third on) of the tile,
    // column 2 * (lane % 4) (+ 1 if c is odd) of x's rows.
    __device__ __forceinline__ void store(const float (&sum)[4], float* to) const {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            if (scheduler.lane % 4 * 2 + c % 2 < scheduler.rows)
                to[c % 2 * SUM_STRIDE + c / 2 * 8] = sum[c];
    }
};
