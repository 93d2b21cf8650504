// Main loop of gemm_sm80.cuh: a warp unpacks its weights to f16 in registers and multiplies them by
// all rows of x, which it reads from shared memory.
#pragma once

#include "gemm/dequantise.cuh"
#include "gemm/gemm_sm80_producer.cuh"

template <uint32_t TYPE, uint32_t GROUPS>
struct Sm80Mainloop {
    static constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const Sm80Scheduler<GROUPS>& scheduler;
    const Sm80Layout<TYPE, GROUPS>& layout;
    Sm80WeightPipeline<TYPE, GROUPS>& weights;
    uint32_t x; // shared-memory address: row lane % 8 of piece lane / 8

    // Computes the warp's run of a tile.
    __device__ __forceinline__ void multiply_run(float (&sum)[GROUPS][4]) {
        const uint32_t stage_segments = scheduler.p.stage_segments;
        for (uint32_t first = scheduler.run_begin; first < scheduler.run_end;
             first += stage_segments) {
            multiply_stage(sum, weights.await_next(), first,
                           min(first + stage_segments, scheduler.run_end));
            weights.release();
        }
    }
    // Writes the run's sums to shared memory. Sum c of a lane: row lane / 4 (+ 8 from the third on)
    // of the tile, column 2 * (lane % 4) (+ 1 if c is odd) of the group.
    __device__ __forceinline__ void store(float (&sum)[GROUPS][4]) const {
        const uint32_t lane = scheduler.lane;
        float* to = layout.sums + scheduler.warp * sm80_sums(GROUPS) + (lane % 4 * 2) * SUM_STRIDE +
                    lane / 4;
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++)
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                to[(group * 8 + c % 2) * SUM_STRIDE + c / 2 * 8] = sum[group][c];
                sum[group][c] = 0.0f;
            }
    }

  private:
    // Multiplies the segments `first` .. `end`, a stage.
    __device__ __forceinline__ void multiply_stage(float (&sum)[GROUPS][4], const uint8_t* stage,
                                                   uint32_t first, uint32_t end) const {
        for (uint32_t s = first; s < end; s++) {
            HalfTile<TYPE> w[2];
            w[0].load(stage + (s - first) * RECORD, scheduler.lane);
            w[1].load(stage + (scheduler.p.stage_segments + s - first) * RECORD, scheduler.lane);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t a[2][4];
                unpack(a, w, j);
                multiply_block(sum, a, s, j);
            }
        }
    }
    __device__ __forceinline__ void multiply_block(float (&sum)[GROUPS][4],
                                                   const uint32_t (&a)[2][4], uint32_t s,
                                                   uint32_t j) const {
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++) {
            uint32_t b[4];
            ldmatrix_x4(b, x + group * layout.group_bytes + (s * 4 + j) * 512);
            mma_m16n8k16(sum[group], a[0], b[0], b[1]);
            mma_m16n8k16(sum[group], a[1], b[2], b[3]);
        }
    }
};
